"""``kolk tail``: the changelog of a table, as it was and as it grows.

Without ``--from`` it is tail(1): the last changes, and with ``--follow`` everything after them. With ``--from`` it
starts there. The place where it stops is told in a form that ``--from`` takes, and only counts what was written: after
an interruption a change may come twice, but none is missed. With ``--follower`` the database keeps that place. With
``--bootstrap`` the whole table comes first, as insertions, and then every change after it. All changes are shown in the
newest schema of the table, as it is when the command starts.

That a partition came or went is told among the changes, in order; where the format has no place for it, on stderr.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kolk.cli.common import Common, connected
from kolk.cli.durations import moment_of
from kolk.cli.failures import Misuse
from kolk.cli.formats import Format, FormatOption, chosen
from kolk.cli.notes import counted, note
from kolk.errors import InvalidArgument
from kolk.runtime.clock import SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

    from kolk.client.bootstrap import Bootstrap
    from kolk.client.table import Table
    from kolk.model.partition import PartitionEvent

SHOWN = 10
"""How many changes are the last ones, unless -n says so."""

StartOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="WHERE", help="earliest, latest, offsets as JSON, a time, or -10m.  [default: the last -n]"
    ),
]


def tail(
    common: Common,
    name: Annotated[str, typer.Argument(metavar="TABLE", help="The table: name or database.name.")],
    start: StartOption = None,
    count: Annotated[
        int | None,
        typer.Option("-n", "--count", metavar="N", min=0, help="The last N changes; with --from the first N."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-F", help="Wait for more, until Ctrl-C.")] = False,
    bucket: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this bucket; repeatable.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="Only these partitions, such as \"day >= '2026-11-01'\".")
    ] = None,
    follower: Annotated[
        str | None, typer.Option(metavar="NAME", help="Go on where this follower stopped; the log is kept for it.")
    ] = None,
    bootstrap: Annotated[
        bool, typer.Option("--bootstrap", help="The whole table first, then the changes after it.")
    ] = False,
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
    kolk tail web.pages -F --bootstrap      all rows, then whatever comes
    """
    style = chosen(format)
    if follower is not None and (count is not None or bucket or where is not None):
        raise Misuse("a follower takes whole batches of all buckets; leave -n, --bucket and --where out, or --follower")
    if bootstrap and (start is not None or count is not None or bucket):
        raise Misuse("--bootstrap is the whole table; leave --from, -n and --bucket out")
    with common.connect() as db:
        table = db.table(name)
        place = None if start is None else _start(start, table, bucket)
        following = Following(table, bucket, where, style)
        try:
            if follower is not None:
                return following.run_as(follower, place, follow=follow, bootstrap=bootstrap)
            if bootstrap:
                return following.run_whole(follow=follow)
            if place is None:
                place = following.show_last(SHOWN if count is None else count)
                count = None
            if start is not None or follow:
                following.run(place, follow=follow, most=count)
        except KeyboardInterrupt as error:
            again = "--bootstrap " if bootstrap else ""
            error.add_note(following.place if follower is None else f"stopped; go on with {again}--follower {follower}")
            raise
        finally:
            following.close()


