"""``kolk partition``: which partitions a table has; make one, and remove one with all that is in it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kolk.cli.commands import App
from kolk.cli.common import Common, connected
from kolk.cli.formats import Format, FormatOption, chosen
from kolk.cli.notes import note
from kolk.cli.questions import YesOption, confirm
from kolk.errors import InvalidArgument, PartitionExists

if TYPE_CHECKING:
    from kolk.client.database import Database
    from kolk.client.table import Table

app = App(no_args_is_help=True, rich_markup_mode=None, help="List, make and remove the partitions of a table.")

TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="The table: name or database.name.")]
ValuesArgument = Annotated[
    list[str], typer.Argument(metavar="COLUMN=VALUE", help="The value of each partition column.", show_default=False)
]


@app.command("list")
@connected
def list_(
    common: Common,
    name: TableArgument,
    count: Annotated[
        bool, typer.Option("--changes/--no-changes", help="How many changes the logs of each have.")
    ] = True,
    format: FormatOption = None,
) -> None:
    """List the partitions.

    It tells when they were made, their buckets, and how many changes their logs have.
    """
    import pyarrow as pa

    from kolk.cli.writers import moments_column, write_list

    style = chosen(format)
    with common.connect() as db:
        table = _partitioned(db, name)
        partitions = table.partitions()
        changes = _changes(table) if count else {}
    rows = {
        "partition": pa.array([each.name for each in partitions], pa.string()),
        "created": moments_column([each.created_ms for each in partitions], style),
        "buckets": pa.array([table.info.spec.buckets for _ in partitions], pa.int64()),
    }
    if count:
        # One that came or went between the two answers has no number.
        rows["changes"] = pa.array([changes.get(each.name) for each in partitions], pa.int64())
    write_list(pa.table(rows), style)
    if style is Format.TABLE and not partitions:
        note("there are no partitions; a put makes them, or `kolk partition add`")


@app.command()
@connected
def add(
    common: Common,
    name: TableArgument,
    values: ValuesArgument,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Leave a partition that is there alone.")
    ] = False,
) -> None:
    """Make a partition before anybody writes to it.

    \b
    kolk partition add web.hits day=2026-11-15
    kolk partition add web.sales day=2026-11-15 region=eu
    """
    with common.connect() as db:
        table = _partitioned(db, name)
        try:
            made = table.add_partition("/".join(values))
        except PartitionExists as error:
            if not if_not_exists:
                raise
            return note(f"{error}; it was left alone")
        note(f"made the partition {made.name} of {name}")


@app.command()
@connected
def drop(
    common: Common,
    name: TableArgument,
    values: ValuesArgument,
    yes: YesOption = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A partition that is not there is no error.")] = False,
) -> None:
    """Remove a partition, its rows and its log, whoever reads it.

    Scans lose its rows, and followers are told how many of its changes they had not read.
    """
    from kolk.model.partition import parse_partition

    with common.connect() as db:
        table = _partitioned(db, name)
        known = [each.name for each in table.partitions()]
        partition = parse_partition(table.info.partition_columns, "/".join(values))
        if partition in known:
            confirm(f"Drop the partition {partition} of {name}, with all its rows and its log?", yes=yes)
        elif if_exists:  # nobody is asked about one that is not there
            return note(f"{name} has no partition {partition}; nothing was done")
        table.drop_partition(partition, if_exists=if_exists)
        note(f"dropped {partition} of {name}")


def _partitioned(db: "Database", name: str) -> "Table":
    """The table; one that cannot have partitions is told of in the words of this command line."""
    table = db.table(name)
    if not table.info.is_partitioned:
        raise InvalidArgument(f"{table.name} has no partitions; a table is made with them by --partition-by NAMES")
    return table


def _changes(table: "Table") -> dict[str, int]:
    """How many changes the log of each partition has."""
    from kolk.model.partition import partition_of

    described: dict[str, Any] = table.describe()
    counts: dict[str, int] = {}
    for bucket, ends in described["offsets"].items():
        counts[partition_of(bucket)] = counts.get(partition_of(bucket), 0) + ends["end"] - ends["start"]
    return counts
