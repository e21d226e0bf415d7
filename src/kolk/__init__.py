"""Kolk: a streaming table store for PySpark users. Storage made by the stream.

General layout: what you call is in ``kolk.client``; the database in this process is ``kolk.engine``, over one
``kolk.tablet`` per bucket, over ``kolk.storage``; ``kolk.server`` puts it on the network, and ``kolk.wire`` is what
crosses it. The pure core is ``kolk.model``, ``kolk.codec`` and ``kolk.merge``. Every error is in ``kolk.errors``.

This module joins client, engine and server. It imports each when it is first used: a client of a server needs no
RocksDB, and ``kolk --help`` needs no Arrow.
"""

import importlib
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kolk import errors
from kolk.config import Durability, EngineConfig, ServerConfig, modules_of
from kolk.errors import InvalidArgument
from kolk.model.ids import PlainTag

if TYPE_CHECKING:
    from kolk import aio as aio
    from kolk import functions as functions
    from kolk import spark as spark
    from kolk.client.bootstrap import Bootstrap
    from kolk.client.changelog import Changelog
    from kolk.client.database import Database
    from kolk.client.lease import Lease
    from kolk.client.scan import Scan
    from kolk.client.table import PutResult, Table
    from kolk.client.transaction import Transaction
    from kolk.client.writer import Writer
    from kolk.model.backup import BackupInfo
    from kolk.model.custom import register_aggregate
    from kolk.model.evolution import AddColumn, DropColumn, DropNotNull, MoveColumn, RenameColumn, WidenColumn
    from kolk.model.follower import Follower
    from kolk.model.lease import LeaseInfo
    from kolk.model.owner import OwnerInfo
    from kolk.model.partition import Partition, PartitionEvent
    from kolk.model.scan import ScanInfo
    from kolk.model.schema import Column, Schema
    from kolk.model.snapshot import SnapshotInfo
    from kolk.model.transaction import TransactionInfo
    from kolk.server.child import ServerProcess

__version__ = "0.1.0"
__all__ = [
    "AddColumn",
    "BackupInfo",
    "Bootstrap",
    "Changelog",
    "Column",
    "Database",
    "DropColumn",
    "DropNotNull",
    "Durability",
    "EngineConfig",
    "Follower",
    "Lease",
    "LeaseInfo",
    "MoveColumn",
    "OwnerInfo",
    "Partition",
    "PartitionEvent",
    "PlainTag",
    "PutResult",
    "RenameColumn",
    "Scan",
    "ScanInfo",
    "Schema",
    "ServerConfig",
    "ServerProcess",
    "SnapshotInfo",
    "Table",
    "Transaction",
    "TransactionInfo",
    "WidenColumn",
    "Writer",
    "connect",
    "errors",
    "register_aggregate",
    "start",
]

_HOMES = {
    "AddColumn": "kolk.model.evolution",
    "BackupInfo": "kolk.model.backup",
    "Bootstrap": "kolk.client.bootstrap",
    "Changelog": "kolk.client.changelog",
    "Column": "kolk.model.schema",
    "Database": "kolk.client.database",
    "DropColumn": "kolk.model.evolution",
    "DropNotNull": "kolk.model.evolution",
    "Follower": "kolk.model.follower",
    "Lease": "kolk.client.lease",
    "LeaseInfo": "kolk.model.lease",
    "MoveColumn": "kolk.model.evolution",
    "OwnerInfo": "kolk.model.owner",
    "Partition": "kolk.model.partition",
    "PartitionEvent": "kolk.model.partition",
    "PutResult": "kolk.client.table",
    "RenameColumn": "kolk.model.evolution",
    "Scan": "kolk.client.scan",
    "ScanInfo": "kolk.model.scan",
    "Schema": "kolk.model.schema",
    "ServerProcess": "kolk.server.child",
    "SnapshotInfo": "kolk.model.snapshot",
    "Table": "kolk.client.table",
    "Transaction": "kolk.client.transaction",
    "TransactionInfo": "kolk.model.transaction",
    "WidenColumn": "kolk.model.evolution",
    "Writer": "kolk.client.writer",
    "register_aggregate": "kolk.model.custom",
}

