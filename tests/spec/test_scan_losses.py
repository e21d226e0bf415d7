"""Scans that are lost in the middle, again and again, while the table changes: what they lead to is exact all the same.

A history is drawn: what the table holds, what is asked for, and what happens after which page. Rows change, go and come
back before and behind the reader, partitions are dropped and made anew, and the scan is taken from under the reader.
"""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.spec.replica import Key, Moments, Replica, Row, by_key, replayed

import kolk
from kolk.errors import HolderLost, UnknownOrExpiredScan

FULL = os.environ.get("KOLK_FULL") == "1"
EXAMPLES = 300 if FULL else 15
KEYS = 40
COLUMNS = [
    kolk.Column("day", "int", nullable=False),
    kolk.Column("key", "string", nullable=False),
    kolk.Column("value", "int"),
    kolk.Column("payload", "string"),
]
SCHEMA = kolk.Schema(COLUMNS, primary_key=["day", "key"])
WHERE: dict[str | None, Callable[[Row], bool]] = {
    None: lambda row: True,
    "value >= 5": lambda row: row["value"] >= 5,
    "day = 2": lambda row: row["day"] == 2,
    "key < '020' AND value < 8": lambda row: row["key"] < "020" and row["value"] < 8,
}
numbers = itertools.count()


@pytest.fixture(scope="module")
def config():
    return kolk.EngineConfig(
        durability="process",
        kv_block_cache_bytes=2**22,
        kv_write_buffer_bytes=2**22,
        scan_page_rows=5,
        scans_max=1_000,
        scans_per_bucket_max=1_000,
    )


@dataclass(frozen=True)
class Step:
    """Something that happens to the table, or to whoever reads it."""

    what: str
    keys: tuple[int, ...] = ()
    value: int = 0


days = st.sampled_from([1, 2, 3])
some_keys = st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=12, unique=True).map(tuple)
changes = st.one_of(
    st.builds(Step, st.just("put"), some_keys, st.integers(0, 9)),
    st.builds(Step, st.just("delete"), some_keys),
    st.builds(Step, st.just("drop"), value=days),
    st.builds(Step, st.just("truncate")),
)
events = st.one_of(changes, changes, st.just(Step("lose")))
histories = st.lists(st.lists(events, max_size=4), min_size=1, max_size=12)


class Course:
    """A table, what is yet to happen to it, and how it was at every moment so far."""

    def __init__(self, db: kolk.Database, table: kolk.Table, rounds: list[list[Step]]) -> None:
        self.db = db
        self.table = table
        self.rows: dict[Key, Row] = {}
        self._rounds = [list(steps) for steps in rounds]
        self.moments = Moments(table)
        self._take(Step("put", tuple(range(0, KEYS, 2)), 1))

    def go_on(self, *_: object) -> None:
        """Let happen what is next."""
        for step in self._rounds.pop(0) if self._rounds else []:
            self._take(step)

    def _take(self, step: Step) -> None:
        is_cut = self.table.info.is_partitioned
        match step.what:
            case "put":
                rows = [row(number, step.value) for number in step.keys]
                self.table.put(rows)
                self.rows |= {(each["day"], each["key"]): each for each in rows}
            case "delete":
                keys = [(1 + number % 3, f"{number:03}") for number in step.keys]
                self.table.delete([{"day": day, "key": key} for day, key in keys])
                self.rows = {key: each for key, each in self.rows.items() if key not in keys}
            case "drop" if is_cut:
                self.table.drop_partition(day=step.value, if_exists=True)
                self.rows = {key: each for key, each in self.rows.items() if key[0] != step.value}
            case "truncate":
                self.table.truncate()
                self.rows = {}
            case "lose":
                for scan in self.db.scans():
                    self.db.close_scan(scan.id)
            case _:
                pass
        self.moments.note(self.rows)


