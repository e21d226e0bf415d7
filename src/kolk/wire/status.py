"""Errors as bytes, and back, so that the one that is raised here is the one that was raised there.

The code names the class; a code that this side does not know becomes the plain root, with its message and whether a
retry helps. No traceback and no data crosses.
"""

from functools import cache
from typing import Any

import msgspec

from kolk.errors import (
    ColumnLockConflict,
    InternalError,
    KolkError,
    LeaseLost,
    PartialPut,
    PartitionDropped,
    TooManyScans,
    UnknownOrExpiredScan,
)
from kolk.model.ids import PlainTag

_encoder = msgspec.msgpack.Encoder()
_TEXT_MAX = 10_000


class _Status(msgspec.Struct, frozen=True, omit_defaults=True):
    code: int
    message: str
    retriable: bool = False
    acknowledged: dict[str, int] = {}
    failed: dict[str, bytes] = {}
    writer: bytes = b""
    seq: int = 0
    partition: str = ""
    unread: int | None = None
    reason: str = ""
    retry_after: float | None = None
    owner: str | None = None
    columns: list[str] | None = None
    seconds_left: float | None = None


_decoder = msgspec.msgpack.Decoder(_Status)


def encode_error(error: KolkError) -> bytes:
    """An error for the other side."""
    return _encoder.encode(_status(error))


def decode_error(data: bytes | memoryview) -> KolkError:
    """The error of the other side; an InternalError if the bytes are not one."""
    try:
        return _error(_decoder.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KolkError) as error:
        return InternalError(f"the server failed with an error that cannot be read: {error}")


def _status(error: KolkError) -> _Status:
    if isinstance(error, PartialPut) and isinstance(error.tag, PlainTag):
        return _Status(
            code=error.code,
            message=_told(error),
            retriable=error.retriable,
            acknowledged=error.acknowledged,
            failed={bucket: encode_error(failure) for bucket, failure in error.failed.items()},
            writer=error.tag.writer.to_bytes(16, "big"),
            seq=error.tag.seq,
        )
    plain = _Status(code=error.code, message=_told(error), retriable=error.retriable)
    if isinstance(error, PartitionDropped):
        return msgspec.structs.replace(plain, partition=error.partition, unread=error.unread)
    if isinstance(error, UnknownOrExpiredScan | LeaseLost):
        return msgspec.structs.replace(plain, reason=error.reason)
    if isinstance(error, TooManyScans):
        return msgspec.structs.replace(plain, reason=error.cap, retry_after=error.retry_after)
    if isinstance(error, ColumnLockConflict):
        columns = None if error.columns is None else list(error.columns)
        return msgspec.structs.replace(plain, owner=error.owner, columns=columns, seconds_left=error.seconds_left)
    return plain


def _told(error: KolkError) -> str:
    """The message; one that quotes what came in may quote a lot."""
    text = str(error)
    return text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"


def _error(status: _Status) -> KolkError:
    if status.code == PartialPut.code and status.failed:
        failed = {bucket: decode_error(failure) for bucket, failure in status.failed.items()}
        return PartialPut(status.acknowledged, failed, PlainTag(int.from_bytes(status.writer, "big"), status.seq))
    kind: Any = _classes().get(status.code, KolkError)
    error: KolkError = kind(status.message)
    if isinstance(error, PartitionDropped):
        error.partition, error.unread = status.partition, status.unread
    if isinstance(error, UnknownOrExpiredScan | LeaseLost):
        error.reason = status.reason
    if isinstance(error, TooManyScans):
        error.cap, error.retry_after = status.reason, status.retry_after
    if isinstance(error, ColumnLockConflict):
        error.owner, error.seconds_left = status.owner, status.seconds_left
        error.columns = None if status.columns is None else tuple(status.columns)
    error.retriable = status.retriable
    return error


@cache
def _classes() -> dict[int, type[KolkError]]:
    """Every class of the tree but those that are more than a message, by code."""
    found: dict[int, type[KolkError]] = {}
    waiting: list[type[KolkError]] = [KolkError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__ == KolkError.__module__ and kind is not PartialPut:
            found[kind.code] = kind
    return found