_MODULES = ("aio", "functions", "spark")


def connect(
    target: str | os.PathLike[str],
    *,
    token: str | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    timeout: float = 30.0,
    allow_plaintext: bool = False,
    config: EngineConfig | None = None,
) -> "Database":
    """Open a database: a folder in this process, or a server.

    ``kolk.connect("./data")`` is a folder, made if it is not there. It is open in one process at a time; connections
    to it within the process share it. ``config`` are its settings.

    ``kolk.connect("kolk://127.0.0.1:9123")`` is a server. ``token`` (or the environment's ``KOLK_TOKEN``) says who you
    are. ``tls_ca`` is a file with the authority of its certificate, and makes the connection encrypted, as does
    ``kolk+tls://``; ``tls_cert`` and ``tls_key`` are your own certificate, where the server wants one. A token goes to
    another machine in the clear only with ``allow_plaintext``. A call has ``timeout`` seconds; within them it is tried
    again if it fails in a way that a retry can mend.
    """
    if not isinstance(target, str | os.PathLike):
        raise InvalidArgument(f"give the path of a folder or the address of a server, not a {type(target).__name__}")
    _check_config(config)
    if "://" in str(target):
        from kolk.client.remote import connect_to

        if config is not None:
            raise InvalidArgument("config is for a folder in this process; a server has its own settings")
        token = os.environ.get("KOLK_TOKEN") if token is None else token
        return connect_to(
            str(target),
            token=token,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
            timeout=timeout,
            allow_plaintext=allow_plaintext,
        )
    if token is not None or tls_ca is not None or tls_cert is not None or tls_key is not None:
        raise InvalidArgument(f"{target} is a folder, which takes no token and no TLS; a server is kolk://host:port")
    if not str(target) or "\0" in str(target):
        raise InvalidArgument("a path is not empty and has no NUL in it; the folder that you are in is '.'")
    from kolk.client.address import check_folder
    from kolk.client.database import Database
    from kolk.engine.shared import ENGINES
    from kolk.runtime.rng import Rng

    check_folder(os.fsdecode(target))
    engine = ENGINES.attach(Path(os.fsdecode(target)), config)
    return Database(engine, partial(ENGINES.detach, engine), Rng(), forget=partial(ENGINES.orphan, engine))


def start(
    folder: str | os.PathLike[str],
    *,
    config: EngineConfig | None = None,
    server: ServerConfig | None = None,
    load: Sequence[str] = (),
) -> "ServerProcess":
    """Start a server for a folder in a child process, which ends with this one: ``kolk.start("./data").url``.

    It takes free ports on this machine unless ``server`` says otherwise. ``load`` names modules that it imports first,
    such as those that register aggregate functions.
    """
    from kolk.client.address import check_folder
    from kolk.server.child import ServerProcess

    if not isinstance(folder, str | os.PathLike) or not str(folder) or "://" in str(folder) or "\0" in str(folder):
        raise InvalidArgument(f"give the path of a folder, not {folder!r}")
    check_folder(os.fsdecode(folder))
    _check_config(config)
    if server is not None and not isinstance(server, ServerConfig):
        raise InvalidArgument("server is a kolk.ServerConfig, such as kolk.ServerConfig(port=9123)")
    settings = server or ServerConfig(port=0, http_port=0)
    settings = replace(settings, load=(*settings.load, *modules_of(load)))
    return ServerProcess(Path(os.fsdecode(folder)), settings, config or EngineConfig())


def _check_config(config: object) -> None:
    if config is not None and not isinstance(config, EngineConfig):
        raise InvalidArgument("config is a kolk.EngineConfig, such as kolk.EngineConfig(durability='machine')")


if not TYPE_CHECKING:  # to a checker it would promise every name, also a misspelt one

    def __getattr__(name: str) -> Any:
        """The classes, ``kolk.aio``, ``kolk.functions`` and ``kolk.spark`` are imported when somebody asks for them."""
        if name in _MODULES:
            return importlib.import_module(f"kolk.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'kolk' has no attribute {name!r}")
        found = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return found


def __dir__() -> list[str]:
    """What there is to call, and nothing that this module needs for itself."""
    return sorted({*__all__, *_MODULES, "__version__"})
