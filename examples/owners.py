"""Three jobs fill one wide table, each its own columns; they die in the middle, come back, and every row is right.

Each job owns some columns of a table of customers and adds to them in epochs of a few puts. It commits each epoch, and
with it its place in its source. The jobs run in a process of their own, which is killed with -9 while one of them has
half an epoch in the table and nobody knows where the others are. Then they are run again. Each begins: what it had not
committed is taken back, and it goes on at the place of its last commit. While they run, one of them hangs; another one
takes its place, and when the first wakes up it may write no more. Ends with 1 if a single row differs from what plain
Python makes of the same orders, clicks and calls, or if the changelog makes other rows than the table has.
"""

import random
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kolk

EPOCHS, PUTS, ROWS, CUSTOMERS = 12, 3, 60, 50
HALF = "clicks", 5
"""The job that is killed in the middle of an epoch, and the epoch."""
DDL = """
    CREATE TABLE crm.customers (
        id BIGINT PRIMARY KEY,
        orders BIGINT COUNT_ROWS, cents BIGINT SUM,
        clicks BIGINT SUM, pages STRING LISTAGG,
        longest BIGINT MAX, seconds BIGINT SUM
    ) DISTRIBUTED INTO 4 BUCKETS
"""
JOBS = {"orders": ("orders", "cents"), "clicks": ("clicks", "pages"), "calls": ("longest", "seconds")}
Row = dict[str, Any]


def source(job: str, epoch: int) -> Iterator[list[Row]]:
    """What a job finds in its source for an epoch, put by put; the same whenever it looks."""
    rng = random.Random(f"{job} {epoch}")
    for _ in range(PUTS):
        customers = [rng.randrange(CUSTOMERS) for _ in range(ROWS)]
        if job == "orders":
            yield [{"id": id, "orders": 1, "cents": rng.randrange(10_000)} for id in customers]
        elif job == "clicks":
            yield [{"id": id, "clicks": 1, "pages": f"/{rng.randrange(9)}"} for id in customers]
        else:
            lengths = [rng.randrange(600) for _ in customers]
            yield [{"id": id, "longest": n, "seconds": n} for id, n in zip(customers, lengths, strict=True)]


def work(table: kolk.Table, job: str, *, dies: bool = False) -> None:
    """Do what is left of a job, from the place on that it has committed."""
    with table.writer(owner=job, columns=JOBS[job]) as writer:
        for epoch in range(int(writer.user_state or 0), EPOCHS):
            for number, rows in enumerate(source(job, epoch)):
                writer.put(rows)
                if dies and (job, epoch, number) == (*HALF, 1):
                    print("half an epoch is there", flush=True)
                    threading.Event().wait()  # for the kill
            writer.commit(user_state=str(epoch + 1).encode())


def hang_and_wake(table: kolk.Table, job: str) -> bool:
    """A writer that hangs in the middle of an epoch, and one of the same name that takes its place; whether the first,
    awake again, is kept out."""
    hanging = table.writer(owner=job, columns=JOBS[job])
    hanging.put(next(source(job, int(hanging.user_state))))
    work(table, job)
    try:
        hanging.put(next(source(job, 0)))
    except kolk.errors.Fenced:
        return True
    return False


def die(folder: Path) -> None:
    """Run the jobs in a process, and kill it while one of them is in the middle of an epoch."""
    child = subprocess.Popen([sys.executable, __file__, str(folder)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child, child.stdout:
        child.stdout.readline()
        print("  kill -9 the process of all jobs")
        child.kill()


def run_until_killed(folder: Path) -> None:
    """The process that is killed."""
    with kolk.connect(folder) as db, ThreadPoolExecutor() as pool:
        table = db.execute(DDL)
        assert isinstance(table, kolk.Table)
        for running in [pool.submit(work, table, job, dies=True) for job in JOBS]:
            running.result()


def come_back(table: kolk.Table) -> bool:
    """Run the jobs again, one of which hangs on the way; whether that one was kept out."""
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(work, table, job) for job in JOBS if job != HALF[0]]
        is_fenced = hang_and_wake(table, HALF[0])
        for running in others:
            running.result()
    return is_fenced


def expected() -> dict[int, Row]:
    """What one run without any accident would have made, in plain Python."""
    rows: dict[int, Row] = defaultdict(dict)
    for job, columns in JOBS.items():
        for epoch in range(EPOCHS):
            for row in (row for put in source(job, epoch) for row in put):
                known = rows[row["id"]]
                for column in columns:
                    value, before = row[column], known.get(column)
                    known[column] = value if before is None else merged(column, before, value)
    return {id: {"id": id, **row} for id, row in rows.items()}


def merged(column: str, before: Any, value: Any) -> Any:
    if column == "longest":
        return max(before, value)
    return f"{before},{value}" if column == "pages" else before + value


def found(table: kolk.Table) -> dict[int, Row]:
    with table.scan() as scan:
        return {row["id"]: row for row in scan.to_arrow().to_pylist()}


def replayed(table: kolk.Table) -> dict[int, Row]:
    """The rows that a follower has, who has seen everything, also what was taken back."""
    rows: dict[int, Row] = {}
    for batch in table.changelog():
        for change in batch.to_pylist():
            if change["_change_type"] == "-D":
                del rows[change["id"]]
            elif change["_change_type"] != "-U":
                rows[change["id"]] = {name: change[name] for name in table.schema.names}
    return rows


def run(folder: Path) -> bool:
    """Let the jobs die and come back; whether everything is as if they had not."""
    die(folder)
    with kolk.connect(folder) as db:
        table = db.table("crm.customers")
        for lock in db.locks():
            print(f"  {lock.owner} has committed up to epoch {lock.epoch}")
        print(f"  clicks that readers see: {sum(row['clicks'] or 0 for row in found(table).values()):,}")
        is_fenced = come_back(table)
        print(f"  the writer that hung and woke up was {'kept out' if is_fenced else 'NOT kept out'}")
        rows = found(table)
        print(f"  clicks in the end: {sum(row['clicks'] for row in rows.values()):,}")
        print(f"  rows taken back on the way: {db.status()['owners']['undone_rows']}; locks left: {len(db.locks())}")
        return is_fenced and rows == expected() and rows == replayed(table)


def main() -> int:
    """Run it; 0 if every row is right."""
    if len(sys.argv) > 1:
        run_until_killed(Path(sys.argv[1]))
        return 0
    with tempfile.TemporaryDirectory() as name:
        print(f"{len(JOBS)} jobs fill the columns of {CUSTOMERS} customers")
        is_right = run(Path(name) / "data")
    print("Every row is right." if is_right else "Some rows are NOT right.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
