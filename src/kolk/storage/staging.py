"""Rows that wait for a commit: a file for each handle, durable once it is sealed.

    8 bytes "KOLKSTG1" | head | batch | batch | ... | seal

Each piece is ``u32 length | u32 crc32 | u8 kind | bytes``: a head (JSON), batches (one Arrow record batch message each)
and a seal (JSON), which is written and synced last. A file without a seal is worth nothing, whatever is in it: a crash
leaves such files, and they are removed. What a sealed file holds is checked when it is read.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from zlib import crc32

import pyarrow as pa

from kolk.codec.checksum import added
from kolk.codec.transaction import decode_seal, decode_staging, encode_seal, encode_staging
from kolk.errors import Corrupted, DiskFull, StagingGone
from kolk.model.transaction import Seal, Staging, check_handle
from kolk.runtime.disk import AppendFile, Disk
from kolk.runtime.threads import side_by_side

_MAGIC = b"KOLKSTG1"
_PIECE = struct.Struct("<IIB")
_HEAD, _BATCH, _SEAL = range(3)


class StagingWriter:
    """Rows that are being staged under one handle. Confined to one call at a time."""

    def __init__(self, disk: Disk, folder: str, path: str, staging: Staging) -> None:
        self.staging = staging
        self._disk = disk
        self._folder = folder
        self._file: AppendFile = disk.open_append(path)
        self._sealed = Seal(0, 0, 0)
        self._is_broken = False
        try:
            # What an earlier attempt of this handle may have left is not this one's.
            self._file.truncate(0)
            self._file.write([_MAGIC])
            self._write(_HEAD, encode_staging(staging))
        except BaseException:
            self._file.close()
            with suppress(OSError):  # the next start removes what is left
                disk.remove(path)
            raise

    @property
    def seal_so_far(self) -> Seal:
        """What was staged up to now."""
        return self._sealed

    @property
    def is_broken(self) -> bool:
        """Whether something failed after which nobody knows what is in the file."""
        return self._is_broken

    def append(self, rows: pa.RecordBatch, checksum: int) -> None:
        """Stage rows. After an error they are not staged, and can be staged again unless it is broken."""
        body = rows.serialize()
        size = self._file.size
        try:
            self._write(_BATCH, body)
            so_far = self._sealed
            self._sealed = Seal(so_far.rows + rows.num_rows, so_far.bytes + body.size, added(so_far.checksum, checksum))
        except BaseException:
            self._is_broken = True
            with suppress(OSError, DiskFull):
                self._file.truncate(size)
                self._is_broken = False
            raise

    def seal(self) -> Seal:
        """Make all of it durable; nothing can be added afterwards. After an error the handle is of no use."""
        self._write(_SEAL, encode_seal(self._sealed))
        side_by_side([self._file.sync, partial(self._disk.sync_folder, self._folder)])
        self._file.close()
        return self._sealed

    def close(self) -> None:
        """Let the file go, sealed or not. Idempotent."""
        self._file.close()

    def _write(self, kind: int, body: bytes | pa.Buffer) -> None:
        data = memoryview(body)
        self._file.write([_PIECE.pack(len(data), crc32(data), kind), body])


class StagingFiles:
    """The folder of staged rows. Thread-safe, except for two writers of one handle."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        disk.make_folder(folder)

    def create(self, staging: Staging) -> StagingWriter:
        """Begin to stage under a handle."""
        return StagingWriter(self._disk, self._folder, self._path(staging.handle), staging)

    def handles(self) -> list[str]:
        """The handles that there are files of, sealed or not."""
        return [name.removesuffix(".rows") for name in self._disk.list(self._folder) if name.endswith(".rows")]

    def sealed(self, handle: str) -> tuple[Staging, Seal] | None:
        """What a handle stands for; None if it was never sealed, or cannot be read. Its rows are not looked at: there
        may be gigabytes of them."""
        try:
            head, seal = None, None
            for kind, body in self._pieces(handle, kinds=(_HEAD, _SEAL)):
                head = decode_staging(body.to_pybytes()) if kind == _HEAD else head
                seal = decode_seal(body.to_pybytes()) if kind == _SEAL else None
        except (Corrupted, StagingGone, OSError):
            return None
        return None if head is None or seal is None or head.handle != handle else (head, seal)

    def batches(self, handle: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a sealed handle, in order; StagingGone or Corrupted if they are not all there."""
        seal, rows = None, 0
        for kind, body in self._pieces(handle):
            seal = decode_seal(body.to_pybytes()) if kind == _SEAL else None
            if kind == _BATCH:
                batch = pa.ipc.read_record_batch(body, schema)
                rows += batch.num_rows
                yield batch
        if seal is None:
            raise Corrupted(f"the rows staged under {handle} have no seal; stage them again")
        if seal.rows != rows:
            raise _damaged(handle)

    def remove(self, handle: str) -> None:
        """Forget a handle, if there is one."""
        self._disk.remove(self._path(handle))

    def _pieces(self, handle: str, kinds: Sequence[int] = (_HEAD, _BATCH, _SEAL)) -> Iterator[tuple[int, pa.Buffer]]:
        """The pieces of a file, in order; those of other kinds are passed over, empty."""
        try:
            reader = self._disk.open_reader(self._path(handle))
        except FileNotFoundError:
            raise StagingGone(f"nothing is staged under {handle}; stage the rows again") from None
        with reader:
            place = len(_MAGIC)
            if reader.pread(0, place).to_pybytes() != _MAGIC:
                raise _damaged(handle)
            while place < reader.size:
                head = reader.pread(place, _PIECE.size).to_pybytes()
                if len(head) < _PIECE.size:
                    raise _damaged(handle)
                length, crc, kind = _PIECE.unpack(head)
                place += _PIECE.size
                if place + length > reader.size:
                    raise _damaged(handle)
                body = reader.pread(place, length if kind in kinds else 0)
                if kind in kinds and (body.size < length or crc32(memoryview(body)) != crc):
                    raise _damaged(handle)
                place += length
                yield kind, body

    def _path(self, handle: str) -> str:
        return f"{self._folder}/{check_handle(handle)}.rows"


def _damaged(handle: str) -> Corrupted:
    return Corrupted(f"the rows staged under {handle} are damaged; stage them again")
