"""One bucket's RocksDB: the cache of its log that answers lookups and scans.

The only module that imports rocksdict. RocksDB's own WAL is off, because the bucket's log is the WAL: after a
crash the KV is simply older, and its *applied offset*, written in the same WriteBatch as the rows it speaks
of, says from where the log must be replayed. Keys that start with 0x01 are rows; keys that start with 0x00 are
the bucket's own small records (the applied offset, the write tags), in the same column family, because with
the WAL off only one column family is flushed atomically.

rocksdict's ``Snapshot`` does not isolate iterators (they see later writes), so nothing here uses it: a pinned
view is a live iterator made at the right moment. An iterator keeps the database open even after ``close``,
so whoever pins must drop what it pinned first.
"""

import ctypes
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow as pa
from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from kolk.codec.key import ROW_PREFIX
from kolk.errors import Closed, Corrupted, DiskFull, KolkError, Stopped
from kolk.merge.changes import KvWrites

RECORD_PREFIX = b"\x00"
ROWS_END = b"\x02"
_BLOCK_BYTES = 16 * 1024
_BLOOM_BITS = 10
DAMAGED = "DAMAGED"
"""The name of a file: a KV that has it is not opened."""
_NO_SPACE = "No space left"
_PAGE_BYTES = 4 * 2**20
_PART_BYTES = 2 * 2**20
_PART_ROWS_MIN = 16
_PART_ROWS_MAX = 256
"""A page is read in parts: so few rows that even the largest stay below the 2 GiB that an Arrow array can address."""
_ARRAY_ROWS = 4_096
"""So many values become one array at once: less often is cheaper, and more would keep lookups waiting."""
_log = logging.getLogger(__name__)


