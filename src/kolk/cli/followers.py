"""``kolk follower``: who follows which table, how far behind, and how much log is kept for it."""

from typing import Annotated

import typer

from kolk.cli.commands import App
from kolk.cli.common import Common, connected
from kolk.cli.formats import Format, FormatOption, chosen
from kolk.cli.notes import note

app = App(no_args_is_help=True, rich_markup_mode=None, help="List and drop the followers of tables.")


@app.command("list")
@connected
def list_(common: Common, format: FormatOption = None) -> None:
    """List the followers of all tables.

    It tells where they are, how far behind, and what they keep. A live one keeps the log from its offsets on; an
    expired or released one does not, and a lost one has missed some.
    """
    import pyarrow as pa

    from kolk.cli.writers import moments_column, names_column, write_list

    style = chosen(format)
    with common.connect() as db:
        followers = db.followers()
    offsets = [[f"{bucket}:{offset}" for bucket, offset in each.offsets.items()] for each in followers]
    rows = {
        "table": pa.array([each.table for each in followers], pa.string()),
        "follower": pa.array([each.name for each in followers], pa.string()),
        "state": pa.array([each.state.value for each in followers], pa.string()),
        "lag": pa.array([each.lag for each in followers], pa.int64()),
        "pinned_bytes": pa.array([each.pinned_bytes for each in followers], pa.int64()),
        "last_use": moments_column([each.last_use for each in followers], style),
        "expires": moments_column([each.expires for each in followers], style),
        "offsets": names_column(offsets, style),
    }
    write_list(pa.table(rows), style)
    if style is Format.TABLE and not followers:
        note("there are no followers; `kolk tail TABLE --follower NAME` makes one")


@app.command()
@connected
def drop(
    common: Common,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table: name or database.name.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The follower, as the list has it.")],
) -> None:
    """Forget a follower; the log is no longer kept for it."""
    with common.connect() as db:
        db.drop_follower(table, name)
    note(f"dropped {name} of {table}")
