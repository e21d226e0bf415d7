"""Everything at once: writers over rolling partitions, drops under them, scans, and replicas that end as the table."""

import random
import threading

import pytest

import kolk
from kolk.errors import PartialPut, PartitionDropped

SCHEMA = kolk.Schema(
    [kolk.Column("day", "int"), kolk.Column("key", "int"), kolk.Column("value", "int")], primary_key=["day", "key"]
)
WRITERS, ROUNDS = 3, 40


class Replica:
    """What a follower makes of the table."""

    def __init__(self):
        self.rows = {}

    def on_partition(self, event):
        if event.kind == "dropped":
            self.rows = {key: value for key, value in self.rows.items() if key[0] != int(event.values["day"])}

    def apply(self, batch):
        for row in batch.to_pylist():
            if row["_change_type"] in ("+I", "+U"):
                self.rows[row["day"], row["key"]] = row["value"]
            else:
                self.rows.pop((row["day"], row["key"]), None)


def scanned(table):
    with table.scan(on_partition=lambda event: None) as scan:
        return {(row["day"], row["key"]): row["value"] for row in scan.to_arrow().to_pylist()}


class Churn:
    """The threads, and whatever they met that they should not have."""

    def __init__(self, table):
        self.table = table
        self.unexpected = []
        self.scans = 0
        self.written = threading.Event()
        self.day = 0

    def guarded(self, work, *arguments):
        def run():
            try:
                work(*arguments)
            except Exception as error:  # noqa: BLE001 - kept, and looked at by the test
                self.unexpected.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def write(self, writer):
        rng = random.Random(writer)
        for round in range(ROUNDS):
            self.day = max(self.day, round // 4)
            rows = [
                {"day": self.day + rng.randrange(3), "key": rng.randrange(50), "value": rng.randrange(10**6)}
                for _ in range(20)
            ]
            try:
                self.table.put(rows)
                self.table.delete(rows[:3])
            except PartitionDropped:
                continue
            except PartialPut as error:
                if not all(isinstance(each, PartitionDropped) for each in error.failed.values()):
                    raise

    def drop(self):
        rng = random.Random(99)
        while not self.written.wait(0.02):
            self.table.drop_partition(day=max(self.day + rng.randrange(-2, 2), 0), if_exists=True)

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
def test_whoever_follows_ends_with_the_table_whatever_came_and_went(bench):
    table = bench(buckets_open_max=4, log_segment_bytes=2**20).db.create_table(
        "t", SCHEMA, buckets=2, partition_by=["day"]
    )
    churn, replica, parts = Churn(table), Replica(), Replica()
    changes = table.changelog(follow=True, on_partition=replica.on_partition)
    writers = [churn.guarded(churn.write, writer) for writer in range(WRITERS)]
    others = [
        churn.guarded(churn.drop),
        churn.guarded(churn.scan),
        churn.guarded(churn.follow_by_parts, parts),
    ]
    follower = churn.guarded(churn.follow, replica, changes)
    for thread in writers:
        thread.join(60)
    churn.written.set()
    for thread in others:
        thread.join(60)
    changes.close()
    follower.join(60)

    with table.changelog(start=changes.offsets, on_partition=replica.on_partition) as rest:
        churn.follow(replica, rest)
    with table.changelog(follower="f", on_partition=parts.on_partition) as rest:
        churn.follow(parts, rest)

    assert churn.unexpected == []
    assert replica.rows == scanned(table)
    assert parts.rows == scanned(table)
    assert churn.scans
