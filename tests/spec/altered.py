"""A small table that is altered in many tests, and how it is looked at."""

import kolk

PAGES = kolk.Schema(
    [kolk.Column("page", "string"), kolk.Column("pv", "int"), kolk.Column("title", "char(5)")], primary_key=["page"]
)


def filled(db):
    """The table with four rows."""
    table = db.create_table("web.pages", PAGES, buckets=3)
    table.put([{"page": f"/{n}", "pv": n, "title": "t"} for n in range(4)])
    return table


def rows(table):
    """All rows, by key."""
    return sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row[table.schema.primary_key[0]])


def changes(table, **options):
    """All changes, as a reader with these options sees them."""
    return [row for batch in table.changelog(**options) for row in batch.to_pylist()]
