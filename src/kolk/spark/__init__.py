"""Kolk in Spark: ``spark.read.format("kolk")`` and its like, and what makes them pleasant.

The source and the sink are found by the name ``kolk`` wherever this package is installed. What is here besides are
functions for a driver: ``session`` makes a Spark session for this machine, ``table`` a frame of a table, ``attach``
views of all of them, ``lookup`` and ``join_lookup`` find rows by key. docs/spark.md has the rest.

It needs ``pip install kolk[spark]``, a server (``kolk serve`` or ``kolk.start``), and no RocksDB.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kolk.spark.lookups import join_lookup, lookup
    from kolk.spark.sessions import session
    from kolk.spark.tables import attach, table

__all__ = ["attach", "join_lookup", "lookup", "session", "table"]

_HOMES = {
    "attach": "kolk.spark.tables",
    "join_lookup": "kolk.spark.lookups",
    "lookup": "kolk.spark.lookups",
    "session": "kolk.spark.sessions",
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
