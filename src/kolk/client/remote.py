"""From an address to an open database over the network: the one place where a connection's parts are put together."""

import os
from functools import partial
from pathlib import Path

from kolk.client.address import Address
from kolk.client.connection import Connection
from kolk.client.database import Database
from kolk.client.deadlines import Deadlines
from kolk.client.retry import Retry
from kolk.client.spares import Spares
from kolk.errors import InvalidArgument
from kolk.runtime.clock import SystemClock, pause
from kolk.runtime.rng import Rng
from kolk.runtime.threads import start_thread

_File = str | os.PathLike[str] | None


def connect_to(
    url: str,
    *,
    token: str | None,
    tls_ca: _File,
    tls_cert: _File,
    tls_key: _File,
    timeout: float,
    allow_plaintext: bool,
) -> Database:
    """See ``kolk.connect``."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidArgument(f"timeout is a number of seconds, not {timeout!r}")
    if token is not None and (not isinstance(token, str) or not token.isascii() or not token.isprintable()):
        raise InvalidArgument("token is the text that `kolk token create` printed")
    if (tls_cert is None) != (tls_key is None):
        raise InvalidArgument("tls_cert and tls_key go together; give both or neither")
    address = Address.parse(url)
    if tls_ca is not None or tls_cert is not None:
        address = Address(address.host, address.port, is_tls=True)
    if token is not None and not (address.is_tls or address.is_loopback or allow_plaintext):
        raise InvalidArgument(
            f"a token for {address} would be readable on its way: give tls_ca=..., use kolk+tls://, or, where something"
            " else encrypts, allow_plaintext=True"
        )
    clock, rng = SystemClock(), Rng()
    spares = Spares(clock)
    connection = Connection(
        address,
        retry=Retry(clock, rng, float(timeout), pause),
        deadlines=Deadlines(clock, partial(start_thread, name="kolk-deadlines"), spares.drop_idle),
        spares=spares,
        rng=rng,
        token=token,
        tls_ca=_contents(tls_ca),
        tls_cert=_contents(tls_cert),
        tls_key=_contents(tls_key),
    )
    try:
        connection.hello()
    except BaseException:
        connection.close()
        raise
    return Database(connection, connection.close, rng)


def _contents(path: _File) -> bytes | None:
    if path is not None and not isinstance(path, str | os.PathLike):
        raise InvalidArgument(f"a certificate, key or authority is the path of a file, not a {type(path).__name__}")
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"the file {path} cannot be read: {error.strerror}") from error
