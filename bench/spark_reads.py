"""spark_read: a table in Spark, beside the same rows as Parquet, and beside our own scan with as many readers.

All three are read to the end and thrown away: by Spark's ``noop`` sink, or by the readers. The scan's readers are
processes that join one shared scan, each with half of the buckets, which is what Spark's tasks do too.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import kolk
from bench.measure import Figure, Scale, race
from bench.spark_setup import CORES, missing, spark_session
from bench.workload import SCHEMA, Workload, count

_SPAWN = get_context("spawn")
_BUCKETS = 8
_QUICK_ROWS = 1_000_000  # of fewer, what Spark takes for a task of no rows would be most of it
_TABLE = "bench"


def spark_read(scale: Scale) -> Iterator[Figure]:
    """The whole table through ``spark.read``."""
    lacking = missing("spark_read", "pyspark")
    if lacking is not None:
        yield lacking
        return
    rows = max(scale.scan_keys[-1], _QUICK_ROWS)
    with TemporaryDirectory() as name, kolk.start(Path(name) / "data") as server, kolk.connect(server.url) as db:
        table = db.create_table(_TABLE, SCHEMA, buckets=_BUCKETS)
        deque(table.put_stream(Workload(rows).load()), maxlen=0)
        with spark_session() as spark, ProcessPoolExecutor(CORES, _SPAWN) as readers:
            yield from _races(spark, readers, table, server.url, Path(name) / "parquet", rows, scale.rounds)


def _races(
    spark: Any, readers: ProcessPoolExecutor, table: kolk.Table, url: str, parquet: Path, rows: int, rounds: int
) -> Iterator[Figure]:
    ours = spark.read.format("kolk").options(url=url, table=_TABLE).load()
    ours.write.parquet(str(parquet))
    files = spark.read.parquet(str(parquet))
    assert ours.count() == files.count() == rows
    case = f"{rows:,} rows to noop"
    for beside, floor, target in (
        ("Parquet", lambda _: _drained(files), 0.1),
        (f"our scan, {CORES} readers", lambda _: _scanned(readers, table, url, rows), 0.7),
    ):
        floor(0)  # processes start, and connect
        rates = race(lambda _: _drained(ours), floor, rounds, rows)
        yield Figure(bench="spark_read", case=case, target=target, note=f"floor: {beside}", **rates)


def _drained(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _scanned(readers: ProcessPoolExecutor, table: kolk.Table, url: str, rows: int) -> None:
    with table.scan(shared=True) as scan:  # closed for all with the block
        buckets = list(scan.offsets)
        shares = [readers.submit(_share, url, scan.id, buckets[number::CORES]) for number in range(CORES)]
        assert sum(share.result() for share in shares) == rows


@cache
def _table(url: str) -> kolk.Table:
    return kolk.connect(url).table(_TABLE)


def _share(url: str, scan: str, buckets: Sequence[str]) -> int:
    """In another process: the rows of some buckets."""
    with _table(url).join_scan(scan, buckets=buckets) as pages:
        return count(pages)
