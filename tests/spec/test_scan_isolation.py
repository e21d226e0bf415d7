"""Scans beside writers: each is the table at its offsets, and with the changelog from there on it is the table.

Nobody is asked when a scan was opened: its offsets say so, and the changelog up to them says what it must show.
"""

import itertools
import os
import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.spec.replica import Key, Replica, Row, by_key, replayed

import kolk
from kolk.model.partition import PARTITIONS

FULL = os.environ.get("KOLK_FULL") == "1"
EXAMPLES = 200 if FULL else 12
SCANS, TOGETHER, WRITERS = 50, 10, 3
KEYS, DAYS = 1_500, 3
COLUMNS = [
    kolk.Column("day", "int", nullable=False),
    kolk.Column("key", "int", nullable=False),
    kolk.Column("writer", "int"),
    kolk.Column("seq", "int"),
    kolk.Column("payload", "string"),
]
SCHEMA = kolk.Schema(COLUMNS, primary_key=["day", "key"])
numbers = itertools.count()
both = pytest.mark.parametrize("cut", [[], ["day"]], ids=["plain", "partitioned"])


@pytest.fixture(scope="module")
def config():
    return kolk.EngineConfig(
        durability="process",
        kv_block_cache_bytes=2**22,
        kv_write_buffer_bytes=2**22,
        scan_page_rows=100,
        scans_max=2 * SCANS,
        scans_per_bucket_max=2 * SCANS,
    )


def made(db: kolk.Database, cut: list[str]) -> kolk.Table:
    return db.create_table(f"t{next(numbers)}", SCHEMA, buckets=4, partition_by=cut)


def row(key: int, writer: int = 0, seq: int = 0) -> Row:
    return {"day": key % DAYS, "key": key, "writer": writer, "seq": seq, "payload": "x" * (seq * 37 % 300)}


class Writers:
    """Threads that update, delete and insert again, until they are told to stop."""

    def __init__(self, table: kolk.Table) -> None:
        self.puts = 0
        self.failures: list[BaseException] = []
        self._table = table
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(WRITERS)]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """They write within the block, and have ended after it."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(60)
        assert self.failures == []

    def _write(self, number: int) -> None:
        rng = random.Random(number)
        try:
            for seq in itertools.count(1):
                if self._stop.is_set():
                    return
                keys = rng.sample(range(KEYS), 20)
                self._table.put([row(key, number, seq) for key in keys])
                gone = [{"day": key % DAYS, "key": key} for key in keys[:8]]
                self._table.delete(gone)
                if seq % 2:
                    self._table.put([row(each["key"], number, -seq) for each in gone[:4]])
                self.puts += 1
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.failures.append(error)


class History:
    """The changelog of a table, whole: the rows at any offsets of it."""

    def __init__(self, table: kolk.Table) -> None:
        self._changes: dict[str, list[tuple[str, Row]]] = defaultdict(list)
        start = {PARTITIONS: 1} if table.info.is_partitioned else None
        with table.changelog(start=start, on_partition=lambda event: None) as log:
            for batch in log:
                for change in batch.to_pylist():
                    of_bucket = self._changes[change["_bucket"]]
                    assert change["_log_offset"] == len(of_bucket)
                    of_bucket.append((change["_change_type"], _shown(change)))

    def at(self, offsets: Mapping[str, int]) -> dict[Key, Row]:
        return self._led({}, dict.fromkeys(offsets, 0), offsets)

    def after(self, rows: Mapping[Key, Row], offsets: Mapping[str, int]) -> dict[Key, Row]:
        """What rows of these offsets become in the end."""
        return self._led(dict(rows), offsets, {bucket: len(changes) for bucket, changes in self._changes.items()})

    def _led(self, rows: dict[Key, Row], starts: Mapping[str, int], stops: Mapping[str, int]) -> dict[Key, Row]:
        for bucket, changes in self._changes.items():
            for kind, row in changes[starts.get(bucket, 0) : stops.get(bucket, 0)]:
                if kind in ("+I", "+U"):
                    rows[row["day"], row["key"]] = row
                else:
                    assert rows.pop((row["day"], row["key"])) == row
        return rows


def _shown(change: Row) -> Row:
    return {name: value for name, value in change.items() if not name.startswith("_")}


ASKED: list[dict[str, Any]] = [{}, {}, {"where": "writer = 1"}, {"where": "key < 300 AND seq > 0"}, {"buckets": True}]


def selected(asked: Mapping[str, Any], rows: Mapping[Key, Row]) -> dict[Key, Row]:
    match asked.get("where"):
        case "writer = 1":
            return {key: row for key, row in rows.items() if row["writer"] == 1}
        case "key < 300 AND seq > 0":
            return {key: row for key, row in rows.items() if row["key"] < 300 and row["seq"] > 0}
        case _:
            return dict(rows)


@both
@pytest.mark.timeout(300)
def test_fifty_scans_beside_writers_are_each_the_table_at_their_offsets(database, cut):
    table, rng = made(database, cut), random.Random(1)
    table.put([row(key) for key in range(KEYS)])
    names = list(table.describe()["offsets"])
    found: list[tuple[dict[str, Any], kolk.Scan, pa.Table]] = []
    writers = Writers(table)
    with writers.at_work():
        while len(found) < SCANS:
            with ExitStack() as opened:
                scans = []
                for place in range(TOGETHER):
                    asked = ASKED[place % len(ASKED)]
                    how = asked if "buckets" not in asked else {"buckets": rng.sample(names, 2)}
                    scans.append((asked, opened.enter_context(table.scan(**how))))
                rng.shuffle(scans)
                batches = read_in_turns([scan for _, scan in scans], rng)
                found += [
                    (asked, scan, pa.Table.from_batches(each, scan.schema))
                    for (asked, scan), each in zip(scans, batches, strict=True)
                ]

    history = History(table)
    final = by_key(table, table.scan().to_arrow())
    for asked, scan, rows in found:
        shown, expected = by_key(table, rows), history.at(scan.offsets)
        assert shown == selected(asked, expected)
        if not asked:
            assert history.after(shown, scan.offsets) == final
    assert len({tuple(scan.offsets.items()) for _, scan, _ in found}) > 1, "nothing was written meanwhile"
    assert writers.puts > SCANS


def read_in_turns(scans: list[kolk.Scan], rng: random.Random) -> list[list[pa.RecordBatch]]:
    """All of them, a batch of this one and a batch of that."""
    batches: list[list[pa.RecordBatch]] = [[] for _ in scans]
    left = {place: iter(scan) for place, scan in enumerate(scans)}
    while left:
        place = rng.choice(list(left))
        batch = next(left[place], None)
        if batch is None:
            del left[place]
        else:
            batches[place].append(batch)
    return batches


@both
@pytest.mark.timeout(300)
def test_bootstraps_beside_writers_end_with_the_table_without_a_gap_or_a_duplicate(database, cut):
    table = made(database, cut)
    table.put([row(key) for key in range(KEYS)])
    replicas = [Replica(SCHEMA.primary_key) for _ in range(4)]
    writers = Writers(table)
    with writers.at_work(), ExitStack() as opened:
        boots = [opened.enter_context(table.bootstrap(on_partition=replica.on_partition)) for replica in replicas]
        threads = [
            threading.Thread(target=follow, args=(replica, boot)) for replica, boot in zip(replicas, boots, strict=True)
        ]
        for thread in threads:
            thread.start()
        puts = writers.puts
        while writers.puts < puts + 30:
            assert not writers.failures
            threading.Event().wait(0.01)
        for boot in boots:
            boot.close()
        for thread in threads:
            thread.join(60)

    final = by_key(table, table.scan().to_arrow())
    for replica, boot in zip(replicas, boots, strict=True):
        assert boot.is_scanned
        assert replica.wrong == []
        assert replica.rows == replayed(table, boot.offsets)
        with table.changelog(start=boot.offsets, on_partition=replica.on_partition) as rest:
            for batch in rest:
                replica.apply(batch)
        assert replica.wrong == []
        assert replica.rows == final


def follow(replica: Replica, boot) -> None:
    """Until it is closed. The scan's rows come once each; after them no offset is left out and none comes twice."""
    replica.go_on(boot.offsets)
    try:
        for batch in boot:
            replica.apply(batch, is_log=boot.is_scanned)
    except BaseException as error:  # noqa: BLE001 - looked at by the test
        replica.wrong.append(repr(error))


