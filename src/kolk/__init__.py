"""Kolk: a streaming table store for PySpark users. Storage made by the stream.

General layout: what you call is in ``kolk.client``; the database in this process is ``kolk.engine``, over one
``kolk.tablet`` per bucket, over ``kolk.storage``. The pure core is ``kolk.model``, ``kolk.codec`` and ``kolk.merge``.
Every error is in ``kolk.errors``. This module joins client and engine, and imports the engine only when a
folder is opened, so that a client of a server needs no RocksDB.
"""

import os
from functools import partial
from pathlib import Path

from kolk import errors
from kolk.client.changelog import Changelog
from kolk.client.database import Database
from kolk.client.scan import Scan
from kolk.client.table import PutResult, Table
from kolk.config import Durability, EngineConfig
from kolk.errors import InvalidArgument
from kolk.model.ids import PlainTag
from kolk.model.schema import Column, Schema
from kolk.runtime.rng import Rng

__version__ = "0.1.0"
__all__ = [
    "Changelog",
    "Column",
    "Database",
    "Durability",
    "EngineConfig",
    "PlainTag",
    "PutResult",
    "Scan",
    "Schema",
    "Table",
    "connect",
    "errors",
]


def connect(target: str | os.PathLike[str], *, config: EngineConfig | None = None) -> Database:
    """Open a database: ``kolk.connect("./data")`` is a folder, in this process, made if it is not there.

    A folder is open in one process at a time; connections to it within the process share it.
    """
    if not isinstance(target, str | os.PathLike):
        raise InvalidArgument(f"give the path of a folder, not a {type(target).__name__}")
    if config is not None and not isinstance(config, EngineConfig):
        raise InvalidArgument("config is a kolk.EngineConfig, such as kolk.EngineConfig(durability='machine')")
    if "\0" in str(target):
        raise InvalidArgument("a path has no NUL in it")
    if "://" in str(target):
        raise InvalidArgument(f"{target}: this version opens folders only; give a path, such as ./data")
    from kolk.engine.shared import ENGINES

    engine = ENGINES.attach(Path(os.fsdecode(target)), config)
    return Database(engine, partial(ENGINES.detach, engine), Rng(), forget=partial(ENGINES.orphan, engine))
