"""Connections of this process to servers, one for each address and identity, kept as long as the process.

The workers of Spark are processes that serve one task after the other, so a connection made for one serves the next. It
is found by the process it was made in: one that came over a fork must not be used. Nothing that has a connection is
ever pickled; what travels are the ``Options`` that name it.
"""

import gc
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from kolk.client.database import Database
from kolk.client.remote import connect_to
from kolk.client.retry import Retry
from kolk.client.table import Table
from kolk.errors import InvalidArgument
from kolk.runtime.clock import SystemClock, pause
from kolk.runtime.rng import Rng
from kolk.spark.options import Options

T = TypeVar("T")
TIMEOUT = "30s"
_PATIENCE_SECONDS = 120.0
"""A restart of a server takes less."""
_WHO = ("url", "token", "tls-ca", "tls-cert", "tls-key", "allow-plaintext", "timeout")
_lock = threading.Lock()
_open: dict[tuple[object, ...], Database] = {}  # guarded by _lock


def database(options: Options) -> Database:
    """The database that the options name, connected."""
    who = (os.getpid(), *(options.text(name) for name in _WHO))
    with _lock:
        if who not in _open:
            _open[who] = _connected(options)
            _settle()
        return _open[who]


def table(options: Options) -> Table:
    """The table that the options name, in its newest version."""
    return database(options).table(options.required("table"))


def until_answered(options: Options, call: Callable[[], T]) -> T:
    """Make a call that may be made twice, and again while the server cannot be reached: a driver that gives up runs the
    whole batch again."""
    seconds = max(_PATIENCE_SECONDS, options.seconds("timeout", TIMEOUT))
    return Retry(SystemClock(), Rng(), seconds, pause).run(lambda _: call())


def _settle() -> None:
    """Let the garbage collector leave out what a worker of Spark has imported by now, which lives as long as it.

    Spark collects after every call of a worker, and a micro-batch takes four of them or more: looking at all modules
    each time is 40 ms of work for nothing. The program of a driver is not ours to do this in.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is not None and spec.name.startswith("pyspark."):
        gc.freeze()


def _connected(options: Options) -> Database:
    url = options.required("url")
    if "://" not in url:
        raise InvalidArgument(
            f"{url!r} is a folder, and Spark works in many processes: serve it with kolk.start(folder) or `kolk serve"
            " folder`, and give the url of that"
        )
    return connect_to(
        url,
        token=options.text("token"),
        tls_ca=options.text("tls-ca"),
        tls_cert=options.text("tls-cert"),
        tls_key=options.text("tls-key"),
        timeout=options.seconds("timeout", TIMEOUT),
        allow_plaintext=options.is_on("allow-plaintext"),
    )
