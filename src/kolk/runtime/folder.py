"""The data folder: who has it open, and which format it holds.

A folder is open in one process at a time; the operating system holds the lock and lets it go when the process
dies, however it dies. The lock file tells the others whom to talk to. A folder of an older format is brought up to the
present one when it is opened, under the lock (``kolk.runtime.migrations``); one of a newer format is refused.
"""

import fcntl
import json
import os
import re
from pathlib import Path

from kolk.errors import Corrupted, FolderInUse, InvalidArgument, UnknownFormat
from kolk.runtime.disk import TEMPORARY_SUFFIX, Disk, OsDisk
from kolk.runtime.migrations import FORMAT, FORMAT_FILE, migrate, write_format

_NUMBER = re.compile("[1-9][0-9]{0,8}")  # bounded, because ``int`` itself raises on thousands of digits
LOCK_FILE = "LOCK"
"""Locked by the process that has the folder open."""
TOKENS_FILE = "tokens.json"
"""The access tokens of a server; see ``kolk.server.tokens``."""
TOKENS_LOCK_FILE = "tokens.lock"
_OS_DISK = OsDisk()


class Folder:
    """An exclusively opened data folder. ``close`` lets it go; so does the end of the process."""

    def __init__(self, path: Path, disk: Disk = _OS_DISK) -> None:
        if path.exists() and not path.is_dir():
            raise InvalidArgument(f"{path} is a file; give a folder for the data")
        disk.make_folder(str(path))
        self.path = path
        self.pid = os.getpid()
        self._disk = disk
        self._handle = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
            self._settle_format()
        except BaseException:
            os.close(self._handle)
            raise

    def close(self) -> None:
        """Let others open the folder. Idempotent."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            # By name: a forked child may still have the handle, and with it the lock.
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    @property
    def is_in_place(self) -> bool:
        """Whether the path still leads to this folder, and not to nothing or to another one."""
        try:
            there, ours = os.stat(self.path / LOCK_FILE), os.fstat(self._handle)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def abandon(self) -> None:
        """In a forked child: drop the inherited handle; the lock stays with the parent."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"{self.path} is open in {self._holder()}") from None
        self.announce(None)

    def announce(self, url: str | None) -> None:
        """Tell others who have to stay out whom to talk to instead."""
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps({"pid": self.pid, "url": url}).encode(), 0)

    def _holder(self) -> str:
        """Who holds the lock, and what to do about it."""
        try:
            holder = json.loads(os.pread(self._handle, 4096, 0))
            pid, url = holder["pid"], holder["url"]
        except (ValueError, KeyError, TypeError):
            return "another process; close it there first"
        if url:
            return f"process {pid}, which serves it: connect to {url}"
        return f"process {pid}; close it there first, or use another folder"

    def _settle_format(self) -> None:
        """Make a new folder one of the present format, bring an older one up to it, refuse all others."""
        file = self.path / FORMAT_FILE
        if not file.exists():
            # What a crash leaves of ``replace`` means nothing, and tokens may be made before the first start.
            tokens = (TOKENS_FILE, TOKENS_FILE + TEMPORARY_SUFFIX, TOKENS_LOCK_FILE)
            harmless = (LOCK_FILE, FORMAT_FILE + TEMPORARY_SUFFIX, *tokens)
            if any(entry.name not in harmless for entry in self.path.iterdir()):
                raise InvalidArgument(f"{self.path} holds other files and no Kolk data; give an empty or new folder")
            write_format(self.path, self._disk)
            return
        words = file.read_text(errors="replace").split()
        if len(words) != 2 or words[0] != "kolk" or not _NUMBER.fullmatch(words[1]):
            raise Corrupted(f"{file} does not name a Kolk format; restore the folder from a backup")
        found = int(words[1])
        if found > FORMAT:
            raise UnknownFormat(
                f"{self.path} has format {found}, this version of Kolk reads up to {FORMAT}: upgrade Kolk"
            )
        migrate(self.path, self._disk, found)
