"""The whole embedded API, driven at random beside a dict: no disagreement, whatever the order and the restarts."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

import kolk
from kolk.errors import UnknownOrExpiredScan
from kolk.testing.copies import copy_of_one_moment
from kolk.testing.oracle import TableModel

COLUMNS = [kolk.Column("k", "string"), kolk.Column("a", "bigint"), kolk.Column("b", "string")]
SCHEMA = kolk.Schema(COLUMNS, primary_key=["k"])
CONFIG = kolk.EngineConfig(
    durability="process",
    log_segment_bytes=2000,
    kv_block_cache_bytes=2**22,
    kv_write_buffer_bytes=2**22,
    scans_per_bucket_max=1_000,
)
STEPS = 60 if os.environ.get("KOLK_FULL") else 30
EXAMPLES = 150 if os.environ.get("KOLK_FULL") else 25

keys = st.sampled_from(["", "a", "b", "c\0", "dd"])
rows = st.fixed_dictionaries({"k": keys, "a": st.none() | st.integers(0, 3), "b": st.none() | st.sampled_from("xy")})
targets = st.sampled_from([None, ["a"], ["b"], []])


class TableAgainstADict(RuleBasedStateMachine):
    """Puts, partial puts, deletes, views, changelogs, retries and reopens."""

    scans = Bundle("scans")

    @initialize(
        engine=st.sampled_from(["default", "first_row", "versioned"]), image=st.sampled_from(["full", "wal"]),
        buckets=st.sampled_from([1, 3]),
    )  # fmt: skip
    def start(self, engine: str, image: str, buckets: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.lives = 0
        self.db = kolk.connect(self.folder / "0", config=CONFIG)
        options = {"table.changelog.image": image}
        if engine == "versioned":
            options["table.merge-engine.versioned.ver-column"] = "a"
        self.table = self.db.create_table("t", SCHEMA, buckets=buckets, merge_engine=engine, options=options)
        self.partial = engine == "default"
        self.model = TableModel(SCHEMA, self.table.info.spec.options)
        self.changes: list[tuple[str, dict]] = []
        self.last = None
        self.connection = 0

    @rule(batch=st.lists(rows, max_size=6), columns=targets, overwrite=st.booleans())
    def put(self, batch: list[dict], columns: list[str] | None, overwrite: bool) -> None:
        columns = columns if self.partial or overwrite else None
        mode = "overwrite" if overwrite else "accumulate"
        given = batch if columns is None else [{name: row[name] for name in ["k", *columns]} for row in batch]
        result = self.table.put(given, columns=columns, mode=mode)
        self.last = (given, columns, mode, result.tag)
        self.changes += self.model.upsert(given, columns, overwrite=overwrite)

    @rule(batch=st.lists(keys, max_size=4), columns=st.sampled_from([None, ["a"], ["b"]]), overwrite=st.booleans())
    def delete(self, batch: list[str], columns: list[str] | None, overwrite: bool) -> None:
        columns = columns if self.partial or overwrite else None
        self.table.delete([{"k": key} for key in batch], columns, "overwrite" if overwrite else "accumulate")
        self.changes += self.model.delete([{"k": key} for key in batch], columns, overwrite=overwrite)

    @rule()
    def retry_the_last_put(self) -> None:
        if self.last is not None:
            given, columns, mode, tag = self.last
            self.table.put(given, columns=columns, mode=mode, tag=tag)

    @rule()
    def truncate(self) -> None:
        self.table.truncate()
        self.changes += self.model.clear()

    @rule(batch=st.lists(keys, max_size=4))
    def get(self, batch: list[str]) -> None:
        found = self.table.get([{"k": key} for key in batch]).to_pylist()
        assert found == [self.model.rows[(key,)] for key in batch if (key,) in self.model.rows]

    @rule(target=scans)
    def pin(self):
        return self.connection, self.table.scan(), sorted_rows(self.model.rows.values())

    @rule(pinned=consumes(scans))
    def read_pinned(self, pinned) -> None:
        connection, scan, expected = pinned
        if connection == self.connection:
            assert sorted_rows(scan.to_arrow().to_pylist()) == expected
        elif expected:
            with pytest.raises(UnknownOrExpiredScan, match="the database is closed"):
                scan.to_arrow()

    @rule()
    def reopen(self) -> None:
        self.db.close()
        self.go_on()

    @rule()
    def kill(self) -> None:
        """Go on from a copy of the files as they are now: what kill -9 leaves, with nothing flushed."""
        copy_of_one_moment(self.folder / str(self.lives), self.folder / str(self.lives + 1))
        self.db.close()
        self.lives += 1
        self.go_on()

    def go_on(self) -> None:
        self.db = kolk.connect(self.folder / str(self.lives), config=CONFIG)
        self.table = self.db.table("t")
        self.connection += 1

    @invariant()
    def rows_agree(self) -> None:
        if hasattr(self, "table"):
            assert sorted_rows(self.table.scan().to_arrow().to_pylist()) == sorted_rows(self.model.rows.values())

    @invariant()
    def changelog_agrees(self) -> None:
        if hasattr(self, "table"):
            shown = [row for batch in self.table.changelog() for row in batch.to_pylist()]
            by_key = [(row["_change_type"], {name: row[name] for name in SCHEMA.names}) for row in shown]
            for key in {row["k"] for _, row in self.changes} | {row["k"] for row in shown}:
                expected = [(kind, row) for kind, row in self.changes if row["k"] == key]
                assert [(kind, row) for kind, row in by_key if row["k"] == key] == expected

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close()
            shutil.rmtree(self.folder)


def sorted_rows(rows) -> list[dict]:
    return sorted(rows, key=lambda row: row["k"])


TestTableAgainstADict = TableAgainstADict.TestCase
TestTableAgainstADict.settings = settings(max_examples=EXAMPLES, stateful_step_count=STEPS, deadline=None)
