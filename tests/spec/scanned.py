"""A table that is scanned in many tests, and how it is looked at."""

import kolk

SCHEMA = kolk.Schema([kolk.Column("id", "bigint"), kolk.Column("v", "string"), kolk.Column("n", "bigint")], "id")


def rows(ids, v="v", n=0):
    """A row for each id, all alike."""
    return [{"id": id, "v": v, "n": n} for id in ids]


def ids(table):
    """Which rows there are, whatever their order."""
    return sorted(table["id"].to_pylist())
