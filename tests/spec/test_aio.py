"""The asyncio form: the same answers, without blocking the loop, and lookups that travel together."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import kolk
from kolk.client.aio import _in_thread, _Lookups
from kolk.errors import Closed, InvalidArgument, InvalidRows, TableNotFound, UnknownOrExpiredScan

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")], "id")


def rows(count):
    return [{"id": number, "v": str(number)} for number in range(count)]


def test_tables_are_made_listed_described_and_dropped(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("web.t", SCHEMA, buckets=2)
            assert (await db.table("web.t")).schema == table.schema == SCHEMA
            assert [each.name for each in await db.tables()] == ["web.t"]
            assert (await table.describe())["buckets"] == 2
            assert (await db.status())["tables"] == 1
            assert (await db.execute("SHOW TABLES")).to_pylist() == [{"table": "web.t"}]
            made = await db.execute("CREATE TABLE u (id INT, PRIMARY KEY (id))")
            assert made.name == "u"
            await db.drop_table("web.t")
            with pytest.raises(TableNotFound):
                await db.table("web.t")

    asyncio.run(main())


def test_rows_are_put_looked_up_scanned_and_deleted(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA, buckets=2)
            await asyncio.gather(*(table.put(rows(20)) for _ in range(5)))
            assert (await table.get([3, 99, 4])).to_pylist() == [{"id": 3, "v": "3"}, {"id": 4, "v": "4"}]
            await table.delete([3])
            async with table.scan(columns=["id"]) as scan:
                seen = [row["id"] async for batch in scan for row in batch.to_pylist()]
            assert sorted(seen) == [number for number in range(20) if number != 3]
            assert (await (await table.scan()).to_pandas()).shape == (19, 2)
            assert (await (await table.scan(where={"id": [1, 2, 99]})).to_arrow()).num_rows == 2
            assert (await (await table.scan()).to_polars()).shape == (19, 2)
            await table.truncate()
            assert (await (await table.scan()).to_arrow()).num_rows == 0

    asyncio.run(main())


def test_a_scan_shows_where_it_is_while_it_is_read(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA, buckets=2)
            await table.put(rows(50_000))
            async with table.scan() as scan:
                before = (scan.rows, scan.token)
                async for batch in scan:
                    assert scan.rows == batch.num_rows
                    break
                assert before == (0, "")
                assert scan.token
                assert scan.id
                assert scan.consistent
                assert 40_000 < scan.estimate < 60_000
                assert scan.schema == SCHEMA.arrow
                assert sum(scan.offsets.values()) == 50_000

    asyncio.run(main())


def test_a_shared_scan_is_read_by_several_tasks_from_its_start_or_a_token(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA, buckets=2)
            await table.put(rows(100))
            async with table.scan(shared=True) as scan:
                await table.delete([1, 2, 3])
                parts = await asyncio.gather(*(_ids(table.join_scan(scan.id, buckets=[name])) for name in "01"))
                assert sorted(parts[0] + parts[1]) == list(range(100))
                async with table.join_scan(scan.id) as joined:
                    first = [await anext(aiter(joined))]
                    rest = await _ids(table.join_scan(scan.id, token=joined.token))
                assert sorted([row["id"] for batch in first for row in batch.to_pylist()] + rest) == list(range(100))

    asyncio.run(main())


async def _ids(opening):
    async with opening as scan:
        return [number async for batch in scan for number in batch["id"].to_pylist()]


def test_progress_is_told_in_the_loop_and_may_be_awaited_there(opened):
    async def main():
        told = []

        async def on_progress(done, estimate):
            told.append((done, estimate, await table.get_one(id=1), asyncio.current_task()))

        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(40_000))
            whole = await (await table.scan(on_progress=on_progress)).to_arrow()
            scanned, told = told, []
            async with table.bootstrap(follow=False, on_progress=on_progress) as changes:
                assert sum([batch.num_rows async for batch in changes]) == 40_000
        for seen in (scanned, told):
            assert [done for done, *_ in seen] == sorted(done for done, *_ in seen)
            assert seen[-1][0] == whole.num_rows == 40_000
            assert {estimate for _, estimate, *_ in seen} <= set(range(39_000, 41_000))
            assert all(row == {"id": 1, "v": "1"} and task is not None for *_, row, task in seen)

    asyncio.run(main())


def test_open_scans_are_listed_and_whoever_reads_one_that_is_closed_is_told(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(3))
            async with table.scan(shared=True) as scan:
                (listed,) = await db.scans()
                assert (listed.id, listed.table, listed.is_shared, listed.views) == (scan.id, "t", True, 1)
                assert (await db.status())["scans"]["open"] == 1

                assert await db.close_scan(scan.id)

                with pytest.raises(UnknownOrExpiredScan) as told:
                    await scan.to_arrow()
                assert told.value.reason == "closed"
                assert not await db.close_scan(scan.id)
                assert await db.scans() == []

    asyncio.run(main())


def test_lookups_asked_for_together_travel_together_and_each_gets_its_own_row(opened, monkeypatch):
    calls = []

    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA, buckets=2)
            await table.put(rows(500))
            inner = table._inner
            monkeypatch.setattr(table._lookups, "_table", _Counting(inner, calls))
            found = await asyncio.gather(*(table.get_one(id=number % 600) for number in range(2_000)))
            assert found == [{"id": n % 600, "v": str(n % 600)} if n % 600 < 500 else None for n in range(2_000)]

    asyncio.run(main())
    assert len(calls) <= 10


class _Counting:
    """A real table that counts its lookups."""

    def __init__(self, table, calls):
        self._table, self._calls = table, calls

    def get(self, keys):
        self._calls.append(len(keys))
        return self._table.get(keys)

    def __getattr__(self, name):
        return getattr(self._table, name)


def test_a_wrong_key_fails_alone(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(3))
            found = await asyncio.gather(
                table.get_one(id=1), table.get_one(id="one"), table.get_one(id=2), return_exceptions=True
            )
            assert found[0] == {"id": 1, "v": "1"}
            assert isinstance(found[1], InvalidRows)
            assert found[2] == {"id": 2, "v": "2"}
            with pytest.raises(InvalidArgument, match="name the whole key"):
                await table.get_one(page=1)

    asyncio.run(main())


def test_everybody_who_looks_a_row_up_gets_one_of_their_own(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(3))

            first, second = await asyncio.gather(table.get_one(id=1), table.get_one(id=1))
            first["v"] = "changed"

            assert second == {"id": 1, "v": "1"}

    asyncio.run(main())


def test_a_key_without_a_hash_is_looked_up_as_alone_and_fails_nobody(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", kolk.Schema([kolk.Column("k", "bytes"), kolk.Column("v", "int")], "k"))
            await table.put([{"k": b"a", "v": 1}])
            row = {"k": b"a", "v": 1}

            assert await table.get_one(k=bytearray(b"a")) == row
            keys = (bytearray(b"a"), b"a", bytearray(b"b"), b"b")
            assert await asyncio.gather(*(table.get_one(k=key) for key in keys)) == [row, row, None, None]

    asyncio.run(main())


def test_a_follower_sees_a_change_and_ends_when_it_is_closed(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            log = await table.changelog(follow=True)
            batches = aiter(log)
            waiting = asyncio.ensure_future(anext(batches))
            await table.put(rows(1))
            assert (await waiting).column("id").to_pylist() == [0]
            assert log.offsets == {"0": 1}
            waiting = asyncio.ensure_future(anext(batches))
            await log.close()
            with pytest.raises(StopAsyncIteration):
                await waiting
            with pytest.raises(Closed):
                await anext(aiter(log))

    asyncio.run(main())


def test_a_bootstrap_is_the_table_and_then_its_changes_until_it_is_closed(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(3))
            copy = await table.bootstrap()
            batches = aiter(copy)
            first = await anext(batches)
            assert (first["_change_type"].to_pylist(), first["id"].to_pylist()) == (["+I"] * 3, [0, 1, 2])
            assert (copy.is_scanned, copy.offsets) == (False, {"0": 3})
            waiting = asyncio.ensure_future(anext(batches))
            await table.delete([1])
            change = await waiting
            assert (change["_change_type"].to_pylist(), change["id"].to_pylist()) == (["-D"], [1])
            assert (copy.is_scanned, copy.offsets) == (True, {"0": 4})
            waiting = asyncio.ensure_future(anext(batches))
            await copy.close()
            with pytest.raises(StopAsyncIteration):
                await waiting

    asyncio.run(main())


def test_a_bootstrap_of_a_follower_scans_once_and_goes_on(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(3))
            async with table.bootstrap(follow=False, follower="job") as copy:
                assert [batch.num_rows async for batch in copy] == [3]
            await table.put(rows(4))
            async with table.bootstrap(follow=False, follower="job", commit_interval=None) as copy:
                assert [batch["id"].to_pylist() async for batch in copy] == [[3]]
                await copy.commit()
            assert [follower.lag for follower in await db.followers()] == [0]

    asyncio.run(main())


def test_a_cancelled_lookup_leaves_the_others_alone(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(3))
            tasks = [asyncio.ensure_future(table.get_one(id=number)) for number in range(3)]
            await asyncio.sleep(0)
            tasks[1].cancel()
            assert await tasks[0] == {"id": 0, "v": "0"}
            assert await tasks[2] == {"id": 2, "v": "2"}

    asyncio.run(main())


async def fail_with_a_batch_in_hand(table):
    async with table.changelog(follower="job") as changes:
        async for _ in changes:
            raise ZeroDivisionError


def test_a_follower_goes_on_and_commits_what_its_block_has_handled(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(3))
            with pytest.raises(ZeroDivisionError):
                await fail_with_a_batch_in_hand(table)
            assert [follower.lag for follower in await db.followers()] == [3]
            async with table.changelog(follower="job") as changes:
                async for _ in changes:
                    break
            assert [follower.lag for follower in await db.followers()] == [0]
            await table.put(rows(4))
            changes = await table.changelog(follower="job", commit_interval=None)
            assert [batch.num_rows async for batch in changes] == [1]
            await changes.commit()
            await changes.close()
            assert [follower.lag for follower in await db.followers()] == [0]
            await db.drop_follower("t", "job")
            assert await db.followers() == []

    asyncio.run(main())


PARTED = kolk.Schema([kolk.Column("day", "int"), kolk.Column("id", "int")], primary_key=["day", "id"])


def test_partitions_are_made_listed_and_dropped(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", PARTED, partition_by=["day"])
            assert (await table.add_partition(day=1)).name == "day=1"
            await table.put([{"day": 2, "id": 1}])
            assert [each.name for each in await table.partitions()] == ["day=1", "day=2"]
            await table.drop_partition("day=1")
            await table.drop_partition(day=1, if_exists=True)
            assert [each.values for each in await table.partitions()] == [{"day": "2"}]

    asyncio.run(main())


def test_a_follower_is_told_of_partitions_in_its_own_loop_and_may_await_there(opened):
    async def main():
        told = []

        async def on_partition(event):
            rows_left = await (await table.scan()).to_arrow()
            told.append((event.kind.value, event.partition, event.unread, rows_left.num_rows, asyncio.current_task()))

        async with opened() as db:
            table = await db.create_table("t", PARTED, partition_by=["day"])
            async with table.changelog(follow=True, on_partition=on_partition) as changes:
                await table.put([{"day": 1, "id": 1}])
                async for batch in changes:
                    if batch["day"].to_pylist() == [2]:
                        break
                    await table.drop_partition(day=1)
                    await table.put([{"day": 2, "id": 1}])
        assert [each[:3] for each in told] == [
            ("created", "day=1", 0),
            ("dropped", "day=1", 0),
            ("created", "day=2", 0),
        ]
        assert all(task is not None for *_, task in told)

    asyncio.run(main())


def test_what_a_callback_raises_comes_out_of_the_iteration(opened):
    async def main():
        def on_partition(event):
            raise RuntimeError(event.partition)

        async with opened() as db:
            table = await db.create_table("t", PARTED, partition_by=["day"])
            scan = await table.scan()
            await table.add_partition(day=7)
            with pytest.raises(RuntimeError, match="day=7"):
                async for _ in await table.changelog(start=scan.offsets, on_partition=on_partition):
                    pass

    asyncio.run(main())


def test_a_table_is_altered_and_refreshed(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            old = await db.table("t")
            await table.put([{"id": 1, "v": "a"}])
            await table.add_column("n", "int", default=5)
            await table.rename_column("v", "text")
            await table.widen_column("n", "bigint")
            await table.move_column("n", first=True)
            await table.add_column(kolk.Column("m", "int", nullable=False, default=1))
            await table.drop_not_null("m")
            await table.alter([kolk.DropColumn("m")])
            assert await table.get_one(id=1) == {"n": 5, "id": 1, "text": "a"}
            assert await old.get_one(id=1) == {"id": 1, "v": "a"}
            assert (await old.refresh()).names == ("n", "id", "text")
            await old.drop_column("n")
            async with old.changelog() as changes:
                assert [batch.num_rows async for batch in changes] == [1]
                assert (await changes.schema()).id == 1
            log = await db.create_table("log", kolk.Schema([kolk.Column("a", "int")]))
            assert await log.set_options({"table.log.ttl": "7d"}) == {"table.log.ttl": "7d"}

    asyncio.run(main())


def test_a_stream_that_is_forgotten_takes_its_thread_along(opened):
    """Read to its end, in the middle, or not at all: nothing of it is left, and others may scan."""

    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(50_000))
            for _ in range(10):
                assert (await (await table.scan()).to_arrow()).num_rows == 50_000
                await anext(aiter(await table.scan()))
                await table.changelog()
                gc.collect()

            for _ in range(1_000):
                if not (left := [each.name for each in threading.enumerate() if each.name == "kolk-aio-stream"]):
                    break
                await asyncio.sleep(0.01)
            assert not left

    asyncio.run(main())


def test_whoever_was_looked_up_last_can_look_up_again_at_once(pages):
    """As many lookups as may be under way end in one turn of the loop, and one of those who waited asks again."""
    pages.put([{"page": page, "pv": 1, "title": None} for page in "abcde"])

    async def main():
        gates = []

        async def run(call, *args):
            if len(gates) < 4:
                gates.append(asyncio.get_running_loop().create_future())
                await gates[-1]
            return call(*args)

        lookups = _Lookups(pages, run)

        async def twice():
            return [await lookups.get({"page": "a"}), await lookups.get({"page": "e"})]

        tasks = [asyncio.create_task(twice())]
        for page in "bcd":
            await _settled()
            tasks.append(asyncio.create_task(lookups.get({"page": page})))
        await _settled()
        assert len(gates) == 4
        for gate in gates:
            gate.set_result(None)
        async with asyncio.timeout(20):
            found = await asyncio.gather(*tasks)
        assert [row["page"] for row in found[0]] == ["a", "e"]

    asyncio.run(main())


async def _settled():
    """Give everybody their turn who can go on now."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_call_that_waits_when_the_database_is_closed_is_told_so():
    """Not that it was cancelled, which nobody did: a group of tasks would pass over that."""

    async def main():
        pool, gate = ThreadPoolExecutor(1), threading.Event()
        first, second = (asyncio.create_task(_in_thread(pool, gate.wait)) for _ in range(2))
        await _settled()
        pool.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(Closed):
            await second
        gate.set()
        assert await first

    asyncio.run(main())


def test_a_call_whose_task_is_cancelled_is_cancelled():
    async def main():
        pool, gate = ThreadPoolExecutor(1), threading.Event()
        tasks = [asyncio.create_task(_in_thread(pool, gate.wait)) for _ in range(2)]
        await _settled()
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        gate.set()
        assert await tasks[0]
        pool.shutdown()

    asyncio.run(main())


def test_a_log_table_is_not_looked_up_and_says_why(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("log", kolk.Schema([kolk.Column("v", "string")]))
            with pytest.raises(InvalidArgument, match="log table"):
                await table.get_one(v="1")

    asyncio.run(main())
