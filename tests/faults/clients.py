"""Clients that go on through every restart of their server by nothing but Kolk's own retries, and what they were told.

Each writer writes rows that say who wrote them in which put, to keys of its own and to keys that all share. A follower
keeps every change it is shown. A reader looks up what a writer was told is done. None of them may ever see an error.
"""

import random
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.faults.puts import BUCKETS, EVENTS_SCHEMA, ROWS_SCHEMA
from tests.faults.servers import PATIENCE_SECONDS
from tests.faults.witness import Findings

import kolk

ROWS, EVENTS = "served.rows", "served.events"
TIMEOUT_SECONDS = 60.0
_OWN_KEYS, _SHARED_KEYS, _PASSING_KEYS = 40, 100, 20
_STREAM_PUTS = 12
_READ = ("_change_type", "_log_offset", "_bucket", "key", "writer", "seq", "place")

Place = tuple[int, int, int]
"""Writer, seq and place: which row of which put."""


def create_tables(db: kolk.Database) -> dict[str, kolk.Table]:
    """The tables, made if need be."""
    return {
        ROWS: db.create_table(ROWS, ROWS_SCHEMA, buckets=BUCKETS, if_not_exists=True),
        EVENTS: db.create_table(EVENTS, EVENTS_SCHEMA, buckets=BUCKETS, if_not_exists=True),
    }


