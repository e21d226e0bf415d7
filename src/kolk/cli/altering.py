"""``kolk table alter``: change the columns and options of a table that is in use.

All that one command says about columns is one alter: it happens as a whole or not at all. The language of columns is
that of DDL, so that there is one to learn.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kolk.cli.common import Common, connected
from kolk.cli.failures import Misuse
from kolk.cli.formats import FormatOption, chosen
from kolk.cli.notes import note

if TYPE_CHECKING:
    from kolk.client.table import Table
    from kolk.model.evolution import Operation
    from kolk.model.schema import Schema
    from kolk.model.tokens import Reader

Repeated = list[str] | None


@connected
def alter(
    common: Common,
    name: Annotated[str | None, typer.Argument(metavar="TABLE", help="The table; --ddl names it itself.")] = None,
    add: Annotated[
        Repeated, typer.Option(metavar="COLUMN", help='Add one: "clicks bigint not null default 0 after pv".')
    ] = None,
    drop: Annotated[Repeated, typer.Option(metavar="NAME", help="Drop a column.")] = None,
    rename: Annotated[Repeated, typer.Option(metavar="OLD=NEW", help="Give a column another name.")] = None,
    widen: Annotated[Repeated, typer.Option(metavar="NAME=TYPE", help="A wider type, such as pv=bigint.")] = None,
    nullable: Annotated[Repeated, typer.Option(metavar="NAME", help="Let a NOT NULL column be null.")] = None,
    move: Annotated[Repeated, typer.Option(metavar="PLACE", help='"pv first" or "pv after page".')] = None,
    option: Annotated[
        Repeated, typer.Option("--set", metavar="KEY=VALUE", help="Set a table option that may change.")
    ] = None,
    ddl: Annotated[str | None, typer.Option(metavar="SQL", help='"ALTER TABLE ..."')] = None,
    format: FormatOption = None,
) -> None:
    """Change a table's columns and options while it is in use.

    No row is rewritten. Every flag may be given several times. Columns are dropped, renamed, widened, made
    nullable, added and moved, in this order, all together or not at all; options are set after that. Shows the
    columns as they are then.

    \b
    kolk table alter web.pages --add "clicks bigint default 0" --widen pv=bigint
    kolk table alter web.pages --rename pv=views --move "views first" --drop title
    kolk table alter events --set table.log.ttl=7d
    kolk table alter --ddl "ALTER TABLE web.pages ADD COLUMN clicks BIGINT DEFAULT 0"
    """
    style = chosen(format)
    changes = (add, drop, rename, widen, nullable, move, option)
    if ddl is not None:
        if name is not None or any(changes):
            raise Misuse("the statement says everything; leave the other options out, and the name")
        with common.connect() as db:
            return _show(_run(db, ddl), style)
    if name is None:
        raise Misuse("which table? kolk table alter TABLE ...")
    operations = _operations(add=add, drop=drop, rename=rename, widen=widen, nullable=nullable, move=move)
    if not operations and not option:
        raise Misuse("say what is to change: --add, --drop, --rename, --widen, --nullable, --move or --set")
    options = dict(_pair(text, "--set", "table.log.ttl=7d") for text in option or [])
    with common.connect() as db:
        table = db.table(name)
        if operations:
            table.alter(operations)
        if options:
            table.set_options(options)
        _show(table, style)


def _run(db: Any, text: str) -> "Table":
    from kolk.model.alter_ddl import AlterTable, SetOptions
    from kolk.model.ddl import parse

    if not isinstance(parse(text), AlterTable | SetOptions):
        raise Misuse("the statement is not ALTER TABLE with columns or options; there are other commands for the rest")
    return db.execute(text)


def _operations(
    *, add: Repeated, drop: Repeated, rename: Repeated, widen: Repeated, nullable: Repeated, move: Repeated
) -> "list[Operation]":
    from kolk.model import evolution as e
    from kolk.model.alter_ddl import read_added_column

    made: list[Operation] = [e.DropColumn(name) for name in drop or []]
    made += [e.RenameColumn(*_pair(text, "--rename", "pv=views")) for text in rename or []]
    made += [e.WidenColumn(*_pair(text, "--widen", "pv=bigint")) for text in widen or []]
    made += [e.DropNotNull(name) for name in nullable or []]
    made += [_read(text, read_added_column) for text in add or []]
    made += [_read(text, _move) for text in move or []]
    return made


def _read(text: str, read: "Callable[[Reader], Operation]") -> "Operation":
    """What a whole text says, in the words of DDL."""
    from kolk.model.tokens import Reader, TokenKind

    reader = Reader(text)
    found = read(reader)
    if reader.token.kind is not TokenKind.END:
        reader.fail("the end of the text")
    return found


def _move(reader: "Reader") -> "Operation":
    from kolk.model.clauses import column_name
    from kolk.model.evolution import MoveColumn

    name = column_name(reader)
    if reader.accept("FIRST"):
        return MoveColumn(name, first=True)
    reader.expect("AFTER")
    return MoveColumn(name, after=column_name(reader))


def _pair(text: str, flag: str, example: str) -> tuple[str, str]:
    left, equals, right = text.partition("=")
    if not equals or not left.strip() or not right.strip():
        raise Misuse(f"{flag} {text}: write it as {flag} {example}")
    return left.strip(), right.strip()


def _functions(schema: "Schema") -> dict[str, Any]:
    import pyarrow as pa

    shown = [None if column.agg is None else str(column.agg) for column in schema.columns]
    return {"aggregate": pa.array(shown, pa.string())} if schema.aggregates else {}


def _show(table: "Table", style: Any) -> None:
    import pyarrow as pa

    from kolk.cli.writers import write_list

    schema = table.schema
    rows = {
        "column": pa.array(schema.names, pa.string()),
        "type": pa.array([str(column.type) for column in schema.columns], pa.string()),
        **_functions(schema),
        "nullable": pa.array([column.nullable for column in schema.columns], pa.bool_()),
        "default": pa.array([column.default for column in schema.columns], pa.string()),
        "key": pa.array([name in schema.primary_key for name in schema.names], pa.bool_()),
    }
    write_list(pa.table(rows), style)
    note(f"{table.name} is at version {schema.id} of its schema")
