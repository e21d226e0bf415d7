"""Transactions in the asyncio form: the same answers, whatever is awaited together."""

import asyncio

import pytest

import kolk
from kolk.errors import DifferentRows, OldVersion

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string")], "id")


def test_a_transaction_is_committed_once_when_its_block_ends(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA, buckets=2)
            for verdict in ("committed", "duplicate"):
                async with table.transaction("app", 1) as tx:
                    await tx.put([{"id": 1, "v": "a"}, {"id": 2, "v": "b"}])
                    await tx.delete([2])
                assert (tx.verdict, tx.is_new) == (verdict, verdict == "committed")
            assert await table.get_one(id=1) == {"id": 1, "v": "a"}
            assert await table.get_one(id=2) is None
            assert sum(tx.offsets["t"].values()) == 3

    asyncio.run(main())


def test_a_job_may_choose_that_other_rows_or_an_old_version_stop_it(opened):
    """H8, H9: the same choices."""

    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)

            async def commit(v, tx):
                async with tx:
                    await tx.put({"id": 1, "v": v}, table=table)

            await commit("a", table.transaction("app", 2, on_different="fail", on_old="fail"))
            with pytest.raises(DifferentRows):
                await commit("b", table.transaction("app", 2, on_different="fail"))
            with pytest.raises(OldVersion):
                await commit("a", db.transaction("app", 1, on_old="fail"))
            assert await table.get_one(id=1) == {"id": 1, "v": "a"}

    asyncio.run(main())


def test_puts_that_are_awaited_together_are_all_there(opened):
    async def main():
        async with opened() as db:
            table, other = await db.create_table("t", SCHEMA), await db.create_table("other", SCHEMA)
            async with db.transaction("app", 1) as tx:
                await tx.truncate(table=table)
                await asyncio.gather(
                    *(tx.put({"id": id, "v": "x"}, table=table if id % 2 else "other") for id in range(40))
                )
            counts = []
            for each in (table, other):
                async with each.scan() as scan:
                    counts.append((await scan.to_arrow()).num_rows)
            assert counts == [20, 20]
            assert (tx.app_id, tx.version) == ("app", 1)

    asyncio.run(main())


def test_a_block_that_fails_leaves_nothing_and_what_is_staged_can_be_discarded(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)

            async def fail():
                async with table.transaction("app", 1) as tx:
                    await tx.put({"id": 1, "v": "x"})
                    raise RuntimeError

            with pytest.raises(RuntimeError):
                await fail()
            assert await db.transactions() == []

            tx = table.transaction("app", 1)
            await tx.put({"id": 1, "v": "x"})
            (staged,) = await db.transactions()
            assert await db.discard(staged.handles) == 1
            await tx.rollback()
            assert await table.get_one(id=1) is None

    asyncio.run(main())


def test_a_task_that_is_cancelled_in_a_put_ends_its_transaction_and_nothing_is_applied(opened):
    async def main():
        async with opened() as db:
            table = await db.create_table("t", SCHEMA)

            async def load():
                async with table.transaction("app", 1) as tx:
                    for id in range(10_000):
                        await tx.put({"id": id, "v": "x"})

            task = asyncio.create_task(load())
            while not await db.transactions():
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            assert await db.transactions() == []
            async with table.scan() as scan:
                assert (await scan.to_arrow()).num_rows == 0

    asyncio.run(main())