some_keys = st.lists(st.integers(0, 40), min_size=1, max_size=15, unique=True)
steps = st.one_of(
    st.tuples(st.just("put"), some_keys),
    st.tuples(st.just("delete"), some_keys),
    st.tuples(st.just("open"), st.sampled_from(ASKED[:4])),
    st.tuples(st.just("read"), st.integers(0, 9)),
    st.tuples(st.just("truncate"), st.none()),
)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(cut=st.sampled_from([[], ["day"]]), history=st.lists(steps, min_size=3, max_size=40))
def test_a_scan_shows_its_offsets_whatever_happens_before_and_after_each_page(database, cut, history):
    table, writes = made(database, cut), itertools.count(1)
    opened: list[tuple[dict[str, Any], kolk.Scan, Iterator[pa.RecordBatch], list[pa.RecordBatch]]] = []
    for what, value in history:
        match what:
            case "put":
                seq = next(writes)
                table.put([row(key, seq % 3, seq) for key in value])
            case "delete":
                table.delete([{"day": key % DAYS, "key": key} for key in value])
            case "open":
                scan = table.scan(**value)
                opened.append((value, scan, iter(scan), []))
            case "read" if opened:
                _, _, batches, read = opened[value % len(opened)]
                read += itertools.islice(batches, 1)
            case "truncate":
                table.truncate()
            case _:
                pass

    final = by_key(table, table.scan().to_arrow())
    for asked, scan, batches, read in opened:
        rows = by_key(table, pa.Table.from_batches([*read, *batches], scan.schema))
        assert rows == selected(asked, replayed(table, scan.offsets))
        if not asked:
            assert led_on(table, rows, scan.offsets) == final
        scan.close()


def led_on(table: kolk.Table, rows: dict[Key, Row], offsets: Mapping[str, int]) -> dict[Key, Row]:
    """What a scan becomes by the changelog from its offsets on."""
    replica = Replica(SCHEMA.primary_key)
    replica.rows = dict(rows)
    replica.go_on(offsets)
    with table.changelog(start=offsets, on_partition=replica.on_partition) as log:
        for batch in log:
            replica.apply(batch)
    assert replica.wrong == []
    return replica.rows
