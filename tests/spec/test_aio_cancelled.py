"""Tasks that are cancelled while they wait, in the asyncio form: what they waited for is lost to nobody."""

import asyncio

import pytest

import kolk
from kolk.errors import Closed, InvalidArgument, PartitionDropped

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")], "id")
PARTED = kolk.Schema([kolk.Column("day", "int"), kolk.Column("id", "int")], primary_key=["day", "id"])
COUNT = 40_000  # several batches


def rows(*ids):
    return [{"id": number, "v": str(number)} for number in ids]


async def give_up(coroutine):
    """Ask for something, and do not wait for it."""
    task = asyncio.ensure_future(coroutine)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def taken(stream):
    """Wait until the stream's thread has done what it was asked for."""
    await stream._thread.run(lambda: None)


async def ids_of(batches):
    return [number async for batch in batches for number in batch["id"].to_pylist()]


@pytest.mark.parametrize("kind", ["scan", "bootstrap", "changelog"])
@pytest.mark.parametrize("is_same", [True, False], ids=["the same iterator", "another iterator"])
def test_a_batch_that_nobody_waited_for_is_the_first_of_those_that_come_next(opened, kind, is_same):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(*range(COUNT)))
            opening = table.bootstrap(follow=False) if kind == "bootstrap" else getattr(table, kind)()
            async with opening as stream:
                batches = aiter(stream)
                for _ in range(3):
                    await give_up(anext(batches))
                seen = (await anext(batches))["id"].to_pylist()
                await give_up(anext(batches))
                await taken(stream)

                seen += await ids_of(batches if is_same else stream)

                assert sorted(seen) == list(range(COUNT))

    asyncio.run(main())


def test_a_batch_that_nobody_got_does_not_count(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(*range(COUNT)))
            async with table.scan() as scan, table.changelog() as changes:
                first = await anext(aiter(scan))
                for stream in (scan, changes):
                    await give_up(anext(aiter(stream)))
                    await taken(stream)
                assert (scan.rows, bool(scan.token), changes.offsets) == (first.num_rows, True, {"0": 0})

                second = await anext(aiter(scan))
                await anext(aiter(changes))

                assert scan.rows == first.num_rows + second.num_rows
                assert changes.offsets["0"] > 0

    asyncio.run(main())


@pytest.mark.parametrize("how", ["to_arrow", "to_pandas", "to_polars", "async for"])
@pytest.mark.parametrize("given_up", ["a batch", "to_arrow", "to_pandas"])
def test_a_scan_is_whole_however_it_was_read_by_a_task_that_gave_up(opened, given_up, how):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(*range(COUNT)))
            async with table.scan() as scan:
                await give_up(anext(aiter(scan)) if given_up == "a batch" else getattr(scan, given_up)())
                await taken(scan)

                found = await ids_of(scan) if how == "async for" else list((await getattr(scan, how)())["id"])

                assert sorted(map(int, map(str, found))) == list(range(COUNT))
                assert scan.rows == COUNT
                assert (await scan.to_arrow()).num_rows == 0

    asyncio.run(main())


def test_a_scan_that_mends_itself_is_whole_although_it_was_read_in_a_way_that_it_has_not(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(*range(COUNT)))
            async with table.scan(["v"], resume="log") as scan:
                await give_up(scan.to_arrow())
                await taken(scan)
                with pytest.raises(InvalidArgument, match="needs the whole result"):
                    await anext(aiter(scan))

                found = await scan.to_arrow()

                assert found.schema == scan.schema
                assert sorted(map(int, found["v"].to_pylist())) == list(range(COUNT))
                assert (await scan.to_arrow()).num_rows == 0

    asyncio.run(main())


def test_rows_that_could_not_be_made_a_frame_are_still_there(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(1, 2))
            async with table.scan() as scan:
                with pytest.raises(TypeError):
                    await scan.to_pandas(nonsense=True)

                assert len(await scan.to_pandas()) == 2

    asyncio.run(main())


async def _until_handled(db):
    while [follower.lag for follower in await db.followers()] != [0]:
        await asyncio.sleep(0)


@pytest.mark.parametrize("end", ["goes on", "ends its block", "closes", "commits", "fails"])
def test_a_follower_does_not_miss_what_comes_after_it_waited_in_vain(opened, end):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(1))
            try:
                async with table.changelog(follower="job", follow=True, stop={"0": 2}, commit_interval=0) as changes:
                    await anext(aiter(changes))
                    waiting = asyncio.ensure_future(anext(aiter(changes)))
                    await _until_handled(db)
                    waiting.cancel()
                    await table.put(rows(2))
                    await taken(changes)
                    if end == "goes on":
                        assert (await anext(aiter(changes)))["id"].to_pylist() == [2]
                        with pytest.raises(StopAsyncIteration):
                            await anext(aiter(changes))
                    if end == "closes":
                        await changes.close()
                    if end == "commits":
                        await changes.commit()
                    if end == "fails":
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass

            async with table.changelog(follower="job") as changes:
                assert await ids_of(changes) == ([] if end == "goes on" else [2])

    asyncio.run(main())


def test_a_stream_that_is_closed_gives_nothing_any_more_whatever_it_had(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(1))
            changes = await table.changelog()
            await give_up(anext(aiter(changes)))
            await taken(changes)

            await changes.close()

            with pytest.raises(Closed):
                await anext(aiter(changes))
            assert changes.offsets == {"0": 0}

    asyncio.run(main())


def test_a_partition_that_went_is_told_to_whoever_asks_next(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", PARTED, partition_by=["day"])
            await table.put([{"day": 1, "id": 1}, {"day": 2, "id": 2}])
            async with table.changelog() as changes:
                await table.drop_partition(day=1)
                before = {**changes.offsets}
                await give_up(anext(aiter(changes)))
                await taken(changes)
                assert changes.offsets == before

                with pytest.raises(PartitionDropped):
                    await anext(aiter(changes))

                assert "day=1/0" not in changes.offsets
                assert await ids_of(changes) == [2]

    asyncio.run(main())


def test_one_task_reads_a_stream_at_a_time(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            async with table.changelog(follow=True) as changes:
                waiting = asyncio.ensure_future(anext(aiter(changes)))
                await asyncio.sleep(0)

                with pytest.raises(InvalidArgument, match="another task"):
                    await anext(aiter(changes))

                await table.put(rows(1))
                assert (await waiting)["id"].to_pylist() == [1]

    asyncio.run(main())


def test_a_stream_may_be_closed_after_the_loop_in_which_somebody_waited(folder, config):
    async def wait_in_vain():
        db = await kolk.aio.connect(folder, config=config)
        table = await db.create_table("t", SCHEMA)
        changes = await table.changelog(follow=True)
        await give_up(anext(aiter(changes)))
        return db, table, changes

    async def go_on(db, table, changes):
        await table.put(rows(1))
        assert (await anext(aiter(changes)))["id"].to_pylist() == [1]
        await changes.close()
        await db.close()

    asyncio.run(go_on(*asyncio.run(wait_in_vain())))
