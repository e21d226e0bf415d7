"""Tables that are cut by day, for the tests of partitions."""

import kolk

SCHEMA = kolk.Schema(
    [kolk.Column("day", "string"), kolk.Column("key", "int"), kolk.Column("value", "int")], primary_key=["day", "key"]
)
EVENTS = kolk.Schema([kolk.Column("day", "string", nullable=False), kolk.Column("n", "int")])
