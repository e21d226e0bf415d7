"""What all messages are made of: their root, and the types of their fields, which refuse what cannot be."""

from typing import Annotated

import msgspec

Table = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Offset = Annotated[int, msgspec.Meta(le=2**63 - 1)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Names = Annotated[list[str], msgspec.Meta(max_length=1_600)]
Version = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
"""A version of a table's schema that names, rows and answers are of; 0 is the current one."""
BucketNames = Annotated[list[str], msgspec.Meta(max_length=10_000)]


class Message(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="op"):
    """The root of all heads."""


class OfWrite(Message, frozen=True, kw_only=True):
    """What stands beside rows that are written at once. ``schema`` is their Arrow schema, as an IPC message, so that it
    can be compared."""

    table: Table
    schema: bytes
    action: str = "upsert"
    columns: Names | None = None
    mode: str = "accumulate"
    schema_id: Version = 0
