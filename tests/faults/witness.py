"""Compares what a database holds with what its writers were told.

A witness reads the account of acknowledgements and the changelog, each from where it stopped the last time, and
folds the changelog into the rows that the table must have. It knows nothing of how Kolk works inside: it
believes acknowledgements, and looks whether the database keeps them.
"""

import json
import os
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.puts import EVENTS, ROWS, WRITERS, Put, bucket_of_key, put_of, shares

import kolk

Place = tuple[int, int, int]
"""Writer, seq and place: which row of which put."""


@dataclass(slots=True)
class Findings:
    """What is wrong, in words; nothing when all is well."""

    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.lost or self.duplicated or self.wrong)


@dataclass(frozen=True, slots=True)
class Ack:
    """A put that its writer was told is done."""

    put: Put
    offsets: dict[str, int]


class Account:
    """The acknowledgements that workers wrote down. A line that a kill cut off was never an acknowledgement."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acked = [-1] * WRITERS
        self.puts = self.rows = 0
        self._read_bytes = 0
        self._last: dict[int, dict[str, int]] = {}
        path.touch()

    def read(self, findings: Findings) -> list[Ack]:
        """The new ones. An answer to a put done again must be the first one."""
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, _, _ = file.read().rpartition(b"\n")
        lines = whole.splitlines()
        self._read_bytes += len(whole) + bool(lines)
        os.truncate(self.path, self._read_bytes)
        return [ack for line in lines if (ack := self._noted(json.loads(line), findings)) is not None]

    def _noted(self, line: dict[str, Any], findings: Findings) -> Ack | None:
        writer, seq, offsets = line["writer"], line["seq"], line["offsets"]
        if line["again"]:
            if offsets != self._last[writer]:
                findings.duplicated.append(
                    f"put {writer}/{seq}, done again, was answered {offsets}, not {self._last[writer]}"
                )
            return None
        assert seq == self.acked[writer] + 1, "a worker skipped a put"
        self.acked[writer] = seq
        self._last[writer] = offsets
        put = put_of(writer, seq)
        self.puts += 1
        self.rows += len(put.rows)
        return Ack(put, offsets)


class Witness:
    """What the changelog has shown so far, and what it must still show."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.rows: dict[str, Place] = {}
        self._ends: dict[str, dict[str, int]] = {ROWS: {}, EVENTS: {}}
        self._seen: dict[tuple[int, int], dict[str, dict[int, int]]] = defaultdict(dict)
        self._newest: Counter[tuple[str, int]] = Counter()
        self._own: list[dict[str, Place]] = [{} for _ in range(WRITERS)]

    def check(self, tables: dict[str, kolk.Table]) -> Findings:
        """Everything that is wrong with the tables, as far as it is new."""
        findings = Findings()
        acks = self.account.read(findings)
        for table in tables.values():
            self._follow(table, findings)
        for ack in acks:
            self._check_ack(ack, findings)
        self._check_unacknowledged(findings)
        self._check_rows(tables[ROWS], findings)
        return findings

    def _follow(self, table: kolk.Table, findings: Findings) -> None:
        """Read the changelog on: dense offsets, every row once, the puts of a writer in their order."""
        ends = self._ends[table.name]
        changelog = table.changelog(start=dict(ends))
        for batch in changelog:
            columns = [batch.column(name).to_pylist() for name in _READ]
            for change, offset, bucket, *row in zip(*columns, strict=True):
                if offset != ends.get(bucket, 0):
                    findings.wrong.append(f"{table.name} {bucket}: offset {offset} follows {ends.get(bucket, 0) - 1}")
                ends[bucket] = offset + 1
                self._note(table.name, change, bucket, offset, row, findings)
        for bucket, end in changelog.offsets.items():
            if end != ends.get(bucket, 0):
                findings.wrong.append(f"{table.name} {bucket} ends at {end}, its changes at {ends.get(bucket, 0)}")

    def _note(self, table: str, change: str, bucket: str, offset: int, row: list[Any], findings: Findings) -> None:
        key, *which = row
        writer, seq, place = which
        if table == ROWS:
            self._fold(change, key, (writer, seq, place), findings)
        if change not in ("+I", "+U"):
            return
        places = self._seen[writer, seq].setdefault(bucket, {})
        if place in places:
            findings.duplicated.append(f"row {place} of put {writer}/{seq} is in {table} {bucket} again at {offset}")
        places[place] = offset
        if self._newest[table + bucket, writer] > seq:
            findings.wrong.append(f"{table} {bucket}: put {writer}/{seq} comes after a later one, at {offset}")
        self._newest[table + bucket, writer] = seq

    def _fold(self, change: str, key: str, place: Place, findings: Findings) -> None:
        """Apply a change to the rows; what it says about the old row must be so."""
        known = self.rows.get(key)
        fits = {"+I": known is None, "+U": known is None, "-U": known == place, "-D": known == place}
        if not fits[change]:
            findings.wrong.append(f"{change} of {key} {place} does not follow {known}")
        if change in ("-U", "-D"):
            self.rows.pop(key, None)
        else:
            self.rows[key] = place

    def _check_ack(self, ack: Ack, findings: Findings) -> None:
        put = ack.put
        parts = shares(put)
        if set(parts) != set(ack.offsets):
            findings.wrong.append(f"put {put.writer}/{put.seq} was answered for {set(ack.offsets)}, not {set(parts)}")
        apply(self._own[put.writer], put, parts)
        for bucket, rows in parts.items():
            end = ack.offsets.get(bucket, 0)
            if put.is_delete:
                if end > self._ends[put.table].get(bucket, 0):
                    findings.lost += [f"the delete of {row['key']} by put {put.writer}/{put.seq}" for row in rows]
                continue
            seen = self._seen[put.writer, put.seq].get(bucket, {})
            missing = {row["place"] for row in rows} - seen.keys()
            findings.lost += [f"row {place} of put {put.writer}/{put.seq}" for place in sorted(missing)]
            if seen and max(seen.values()) + 1 != end:
                findings.wrong.append(f"put {put.writer}/{put.seq} does not end at {end} in {bucket}")

    def _check_unacknowledged(self, findings: Findings) -> None:
        """Of the one put that a writer had under way, every bucket may have its share, but a whole one."""
        for writer in range(WRITERS):
            seq = self.account.acked[writer] + 1
            parts = shares(put_of(writer, seq))
            for bucket, seen in self._seen.get((writer, seq), {}).items():
                if seen.keys() != {row["place"] for row in parts.get(bucket, [])}:
                    findings.wrong.append(f"a part of put {writer}/{seq} is in {bucket}")
        for (bucket, writer), seq in self._newest.items():
            if seq > self.account.acked[writer] + 1:
                findings.wrong.append(f"put {writer}/{seq} in {bucket} was never made")

    def _check_rows(self, table: kolk.Table, findings: Findings) -> None:
        """The rows are the changelog folded, and every writer's own keys are what its puts left."""
        found = scanned(table)
        for key in found.keys() | self.rows.keys():
            if found.get(key) != self.rows.get(key):
                findings.wrong.append(f"{key} is {found.get(key)}, by the changelog {self.rows.get(key)}")
        for writer, own in enumerate(self._own):
            further = dict(own)
            put = put_of(writer, self.account.acked[writer] + 1)
            apply(further, put, shares(put))
            actual = {key: place for key, place in found.items() if key.startswith(f"own/{writer}/")}
            states = [_by_bucket(state) for state in (own, further, actual)]
            for bucket in set().union(*states):
                before, after, now = (state.get(bucket) for state in states)
                if now not in (before, after):
                    findings.wrong.append(f"the keys of writer {writer} in {bucket} are neither before nor after a put")


_READ = ("_change_type", "_log_offset", "_bucket", "key", "writer", "seq", "place")


def apply(own: dict[str, Place], put: Put, parts: dict[str, list[dict[str, Any]]]) -> None:
    """Do a put to a writer's own keys."""
    if put.table != ROWS:
        return
    for rows in parts.values():
        for row in rows:
            if put.is_delete:
                own.pop(row["key"], None)
            elif row["key"].startswith("own/"):
                own[row["key"]] = (put.writer, put.seq, row["place"])


def scanned(table: kolk.Table) -> dict[str, Place]:
    """All rows of a table, by a scan."""
    with table.scan(columns=["key", "writer", "seq", "place"]) as scan:
        columns = [column.to_pylist() for column in scan.to_arrow().columns]
    return {key: (writer, seq, place) for key, writer, seq, place in zip(*columns, strict=True)}


def _by_bucket(rows: dict[str, Place]) -> dict[str, dict[str, Place]]:
    found: dict[str, dict[str, Place]] = {}
    for key, place in rows.items():
        found.setdefault(bucket_of_key(key), {})[key] = place
    return found
