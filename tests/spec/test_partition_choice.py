"""A reader that chose some partitions passes over the events of the others, and knows that it did."""

import pytest

import kolk

SCHEMA = kolk.Schema([kolk.Column("day", "int"), kolk.Column("id", "int")], primary_key=["day", "id"])


@pytest.fixture
def table(db):
    made = db.create_table("t", SCHEMA, partition_by=["day"])
    made.put([{"day": 1, "id": 1}])
    return made


def test_a_changelog_ends_although_the_last_events_were_of_others(table):
    offsets = table.scan(where="day = 1").offsets
    table.put([{"day": 1, "id": 2}])
    table.put([{"day": 2, "id": 1}])
    table.drop_partition(day=2)

    told = []
    changes = table.changelog(start=offsets, where="day = 1", on_partition=told.append)
    rows = [row["id"] for batch in changes for row in batch.to_pylist()]

    assert (rows, told) == ([2], [])
    assert changes.offsets == table.scan(where="day = 1").offsets


def test_a_new_partition_that_is_chosen_comes_after_one_that_is_not(table):
    offsets = table.scan(where="day < 5").offsets
    table.put([{"day": 9, "id": 1}])
    table.put([{"day": 3, "id": 1}])
    table.put([{"day": 8, "id": 1}])

    told = []
    changes = table.changelog(start=offsets, where="day < 5", on_partition=lambda event: told.append(event.partition))
    rows = [row["day"] for batch in changes for row in batch.to_pylist()]

    assert (rows, told) == ([3], ["day=3"])
    assert changes.offsets == table.scan(where="day < 5").offsets


def test_a_reading_of_chosen_partitions_between_scans_of_all_ends(table):
    with table.scan() as first:
        pass
    table.put([{"day": day, "id": 2} for day in (1, 2)])
    with table.scan() as second:
        pass
    table.put([{"day": day, "id": 3} for day in (1, 2, 3)])
    table.drop_partition(day=2)

    told = []
    changes = table.changelog(start=first.offsets, stop=second.offsets, where="day = 1", on_partition=told.append)
    rows = [row["id"] for batch in changes for row in batch.to_pylist()]

    assert (rows, told) == ([2], [])
