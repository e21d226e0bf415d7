"""A small table that streams read: how it is filled, and what a query of it holds at the server."""

from kolk import Column, Schema

PAGES = Schema([Column("id", "bigint", nullable=False), Column("v", "string")], primary_key=["id"])


def put(table, ids, text="x"):
    return table.put([{"id": each, "v": f"{text}{each}"} for each in ids])


def held(db, name):
    """How many leases and followers there are of a table."""
    leases = [each for each in db.leases() if name in each.tables]
    return len(leases), len([each for each in db.followers() if each.table == name])