class Client(threading.Thread):
    """A thread with a connection of its own, which keeps the error that ended it."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self.failure: BaseException | None = None
        self._url = url

    def run(self) -> None:
        try:
            with kolk.connect(self._url, timeout=TIMEOUT_SECONDS) as db:
                self.work(db)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.failure = error

    def work(self, db: kolk.Database) -> None:
        raise NotImplementedError


def finish(clients: Sequence[Client]) -> None:
    """Wait until they are done; what ended one of them early is raised."""
    for client in clients:
        client.join(PATIENCE_SECONDS)
        assert not client.is_alive(), f"a client hangs: {client}"
        if client.failure is not None:
            raise client.failure


class Writer(Client):
    """Puts, deletes and streams of puts, until it is told to stop; all of them acknowledged then."""

    def __init__(self, url: str, number: int, acks: "threading.Semaphore", stop: threading.Event) -> None:
        super().__init__(url)
        self.acked: dict[int, tuple[str, int]] = {}
        """The puts that were acknowledged: their table and how many rows they had."""
        self.newest: dict[str, int] = {}
        """The last acknowledged put of each key of its own."""
        self._number = number
        self._acks = acks
        self._stop_event = stop
        self._rng = random.Random(number)
        self._seq = 0

    def work(self, db: kolk.Database) -> None:
        tables = create_tables(db)
        while not self._stop_event.is_set():
            table = tables[self._rng.choice((ROWS, EVENTS))]
            match self._rng.randrange(6):
                case 0 if table.name == ROWS:
                    table.delete([f"passing/{self._number}/{self._rng.randrange(_PASSING_KEYS)}"])
                case 0 | 1:
                    self._stream(table)
                case _:
                    rows = self._rows()
                    table.put(rows)
                    self._note(table.name, rows)

    def _stream(self, table: kolk.Table) -> None:
        sent: list[list[dict[str, Any]]] = []

        def batches() -> Iterator[list[dict[str, Any]]]:
            for _ in range(self._rng.randint(2, _STREAM_PUTS)):
                sent.append(self._rows())
                yield sent[-1]

        for place, _ in enumerate(table.put_stream(batches())):
            self._note(table.name, sent[place])

    def _rows(self) -> list[dict[str, Any]]:
        own = [f"own/{self._number}/{number}" for number in range(_OWN_KEYS)]
        passing = [f"passing/{self._number}/{number}" for number in range(_PASSING_KEYS)]
        shared = [f"shared/{number}" for number in range(_SHARED_KEYS)]
        keys = self._rng.sample([*own, *passing, *shared], self._rng.choice((1, 3, 10, 60)))
        self._seq += 1
        return [
            {"key": key, "writer": self._number, "seq": self._seq, "place": place, "payload": "x" * (place % 50)}
            for place, key in enumerate(keys)
        ]

    def _note(self, table: str, rows: list[dict[str, Any]]) -> None:
        seq = rows[0]["seq"]
        assert seq not in self.acked, f"put {self._number}/{seq} was acknowledged twice"
        self.acked[seq] = (table, len(rows))
        if table == ROWS:
            self.newest |= {row["key"]: seq for row in rows if row["key"].startswith("own/")}
        self._acks.release()


class Reader(Client):
    """Looks up keys of a writer: each must be there, and no older than what the writer was told before."""

    def __init__(self, url: str, writers: list[Writer], stop: threading.Event) -> None:
        super().__init__(url)
        self.lookups = 0
        self.stale: list[str] = []
        self._writers = writers
        self._stop_event = stop

    def work(self, db: kolk.Database) -> None:
        tables = create_tables(db)
        rng = random.Random(0)
        while not self._stop_event.is_set():
            known = rng.choice(self._writers).newest.copy()
            keys = rng.sample(sorted(known), min(len(known), 5))
            found = {row["key"]: row["seq"] for row in tables[ROWS].get(keys).to_pylist()} if keys else {}
            self.stale += [
                f"{key}: read {found.get(key)}, put {known[key]} was acknowledged before"
                for key in keys
                if found.get(key, -1) < known[key]
            ]
            self.lookups += len(keys)


@dataclass(slots=True)
class Changes:
    """What a changelog showed, bucket by bucket."""

    offsets: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[str, list[tuple[str, str, Place]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, batch: Any) -> None:
        for change, offset, bucket, key, *place in zip(
            *(batch.column(name).to_pylist() for name in _READ), strict=True
        ):
            self.offsets[bucket].append(offset)
            self.rows[bucket].append((change, key, tuple(place)))

    @property
    def ends(self) -> dict[str, int]:
        """Where each bucket goes on."""
        return {bucket: offsets[-1] + 1 for bucket, offsets in self.offsets.items()}


class Follower(Client):
    """Follows the changelog of a table from its start, until it is closed."""

    def __init__(self, url: str, table: str) -> None:
        super().__init__(url)
        self.changes = Changes()
        self._table = table
        self._changelog: kolk.Changelog | None = None

    def work(self, db: kolk.Database) -> None:
        tables = create_tables(db)
        with tables[self._table].changelog(follow=True) as self._changelog:
            for batch in self._changelog:
                self.changes.add(batch)

    def close(self) -> None:
        assert self._changelog is not None
        self._changelog.close()


def check_changes(table: str, changes: Changes, writers: list[Writer], findings: Findings) -> None:
    """Offsets without a hole or a repetition, and each row of each acknowledged put exactly once."""
    for bucket, offsets in changes.offsets.items():
        if offsets != list(range(len(offsets))):
            findings.wrong.append(f"{table} {bucket}: the offsets are not 0 to {len(offsets) - 1}")
    seen: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rows in changes.rows.values():
        for change, _, (writer, seq, place) in rows:
            if change in ("+I", "+U"):
                seen[writer, seq].append(place)
    for number, writer in enumerate(writers):
        for seq, (_, count) in ((seq, put) for seq, put in writer.acked.items() if put[0] == table):
            places = seen.pop((number, seq), [])
            name = f"of put {number}/{seq} in {table}"
            findings.lost += [f"row {place} {name}" for place in range(count) if place not in places]
            findings.duplicated += [f"a row {name}"] * (len(places) - len(set(places)))
    findings.wrong += [f"put {writer}/{seq} in {table} was never acknowledged" for writer, seq in seen]


def replayed(changes: Changes, findings: Findings) -> dict[str, Place]:
    """The rows that a changelog leads to; what it says of the row before a change must be so."""
    rows: dict[str, Place] = {}
    for bucket in changes.rows.values():
        for change, key, place in bucket:
            known = rows.get(key)
            if known != (place if change in ("-U", "-D") else None):
                findings.wrong.append(f"{change} of {key} {place} does not follow {known}")
            if change in ("-U", "-D"):
                rows.pop(key, None)
            else:
                rows[key] = place
    return rows
