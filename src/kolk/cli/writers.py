"""Record batches to stdout or a file, in the format that was asked for.

All but ``table`` write as the batches come and keep at most one row group of Parquet, so that a scan of any size needs
little memory. A file is written beside its name and takes it when it is whole: nobody finds half a file. What is there
under that name and is none, a device or a pipe, is written to and never replaced.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from kolk.cli.durations import from_now
from kolk.cli.formats import Format
from kolk.cli.grid import Column, print_grid
from kolk.cli.notes import note
from kolk.cli.values import csv_lines, json_lines, texts
from kolk.runtime.clock import SystemClock

ROW_GROUP_ROWS = 122_880
ROW_GROUP_BYTES = 128 * 2**20
"""A row group ends here at the latest, however few rows that are."""


class Writer(Protocol):
    """Takes batches of one schema. ``close`` writes what is left."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write these rows."""
        ...

    def close(self) -> None:
        """Write the end."""
        ...


class Sink:
    """A stream that only goes forward, counting its bytes: Parquet must know where it is, and a pipe cannot tell."""

    def __init__(self, file: BinaryIO) -> None:
        self.closed = False
        self._file = file
        self._position = 0
        self._is_abandoned = False

    def write(self, data: bytes) -> int:
        """Append."""
        if not self._is_abandoned:
            self._file.write(data)
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        """Bytes so far."""
        return self._position

    def flush(self) -> None:
        """Hand on what is buffered."""
        if not self._is_abandoned:
            self._file.flush()

    def abandon(self) -> None:
        """Take no more: a Parquet writer that goes out of scope would still write its footer."""
        self._is_abandoned = True

    def close(self) -> None:
        """The stream itself stays open; it is not ours."""
        self.flush()
        self.closed = True


class Lines:
    """A line per row: JSON, or CSV, which has a header."""

    def __init__(self, sink: Sink, encode: Callable[[pa.RecordBatch], bytes], header: bytes = b"") -> None:
        self._sink = sink
        self._encode = encode
        sink.write(header)

    def write(self, batch: pa.RecordBatch) -> None:
        """See ``Writer``."""
        self._sink.write(self._encode(batch))
        self._sink.flush()

    def close(self) -> None:
        """See ``Writer``."""
        self._sink.flush()