def row(number: int, value: int) -> Row:
    # Over the network a page is 64 KiB, so that a few of these are several pages.
    return {"day": 1 + number % 3, "key": f"{number:03}", "value": value, "payload": "x" * (9_000 if value % 3 else 10)}


def course_of(db: kolk.Database, rounds: list[list[Step]], *, is_cut: bool, image: str = "full") -> Course:
    cut, options = ["day"] if is_cut else [], {"table.changelog.image": image}
    table = db.create_table(f"t{next(numbers)}", SCHEMA, buckets=3, partition_by=cut, options=options)
    return Course(db, table, rounds)


drawn = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@drawn
@given(
    rounds=histories,
    is_cut=st.booleans(),
    image=st.sampled_from(["full", "wal"]),
    where=st.sampled_from([None, *WHERE]),
    columns=st.sampled_from([None, None, ["value"], ["payload", "key"]]),
    limit=st.sampled_from([None, None, None, 0, 7, 1_000]),
    is_told=st.booleans(),
)
def test_a_scan_that_is_lost_and_mended_is_the_table_at_its_last_offsets(
    database, rounds, is_cut, image, where, columns, limit, is_told
):
    course = course_of(database, rounds, is_cut=is_cut, image=image)
    table = course.table

    told = [].append if is_told else None
    scan = table.scan(columns, limit, where, resume="log", on_progress=course.go_on, on_partition=told)
    try:
        with scan:
            found = scan.to_arrow()
    except HolderLost:
        assert any(step.what == "truncate" for steps in rounds for step in steps)
        return

    expected = [row for row in course.moments.at(scan.offsets).values() if WHERE[where](row)]
    assert found.schema == table.schema.arrow_of(columns)
    assert scan.rows == found.num_rows
    check(found, expected, columns or table.schema.names, limit)
    assert all(each.is_drained for each in database.scans())


def check(found: pa.Table, expected: list[Row], names: Sequence[str], limit: int | None) -> None:
    """Rows as often as they are to be there; with a limit, so many of them."""
    wanted = Counter(tuple(row[name] for name in names) for row in expected)
    rows = Counter(tuple(row[name] for name in names) for row in found.to_pylist())
    if limit is None:
        assert not rows - wanted, "there are rows that are not in the table"
        assert not wanted - rows, "there are rows missing"
    assert rows <= wanted
    assert rows.total() == min(len(expected) if limit is None else limit, len(expected))


@drawn
@given(rounds=histories, is_cut=st.booleans(), stops=st.sets(st.integers(0, 12)))
def test_a_bootstrap_that_is_lost_is_right_at_every_step_and_at_the_end(database, rounds, is_cut, stops):
    course = course_of(database, rounds, is_cut=is_cut)
    table, replica = course.table, Replica(SCHEMA.primary_key)
    boot = table.bootstrap(follow=False, on_partition=replica.on_partition)

    is_lost = any(step.what == "lose" for steps in rounds for step in steps)
    replica.go_on(boot.offsets, or_later=is_lost)
    taken = itertools.count()
    while True:  # now and then the reader stops, and goes on where it was
        for batch in boot:
            replica.apply(batch, is_log=boot.is_scanned)
            assert replica.wrong == []
            if not boot.is_scanned:
                replica.go_on(boot.offsets, or_later=is_lost)
            course.go_on()
            if next(taken) in stops:
                break
        else:
            break
    boot.close()

    with table.changelog(start=boot.offsets, on_partition=replica.on_partition) as rest:
        for batch in rest:
            replica.apply(batch)
    assert replica.wrong == []
    assert replica.rows == course.rows == by_key(table, table.scan().to_arrow()) == replayed(table)


def test_a_scan_that_cannot_be_mended_fails_again_and_never_looks_finished(database):
    course = course_of(database, [[Step("put", (1,), 2), Step("lose")]], is_cut=False)
    scan = course.table.scan(resume="strict", on_progress=course.go_on)

    for _ in range(2):
        with pytest.raises(UnknownOrExpiredScan):
            scan.to_arrow()
