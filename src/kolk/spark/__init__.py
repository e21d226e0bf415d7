"""Kolk in Spark: ``spark.read.format("kolk")`` and its like, and what makes them pleasant.

The source and the sink are found by the name ``kolk`` wherever this package is installed. What is here besides are
functions for a driver: ``session`` makes a Spark session for this machine; ``table`` is a frame of a table, ``attach``
makes views of all of them, ``lookup`` and ``join_lookup`` find rows by key; ``schema_for`` is the schema of a table for
a frame, ``sink`` writes a stream in every output mode, and ``by_bucket`` brings rows to the tasks that
``exactly-once=undo`` wants them in. docs/spark.md has the rest.

It needs ``pip install kolk[spark]``, a server (``kolk serve`` or ``kolk.start``), and no RocksDB.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kolk.spark.co_location import by_bucket
    from kolk.spark.lookups import join_lookup, lookup
    from kolk.spark.schemas import schema_for
    from kolk.spark.sessions import session
    from kolk.spark.sinks import sink
    from kolk.spark.tables import attach, table

__all__ = ["attach", "by_bucket", "join_lookup", "lookup", "schema_for", "session", "sink", "table"]

_HOMES = {
    "attach": "kolk.spark.tables",
    "by_bucket": "kolk.spark.co_location",
    "join_lookup": "kolk.spark.lookups",
    "lookup": "kolk.spark.lookups",
    "schema_for": "kolk.spark.schemas",
    "session": "kolk.spark.sessions",
    "sink": "kolk.spark.sinks",
    "table": "kolk.spark.tables",
}


def __getattr__(name: str) -> Any:
    """Imported when somebody asks: a worker of Spark needs little of it, and starts often."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kolk.spark' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
