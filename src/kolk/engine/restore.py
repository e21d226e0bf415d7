"""Restoring: a backup becomes a database in a new folder.

Everything is verified before anything is written: a file that is missing or is not what was backed up is named, and
nothing is restored. Then the files are copied, and verified once more on their way. Steps, and what a crash leaves:

1. ``RESTORING`` is written into the folder            a folder that nobody opens, for it holds other files
2. the files are copied, durably                       the same
3. owners and followers are given new fences           the same
4. ``RESTORING`` is removed                            the same
5. ``FORMAT`` is written, with the backup's number     a database, which is brought up to date when it is opened

Of what owners wrote after the backup there is nothing, so nobody who has a fence from before goes on with it, nor who
began since, under numbers that are about to be given again: both are set forth by what nobody else draws. So are the
epochs of followers: what their readers have seen after the backup is not what is written there from now on.

The rows come back from their snapshots when a bucket is first opened, by the ordinary recovery. It never writes into a
backup, nor into a folder in which there is anything. What fails leaves nothing.
"""

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path, PurePosixPath

from kolk.codec.backup import BackupHead, decode_backup, decode_files
from kolk.codec.follower import EPOCH_KEY, decode_bookmark, encode_bookmark
from kolk.codec.follower import PREFIX as FOLLOWERS
from kolk.codec.owner import NUMBER_KEY, decode_owner, encode_owner
from kolk.codec.owner import PREFIX as OWNERS
from kolk.engine.backup import BACKUP_FILE, FILES_FILE, META_FILE, check_free, cleared, info_of
from kolk.errors import Corrupted, InvalidArgument, NotFound, Stopped, UnknownFormat
from kolk.model.backup import BackupFile, BackupInfo
from kolk.model.owner import restored
from kolk.runtime.disk import Disk, OsDisk
from kolk.runtime.folder import Folder
from kolk.runtime.migrations import FORMAT, write_format
from kolk.runtime.rng import Rng
from kolk.storage.copying import copying, digest_of, digesting, finished
from kolk.storage.meta import Meta, MetaChange

OnProgress = Callable[[int, int], object]
RESTORING_FILE = "RESTORING"
_SKIPPED_BITS = 32
"""Fences and numbers are skipped by so many bits that nobody has come as far, and by as many that are drawn."""
_OS_DISK = OsDisk()


def restore(
    backup: Path,
    folder: Path,
    *,
    disk: Disk = _OS_DISK,
    on_progress: OnProgress | None = None,
    rng: Rng | None = None,
) -> BackupInfo:
    """Make a database of a backup, in a folder that is new or empty. ``on_progress`` is called with the bytes so far
    and of how many: all of them are read twice."""
    try:
        head, files = _read(disk, backup)
        check_free(disk, folder, "restore")
        if folder.resolve().is_relative_to(backup.resolve()):
            raise InvalidArgument(f"{folder} lies within the backup; give another folder")
        progress = _Progress(2 * sum(file.size for file in files), on_progress)
        _verify(disk, backup, files, progress)
        _copy(disk, backup, folder, files, progress, rng or Rng())
        write_format(folder, disk, head.format)
    except OSError as error:
        raise Stopped(f"{backup} could not be restored: {error}") from error
    Folder(folder, disk).close()  # brings an older format up to date, under the lock
    return info_of(backup, head)


class _Progress:
    """Counts bytes. Confined to one restore."""

    def __init__(self, total: int, on_progress: OnProgress | None) -> None:
        self._total = total
        self._done = 0
        self._on_progress = on_progress

    def add(self, size: int) -> None:
        self._done += size
        if self._on_progress is not None:
            self._on_progress(self._done, self._total)


def _read(disk: Disk, backup: Path) -> tuple[BackupHead, list[BackupFile]]:
    """What a backup says that it holds."""
    path, files_path = str(backup / BACKUP_FILE), str(backup / FILES_FILE)
    if not disk.exists(path):
        raise NotFound(
            f"{backup} is no backup that is whole: it has no file {BACKUP_FILE}, which is written last; use another one"
        )
    head = decode_backup(path, disk.read(path, 0, disk.size(path)))
    if head.format > FORMAT:
        raise UnknownFormat(
            f"{backup} holds data of format {head.format}, this version of Kolk reads up to {FORMAT}: upgrade Kolk"
        )
    if not disk.exists(files_path):
        raise Corrupted(f"the backup {backup} is damaged: {FILES_FILE} is missing; nothing was restored")
    data = disk.read(files_path, 0, disk.size(files_path))
    if digest_of(data) != head.digest:
        raise Corrupted(f"the backup {backup} is damaged: {FILES_FILE} is not what was written; nothing was restored")
    return head, decode_files(files_path, data)


def _verify(disk: Disk, backup: Path, files: Iterable[BackupFile], progress: _Progress) -> None:
    """Look at every byte of a backup."""
    damaged: list[str] = []
    for file in files:
        path = str(backup / file.path)
        if not disk.exists(path) or disk.size(path) != file.size:
            damaged.append(file.path)
            continue
        if finished(digesting(disk, path), progress.add) != file.digest:
            damaged.append(file.path)
    if damaged:
        more = f" and {len(damaged) - 1:,} more" if len(damaged) > 1 else ""
        raise Corrupted(
            f"the backup {backup} is damaged: {damaged[0]}{more} is missing or is not what was backed up; nothing was"
            " restored, use another backup"
        )


def _copy(disk: Disk, backup: Path, folder: Path, files: Iterable[BackupFile], progress: _Progress, rng: Rng) -> None:
    """Copy everything, durably. What fails is removed; what a crash leaves is refused."""
    existed = disk.exists(str(folder))
    try:
        disk.make_folder(str(folder))
        disk.replace(str(folder / RESTORING_FILE), f"{backup}\n".encode())
        folders: set[str] = set()
        for file in files:
            parent = str(folder / PurePosixPath(file.path).parent)
            if parent not in folders:
                disk.make_folder(parent)
                folders.add(parent)
            copied = finished(copying(disk, str(backup / file.path), str(folder / file.path)), progress.add)
            if copied != (file.size, file.digest):
                raise Corrupted(f"{file.path} of the backup {backup} changed while it was copied")
        for each in sorted(folders):
            disk.sync_folder(each)
        _fence(folder, rng)
        disk.remove(str(folder / RESTORING_FILE))
        disk.sync_folder(str(folder))
    except BaseException as error:
        left = cleared(disk, folder, existed=existed)
        with suppress(OSError):
            disk.remove(str(folder / RESTORING_FILE))
        error.add_note(f"there is no database in {folder}{left}")
        raise


def _fence(folder: Path, rng: Rng) -> None:
    """Let nobody be taken for an owner's writer, or a follower's reader, who is not one of this very database."""
    skipped = (1 << _SKIPPED_BITS) + rng.id128() % (1 << _SKIPPED_BITS)
    with closing(Meta(folder / META_FILE)) as meta:
        changes = [
            MetaChange(found.key, encode_owner(restored(decode_owner(found.value), skipped)), found.version)
            for found in meta.list(OWNERS)
        ]
        changes += [
            MetaChange(
                found.key, encode_bookmark(decode_bookmark(found.key, found.value).restored(skipped)), found.version
            )
            for found in meta.list(FOLLOWERS)
        ]
        for key, first in ((NUMBER_KEY, 0), (EPOCH_KEY, 1)):
            number = meta.get(key)
            last = first if number is None else int(number.value)
            changes.append(meta.replacement(key, str(last + skipped).encode()))
        meta.write(changes)
