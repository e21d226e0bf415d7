"""``kolk table``: make, list, describe, alter, empty and remove tables."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kolk.cli.altering import alter
from kolk.cli.commands import App
from kolk.cli.common import Common, connected
from kolk.cli.failures import Misuse
from kolk.cli.formats import DescriptionFormatOption, Format, FormatOption, chosen
from kolk.cli.notes import counted, note
from kolk.cli.questions import YesOption, confirm
from kolk.errors import TableExists, TableNotFound

if TYPE_CHECKING:
    from kolk.cli.grid import Column
    from kolk.model.schema import Schema

app = App(no_args_is_help=True, rich_markup_mode=None, help="Make, list, describe, alter, empty and remove tables.")

NameArgument = Annotated[str, typer.Argument(metavar="TABLE", help="The table: name or database.name.")]
MergeEngineOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="default, first_row, versioned or aggregation.  [default: default]"),
]
BUCKETS_SHOWN = 32


@app.command()
@connected
def create(
    common: Common,
    name: Annotated[str | None, typer.Argument(metavar="TABLE", help="Its name; --ddl names it itself.")] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", "-c", metavar="COLUMNS", help='Such as "page string, pv bigint not null".'),
    ] = None,
    primary_key: Annotated[
        str | None, typer.Option("--primary-key", "-k", metavar="NAMES", help="Such as page; none makes a log table.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FILE", help="Take the columns of a Parquet, Arrow, CSV or JSON file."),
    ] = None,
    ddl: Annotated[str | None, typer.Option(metavar="SQL", help='"CREATE TABLE ..."')] = None,
    ddl_file: Annotated[str | None, typer.Option(metavar="FILE", help="The same in a file; - is stdin.")] = None,
    buckets: Annotated[int | None, typer.Option(metavar="N", help="How many shares it has.  [default: 1]")] = None,
    bucket_key: Annotated[
        str | None, typer.Option(metavar="NAMES", help="What chooses the share.  [default: the primary key]")
    ] = None,
    partition_by: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Cut it by these columns into partitions that can be dropped.")
    ] = None,
    merge_engine: MergeEngineOption = None,
    option: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="A table option; repeatable.")] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Leave a table that is there alone.")] = False,
) -> None:
    """Make a table, and the database folder if need be.

    \b
    kolk table create web.pages --columns "page string, pv bigint" --primary-key page
    kolk table create web.pages --from pages.parquet --primary-key page --buckets 4
    kolk table create web.hits --columns "day date, id bigint" --primary-key day,id --partition-by day
    kolk table create --ddl "CREATE TABLE web.pages (page STRING, pv BIGINT, PRIMARY KEY (page))"
    kolk table create web.counts --columns "page string, pv bigint sum" --primary-key page
    """
    if sum(one is not None for one in (columns, source, ddl, ddl_file)) != 1:
        raise Misuse("say what the columns are, in one way: --columns, --from, --ddl or --ddl-file")
    if ddl is not None or ddl_file is not None:
        others = (name, primary_key, buckets, bucket_key, partition_by, merge_engine, option)
        if any(one is not None for one in others):
            raise Misuse("the statement says everything; leave the other options out, and the name")
        text = ddl if ddl is not None else _text(str(ddl_file))
        return _create_by_statement(common, text, if_not_exists=if_not_exists)
    if name is None:
        raise Misuse("give the table a name: kolk table create TABLE ...")
    _create(
        common,
        name,
        _schema(columns, source, _names(primary_key) or []),
        if_not_exists=if_not_exists,
        buckets=buckets,
        bucket_key=_names(bucket_key),
        partition_by=_names(partition_by) or [],
        merge_engine=merge_engine,
        options=_options(option or []),
    )


@app.command("list")
@connected
def list_(common: Common, format: FormatOption = None) -> None:
    """List the tables."""
    import pyarrow as pa

    from kolk.cli.writers import moments_column, names_column, write_list

    style = chosen(format)
    with common.connect() as db:
        infos = [table.info for table in db.tables()]
    rows = {
        "table": pa.array([str(info.name) for info in infos], pa.string()),
        "primary_key": names_column([info.schema.primary_key for info in infos], style),
        "partition_by": names_column([info.spec.partition_by for info in infos], style),
        "columns": pa.array([len(info.schema.columns) for info in infos], pa.int64()),
        "buckets": pa.array([info.spec.buckets for info in infos], pa.int64()),
        "merge_engine": pa.array(
            [None if info.is_log else info.spec.options.merge_engine.value for info in infos], pa.string()
        ),
        "created": moments_column([info.created_ms for info in infos], style),
    }
    write_list(pa.table(rows), style)
    if style is Format.TABLE and not infos:
        note("there are no tables; `kolk table create` makes one")


@app.command()
@connected
def describe(common: Common, name: NameArgument, format: DescriptionFormatOption = None) -> None:
    """Show a table's columns, key, options and offsets."""
    style = chosen(format)
    if style not in (Format.TABLE, Format.JSON, Format.JSONL):
        raise Misuse(f"a description is a table, json or jsonl, not {style.value}")
    with common.connect() as db:
        described = db.table(name).describe()
    if style is Format.TABLE:
        _show(described)
    else:
        indent = 2 if style is Format.JSON else None
        sys.stdout.write(json.dumps(described, indent=indent, ensure_ascii=False) + "\n")


app.command("alter")(alter)


