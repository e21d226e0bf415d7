"""Writers that own columns in the asyncio form: the same answers, whatever is awaited together."""

import asyncio
import threading

import pytest

import kolk
from kolk.client.aio_writer import WriterOpening
from kolk.errors import Closed, ColumnLockConflict, Fenced, InvalidArgument

SCHEMA = kolk.Schema([kolk.Column("k", "int"), kolk.Column("pv", "bigint", agg="sum")], "k")


async def summed(table):
    async with table.scan() as scan:
        return {row["k"]: row["pv"] for row in (await scan.to_arrow()).to_pylist()}


def test_what_is_committed_stands_and_the_rest_is_taken_back_when_the_block_ends(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA, buckets=2)
            async with table.writer("job", ["pv"]) as w:
                assert (w.owner, w.committed, w.epoch, w.user_state) == ("job", None, 0, b"")
                await w.put([{"k": 1, "pv": 1}, {"k": 2, "pv": 2}])
                await w.commit(user_state=b"here")
                state = w.state()
                await w.put({"k": 1, "pv": 10})
                await w.delete([2])
                assert await summed(table) == {1: 11}
            assert await summed(table) == {1: 1, 2: 2}
            with pytest.raises(Closed):
                await w.put({"k": 1, "pv": 10})

            again = await table.writer(state=state)
            assert (again.committed, again.epoch, again.user_state) == (0, 1, b"here")
            await again.release()
            async with table.writer("job", ["pv"]) as w:
                assert w.committed is None

    asyncio.run(main())


def test_puts_that_are_awaited_together_are_all_committed(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA, buckets=2)
            async with table.writer("job", ["pv"]) as w:
                await asyncio.gather(*(w.put({"k": n % 4, "pv": 1}) for n in range(40)))
                await w.commit()
            assert await summed(table) == dict.fromkeys(range(4), 10)

    asyncio.run(main())


def test_locks_are_listed_obeyed_and_released(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            w = await table.writer("job", ["pv"])
            await w.put({"k": 1, "pv": 1})
            with pytest.raises(ColumnLockConflict, match="job"):
                await table.put({"k": 1, "pv": 1}, columns=["pv"])
            assert [(lock.table, lock.owner, lock.columns) for lock in await db.locks()] == [("t", "job", ("pv",))]

            assert await db.release_lock("t", "job")

            with pytest.raises(Fenced):
                await w.put({"k": 1, "pv": 1})
            await w.close()
            assert (await db.locks(), await summed(table)) == ([], {})
            with pytest.raises(InvalidArgument):
                await table.writer("job", ["no"])

    asyncio.run(main())


def test_a_task_that_is_cancelled_in_a_put_leaves_nothing_and_no_lock(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)

            async def load():
                async with table.writer("job", ["pv"]) as w:
                    for id in range(10_000):
                        await w.put({"k": id, "pv": 1})

            task = asyncio.create_task(load())
            while not await summed(table):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            assert (await db.locks(), await summed(table)) == ([], {})

    asyncio.run(main())


def test_a_writer_that_is_detached_takes_nothing_back(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            async with table.writer("job", ["pv"]) as w:
                await w.put({"k": 1, "pv": 1})
                state = w.state(0)
                await w.detach()
            assert await summed(table) == {1: 1}
            async with table.writer(state=state) as w:
                assert w.committed == 0
            assert await summed(table) == {1: 1}

    asyncio.run(main())


def test_a_writer_whose_opening_was_cancelled_lets_its_columns_go_when_it_arrives(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)
            begun, gate = threading.Event(), threading.Event()

            def begin():
                writer = table.inner.writer("job", ["pv"])
                begun.set()
                gate.wait()
                return writer

            task = asyncio.ensure_future(WriterOpening(table._run, begin)._begun())
            await asyncio.to_thread(begun.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [lock.owner for lock in await db.locks()] == ["job"]

            gate.set()

            async with asyncio.timeout(30):
                while await db.locks():
                    await asyncio.sleep(0)

    asyncio.run(main())