class KvMemory:
    """The memory that all buckets of a process share: one block cache, one write-buffer budget."""

    def __init__(self, *, block_cache_bytes: int, write_buffer_bytes: int) -> None:
        self._cache = Cache(block_cache_bytes)
        self._buffers = WriteBufferManager(write_buffer_bytes, False)
        self._memtable_bytes = min(64 * 2**20, write_buffer_bytes // 2)

    def options(self) -> Options:
        """RocksDB options for one bucket; the figures behind them are in the performance notes."""
        table = BlockBasedOptions()
        table.set_block_cache(self._cache)
        table.set_block_size(_BLOCK_BYTES)
        table.set_bloom_filter(_BLOOM_BITS, False)
        table.set_cache_index_and_filter_blocks(True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(True)
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_compression_type(DBCompressionType.lz4())
        options.set_write_buffer_manager(self._buffers)
        options.set_write_buffer_size(self._memtable_bytes)
        options.set_max_write_buffer_number(4)
        options.set_keep_log_file_num(1)
        return options


class Pin:
    """What a view holds of a bucket: iterators that see the rows of one moment, whatever is written later.

    Two of them, made at the same moment: the first is quick and cannot seek, so it serves one pass from the start; the
    second seeks, and serves everybody who reads again. Confined to one caller at a time. ``close`` drops the iterators,
    without which RocksDB stays open.
    """

    def __init__(self, db: Any, translate: Callable[[Exception], KolkError], start: bytes, end: bytes) -> None:
        bounded = ReadOptions()
        bounded.set_iterate_upper_bound(end)
        self._bounded = bounded  # kept: the iterators point into it, and would end anywhere without it
        self._translate = translate
        self._start = start
        self._values: Any = db.values(from_key=start, read_opt=bounded)
        self._cursor: Any = db.iter(bounded)
        self._last: bytes | None = None
        self._part_rows = _PART_ROWS_MIN

    def is_empty(self) -> bool:
        """Whether there is no row at all."""
        with self._typed():
            self._cursor.seek(self._start)
            self._cursor.status()
            return not self._cursor.valid()

    def take(self, rows: int) -> pa.BinaryArray:
        """The next values of the one pass, in key order: at most ``rows``, fewer if they are large, none at the end."""
        if self._cursor is None:
            raise Closed("this view is closed")
        if self._values is None:
            return _joined([])

        def part(asked: int) -> list[bytes]:
            left = self._values
            if left is None:  # a signal handler came in between
                raise Closed("this view is closed")
            values = list(islice(left, asked))
            self._last = values[-1] if values else self._last
            return values

        found, is_end = self._read(part, rows)
        if is_end:
            self._check_end()
            self._values = None
        return found

    def take_after(self, key: bytes, rows: int) -> pa.BinaryArray:
        """The values that come after a key, or from the start on; quickly, but not as quickly as in the pass."""
        with self._typed():
            cursor = self._cursor
            # Both iterators below run in C, and so does what joins them: the next value, then a step, and so on. A
            # cursor that is at its end has no value.
            pairs = zip(iter(cursor.value, None), iter(cursor.next, 0), strict=False)
            values = map(itemgetter(0), pairs)
            cursor.seek(key + b"\0" if key else self._start)
            found, is_end = self._read(lambda asked: list(islice(values, asked)), rows)
            if is_end:
                cursor.status()
            return found

    def close(self) -> None:
        """Let go. Idempotent."""
        self._values = self._cursor = None

    def abandon(self) -> None:
        """See ``Kv.abandon``."""
        for iterator in (self._values, self._cursor):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(iterator))

    def _read(self, part: Callable[[int], list[bytes]], rows: int) -> tuple[pa.BinaryArray, bool]:
        """Values, part by part, and whether there are no more."""
        arrays: list[pa.BinaryArray] = []
        pending: list[bytes] = []
        size = pending_size = 0
        is_end = False
        while rows > 0 and size < _PAGE_BYTES and not is_end:
            asked = min(rows, self._part_rows)
            values = part(asked)
            part_size = sum(map(len, values))
            self._part_rows = _next_part_rows(self._part_rows, part_size)
            is_end = len(values) < asked
            rows -= asked
            pending += values
            size += part_size
            pending_size += part_size
            if len(pending) >= _ARRAY_ROWS or pending_size >= _PART_BYTES:
                arrays.append(pa.array(pending, pa.binary()))
                pending, pending_size = [], 0
        return _joined([*arrays, pa.array(pending, pa.binary())] if pending else arrays), is_end

    def _check_end(self) -> None:
        """A failed RocksDB iterator looks just like an exhausted one, so look where the end should be."""
        with self._typed():
            self._cursor.seek_to_last()
            self._cursor.status()
            rows_exist = self._cursor.valid() and self._cursor.key() >= self._start
            if (self._cursor.value() if rows_exist else None) != self._last:
                raise Corrupted("a scan ended before the last row")

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise (Closed("this view is closed") if self._cursor is None else self._translate(error)) from error


def _joined(parts: list[pa.BinaryArray]) -> pa.BinaryArray:
    return pa.concat_arrays(parts) if parts else pa.array([], pa.binary())


def _next_part_rows(rows: int, size: int) -> int:
    """More rows at a time while they are small, fewer when they are large: nobody knows the next ones' size."""
    return min(2 * rows, _PART_ROWS_MAX) if size < _PART_BYTES else max(rows // 2, _PART_ROWS_MIN)


class Kv:
    """One bucket's rows and records. Thread-safe as RocksDB is; the tablet's lock orders the writes.

    Damage that is found in use is remembered in the folder, so that the next open refuses it: the rows are all in
    the log, and a cache is built anew rather than repaired. One that is opened to be read only is a snapshot's: nothing
    in its folder is touched.
    """

    def __init__(self, path: Path, memory: KvMemory, *, is_read_only: bool = False) -> None:
        self.path = path
        self.is_damaged = False
        """Whether damage was found in use."""
        self._is_read_only = is_read_only
        # Any: rocksdict's stubs describe its pickling mode, and call properties methods.
        self._no_wal: Any = WriteOptions()
        self._no_wal.disable_wal = True
        access = AccessType.read_only() if is_read_only else AccessType.read_write()
        try:
            is_damaged = (path / DAMAGED).exists()
            self._db: Any = None if is_damaged else Rdict(str(path), memory.options(), access_type=access)
        except Exception as error:
            raise _opening_failed(error) from error
        if is_damaged:
            raise Corrupted(f"the KV in {path} was found damaged when it was last used")

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """The values under these keys, None where there is none. Sorted keys are faster."""
        try:
            return self._db.get(keys) if keys else []
        except Exception as error:
            raise self._translated(error) from error

    def between(self, start: bytes, end: bytes) -> Generator[bytes, None, None]:
        """The values of the keys from ``start`` up to, not including, ``end``, in key order."""
        with closing(self._items(start, end)) as items:
            for _, value in items:
                yield value

    def records(self, prefix: bytes) -> dict[bytes, bytes]:
        """The bucket's own records whose names start with ``prefix``, by name."""
        start = RECORD_PREFIX + prefix
        with closing(self._items(start, ROW_PREFIX)) as items:
            return {key[1:]: value for key, value in items if key.startswith(start)}

    def apply(self, writes: Iterable[KvWrites], records: Mapping[bytes, bytes | None], *, clear: bool = False) -> None:
        """Write rows and records in one atomic batch; ``clear`` first removes every row. None deletes a record."""
        batch = WriteBatch(raw_mode=True)
        if clear:
            batch.delete_range(ROW_PREFIX, ROWS_END)
        for write in writes:
            # A deque of length 0 runs the map in C: rocksdict has no bulk put, and this is its fastest loop.
            deque(map(batch.__setitem__, write.keys, write.values), maxlen=0)
            deque(map(batch.__delitem__, write.deletes), maxlen=0)
        for name, value in records.items():
            if value is None:
                batch.delete(RECORD_PREFIX + name)
            else:
                batch.put(RECORD_PREFIX + name, value)
        try:
            self._db.write(batch, self._no_wal)
        except Exception as error:
            raise self._translated(error) from error

    def pin(self, start: bytes = ROW_PREFIX, end: bytes = ROWS_END) -> Pin:
        """Iterators over the rows as they are now, those with keys from ``start`` up to ``end``."""
        try:
            return Pin(self._db, self._translated, start, end)
        except Exception as error:
            raise self._translated(error) from error

    def estimate(self) -> int:
        """About how many rows there are, at no cost: rows that were written twice may count twice."""
        return int(self._db.property_int_value("rocksdb.estimate-num-keys") or 0)

    def count(self) -> int:
        """How many rows there are, one by one."""
        with closing(self._items(ROW_PREFIX, ROWS_END)) as items:
            return sum(1 for _ in items)

    def flush(self) -> None:
        """Write the memtable out, so that a reopen need not replay what it holds."""
        try:
            self._db.flush()
        except Exception as error:
            raise self._translated(error) from error

    def checkpoint(self, path: Path) -> None:
        """Make a folder with the rows and records as they are now; most of its files are links to these."""
        try:
            Checkpoint(self._db).create_checkpoint(str(path))
        except Exception as error:
            raise self._translated(error) from error

    def compact(self) -> None:
        """Merge all files into one level. For tests and maintenance."""
        self._db.compact_range(None, None)

    def close(self) -> None:
        """Flush and close. Idempotent. Every pin must be closed before.

        It cannot fail: what could not be flushed, on a full disk say, is in the log and is replayed.
        """
        try:
            self._db.close()
        except DbClosedError:
            return
        except Exception as error:  # noqa: BLE001 - see above; dropping the handle closes it
            _log.warning("the KV in %s was closed without its last rows: %s", self.path, error)
            self._db = _NoDb()

    def abandon(self) -> None:
        """In a forked child: keep RocksDB's destructor from running, which would wait for threads the child lacks."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._db))

    def _items(self, start: bytes, end: bytes) -> Generator[tuple[bytes, bytes], None, None]:
        """Keys and values in order. Row by row, because only this kind of iterator tells that it failed."""
        bounded = ReadOptions()
        bounded.set_iterate_upper_bound(end)
        cursor: Any = None
        try:
            cursor = self._db.iter(bounded)
            cursor.seek(start)
            while cursor.valid():
                yield cursor.key(), cursor.value()
                cursor.next()
            cursor.status()
        except Exception as error:
            raise self._translated(error) from error
        finally:
            cursor = None  # an error's traceback would keep it, and with it RocksDB open

    def _translated(self, error: Exception) -> KolkError:
        """rocksdict knows one exception; its text tells what happened. Damage is noted down."""
        text = str(error)
        if isinstance(error, DbClosedError):
            return Closed("the database is closed")
        if isinstance(error, Corrupted) or text.startswith("Corruption"):
            self.is_damaged = True
            if self._is_read_only:
                return Corrupted(f"the snapshot in {self.path} is damaged ({text}); read another one")
            with suppress(OSError):
                (self.path / DAMAGED).touch()
            return Corrupted(f"the KV in {self.path} is damaged ({text}); reopen the database to build it anew")
        if _NO_SPACE in text:
            return DiskFull(f"RocksDB: {text}; free some space, then retry")
        return Stopped(f"RocksDB: {text}; close and reopen the database")


class _NoDb:
    """What stands in for a database whose close failed: nothing can be asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise DbClosedError("DB instance already closed")


def _opening_failed(error: Exception) -> KolkError:
    text = str(error)
    if _NO_SPACE in text:
        return DiskFull(f"RocksDB: {text}; free some space, then retry")
    if text.startswith(("Corruption", "Invalid argument")) or "No such file" in text:
        return Corrupted(f"RocksDB: {text}")
    hint = "; raise the limit on open files (ulimit -n), or use fewer buckets" if "Too many open files" in text else ""
    return Stopped(f"RocksDB: {text}{hint}")