class Following:
    """A reader of a changelog that knows how far it has written. Confined to one thread."""

    def __init__(self, table: "Table", buckets: Sequence[str] | None, where: str | None, style: Format) -> None:
        self.position: dict[str, int] = {}
        self._has_all_rows: Callable[[], bool] = lambda: True
        self._table = table
        self._where = where
        self._read = partial(table.changelog, buckets=buckets, where=where, schema="latest")
        self._style = style
        self._writer: Any = None

    @property
    def place(self) -> str:
        """How far it is, and how to go on there, for whoever interrupts it."""
        if not self._has_all_rows():
            return "stopped before all rows were there; begin again"
        offsets = json.dumps(self.position, separators=(",", ":"))
        return f"stopped at {offsets}; go on with --from '{offsets}'"

    def show_last(self, count: int) -> dict[str, int]:
        """The last changes of all buckets by their time, oldest first; the answer is where they end."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from kolk.model.partition import PARTITIONS

        with self._read("latest") as latest:
            self.position = ends = dict(latest.offsets)
        if not count:
            return ends
        with self._read("earliest") as earliest:
            firsts = earliest.offsets
        # Partitions may come and go between these steps: the place in their record is that of the ends, so the reader
        # hears of them, and one that goes is not among the last.
        starts = {name: max(firsts.get(name, 0), end - count) for name, end in ends.items() if name != PARTITIONS}
        starts |= {PARTITIONS: ends[PARTITIONS]} if PARTITIONS in ends else {}
        with self._read(starts, on_partition=lambda _: None) as changes:
            batches = list(changes)
        self.position = ends = dict(changes.offsets)
        if not batches:
            return ends
        rows = pa.Table.from_batches(batches)
        order = [("_commit_timestamp", "ascending"), ("_bucket", "ascending"), ("_log_offset", "ascending")]
        rows = rows.take(pc.sort_indices(rows, sort_keys=order)[-count:])
        for batch in rows.combine_chunks().to_batches():
            self._write(batch)
        return ends

    def run(self, start: Any, *, follow: bool, most: int | None) -> None:
        """Everything from ``start`` on, but no more than ``most`` changes."""
        with self._read(start, follow=follow, on_partition=self._tell) as changes:
            self.position = dict(changes.offsets)
            for batch in _at_most(changes, most) if most is None or most > 0 else []:
                self._write_counted(batch, changes.offsets)

    def run_whole(self, *, follow: bool) -> None:
        """Every row, and then every change after them."""
        with self._bootstrap(self._where, follow=follow, on_partition=self._tell) as changes:
            self.position = dict(changes.offsets)
            self._has_all_rows = lambda: changes.is_scanned
            for batch in changes:
                if changes.is_scanned:
                    self._write_counted(batch, changes.offsets)
                else:
                    self._write(batch)
                    self.position = dict(changes.offsets)

    def run_as(self, follower: str, start: Any, *, follow: bool, bootstrap: bool) -> None:
        """Everything that a follower has not seen. What was handed on to whoever reads stdout counts as seen."""
        is_written = True

        def written(write: Callable[[Any], None], item: Any) -> None:
            nonlocal is_written
            is_written = False
            write(item)
            sys.stdout.flush()
            is_written = True

        tell = partial(written, self._write_event)
        with (
            self._bootstrap(follow=follow, follower=follower, on_partition=tell)
            if bootstrap
            else self._table.changelog(start, follow=follow, schema="latest", follower=follower, on_partition=tell)
        ) as changes:
            try:
                for batch in changes:
                    written(self._write, batch)
            except KeyboardInterrupt:
                if is_written:
                    changes.commit()
                raise

    def close(self) -> None:
        """Write the end of what has one; also after Ctrl-C, so that it can be read."""
        if self._writer is not None:
            self._writer.close()

    def _bootstrap(self, *args: Any, **options: Any) -> "Bootstrap":
        if self._table.info.is_log:
            raise InvalidArgument(f"{self._table.name} is a log table: its changes are all of it; use --from earliest")
        return self._table.bootstrap(*args, **options)

    def _tell(self, event: "PartitionEvent") -> None:
        from kolk.model.partition import after

        self._write_event(event)
        self.position = after(event, self.position)

    def _write_counted(self, batch: "pa.RecordBatch", offsets: Mapping[str, int]) -> None:
        """Write a batch that a reader at these offsets was handed last; only then is the position after it."""
        from kolk.model.partition import PARTITIONS

        bucket, end = batch["_bucket"][0].as_py(), batch["_log_offset"][-1].as_py() + 1
        self._write(batch)
        self.position[bucket] = end
        if PARTITIONS in self.position:  # it may have passed over events that nobody is told of
            self.position[PARTITIONS] = offsets[PARTITIONS]

    def _write(self, batch: "pa.RecordBatch") -> None:
        if self._style is Format.TABLE:
            _print_changes(batch)
            return
        if self._writer is None:
            from kolk.cli.writers import Sink, open_writer

            self._writer = open_writer(self._style, batch.schema, Sink(sys.stdout.buffer))
        self._writer.write(batch)

    def _write_event(self, event: "PartitionEvent") -> None:
        """That a partition came or went; the formats of objects alone have room for one of another kind."""
        if self._style is Format.TABLE:
            _print_event(event)
        elif self._style in (Format.JSONL, Format.JSON):
            self._write(_event_row(event))
        else:
            note(f"the partition {event.partition} was {_told(event)}")


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
        if table.info.is_partitioned and not buckets:
            raise Misuse(f"--from {text}: {table.name} has partitions; write --from '{{\"day=.../0\": {text}, ...}}'")
        names = list(buckets or [str(number) for number in range(table.info.spec.buckets)])
        if len(names) > 1:
            raise Misuse(f"--from {text}: {table.name} has {len(names)} buckets; write --from '{{\"0\": {text}, ...}}'")
        return {names[0]: int(text)}
    return moment_of(text, SystemClock().now_ms())


def _event_row(event: "PartitionEvent") -> "pa.RecordBatch":
    import pyarrow as pa

    fields = {
        "partition": pa.array([event.partition]),
        "event": pa.array([event.kind.value]),
        "timestamp": pa.array([event.timestamp_ms], pa.timestamp("ms", "UTC")),
    }
    is_drop = event.kind.value == "dropped"
    return pa.record_batch(fields | ({"unread": pa.array([event.unread], pa.int64())} if is_drop else {}))


def _told(event: "PartitionEvent") -> str:
    """What happened, in words."""
    if event.unread is None:
        return f"{event.kind.value}, and nobody knows how many of its changes were unread"
    return f"{event.kind.value}, {counted(event.unread, 'change')} unread" if event.unread else event.kind.value


_PAINT = {"+I": "green", "+U": "green", "-U": "yellow", "-D": "red"}


def _print_event(event: "PartitionEvent") -> None:
    from rich.text import Text

    from kolk.cli.grid import stdout, visible
    from kolk.cli.values import texts

    time = texts(_event_row(event)["timestamp"])[0].as_py().replace("T", " ")
    line = Text.assemble(("==", "bold"), f"  {visible(event.partition)}", (f"  {time}  ", "dim"), _told(event))
    stdout().print(line, no_wrap=True, overflow="ellipsis", crop=True)


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
