"""Kolk in Spark: ``spark.read.format("kolk")`` and its like, and what makes them pleasant.

The source and the sink are found by the name ``kolk`` wherever this package is installed. What is here besides are
functions for a driver: ``session`` makes a Spark session for this machine, ``schema_for`` the schema of a table for a
frame, and ``sink`` writes a stream in every output mode. docs/spark.md has the rest.

It needs ``pip install kolk[spark]``, a server (``kolk serve`` or ``kolk.start``), and no RocksDB.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kolk.spark.schemas import schema_for
    from kolk.spark.sessions import session
    from kolk.spark.sinks import sink

__all__ = ["schema_for", "session", "sink"]

_HOMES = {"schema_for": "kolk.spark.schemas", "session": "kolk.spark.sessions", "sink": "kolk.spark.sinks"}


def __getattr__(name: str) -> Any:
    """Imported when somebody asks: a worker of Spark needs little of it, and starts often."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kolk.spark' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
