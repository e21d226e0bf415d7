"""The two files that make a folder a backup, as text.

``BACKUP`` is written last: without it a folder is none. ``FILES`` lists all others; its digest is in ``BACKUP``::

    kolk-backup 1
    {"format":2,"taken_ms":…,"source":"…","nonce":"…","tables":3,"buckets":12,"files":40,"size_bytes":…,"mixed":[],
     "digest":"<of FILES>"}
    <crc32 of the two lines before, 8 hexadecimal digits>

    <40 hexadecimal digits> <size> meta.sqlite
    <40 hexadecimal digits> <size> snapshots/1/0/0/7/000008.sst
    …

The number in the first line is that of this layout, ``format`` that of the data. Paths come from outside when a backup
is restored, so one that leads anywhere but into the backup is refused.
"""

import re
import zlib
from collections.abc import Iterable

import msgspec

from kolk.errors import Corrupted, UnknownFormat
from kolk.model.backup import BackupFile

VERSION = 1
_WORD = "kolk-backup"
_FIRST = re.compile(rf"{_WORD} ([1-9][0-9]{{0,8}})")
_LINE = re.compile(r"([0-9a-f]{40}) ([0-9]{1,18}) ([^ ]+)")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_TOP = ("meta.sqlite", "tokens.json", "snapshots", "tables")


class BackupHead(msgspec.Struct, frozen=True, kw_only=True):
    """What the file ``BACKUP`` says. ``nonce`` is of who asked for it, so that a call that is made again is known."""

    format: int
    taken_ms: int
    source: str
    nonce: str
    tables: int
    buckets: int
    files: int
    size_bytes: int
    mixed: list[str]
    digest: str


def encode_backup(head: BackupHead) -> bytes:
    """The file ``BACKUP``."""
    body = f"{_WORD} {VERSION}\n".encode() + msgspec.json.encode(head) + b"\n"
    return body + _sum(body) + b"\n"


def decode_backup(name: str, data: bytes) -> BackupHead:
    """What such a file says; UnknownFormat if a newer Kolk wrote it, Corrupted if it is damaged."""
    lines = data.split(b"\n")
    first = _FIRST.fullmatch(lines[0].decode(errors="replace"))
    if first is None:
        raise Corrupted(f"{name} is not that of a Kolk backup")
    if int(first[1]) > VERSION:
        raise UnknownFormat(
            f"{name} is of backup format {first[1]}, and this version of Kolk reads up to {VERSION}: upgrade Kolk"
        )
    body = b"".join(line + b"\n" for line in lines[:2])
    if data != body + _sum(body) + b"\n":
        raise Corrupted(f"{name} is damaged, so nobody can tell whether the backup is whole; use another backup")
    try:
        return msgspec.json.decode(lines[1], type=BackupHead)
    except (msgspec.DecodeError, ValueError) as error:
        raise Corrupted(f"{name} cannot be read: {error}") from error


def encode_files(files: Iterable[BackupFile]) -> bytes:
    """The file ``FILES``."""
    return "".join(f"{file.digest} {file.size} {file.path}\n" for file in files).encode()


def decode_files(name: str, data: bytes) -> list[BackupFile]:
    """The files of such a list, of which the digest was right."""
    files: list[BackupFile] = []
    for line in data.decode(errors="replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or not _is_within(match[3]):
            raise Corrupted(f"{name} has a line that names no file of a backup: {line[:200]!r}")
        files.append(BackupFile(match[3], int(match[2]), match[1]))
    return files


def _is_within(path: str) -> bool:
    parts = path.split("/")
    return parts[0] in _TOP and all(map(_PART.fullmatch, parts))


def _sum(body: bytes) -> bytes:
    return f"{zlib.crc32(body):08x}".encode()
