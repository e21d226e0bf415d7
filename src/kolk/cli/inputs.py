"""Rows from files and pipes: Parquet, Arrow, CSV and JSON lines, in pieces of bounded size.

A file is read as it streams and never held as a whole, but for Parquet from a pipe, which has its index at the end. CSV
and JSON are read as text and then by the table's types, so that an error can name the row. Errors are ``InvalidRows``
with the file's name.
"""

import gzip
import io
import os
import stat
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.csv as pc_csv
import pyarrow.parquet as pq

from kolk.cli.failures import Misuse
from kolk.cli.parsing import DECODER, Misfit, parse, parse_json
from kolk.errors import InvalidRows
from kolk.model.schema import CHANGE_COLUMN_NAMES, Column
from kolk.model.translation import filled

BLOCK_BYTES = 8 * 2**20
"""Of CSV, at a time. A row must fit in it, and a row has at most 4 MiB."""
PIECE_BYTES_MAX = 32 * 2**20
"""Most Arrow bytes in a piece, however few rows that are: a server takes messages of 64 MiB."""
LINES_AT_ONCE = 10_000
LINE_BYTES_MAX = 64 * 2**20
"""Of JSON: a row of 4 MiB, however it is escaped, is shorter."""
_PARQUET_ROWS_AT_ONCE = 65_536
_ARRAY_HINT = "; it looks like a JSON array, as -f json writes it: write one object per line, as -f jsonl does"


