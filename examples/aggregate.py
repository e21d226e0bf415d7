"""Several jobs add to one table of counters, in their own ways, and it is what one job would have made of all rows.

Four threads put page views into a table on a server: one in small batches as they come, one in large ones, one
pre-aggregated, so that a state for each page travels instead of every view, and one as a changelog that takes back what
it got wrong. One of the columns is aggregated by a function of ours, which the server loads from a module. Meanwhile
the server is killed with -9 and started again; every put is made once. Ends with 1 if a single row differs from what
plain Python makes of the same views.
"""

import os
import random
import signal
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import kolk
from kolk.functions import finished

JOBS, PUTS, ROWS, PAGES = 4, 20, 250, 40
MODULE = '''
"""The functions of this example, as a server loads them."""
import kolk


class Mean:
    """The mean of whole numbers: exact, whatever the order."""

    types = "row<total bigint, n bigint>"
    input = "bigint"
    output = "double"
    commutative = True

    def init(self):
        return {"total": 0, "n": 0}

    def accumulate(self, state, value):
        return {"total": state["total"] + value, "n": state["n"] + 1}

    def merge(self, state, other):
        return {"total": state["total"] + other["total"], "n": state["n"] + other["n"]}

    def retract(self, state, value):
        return {"total": state["total"] - value, "n": state["n"] - 1}

    def finish(self, state):
        return state["total"] / state["n"]


kolk.register_aggregate("mean", Mean)
'''
DDL = """
    CREATE TABLE web.pages (
        page STRING PRIMARY KEY,
        views BIGINT COUNT_ROWS,
        bytes BIGINT SUM,
        named BIGINT COUNT(input = 'string'),
        millis ROW<total BIGINT, n BIGINT> MEAN
    ) DISTRIBUTED INTO 2 BUCKETS
"""
Row = dict[str, Any]


def views(job: int) -> Iterator[list[Row]]:
    """The views that a job sees, put by put."""
    rng = random.Random(job)
    for _ in range(PUTS):
        yield [
            {
                "page": f"/{rng.randrange(PAGES)}",
                "bytes": rng.randrange(10_000),
                "named": rng.choice(["ada", "bob", None]),
                "millis": rng.randrange(1_000),
            }
            for _ in range(ROWS)
        ]


def work(table: kolk.Table, job: int) -> None:
    for rows in views(job):
        if job == 0:
            for start in range(0, ROWS, 50):
                table.put(rows[start : start + 50])
        elif job == 1:
            table.put(rows)
        elif job == 2:
            table.put(table.preaggregate(rows), mode="merge_state")
        else:
            wrong = [{**row, "bytes": row["bytes"] + 1} for row in rows]
            table.put(wrong)
            changes = [{**row, "_change_type": "-U"} for row in wrong] + [{**row, "_change_type": "+U"} for row in rows]
            table.put(pa.Table.from_pylist(changes))


def expected() -> dict[str, Row]:
    """The same in plain Python."""
    rows = [row for job in range(JOBS) for batch in views(job) for row in batch]
    counts = Counter(row["page"] for row in rows)
    found: dict[str, Row] = defaultdict(lambda: {"bytes": 0, "named": 0, "millis": 0})
    for row in rows:
        of_page = found[row["page"]]
        of_page["bytes"] += row["bytes"]
        of_page["named"] += row["named"] is not None
        of_page["millis"] += row["millis"]
    return {
        page: {"page": page, "views": counts[page], **sums, "millis": sums["millis"] / counts[page]}
        for page, sums in found.items()
    }


def started(folder: Path, port: int = 0) -> kolk.ServerProcess:
    return kolk.start(folder, server=kolk.ServerConfig(port=port, http_port=0), load=["example_means"])


def run(folder: Path) -> bool:
    """Let the jobs work, lose the server on the way, and compare."""
    server = started(folder)
    try:
        with kolk.connect(server.url) as db:
            table = db.execute(DDL)
            assert isinstance(table, kolk.Table)
            jobs = [threading.Thread(target=work, args=(table, job)) for job in range(JOBS)]
            for job in jobs:
                job.start()
            table.scan().to_arrow()
            print("  kill -9 the server in the middle, and start it again ...")
            os.kill(server.pid, signal.SIGKILL)
            server.close()
            server = started(folder, int(server.url.rpartition(":")[2]))
            for job in jobs:
                job.join()
            rows = finished(table.scan().to_arrow(), table.schema).to_pylist()
    finally:
        server.close()
    wanted = expected()
    print(f"  {JOBS * PUTS * ROWS:,} views of {len(rows)} pages; the first: {min(rows, key=lambda row: row['page'])}")
    return {row["page"]: row for row in rows} == wanted


def main() -> int:
    """Run it; 0 if every row is right."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "example_means.py").write_text(MODULE)
        sys.path.insert(0, name)  # here, and so in the server that we start
        __import__("example_means")
        print(f"{JOBS} jobs count the views of {PAGES} pages")
        is_right = run(Path(name) / "data")
    print("Every row is right." if is_right else "Some rows are NOT right.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
