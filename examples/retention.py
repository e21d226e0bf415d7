"""Keep the last days of a stream, and beside it a replica that forgets with it.

A table of events is cut by day: tomorrow's partition is made ahead, and what is older than three days is dropped, with
rows, log and files at once. A reader keeps a replica of it, here a dict for each partition. It starts from a scan,
follows the changelog under a name, so that it goes on where it was, and drops its own copy of a partition when it is
told that the partition is gone.

Ten days pass in a second, because the clock is that of ``kolk.testing``. With ``kolk.connect`` the days take as long as
they do, and ``changelog(..., follow=True)`` waits for them. Ends with 1 if the replica is not the table.
"""

import datetime
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import kolk
from kolk.engine.database import Engine
from kolk.runtime.folder import Folder
from kolk.runtime.rng import Rng
from kolk.testing.clock import ManualClock

MORNING = datetime.datetime(2026, 11, 15, 8, tzinfo=datetime.UTC)
DAY_SECONDS = 24 * 3600
EVENTS_A_DAY = 1_000
TABLE = """
    CREATE TABLE web.events (day DATE, id BIGINT, what STRING, PRIMARY KEY (day, id)) PARTITIONED BY (day)
    WITH ('table.auto-partition.enabled' = 'true', 'table.auto-partition.time-zone' = 'UTC',
          'table.auto-partition.num-retention' = '3')
"""


class Replica:
    """A copy of a table, in parts that can be dropped as the table's can. Confined to one thread."""

    def __init__(self, table: kolk.Table) -> None:
        """Start from a scan; the follower begins exactly where the scan ends."""
        self.parts: dict[str, dict[int, dict]] = {}
        self._table = table
        with table.scan() as scan:
            for batch in scan:
                for row in batch.to_pylist():
                    self.parts.setdefault(f"day={row['day']}", {})[row["id"]] = row
        table.changelog(start=scan.offsets, follower="replica").close()

    def catch_up(self) -> None:
        """Take every change since the last time, and every partition that came or went, in order."""
        with self._table.changelog(follower="replica", on_partition=self._on_partition) as changes:
            for batch in changes:
                part = self.parts.setdefault(batch["_bucket"][0].as_py().rpartition("/")[0], {})
                for change in batch.to_pylist():
                    row = {name: change[name] for name in self._table.schema.names}
                    if change["_change_type"] in ("+I", "+U"):
                        part[row["id"]] = row
                    elif change["_change_type"] == "-D":
                        del part[row["id"]]

    def _on_partition(self, event: kolk.PartitionEvent) -> None:
        if event.kind == "dropped":
            missed = f", {event.unread:,} changes of it were never read" if event.unread else ""
            print(f"  {event.partition} is gone{missed}")
            self.parts.pop(event.partition, None)
        else:
            self.parts.setdefault(event.partition, {})


def main() -> int:
    """Let ten days pass; the answer is the exit code."""
    clock = ManualClock(int(MORNING.timestamp() * 1_000))
    with tempfile.TemporaryDirectory(prefix="kolk-retention-") as folder:
        engine = Engine(Folder(Path(folder) / "data"), kolk.EngineConfig(), clock=clock)
        with kolk.Database(engine, engine.close, Rng(), clock=clock) as db:
            table = db.execute(TABLE)
            assert isinstance(table, kolk.Table)
            put_events(table, clock, 0)
            replica = Replica(table)
            for day in range(1, 11):
                clock.advance(seconds=DAY_SECONDS)
                engine.tick()  # what ``kolk.connect`` and a server do by themselves, once a minute
                put_events(table, clock, day)
                asleep = day in (5, 6, 7, 8)
                print(f"day {day}: {len(table.partitions())} partitions{', the replica is away' if asleep else ''}")
                if not asleep:
                    replica.catch_up()
            return verdict(table, replica)


def put_events(table: kolk.Table, clock: ManualClock, day: int) -> None:
    """The events of the present day; some of yesterday's come late."""
    today = datetime.datetime.fromtimestamp(clock.now_ms() / 1_000, datetime.UTC).date()
    ids = range(day * EVENTS_A_DAY, (day + 1) * EVENTS_A_DAY)
    days = [today - datetime.timedelta(days=number % 10 == 0) for number in ids]
    table.put(pa.table({"day": days, "id": ids, "what": [f"event {number}" for number in ids]}))


def verdict(table: kolk.Table, replica: Replica) -> int:
    """Whether the replica is the table, row by row and partition by partition."""
    expected: dict[str, dict[int, dict]] = {partition.name: {} for partition in table.partitions()}
    for row in table.scan().to_arrow().to_pylist():
        expected[f"day={row['day']}"][row["id"]] = row
    rows = sum(map(len, expected.values()))
    is_right = replica.parts == expected and len(expected) == 3 + 2 and rows > 0
    print(f"{rows:,} rows in {', '.join(expected)}")
    print("The replica is the table." if is_right else "WRONG: the replica differs from the table.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
