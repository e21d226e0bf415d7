"""``kolk functions``: the aggregate functions that a column may name, Kolk's own and those of loaded modules."""

from typing import TYPE_CHECKING, Annotated

import typer

from kolk.cli.common import loading
from kolk.cli.failures import NOT_FOUND
from kolk.cli.formats import Format, FormatOption, chosen
from kolk.cli.notes import note

if TYPE_CHECKING:
    import pyarrow as pa

    from kolk.model.function_table import Entry


def functions(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Only these, by any of their names.")
    ] = None,
    format: FormatOption = None,
) -> None:
    """List the aggregate functions of aggregation tables.

    Ends with 3 if there is none of a name.

    \b
    kolk functions
    kolk functions sum listagg -f json
    kolk functions --load my_aggregates
    """
    from kolk.cli.writers import write_list
    from kolk.model.aggregate import canonical
    from kolk.model.function_table import entries

    style = chosen(format)
    known = entries()
    wanted = [canonical(name) for name in names or []]
    shown = [each for each in known if not wanted or {each.name, *each.aliases} & set(wanted)]
    if style is Format.TABLE and wanted:
        _show(shown)
    elif shown:
        write_list(_overview(shown) if style is Format.TABLE else _rows(shown, style), style)
        if style is Format.TABLE:
            note("`kolk functions NAME` shows the parameters of one, whether it takes back, and more")
    missing = [name for name in wanted if not any(name in (each.name, *each.aliases) for each in shown)]
    if missing:
        note(f"there is no aggregate function {', '.join(missing)}; --load MODULE shows those of a module, too")
        raise typer.Exit(NOT_FOUND)


def _overview(entries: "list[Entry]") -> "pa.Table":
    """What fits a terminal; of each by itself there is more to show."""
    import pyarrow as pa

    from kolk.model.function_table import types_text

    return pa.table(
        {
            "name": [each.name for each in entries],
            "types": [types_text(each.types) for each in entries],
            "summary": [each.summary for each in entries],
        }
    )


def _show(entries: "list[Entry]") -> None:
    """All of some functions, one under the other."""
    from kolk.cli.grid import Column, print_grid, stdout
    from kolk.model.function_table import parameter_text

    for place, each in enumerate(entries):
        if place:
            stdout().print()
        fields = {
            "summary": each.summary,
            "aliases": ", ".join(each.aliases),
            "types": ", ".join(each.types),
            "input": each.input,
            "nulls": each.nulls,
            "retract": each.retract,
            "idempotent": "yes" if each.idempotent else "no",
            "order": each.order,
            "size": each.size,
            **{f"parameter {one.name}": parameter_text(one).partition(": ")[2] for one in each.parameters},
            **({} if each.version is None else {"version": str(each.version)}),
        }
        told = {name: value for name, value in fields.items() if value}
        print_grid([Column(name=each.name, cells=list(told)), Column(name="", cells=list(told.values()))])


def _rows(entries: "list[Entry]", style: Format) -> "pa.Table":
    import pyarrow as pa

    from kolk.cli.writers import names_column
    from kolk.model.function_table import parameter_text

    texts = {
        field: pa.array([getattr(each, field) for each in entries], pa.string())
        for field in ("name", "summary", "input", "nulls", "retract", "order", "size")
    }
    columns = {
        "name": texts["name"],
        "summary": texts["summary"],
        "types": names_column([each.types for each in entries], style),
        "input": texts["input"],
        "nulls": texts["nulls"],
        "retract": texts["retract"],
        "idempotent": pa.array([each.idempotent for each in entries], pa.bool_()),
        "order": texts["order"],
        "size": texts["size"],
        "parameters": names_column([[parameter_text(one) for one in each.parameters] for each in entries], style),
        "aliases": names_column([each.aliases for each in entries], style),
        "version": pa.array([each.version for each in entries], pa.int64()),
    }
    return pa.table(columns)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(loading(functions))
