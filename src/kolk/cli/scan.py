"""``kolk scan``: the rows of a table at one moment, to a terminal, a pipe or a file."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kolk.cli.common import Common, connected
from kolk.cli.durations import seconds_of
from kolk.cli.failures import NOT_FOUND
from kolk.cli.formats import Format, FormatOption, chosen
from kolk.cli.notes import counted, is_watched, note, progress, say_error
from kolk.cli.rows import ColumnsOption, NameArgument, QuietOption, names_of
from kolk.errors import InvalidArgument, KolkError
from kolk.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kolk.client.scan import Scan

TABLE_ROWS_MAX = 200
"""What a table on a terminal shows unless it is told how many: more is not read by anyone."""

OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file; its ending says the format.")
]
TtlOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="How long a server waits while nobody takes rows.  [default: 60s]")
]


class Source(StrEnum):
    """Which rows are shown."""

    LIVE = "live"
    SNAPSHOT = "snapshot"


SourceOption = Annotated[
    Source, typer.Option(metavar="WHAT", help="live, or snapshot: the rows of the newest snapshots.")
]


def scan(
    common: Common,
    name: NameArgument,
    columns: ColumnsOption = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", "-n", metavar="N", min=0, help="At most so many rows; of a log table the last ones."),
    ] = None,
    where: Annotated[
        str | None, typer.Option("--where", "-w", metavar="SQL", help="Only these rows, such as 'pv > 100'.")
    ] = None,
    bucket: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this bucket; repeatable.")] = None,
    source: SourceOption = Source.LIVE,
    ttl: TtlOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    quiet: QuietOption = False,
) -> None:
    """Write the rows of a table as they are at one moment.

    That is all of them, or those that --where selects. Of a log table --limit shows the last rows. If a partition is
    dropped meanwhile it ends with 3, after the rows of all others; and if the scan itself is lost, with what was
    written so far.

    \b
    kolk scan web.pages --limit 20
    kolk scan web.pages --where "pv > 100 AND title IS NOT NULL"
    kolk scan web.pages -o pages.parquet
    kolk scan web.pages --source snapshot -o pages.parquet
    kolk scan web.pages -f csv | sort | head
    """
    style = chosen(format, output)
    ttl_seconds = None if ttl is None else seconds_of(ttl)
    most = TABLE_ROWS_MAX if style is Format.TABLE and limit is None else limit
    gone: list[str] = []
    with common.connect() as db:
        table = db.table(name)
        if table.info.is_log and limit is None:
            raise InvalidArgument(
                f"{name} is a log table: --limit N shows its last N rows, and all of them come with:"
                f" kolk tail {name} --from earliest"
            )
        # One more than is shown tells whether there are more.
        asked = None if most is None else most + (limit is None)
        with table.scan(
            names_of(columns),
            asked,
            where,
            source.value,
            buckets=bucket,
            ttl=ttl_seconds,
            on_partition=lambda event: gone.append(event.partition),
        ) as rows:
            _write(rows, style, output, most, quiet=quiet)
    if gone:
        say_error(
            f"dropped during the scan, so that some of its rows are missing: {', '.join(gone)}; all others are here."
            " Scan again for the table as it is now"
        )
        raise typer.Exit(NOT_FOUND)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(connected(scan))


def _write(rows: "Scan", style: Format, output: Path | None, most: int | None, *, quiet: bool) -> None:
    """Write the rows, but not more than so many, and say what there is to say about it."""
    from kolk.cli.writers import is_replaced, writing

    clock = SystemClock()
    started = clock.monotonic()
    silent = quiet or style is Format.TABLE or _is_seen(output)
    done, has_more = 0, False
    try:
        with (
            progress("scan", total=rows.estimate, unit="rows", quiet=silent) as on,
            writing(style, rows.schema, output) as writer,
        ):
            for batch in rows:
                room = batch.num_rows if most is None else min(batch.num_rows, most - done)
                writer.write(batch.slice(0, room))
                done += room
                on(done, done)
                has_more = room < batch.num_rows
    except KolkError as error:
        were = "was" if done == 1 else "were"
        error.add_note(
            f"{output} was not written"
            if output is not None and is_replaced(output)
            else "nothing was shown"
            if style is Format.TABLE
            else f"the {counted(done, 'row')} before that {were} written; the others are missing"
        )
        raise
    if quiet:
        return
    if has_more:
        note(f"the first {counted(done, 'row')}; --limit N shows more, and -f jsonl or -o FILE all of them")
    if output is not None:
        note(f"wrote {counted(done, 'row')} to {output} in {clock.monotonic() - started:.1f} s")


def _is_seen(output: Path | None) -> bool:
    """Whether the rows run over the terminal, where a bar would be in their way."""
    return output is None and sys.stdout.isatty() and is_watched()