class JsonArray:
    """One JSON array of objects."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._before = b"[\n"

    def write(self, batch: pa.RecordBatch) -> None:
        """See ``Writer``."""
        for line in json_lines(batch).splitlines():
            self._sink.write(self._before + line)
            self._before = b",\n"

    def close(self) -> None:
        """See ``Writer``."""
        self._sink.write(b"[]\n" if self._before == b"[\n" else b"\n]\n")
        self._sink.flush()


class ArrowStream:
    """Arrow's IPC stream."""

    def __init__(self, sink: Sink, schema: pa.Schema) -> None:
        self._sink = sink
        self._stream = pa.ipc.new_stream(sink, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """See ``Writer``."""
        self._stream.write_batch(batch)
        self._sink.flush()

    def close(self) -> None:
        """See ``Writer``."""
        self._stream.close()
        self._sink.flush()


class Parquet:
    """Parquet, in row groups of a useful size."""

    def __init__(self, sink: Sink, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = pq.ParquetWriter(sink, schema, compression="zstd")
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """See ``Writer``."""
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        """See ``Writer``."""
        if self._rows:
            self._write_group()
        self._file.close()

    def _write_group(self) -> None:
        self._file.write_table(pa.Table.from_batches(self._batches, self._schema), row_group_size=self._rows)
        self._batches, self._rows, self._bytes = [], 0, 0


class Grid:
    """A table for people; it is shown when it is complete, so whoever writes into it keeps it short."""

    def __init__(self, schema: pa.Schema, styles: dict[str, dict[str, str]] | None = None) -> None:
        self._schema = schema
        self._styles = styles or {}
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """See ``Writer``."""
        self._batches.append(batch)

    def close(self) -> None:
        """See ``Writer``."""
        rows = pa.Table.from_batches(self._batches, self._schema).combine_chunks()
        hidden = print_grid(_columns(rows, self._styles))
        if hidden:
            note(f"{_unfit(hidden)}; -f jsonl shows all, and get and scan choose with --columns")


def _columns(rows: pa.Table, styles: dict[str, dict[str, str]] | None = None) -> list[Column]:
    return [
        Column(
            name=field.name,
            cells=[text for chunk in rows.column(field.name).chunks for text in texts(chunk).to_pylist()],
            is_number=pt.is_integer(field.type) or pt.is_floating(field.type) or pt.is_decimal(field.type),
            styles=(styles or {}).get(field.name),
        )
        for field in rows.schema
    ]


def _unfit(hidden: int) -> str:
    return f"{hidden} more {'columns do' if hidden > 1 else 'column does'} not fit"


def open_writer(format: Format, schema: pa.Schema, sink: Sink) -> Writer:
    """The writer of this format."""
    match format:
        case Format.TABLE:
            return Grid(schema)
        case Format.JSONL:
            return Lines(sink, json_lines)
        case Format.CSV:
            names = pa.record_batch([pa.array([name]) for name in schema.names], names=schema.names)
            return Lines(sink, csv_lines, header=csv_lines(names))
        case Format.JSON:
            return JsonArray(sink)
        case Format.ARROW:
            return ArrowStream(sink, schema)
        case Format.PARQUET:
            return Parquet(sink, schema)


def is_replaced(output: Path) -> bool:
    """Whether what is written there appears as a whole, at the end; a device or a pipe takes it as it comes."""
    return output.is_file() or not output.exists()


@contextmanager
def writing(format: Format, schema: pa.Schema, output: Path | None = None) -> Iterator[Writer]:
    """A writer to this file, or to stdout. It is completed if nothing fails; a file that is not is removed."""
    if output is None:
        with _writing_to(sys.stdout.buffer, format, schema) as writer:
            yield writer
        return
    if not is_replaced(output):
        with output.open("wb") as file, _writing_to(file, format, schema) as writer:
            yield writer
        return
    output = output.resolve()  # so that a link stays one, to the new file
    partial = output.with_name(output.name + ".partial")
    try:
        with _opened(partial, output) as file, _writing_to(file, format, schema) as writer:
            yield writer
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)


def _opened(partial: Path, output: Path) -> BinaryIO:
    """The file beside the one that is wanted; what is wrong is told of the name that somebody has written."""
    try:
        return partial.open("wb")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(output)) from error


@contextmanager
def _writing_to(file: BinaryIO, format: Format, schema: pa.Schema) -> Iterator[Writer]:
    sink = Sink(file)
    try:
        writer = open_writer(format, schema, sink)
        yield writer
        writer.close()
    except BaseException:
        sink.abandon()
        raise


def names_column(lists: Sequence[Sequence[str]], format: Format) -> pa.Array:
    """A column of lists of names; for people, and for CSV, which has no lists, they are put together."""
    if format in (Format.TABLE, Format.CSV):
        return pa.array([", ".join(names) for names in lists], pa.string())
    return pa.array([list(names) for names in lists], pa.list_(pa.string()))


def moments_column(moments: Sequence[datetime | int | None], format: Format) -> pa.Array:
    """A column of moments, as datetimes or in milliseconds; for people, how far they are from now."""
    if format is not Format.TABLE:
        return pa.array(moments, pa.timestamp("ms", "UTC"))
    now_ms = SystemClock().now_ms()
    stamps = [one.timestamp() * 1_000 if isinstance(one, datetime) else one for one in moments]
    return pa.array([None if one is None else from_now((one - now_ms) / 1_000) for one in stamps], pa.string())


def write_list(rows: pa.Table, format: Format) -> None:
    """A list of things that are no rows of data: for people the first column, which names them, is never cut, and where
    there is nothing to say there is nothing."""
    if format is not Format.TABLE:
        write_table(rows, format)
        return
    columns = [replace(column, cells=[cell or "" for cell in column.cells]) for column in _columns(rows)]
    hidden = print_grid(columns, keep_first=True)
    if hidden:
        note(f"{_unfit(hidden)}; -f jsonl shows all")


def write_table(rows: pa.Table, format: Format, output: Path | None = None) -> None:
    """All rows at once."""
    with writing(format, rows.schema, output) as writer:
        for batch in rows.to_batches():
            writer.write(batch)
