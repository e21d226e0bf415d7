"""Backups as values: what one holds, and how far one is that is being made."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class BackupFile:
    """A file of a backup, by its path within it, and what it must be."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupInfo:
    """A backup that is whole. ``path`` is where it was made, ``source`` the folder of which.

    ``mixed`` names the tables that have so many buckets that they could not be taken at one moment; all others were.
    """

    path: str
    source: str
    taken: datetime
    tables: int
    buckets: int
    files: int
    size_bytes: int
    mixed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupState:
    """How far a backup is: bytes so far, and of how many, which is 0 until it is known. ``info`` is there at its
    end."""

    done_bytes: int
    total_bytes: int
    info: BackupInfo | None = None
