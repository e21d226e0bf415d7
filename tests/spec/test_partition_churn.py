"""Everything at once: writers over rolling partitions, drops and expiry under them, columns that come and go, scans,
and replicas that end as the table."""

import datetime
import random
import threading

import pytest
from tests.spec.cut import SCHEMA

from kolk.errors import InvalidRows, PartialPut, PartitionDropped

BY_TIME = {
    "table.auto-partition.enabled": "true",
    "table.auto-partition.time-zone": "UTC",
    "table.auto-partition.num-retention": "1",
    "table.auto-partition.expiry-grace": "0s",
}
WRITERS, ROUNDS = 3, 25
STEP_MS = 6 * 3_600_000


class Replica:
    """What a follower makes of the table."""

    def __init__(self):
        self.rows = {}

    def on_partition(self, event):
        if event.kind == "dropped":
            self.rows = {key: value for key, value in self.rows.items() if key[0] != event.values["day"]}

    def apply(self, batch):
        for row in batch.to_pylist():
            shown = {name: value for name, value in row.items() if not name.startswith("_")}
            if row["_change_type"] in ("+I", "+U"):
                self.rows[row["day"], row["key"]] = shown
            else:
                self.rows.pop((row["day"], row["key"]), None)

    @property
    def values(self):
        return {key: row["value"] for key, row in self.rows.items()}


def scanned(table):
    with table.scan(on_partition=lambda event: None) as scan:
        return {(row["day"], row["key"]): row for row in scan.to_arrow().to_pylist()}


class Churn:
    """The threads, and whatever they met that they should not have."""

    def __init__(self, bench, table, is_by_time):
        self.bench = bench
        self.table = table
        self.is_by_time = is_by_time
        self.unexpected = []
        self.scans = self.alters = 0
        self.written = threading.Event()

    def guarded(self, work, *arguments):
        def run():
            try:
                work(*arguments)
            except Exception as error:  # noqa: BLE001 - kept, and looked at by the test
                self.unexpected.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def day(self, place):
        now = datetime.datetime.fromtimestamp(self.bench.clock.now_ms() / 1000, datetime.UTC)
        return (now + datetime.timedelta(days=place)).strftime("%Y%m%d")

    def write(self, writer):
        """Each through a handle of its own, which knows the columns of the moment it was opened at."""
        rng = random.Random(writer)
        for round in range(ROUNDS):
            table = self.bench.db.table("t") if round % 5 == writer else self.table
            rows = [
                {name: None for name in table.schema.names}
                | {"day": self.day(rng.randrange(3)), "key": rng.randrange(50), "value": rng.randrange(10**6)}
                for _ in range(20)
            ]
            try:
                table.put(rows)
                table.delete([{"day": row["day"], "key": row["key"]} for row in rows[:3]])
            except PartitionDropped:
                continue
            except InvalidRows as error:
                if "past its time" not in str(error):
                    raise
            except PartialPut as error:
                if not all(isinstance(each, PartitionDropped) for each in error.failed.values()):
                    raise

    def roll(self):
        """Time passes, by which partitions expire, or somebody drops them."""
        rng = random.Random(99)
        while not self.written.wait(0.02):
            self.bench.clock.advance(ms=STEP_MS)
            self.bench.engine.tick()
            if not self.is_by_time or rng.random() < 0.2:
                self.table.drop_partition(day=self.day(rng.randrange(-2, 2)), if_exists=True)

    def alter(self):
        """Columns come, change and go."""
        table, rng = self.bench.connect().table("t"), random.Random(7)
        while not self.written.wait(0.02):
            name = f"c{self.alters}"
            table.add_column(name, "int", default=rng.choice([None, 5]), first=rng.random() < 0.5)
            table.rename_column(name, f"{name}x")
            table.widen_column(f"{name}x", "bigint")
            olds = [name for name in table.schema.names if name.startswith("c")]
            if len(olds) > 2:
                table.drop_column(rng.choice(olds))
            self.alters += 1

    def scan(self):
        while not self.written.is_set():
            scanned(self.table)
            self.scans += 1

    def follow(self, replica, changes):
        for batch in changes:
            replica.apply(batch)

    def follow_by_parts(self, replica):
        """As a follower that is opened again and again."""
        while not self.written.is_set():
            with self.table.changelog(follower="f", on_partition=replica.on_partition) as changes:
                for batch in changes:
                    replica.apply(batch)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("options", [None, BY_TIME], ids=["dropped by hand", "expired by the clock"])
def test_whoever_follows_ends_with_the_table_whatever_came_and_went(bench, options):
    timed = bench(buckets_open_max=4, log_segment_bytes=2**20, scan_ttl_seconds=1e9)  # days pass in moments
    table = timed.db.create_table("t", SCHEMA, buckets=2, partition_by=["day"], options=options)
    churn, replica, parts = Churn(timed, table, options is not None), Replica(), Replica()
    changes = table.changelog(follow=True, on_partition=replica.on_partition)
    writers = [churn.guarded(churn.write, writer) for writer in range(WRITERS)]
    others = [churn.guarded(work) for work in (churn.roll, churn.alter, churn.scan)]
    others.append(churn.guarded(churn.follow_by_parts, parts))
    follower = churn.guarded(churn.follow, replica, changes)
    for thread in writers:
        thread.join(60)
    churn.written.set()
    for thread in others:
        thread.join(60)
    changes.close()
    follower.join(60)
    assert not any(thread.is_alive() for thread in (*writers, *others, follower))

    with table.changelog(start=changes.offsets, on_partition=replica.on_partition) as rest:
        churn.follow(replica, rest)
    with table.changelog(follower="f", on_partition=parts.on_partition) as rest:
        churn.follow(parts, rest)
    now, whole = timed.db.table("t"), Replica()
    with now.changelog(schema="latest") as every:
        churn.follow(whole, every)

    assert churn.unexpected == []
    final = scanned(now)
    assert whole.rows == final
    assert replica.values == parts.values == {key: row["value"] for key, row in final.items()}
    assert churn.scans
    assert churn.alters
