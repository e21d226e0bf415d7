"""``kolk tail``: the changelog of a table, as it was and as it grows.

Without ``--from`` it is tail(1): the last changes, and with ``--follow`` everything after them. With ``--from`` it
starts there. The place where it stops is told in a form that ``--from`` takes, and only counts what was written: after
an interruption a change may come twice, but none is missed. With ``--follower`` the database keeps that place.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kolk.cli.common import Common, connected
from kolk.cli.durations import moment_of
from kolk.cli.failures import Misuse
from kolk.cli.formats import Format, FormatOption, chosen
from kolk.runtime.clock import SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

    from kolk.client.table import Table

SHOWN = 10
"""How many changes are the last ones, unless -n says so."""


def tail(
    common: Common,
    name: Annotated[str, typer.Argument(metavar="TABLE", help="The table: name or database.name.")],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="earliest, latest, offsets as JSON, a time, or -10m.  [default: the last -n]",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("-n", "--count", metavar="N", min=0, help="The last N changes; with --from the first N."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Wait for more, until Ctrl-C.")] = False,
    bucket: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this bucket; repeatable.")] = None,
    follower: Annotated[
        str | None, typer.Option(metavar="NAME", help="Go on where this follower stopped; the log is kept for it.")
    ] = None,
    format: FormatOption = None,
) -> None:
    """Show a table's changes, and follow them.

    +I is an insert, -U and +U the row before and after an update, -D a delete.

    \b
    kolk tail web.pages                     the last 10 changes
    kolk tail web.pages -F                  the same, then whatever comes
    kolk tail web.pages --from -10m         the changes of the last ten minutes
    kolk tail web.pages --from '{"0": 42}'  from where an earlier one stopped
    kolk tail web.pages -F --follower etl   from where the follower etl stopped
    """
    style = chosen(format)
    if follower is not None and (count is not None or bucket):
        raise Misuse("a follower takes whole batches of all buckets; leave -n and --bucket out, or --follower")
    with common.connect() as db:
        table = db.table(name)
        where = None if start is None else _start(start, table, bucket)
        following = Following(table, bucket, style)
        try:
            if follower is not None:
                return following.run_as(follower, where, follow=follow)
            if where is None:
                where = following.show_last(SHOWN if count is None else count)
                count = None
            if start is not None or follow:
                following.run(where, follow=follow, most=count)
        except KeyboardInterrupt as error:
            if follower is not None:
                error.add_note(f"stopped; go on with --follower {follower}")
                raise
            place = json.dumps(following.position, separators=(",", ":"))
            error.add_note(f"stopped at {place}; go on with --from '{place}'")
            raise
        finally:
            following.close()


class Following:
    """A reader of a changelog that knows how far it has written. Confined to one thread."""

    def __init__(self, table: "Table", buckets: Sequence[str] | None, style: Format) -> None:
        self.position: dict[str, int] = {}
        self._table = table
        self._buckets = buckets
        self._style = style
        self._writer: Any = None

    def show_last(self, count: int) -> dict[str, int]:
        """The last changes of all buckets by their time, oldest first; the answer is where they end."""
        import pyarrow as pa
        import pyarrow.compute as pc

        with self._table.changelog(start="latest", buckets=self._buckets) as latest:
            ends = dict(latest.offsets)
        with self._table.changelog(start="earliest", buckets=self._buckets) as earliest:
            starts = {bucket: max(first, ends[bucket] - count) for bucket, first in earliest.offsets.items()}
        with self._table.changelog(start=starts, stop=ends, buckets=self._buckets) as changes:
            batches = list(changes)
        self.position = ends
        if not batches or not count:
            return ends
        rows = pa.Table.from_batches(batches)
        order = [("_commit_timestamp", "ascending"), ("_bucket", "ascending"), ("_log_offset", "ascending")]
        rows = rows.take(pc.sort_indices(rows, sort_keys=order)[-count:])
        for batch in rows.combine_chunks().to_batches():
            self._write(batch)
        return ends

    def run(self, start: Any, *, follow: bool, most: int | None) -> None:
        """Everything from ``start`` on, but no more than ``most`` changes."""
        with self._table.changelog(start=start, follow=follow, buckets=self._buckets) as changes:
            self.position = dict(changes.offsets)
            for batch in _at_most(changes, most) if most is None or most > 0 else []:
                bucket, end = batch["_bucket"][0].as_py(), batch["_log_offset"][-1].as_py() + 1
                self._write(batch)
                self.position[bucket] = end

    def run_as(self, follower: str, start: Any, *, follow: bool) -> None:
        """Everything that a follower has not seen. What was handed on to whoever reads stdout counts as seen."""
        with self._table.changelog(start=start, follow=follow, follower=follower) as changes:
            is_written = True
            try:
                for batch in changes:
                    is_written = False
                    self._write(batch)
                    sys.stdout.flush()
                    is_written = True
            except KeyboardInterrupt:
                if is_written:
                    changes.commit()
                raise

    def close(self) -> None:
        """Write the end of what has one; also after Ctrl-C, so that it can be read."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, batch: "pa.RecordBatch") -> None:
        if self._style is Format.TABLE:
            _print_changes(batch)
            return
        if self._writer is None:
            from kolk.cli.writers import Sink, open_writer

            self._writer = open_writer(self._style, batch.schema, Sink(sys.stdout.buffer))
        self._writer.write(batch)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(connected(tail))


def _at_most(batches: Any, most: int | None) -> Iterator["pa.RecordBatch"]:
    left = most
    for batch in batches:
        yield batch if left is None else batch.slice(0, left)
        if left is not None:
            left -= batch.num_rows
            if left <= 0:
                return


def _start(text: str, table: "Table", buckets: Sequence[str] | None) -> Any:
    if text in ("earliest", "latest"):
        return text
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError as error:
            raise Misuse(f"--from {text}: these offsets are not JSON: {error}") from error
    if text.isascii() and text.isdigit():
        names = list(buckets or [str(number) for number in range(table.info.spec.buckets)])
        if len(names) > 1:
            raise Misuse(f"--from {text}: {table.name} has {len(names)} buckets; write --from '{{\"0\": {text}, ...}}'")
        return {names[0]: int(text)}
    return moment_of(text, SystemClock().now_ms())


_PAINT = {"+I": "green", "+U": "green", "-U": "yellow", "-D": "red"}


def _print_changes(batch: "pa.RecordBatch") -> None:
    """One line per change: a table would have to know all rows first, and these come as they come."""
    from rich.text import Text

    from kolk.cli.grid import stdout, visible
    from kolk.cli.values import texts

    console = stdout()
    columns = {name: texts(batch.column(name)).to_pylist() for name in batch.schema.names}
    kinds, offsets, times, buckets = (columns.pop(name) for name in batch.schema.names[:4])
    for place, kind in enumerate(kinds):
        line = Text()
        line.append(kind, style=_PAINT.get(kind, ""))
        line.append(f"  {buckets[place]}:{offsets[place]}")
        line.append(f"  {times[place].replace('T', ' ')} ", style="dim")
        for name, cells in columns.items():
            line.append(f" {name}=", style="dim")
            value = cells[place]
            line.append("null", style="dim") if value is None else line.append(visible(value))
        console.print(line, no_wrap=True, overflow="ellipsis", crop=True)
