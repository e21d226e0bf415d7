"""A declarative pipeline from one table of Kolk into another, run as a scheduler would: now and then, for what is new.

The pipeline is in ``examples/pipeline``. Orders are put into a log table; each run of ``spark-pipelines`` takes those
that are new into the totals of their customers, exactly once. A full refresh then begins again with the first order:
Spark starts a new query for that, whose batches would be added to what is there. The sink has ``new-query=replace``, so
that its first batch takes the place of all rows, in one transaction: the totals are right, and not twice as high.

``--remote sc://host:port`` runs it on a Spark Connect server that there is, instead of one for each run. Ends with 1 if
a total is wrong.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import kolk
from kolk.spark.java import java_home

PIPELINE = Path(__file__).with_name("pipeline")
TABLES = (
    "CREATE TABLE shop.orders (customer BIGINT, cents BIGINT)",
    """
    CREATE TABLE shop.customers (
        customer BIGINT PRIMARY KEY,
        orders BIGINT COUNT_ROWS,
        spent BIGINT SUM,
        largest BIGINT MAX
    ) DISTRIBUTED INTO 2 BUCKETS
    """,
)
RUNS = (("first run", ()), ("second run", ()), ("full refresh", ("--full-refresh-all",)))
CUSTOMERS, ORDERS = 100, 5_000


def orders_of(day: int) -> pa.Table:
    """The orders of a day."""
    places = range(day * ORDERS, (day + 1) * ORDERS)
    return pa.table(
        {
            "customer": pa.array([place * 37 % CUSTOMERS for place in places], pa.int64()),
            "cents": pa.array([100 + place * 7_919 % 9_900 for place in places], pa.int64()),
        }
    )


def spec_in(folder: Path) -> Path:
    """A copy of the pipeline that keeps its checkpoints there."""
    folder.mkdir()
    for each in PIPELINE.iterdir():
        if each.is_file():
            text = each.read_text(encoding="utf-8").replace("file:///tmp/kolk-pipeline", (folder / "storage").as_uri())
            (folder / each.name).write_text(text, encoding="utf-8")
    return folder / "spark-pipeline.yml"


def run_pipeline(spec: Path, remote: str, url: str, *how: str) -> None:
    """One run, up to the last order that there is."""
    program = Path(sys.executable).with_name("spark-pipelines")
    command = [str(program), "--remote", remote, "run", "--spec", str(spec), *how]
    given = {"KOLK_URL": url, "JAVA_HOME": str(java_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment = {**os.environ, **given, "PYSPARK_PYTHON": sys.executable, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command, cwd=spec.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise SystemExit(f"the pipeline failed:\n{done.stdout}")


def expected(orders: pa.Table) -> dict[int, tuple[int, int, int]]:
    """What each customer has, by Arrow alone."""
    found = orders.group_by("customer").aggregate([("cents", "count"), ("cents", "sum"), ("cents", "max")])
    names = ["customer", "cents_count", "cents_sum", "cents_max"]
    return {row[0]: row[1:] for row in zip(*(found[name].to_pylist() for name in names), strict=True)}


def run(db: kolk.Database, url: str, folder: Path, remote: str) -> bool:
    """Three runs; whether all totals were right after each."""
    orders, customers = (db.execute(statement) for statement in TABLES)
    assert isinstance(orders, kolk.Table)
    assert isinstance(customers, kolk.Table)
    spec = spec_in(folder / "pipeline")
    known = []
    is_right = True
    for day, (name, how) in enumerate(RUNS):
        known.append(orders_of(day))
        orders.put(known[-1])
        run_pipeline(spec, remote, url, *how)
        rows = customers.scan().to_arrow().to_pylist()
        found = {row["customer"]: (row["orders"], row["spent"], row["largest"]) for row in rows}
        is_equal = found == expected(pa.concat_tables(known))
        counted = sum(count for count, _, _ in found.values())
        print(f"  {name}: {counted:,} orders of {(day + 1) * ORDERS:,}, {'right' if is_equal else 'WRONG'}")
        is_right = is_right and is_equal
    return is_right


def main(arguments: list[str] | None = None) -> int:
    """Run it; 0 if every total is right."""
    parser = argparse.ArgumentParser(description="Run a declarative pipeline from a Kolk table into another.")
    parser.add_argument("--remote", default="local[2]", help="the Spark Connect server; local[2] starts one")
    remote = parser.parse_args(arguments).remote
    with tempfile.TemporaryDirectory(prefix="kolk-pipeline-") as name:
        print("three runs of a pipeline, with new orders before each")
        with kolk.start(Path(name) / "data") as server, kolk.connect(server.url) as db:
            is_right = run(db, server.url, Path(name), remote)
    print("Every order counts once." if is_right else "Some totals are NOT right.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