class InputFormat(StrEnum):
    """What a file holds; ``json`` is one object per line."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ARROW = "arrow"


_ENDINGS = {
    ".parquet": InputFormat.PARQUET,
    ".csv": InputFormat.CSV,
    ".json": InputFormat.JSON,
    ".jsonl": InputFormat.JSON,
    ".ndjson": InputFormat.JSON,
    ".arrow": InputFormat.ARROW,
    ".arrows": InputFormat.ARROW,
    ".feather": InputFormat.ARROW,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What is read of a file: the columns that it may have, those that are wanted, and which of these are left out if
    the file lacks them. Other wanted ones then have their default, or else are null throughout, if they may be."""

    known: Collection[str]
    wanted: Sequence[Column]
    optional: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """An open file of rows. ``size`` is its bytes, or None for a pipe."""

    name: str
    format: InputFormat
    size: int | None
    _raw: Any
    _file: Any

    def position(self) -> int:
        """How many bytes of it are read."""
        return self._raw.tell() if self.size is not None else 0

    def pieces(self, shape: Shape, *, rows: int, skip: int = 0) -> Iterator[pa.Table]:
        """The wanted columns, at most so many rows at a time, without the first ``skip`` rows; a column that is not
        known is refused."""
        read = {
            InputFormat.PARQUET: self._parquet,
            InputFormat.ARROW: self._arrow,
            InputFormat.CSV: self._csv,
            InputFormat.JSON: self._json,
        }[self.format]
        place = skip
        for piece in _in_pieces(self._explained(read(shape)), rows, skip):
            yield self._typed(piece, shape, place)
            place += piece.num_rows

    def missing(self, names: Sequence[str], shape: Shape) -> list[Column]:
        """The wanted columns that are not among the file's; an error if one of them has neither default nor null."""
        absent = [each for each in shape.wanted if each.name not in names and each.name not in shape.optional]
        needed = [column.name for column in absent if not column.nullable and column.default is None]
        if needed:
            raise InvalidRows(
                f"{self.name} has no column {needed[0]!r}, which may not be null; it has {_listed(names)}"
            )
        return absent

    def inferred(self) -> pa.Schema:
        """The file's own schema; of text, what its beginning looks like."""
        try:
            match self.format:
                case InputFormat.PARQUET:
                    return pq.read_schema(self._seekable())
                case InputFormat.ARROW:
                    return _open_arrow(self._file).schema
                case InputFormat.CSV:
                    return _widened(pc_csv.open_csv(self._file, _csv_reading()).schema)
                case InputFormat.JSON:
                    return _widened(self._json_schema())
        except pa.ArrowException as error:
            raise InvalidRows(f"{self.name} cannot be read as {self.format.value}: {error}") from error

    # --- inside

    def _parquet(self, shape: Shape) -> Iterator[pa.RecordBatch]:
        file = pq.ParquetFile(self._seekable())
        self._check_known(file.schema_arrow.names, shape)
        there = [column.name for column in shape.wanted if column.name in file.schema_arrow.names]
        yield from file.iter_batches(batch_size=_rows_at_once(file.metadata), columns=there)

    def _arrow(self, shape: Shape) -> Iterator[pa.RecordBatch]:
        reader = _open_arrow(self._file)
        self._check_known(reader.schema.names, shape)
        if isinstance(reader, pa.RecordBatchFileReader):
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            yield from reader

    def _csv(self, shape: Shape) -> Iterator[pa.RecordBatch]:
        texts = pc_csv.ConvertOptions(
            column_types={name: pa.string() for name in shape.known},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        # A quoted value may hold line breaks, as those that we write do.
        parsing = pc_csv.ParseOptions(newlines_in_values=True)
        try:
            reader = pc_csv.open_csv(self._file, _csv_reading(), parsing, texts)
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error):
                return
            raise
        self._check_known(reader.schema.names, shape)
        yield from reader

    def _json(self, shape: Shape) -> Iterator[pa.RecordBatch]:
        """Typed at once, a column after the other: Arrow has no type for whatever JSON may hold."""
        known = frozenset(shape.known)
        row = 0
        for objects in self._json_objects():
            for place, one in enumerate(objects):
                if not one.keys() <= known:
                    self._check_known(list(one), shape, f", row {row + place + 1:,}")
            # What may be left out is left alone where it is: a default would be added to what is there, put after put.
            defaults = {one.name: None if one.name in shape.optional else one.default for one in shape.wanted}
            found = [
                column
                for column in shape.wanted
                if defaults[column.name] is not None or any(column.name in one for one in objects)
            ]
            self.missing([column.name for column in found], shape)
            arrays = [
                self._placed(parse_json, [one.get(column.name, defaults[column.name]) for one in objects], column, row)
                for column in found
            ]
            row += len(objects)
            yield pa.RecordBatch.from_arrays(arrays, names=[column.name for column in found])

    def _json_objects(self) -> Iterator[list[dict[str, Any]]]:
        objects: list[dict[str, Any]] = []
        size = 0
        for number, line in enumerate(iter(partial(self._file.readline, LINE_BYTES_MAX + 1), b""), 1):
            if not line.strip():
                continue
            hint = _ARRAY_HINT if line.startswith(b"[") else ""
            if len(line) > LINE_BYTES_MAX:
                raise InvalidRows(f"{self.name}, line {number:,} has more than {LINE_BYTES_MAX:,} bytes{hint}")
            try:
                one = DECODER.decode(line)
            except msgspec.DecodeError as error:
                raise InvalidRows(f"{self.name}, line {number:,} is not JSON: {error}{hint}") from error
            if not isinstance(one, dict):
                raise InvalidRows(f"{self.name}, line {number:,}: write one JSON object per line, one row each{hint}")
            objects.append(one)
            size += len(line)
            if len(objects) == LINES_AT_ONCE or size >= BLOCK_BYTES:
                yield objects
                objects, size = [], 0
        if objects:
            yield objects

    def _json_schema(self) -> pa.Schema:
        objects = next(self._json_objects(), [])
        names = list(dict.fromkeys(name for one in objects for name in one))
        return pa.schema([(name, pa.array([_plain(one.get(name)) for one in objects]).type) for name in names])

    def _typed(self, piece: pa.Table, shape: Shape, row: int) -> pa.Table:
        absent = {column.name for column in self.missing(piece.column_names, shape)}
        found: dict[str, Any] = {}
        for column in shape.wanted:
            if column.name in absent:
                found[column.name] = filled(column, piece.num_rows)
            elif column.name not in piece.column_names:
                continue
            elif self.format is InputFormat.CSV:
                texts = piece.column(column.name).combine_chunks()
                found[column.name] = self._placed(parse, texts, column, row)
            else:
                found[column.name] = piece.column(column.name)
        return pa.table(list(found.values()), names=list(found))

    def _placed(self, read: Any, values: Any, column: Column, row: int) -> pa.Array:
        try:
            return read(values, column.name, column.type)
        except Misfit as misfit:
            raise InvalidRows(f"{self.name}, row {row + misfit.place + 1:,}: {misfit}") from None

    def _check_known(self, names: Sequence[str], shape: Shape, where: str = "") -> None:
        unknown = [name for name in names if name not in shape.known]
        if unknown:
            raise InvalidRows(
                f"{self.name}{where}: there is no column {unknown[0]!r} in the table; it has"
                f" {_listed([name for name in shape.known if name not in CHANGE_COLUMN_NAMES])}"
            )
        if len(set(names)) < len(names):
            twice = next(name for place, name in enumerate(names) if name in names[:place])
            raise InvalidRows(f"{self.name}{where} names the column {twice!r} twice; which one is meant?")

    def _explained(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except (pa.ArrowException, UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
            raise InvalidRows(f"{self.name} cannot be read as {self.format.value}: {error}") from error

    def _seekable(self) -> Any:
        return self._file if self._file.seekable() else pa.BufferReader(self._file.read())


@contextmanager
def opened(path: str, format: InputFormat | None) -> Iterator[Source]:
    """A file, or stdin for ``-``, with its format: as given, by its ending, or by its first bytes."""
    if path == "-":
        stdin = io.BufferedReader(sys.stdin.buffer)  # pyright: ignore[reportArgumentType] - it can read, which is enough
        try:
            yield Source("stdin", format or _sniffed(stdin), None, stdin, stdin)
        finally:
            stdin.detach()
        return
    file = Path(path)
    try:
        raw = file.open("rb")
    except OSError as error:
        raise Misuse(f"{path}: {error.strerror}") from error
    with raw:
        is_packed = file.suffix.lower() == ".gz"
        plain = gzip.GzipFile(fileobj=raw) if is_packed else raw
        ending = Path(file.stem).suffix if is_packed else file.suffix
        found = format or _ENDINGS.get(ending.lower()) or _sniffed(plain, path)
        about = os.fstat(raw.fileno())
        yield Source(file.name, found, about.st_size if stat.S_ISREG(about.st_mode) else None, raw, plain)


def _sniffed(file: Any, name: str = "stdin") -> InputFormat:
    start = file.peek(8)[:8]
    if start.startswith(b"PAR1"):
        return InputFormat.PARQUET
    if start.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return InputFormat.ARROW
    if start.lstrip().startswith(b"{"):
        return InputFormat.JSON
    raise Misuse(f"what does {name} hold? Say --input-format parquet, csv, json or arrow")


def _open_arrow(file: Any) -> Any:
    is_file_format = file.peek(6)[:6] == b"ARROW1"
    if not is_file_format:
        return pa.ipc.open_stream(file)
    return pa.ipc.open_file(file if file.seekable() else pa.BufferReader(file.read()))


def _rows_at_once(metadata: pq.FileMetaData) -> int:
    """How many rows of a Parquet file are read together: fewer of those that are large."""
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    row_bytes = sum(group.total_byte_size for group in groups) // max(metadata.num_rows, 1)
    return min(_PARQUET_ROWS_AT_ONCE, max(1, BLOCK_BYTES // max(row_bytes, 1)))


def _csv_reading() -> pc_csv.ReadOptions:
    return pc_csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False)


def _in_pieces(batches: Iterator[pa.RecordBatch], rows: int, skip: int) -> Iterator[pa.Table]:
    """Batches put together or cut, so that each piece but the last has just so many rows, or bytes enough. No more is
    kept than one piece has, and a batch."""
    kept: list[pa.Table] = []
    count = size = 0
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        kept.append(pa.Table.from_batches([batch.slice(skip)]))
        count, size, skip = count + kept[-1].num_rows, size + kept[-1].nbytes, 0
        if count >= rows or size >= PIECE_BYTES_MAX:
            whole = _joined(kept)
            end = count - count % rows
            if whole.slice(end).nbytes >= PIECE_BYTES_MAX:
                end = count
            for start in range(0, end, rows):
                yield from _cut(whole.slice(start, rows))
            kept, count = [whole.slice(end)], count - end
            size = kept[0].nbytes
    if count:
        yield from _cut(_joined(kept))


def _joined(tables: list[pa.Table]) -> pa.Table:
    """One table; where JSON lines left a column out for a while, it is null."""
    return pa.concat_tables(tables, promote_options="default")


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    """In halves, until each is small enough: rows are not of one size."""
    if table.nbytes <= PIECE_BYTES_MAX or table.num_rows == 1:
        yield table
    else:
        half = table.num_rows // 2
        yield from chain(_cut(table.slice(0, half)), _cut(table.slice(half)))


def _widened(schema: pa.Schema) -> pa.Schema:
    """What a beginning looks like says little of the rest: times may have fractions, and nulls are most often text."""
    for place, field in enumerate(schema):
        if pa.types.is_null(field.type):
            schema = schema.set(place, field.with_type(pa.string()))
        elif pa.types.is_timestamp(field.type):
            schema = schema.set(place, field.with_type(pa.timestamp("us", field.type.tz)))
    return schema


def _plain(value: Any) -> Any:
    """A JSON value as Arrow guesses its type best: a number with a point is a double."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return float(value) if isinstance(value, Decimal) else value


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
