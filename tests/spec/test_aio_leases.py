"""Snapshots and leases in the asyncio form: the same answers, and the loop is told when a lease is lost."""

import asyncio
import threading

import pytest

import kolk
from kolk.client.aio_lease import LeaseOpening
from kolk.client.lease import Lease
from kolk.errors import Closed, LeaseLost, SnapshotNotFound

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")], "id")


def rows(count):
    return [{"id": number, "v": str(number)} for number in range(count)]


async def ids(opening):
    async with opening as scan:
        return sorted([number async for batch in scan for number in batch["id"].to_pylist()])


def test_snapshots_are_taken_listed_and_scanned(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA, buckets=2)
            await table.put(rows(20))

            taken = await table.take_snapshot()
            await table.delete([0])

            assert [each.bucket for each in taken] == ["0", "1"]
            assert await table.snapshots() == taken
            assert await ids(table.scan(source="snapshot")) == list(range(20))
            assert await ids(table.scan()) == list(range(1, 20))

    asyncio.run(main())


def test_what_a_lease_keeps_is_scanned_for_as_long_as_it_is_held(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA, buckets=2)
            await table.put(rows(20))
            async with table.lease(ttl="1m") as lease:
                for number in range(3):
                    await table.delete([number])
                    await table.take_snapshot()
                assert await ids(table.scan(source=lease)) == list(range(20))
                assert await ids(table.scan(None, None, None, lease)) == list(range(20))
                assert sum(lease.offsets["t"].values()) == 20
                assert (lease.consistent, lease.is_lost, lease.unavailable) == (True, False, {})
                assert lease.snapshots == {"t": {"0": 1, "1": 1}} == {"t": dict(lease.table("t").snapshots)}
                await lease.renew("2m")
                assert lease.state.ttl_seconds == 120
            with pytest.raises(Closed):
                lease.check()
            assert await db.leases() == []

    asyncio.run(main())


def test_a_lease_of_several_tables_is_joined_described_lessened_and_dropped(opened):
    async def main():
        async with opened() as db:
            for name in "ab":
                await (await db.create_table(name, SCHEMA)).put(rows(3))
            first = await db.lease(["a"], lease_id="job")
            await first.add(["b"])
            assert (await db.describe_lease("job")).tables.keys() == {"a", "b"}
            await first.detach()

            second = await db.join_lease("job")
            await second.release("a")

            assert [each.tables for each in await db.leases()] == [("b",)]
            assert await db.drop_lease("job")
            assert not await db.drop_lease("job")
            with pytest.raises(LeaseLost):
                await db.describe_lease("job")
            with pytest.raises(LeaseLost):
                await db.join_lease("job")
            await second.close()

    asyncio.run(main())


def test_the_loop_is_told_that_a_lease_is_lost(opened):
    async def main():
        told = []

        async def on_lost(error):
            told.append((error.reason, asyncio.current_task()))

        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(3))
            async with table.lease(on_lost=on_lost) as lease:
                await db.drop_lease(lease.id)
                with pytest.raises(LeaseLost):
                    await lease.renew()
                assert lease.is_lost
                with pytest.raises(LeaseLost):
                    await table.scan(source=lease)
        ((reason, task),) = told
        assert reason == "dropped"
        assert task is not None

    asyncio.run(main())


def test_a_lease_that_is_lost_may_be_closed_by_whoever_is_told(opened):
    async def main():
        closed = asyncio.Event()

        async def on_lost(error):
            await lease.close()
            closed.set()

        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(3))
            lease = await table.lease(ttl="1s", on_lost=on_lost)
            await db.drop_lease(lease.id)
            async with asyncio.timeout(20):
                await closed.wait()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["new", "joined"])
def test_a_lease_whose_opening_was_cancelled_is_closed_or_left_to_others_when_it_arrives(opened, kind):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(3))
            await (await table.lease(lease_id="old")).detach()
            opening = table.lease(lease_id="new") if kind == "new" else db.join_lease("old")
            begun, gate, closed = threading.Event(), threading.Event(), threading.Event()

            def held_up(**options):
                lease = opening._opening(**options)
                begun.set()
                gate.wait()
                return lease

            def give_up(lease):
                opening._give_up(lease)
                closed.set()

            task = asyncio.ensure_future(LeaseOpening(opening._run, held_up, None, give_up)._opened())
            await asyncio.to_thread(begun.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            gate.set()
            await asyncio.to_thread(closed.wait)

            assert [lease.id for lease in await db.leases()] == ["old"]
            await (await db.join_lease("old")).close()

    asyncio.run(main())


def test_a_snapshot_that_does_not_exist_is_not_leased(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            await table.put(rows(3))
            with pytest.raises(SnapshotNotFound):
                await table.lease(snapshots={"0": 7})
            assert await db.leases() == []

    asyncio.run(main())


def test_a_backup_is_made_and_its_progress_told_in_the_loop(folder, config, tmp_path):
    async def main():
        told = []

        async def on_progress(done, total):
            told.append((done, total, asyncio.current_task()))

        async with await kolk.aio.connect(folder, config=config) as db:
            await (await db.create_table("t", SCHEMA)).put(rows(3))
            info = await db.backup(tmp_path / "b", on_progress=on_progress)
        assert info.tables == 1
        assert told[-1][0] == told[-1][1] > 0
        assert told[-1][2] is not None

    asyncio.run(main())


def test_every_call_of_a_lease_has_its_asyncio_form():
    def calls(kind):
        return {name for name in vars(kind) if not name.startswith("_")}

    assert calls(Lease) - {"turn", "lose"} == calls(kolk.aio.AsyncLease)
