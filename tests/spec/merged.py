"""An aggregation table that counts, and what such tables show."""

import kolk

COUNTS = kolk.Schema(
    [
        kolk.Column("k", "int"),
        kolk.Column("n", "bigint", agg="count_rows"),
        kolk.Column("seen", "bigint", agg="count", params={"input": "string"}),
        kolk.Column("total", "int", agg="sum"),
    ],
    ["k"],
)


def counting(db) -> kolk.Table:
    """A table of counts, over several buckets."""
    return db.create_table("counts", COUNTS, buckets=3)


def shown(table) -> list[tuple[str, tuple]]:
    """The changelog: kinds, and rows without their keys' names."""
    names = table.schema.names
    rows = [row for batch in table.changelog() for row in batch.to_pylist()]
    return [(row["_change_type"], tuple(row[name] for name in names)) for row in rows]


def rows_of(table) -> list[tuple]:
    found = table.scan().to_arrow()
    return sorted(zip(*(found.column(name).to_pylist() for name in table.schema.names), strict=True))