@app.command()
@connected
def drop(
    common: Common,
    name: NameArgument,
    yes: YesOption = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="A table that is not there is no error.")] = False,
) -> None:
    """Remove a table, its rows and its log."""
    with common.connect() as db:
        try:
            if not (yes and if_exists):  # nobody is asked about a table that is not there
                db.table(name)
            confirm(f"Drop {name}, with all its rows and its log?", yes=yes)
            db.drop_table(name)
        except TableNotFound:
            if not if_exists:
                raise
            return note(f"there is no table {name}; nothing was done")
        note(f"dropped {name}")


@app.command()
@connected
def truncate(common: Common, name: NameArgument, yes: YesOption = False) -> None:
    """Remove every row; followers see the deletes."""
    with common.connect() as db:
        table = db.table(name)
        confirm(f"Remove every row of {name}?", yes=yes)
        table.truncate()
        note(f"truncated {name}")


# --- inside


def _create_by_statement(common: Common, text: str, *, if_not_exists: bool) -> None:
    from kolk.model.ddl import CreateTable, parse

    statement = parse(text)
    if not isinstance(statement, CreateTable):
        raise Misuse("the statement is not CREATE TABLE; for the others there are commands of their own")
    _create(
        common,
        str(statement.name),
        statement.spec.schema,
        if_not_exists=if_not_exists or statement.if_not_exists,
        buckets=statement.buckets,
        bucket_key=statement.bucket_key,
        partition_by=statement.partition_by,
        options=statement.options,
    )


def _create(common: Common, name: str, schema: "Schema", *, if_not_exists: bool, **options: Any) -> None:
    """Make a table, and say whether it was made: one that was there may be another than was asked for."""
    with common.connect(create=True) as db:
        try:
            table = db.create_table(name, schema, **options)
        except TableExists:
            if not if_not_exists:
                raise
            table = db.table(name)
            return note(f"there was a table {table.name} already, and it was left alone: {table.schema}")
        note(f"created table {table.name} {table.schema}")


def _schema(columns: str | None, source: Path | None, primary_key: list[str]) -> "Schema":
    from kolk.model.schema import Schema

    if source is not None:
        from kolk.cli.inputs import opened

        with opened(str(source), None) as rows:
            return Schema.from_arrow(rows.inferred(), primary_key)
    from kolk.model.ddl import CreateTable, parse

    # The language of columns is the one of DDL, so that there is one to learn.
    statement = parse(f"CREATE TABLE t ({columns})")
    assert isinstance(statement, CreateTable)
    return Schema(statement.schema.columns, primary_key or statement.schema.primary_key)


def _options(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise Misuse(f"--option {pair}: write KEY=VALUE, such as table.changelog.image=wal")
    return {key.strip(): value.strip() for key, _, value in (pair.partition("=") for pair in pairs)}


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _text(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Misuse(f"--ddl-file {file}: {error}") from error


def _show(described: dict[str, Any]) -> None:
    from rich.text import Text

    from kolk.cli.grid import Column, print_grid, stdout

    console = stdout()
    schema, offsets = described["schema"], described["offsets"]
    is_cut = "partition_by" in described
    console.print(Text.assemble((described["name"], "bold"), f"  {_kind(described)}\n"))
    columns = schema["columns"]
    print_grid(
        [
            Column(name="column", cells=[column["name"] for column in columns]),
            Column(name="type", cells=[column["type"] for column in columns], styles=None),
            *_aggregates(columns),
            Column(
                name="null", cells=["yes" if column["nullable"] else "no" for column in columns], styles={"no": "dim"}
            ),
            Column(name="default", cells=[column.get("default", "") for column in columns]),
            Column(name="key", cells=["key" if column["name"] in schema["primary_key"] else "" for column in columns]),
        ]
    )
    options = {
        "bucket.key": ", ".join(described["bucket_key"]) or "none: whole puts are spread",
        **described["options"],
    }
    console.print()
    print_grid([Column(name="option", cells=list(options)), Column(name="value", cells=list(options.values()))])
    shown = list(offsets.items())[:BUCKETS_SHOWN]
    console.print()
    print_grid(
        [
            Column(name="bucket", cells=[bucket for bucket, _ in shown], is_number=not is_cut),
            Column(name="start", cells=[f"{ends['start']:,}" for _, ends in shown], is_number=True),
            Column(name="end", cells=[f"{ends['end']:,}" for _, ends in shown], is_number=True),
        ]
    )
    if len(offsets) > len(shown):
        more = f", and kolk partition list {described['name']} the partitions" if is_cut else ""
        note(f"and {counted(len(offsets) - len(shown), 'more bucket')}; -f json has them all{more}")


def _aggregates(columns: list[dict[str, Any]]) -> "list[Column]":
    """Of an aggregation table: the function of each column, and what a put gives where that is of another type."""
    from kolk.cli.grid import Column
    from kolk.model.aggregate import Aggregate

    if not any("agg" in column for column in columns):
        return []
    given = [column.get("agg") for column in columns]
    for problem in [agg["problem"] for agg in given if agg is not None and "problem" in agg]:
        note(problem)
    functions = ["" if agg is None else str(Aggregate.make(agg["function"], agg.get("parameters"))) for agg in given]
    shown = [Column(name="aggregate", cells=functions)]
    if any("input" in column for column in columns):
        shown.append(Column(name="put gives", cells=[column.get("input", "") for column in columns]))
    return shown


def _kind(described: dict[str, Any]) -> str:
    key = described["schema"]["primary_key"]
    kind = f"primary key ({', '.join(key)})" if key else "log table"
    if "partition_by" not in described:
        return kind
    columns = ", ".join(described["partition_by"])
    return f"{kind}, partitioned by ({columns}): {counted(len(described['partitions']), 'partition')}"
