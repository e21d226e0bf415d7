"""``kolk put`` and ``get``: rows in, and out by their keys."""

import shlex
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kolk.cli.common import Common, connected
from kolk.cli.failures import NOT_FOUND, Misuse
from kolk.cli.formats import FormatOption, chosen
from kolk.cli.notes import counted, note, progress
from kolk.errors import InvalidArgument, KolkError, PartialPut, Unavailable
from kolk.runtime.clock import SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

    from kolk.cli.inputs import Shape, Source
    from kolk.client.table import Table

NameArgument = Annotated[str, typer.Argument(metavar="TABLE", help="The table: name or database.name.")]
ColumnsOption = Annotated[
    str | None, typer.Option("--columns", "-c", metavar="NAMES", help="Show only these, such as page,pv.")
]
_KEY_HELP = 'The value alone; of a key of several columns a=1,b=2, or {"a": 1, "b": 2}.'
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]


def put(
    common: Common,
    name: NameArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The rows; - is stdin.", show_default=False)] = "-",
    input_format: Annotated[
        str | None,
        typer.Option(
            "--input-format", "-i", metavar="FORMAT", help="parquet, csv, json or arrow.  [default: by ending]"
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", "-c", metavar="NAMES", help="Update only these; the others keep their values."),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(metavar="MODE", help="accumulate, overwrite or merge_state.  [default: accumulate]"),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="The rows are keys: remove their rows.")] = False,
    batch_rows: Annotated[int, typer.Option(metavar="N", min=1, help="Rows of one put.")] = 50_000,
    skip_rows: Annotated[
        int, typer.Option(metavar="N", min=0, help="Leave out the first rows: go on after a failure.")
    ] = 0,
    quiet: QuietOption = False,
) -> None:
    """Insert, update or delete rows from a file or a pipe.

    A column that the file lacks has its default, or else becomes null; in an aggregation table it is left alone. A
    file with a column _change_type is a changelog: -D rows are deleted, or taken back from aggregates. Each batch is a
    put of its own, over the network up to four are under way; a failure says how many rows are durable, and how to go
    on.

    \b
    kolk put web.pages pages.parquet
    kolk put web.pages --columns pv < counts.csv -i csv
    kolk tail web.pages --from earliest -f jsonl | kolk put copy
    """
    from kolk.cli.inputs import opened
    from kolk.model.options import MergeMode

    modes = [one.value for one in MergeMode]
    if mode not in (None, *modes):
        raise Misuse(f"--mode {mode}: it is one of {', '.join(modes)}")
    if file == "-" and sys.stdin.isatty():
        raise Misuse(f"where are the rows? Give a file, or a pipe: kolk put {name} FILE")
    again = ["kolk", "put", name, file, *common.words()]
    for flag, value in (("-i", input_format), ("--columns", columns), ("--mode", mode), ("--delete", delete or None)):
        again += [] if value is None else [flag] if value is True else [flag, str(value)]
    with common.connect() as db, opened(file, _input_format(input_format)) as source:
        load = Load(
            db.table(name), source, names_of(columns), mode or "accumulate", delete=delete, again=shlex.join(again)
        )
        load.run(batch_rows=batch_rows, skip_rows=skip_rows, quiet=quiet)


class Load:
    """One file on its way into one table. Confined to one thread."""

    def __init__(
        self, table: "Table", source: "Source", columns: list[str] | None, mode: str, *, delete: bool, again: str
    ) -> None:
        self._table = table
        self._source = source
        self._columns = columns
        self._mode = mode
        self._is_delete = delete
        self._again = again  # the command that does the same
        self._done = 0

    def run(self, *, batch_rows: int, skip_rows: int, quiet: bool) -> None:
        """Put every piece; whatever ends it early says what is durable."""
        clock = SystemClock()
        started = clock.monotonic()
        try:
            with progress(
                "delete" if self._is_delete else "put", total=self._source.size, unit="bytes", quiet=quiet
            ) as on:
                pieces = self._source.pieces(self._shape(), rows=batch_rows, skip=skip_rows)
                for rows in self._delete(pieces) if self._is_delete else self._put(pieces):
                    self._done += rows
                    on(self._done, self._source.position())
        except BaseException as error:
            if isinstance(error, KolkError | KeyboardInterrupt | OSError) and (self._done or _is_in_doubt(error)):
                self._add_place(error, skip_rows)
            raise
        if not quiet:
            note(f"{self._told()} in {clock.monotonic() - started:.1f} s")

    def _told(self) -> str:
        """What was done. A delete of some columns leaves the rows and the other columns where they are."""
        if not self._is_delete:
            return f"put {counted(self._done, 'row')}"
        keys = counted(self._done, "key")
        return (
            f"deleted the rows of {keys}" if self._columns is None else f"cleared {', '.join(self._columns)} for {keys}"
        )

    def _delete(self, pieces: "Iterator[pa.Table]") -> Iterator[int]:
        for piece in pieces:
            self._table.delete(piece, self._columns, self._mode)
            yield piece.num_rows

    def _put(self, pieces: "Iterator[pa.Table]") -> Iterator[int]:
        """Put all pieces, over the network several at once; gives the rows of each as it is durable.

        A row that cannot be read ends the stream of pieces and is raised when those under way are durable: so the
        place that is told is the right one.
        """
        sizes: deque[int] = deque()
        failed: list[Exception] = []

        def readable() -> "Iterator[pa.Table]":
            try:
                for piece in pieces:
                    sizes.append(piece.num_rows)
                    yield piece
            except (KolkError, OSError) as error:
                failed.append(error)

        for columns, alike in groupby(readable(), self._targets):
            for _ in self._table.put_stream(alike, columns, self._mode):
                yield sizes.popleft()
        for error in failed:
            raise error

    def _shape(self) -> "Shape":
        """What is read of the file: for an aggregation table what its functions take, unless it is to be states."""
        from kolk.cli.inputs import Shape
        from kolk.model.options import MergeMode
        from kolk.model.schema import CHANGE_COLUMN_NAMES, Column

        schema, mode = self._table.schema, MergeMode.parse(self._mode)
        if self._is_delete:
            return Shape(known=schema.names, wanted=schema.key_columns)
        for name in self._columns or ():
            schema.column(name)
        wanted = list(schema.input_columns if mode is MergeMode.ACCUMULATE else schema.columns)
        if self._columns is not None:
            wanted = [one for one in wanted if one.name in (*schema.primary_key, *self._columns)]
        if self._table.info.is_log:
            return Shape(known=schema.names, wanted=wanted)
        optional = [*self._untouched(), CHANGE_COLUMN_NAMES[0]]
        wanted.append(Column(CHANGE_COLUMN_NAMES[0], "string"))
        return Shape(known=(*schema.names, *CHANGE_COLUMN_NAMES), wanted=wanted, optional=optional)

    def _untouched(self) -> list[str]:
        """The columns that a put need not give, and then leaves alone."""
        schema = self._table.schema
        is_merged = schema.aggregates and self._mode != "overwrite"
        return [column.name for column in schema.value_columns] if is_merged else []

    def _targets(self, piece: "pa.Table") -> "Sequence[str] | None":
        """The columns that this piece of the file is about; None if it is all of them."""
        from kolk.model.options import MergeMode
        from kolk.model.write import left_out

        if self._columns is not None or not self._untouched():
            return self._columns
        return left_out(self._table.schema, piece.column_names, MergeMode.parse(self._mode))

    def _add_place(self, error: BaseException, skipped: int) -> None:
        durable = skipped + self._done
        are, them = ("is", "it") if durable == 1 else ("are", "them")
        error.add_note(
            f"{counted(durable, 'row')} {are} durable; go on after {them} with: {self._again} --skip-rows {durable}"
        )
        if _is_in_doubt(error):
            is_harmless = not self._table.info.is_log and _is_idempotent(self._table)
            repeat = "be put again, which is harmless" if is_harmless else "come twice; look with `kolk tail`"
            error.add_note(f"some of the rows that follow may be durable too, and would {repeat}")


def get(
    common: Common,
    name: NameArgument,
    keys: Annotated[list[str], typer.Argument(metavar="KEY", help=_KEY_HELP)],
    columns: ColumnsOption = None,
    format: FormatOption = None,
) -> None:
    """Look rows up by their keys; ends with 3 if there is none.

    \b
    kolk get web.pages /about /
    kolk get web.visits user_id=ada,at=2026-11-15T12:00:00
    """
    from kolk.cli.keys import key_table
    from kolk.cli.writers import write_table

    style = chosen(format)
    with common.connect() as db:
        table = db.table(name)
        _need_key(table)
        found = table.get(key_table(keys, table.schema), names_of(columns))
    if found.num_rows:
        write_table(found, style)
    if found.num_rows < len(keys):
        note(_missing(keys, len(keys) - found.num_rows, table.schema.primary_key))
    if not found.num_rows:
        raise typer.Exit(NOT_FOUND)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (put, get):
        app.command()(connected(command))


def names_of(text: str | None) -> list[str] | None:
    """The columns that an option names; None if it was not given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


# --- inside


def _need_key(table: "Table") -> None:
    if table.info.is_log:
        raise InvalidArgument(f"{table.name} is a log table; read it with: kolk tail {table.name} --from earliest")


def _missing(keys: Sequence[str], count: int, names: Sequence[str]) -> str:
    """What was not found, and what may be the reason."""
    told = f"{count} of {len(keys)} keys have no row" if len(keys) > 1 else f"there is no row of the key {keys[0]!r}"
    named = next((key for key in keys if len(names) == 1 and key.startswith(f"{names[0]}=")), None)
    if named is None:
        return told
    return f"{told}; with one key column the value stands alone: {shlex.quote(named.removeprefix(f'{names[0]}='))}"


def _is_idempotent(table: "Table") -> bool:
    functions = [column.function for column in table.schema.columns]
    return all(function is None or function.is_idempotent for function in functions)


def _is_in_doubt(error: BaseException) -> bool:
    """Whether some rows of the put that failed may be durable."""
    return isinstance(error, PartialPut | Unavailable | KeyboardInterrupt)


def _input_format(text: str | None) -> Any:
    from kolk.cli.inputs import InputFormat

    if text is None:
        return None
    words = {"jsonl": "json", "ndjson": "json"}
    try:
        return InputFormat(words.get(text.lower(), text.lower()))
    except ValueError:
        raise Misuse(f"--input-format {text}: it is parquet, csv, json or arrow") from None
