"""``kolk lock``: which columns are whose, until when, and take them from an owner that will not come back.

An owner that died keeps its columns until its time is up, and if it has left changes that are not committed, until
somebody begins in its place. An operator wants to see whose they are, and to free them sooner. It writes nothing as an
owner: only the job knows what its epochs are.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kolk.cli.commands import App
from kolk.cli.common import Common, connected
from kolk.cli.durations import span
from kolk.cli.formats import Format, FormatOption, chosen
from kolk.cli.notes import note
from kolk.cli.questions import YesOption, confirm
from kolk.errors import NotFound

if TYPE_CHECKING:
    from kolk.model.owner import OwnerInfo

app = App(no_args_is_help=True, rich_markup_mode=None, help="List the owners of columns, and release one.")
_TABLE = typer.Argument(metavar="TABLE", help="The table: name or database.name.")
_OWNER = typer.Argument(metavar="OWNER", help="The owner, as the list has it.")
_KEEP = typer.Option("--keep", help="Leave what it has not committed as it is, for when that cannot be taken back.")


@app.command("list")
@connected
def list_(
    common: Common,
    table: Annotated[str | None, typer.Option("--table", metavar="TABLE", help="Of one table.")] = None,
    format: FormatOption = None,
) -> None:
    """List the owners that hold columns.

    It tells of which table, up to which epoch they have committed, and for how long still. One that is expired and
    has uncommitted changes keeps everybody else out, until it comes back, an owner takes its place, or it is
    released.
    """
    import pyarrow as pa

    from kolk.cli.writers import write_list

    style = chosen(format)
    with common.connect() as db:
        name = None if table is None else db.table(table).name
        found = [one for one in db.locks() if name in (None, one.table)]
    write_list(pa.table(_for_people(found) if style is Format.TABLE else _all(found)), style)
    if style is Format.TABLE and not found:
        note("no columns are owned; `table.writer(owner=..., columns=[...])` takes some")


@app.command()
@connected
def release(
    common: Common,
    table: Annotated[str, _TABLE],
    owner: Annotated[str, _OWNER],
    keep: Annotated[bool, _KEEP] = False,
    yes: YesOption = False,
) -> None:
    """Forget an owner, and take back what it has not committed.

    Ends with 3 if there is none of the name. Whoever writes in its name is told with the next put, and which epoch
    was committed is forgotten: a job that begins under this name again begins anew. One that has let its columns go
    is not listed, and is forgotten as well.

    \b
    kolk lock release web.pages hourly-counts
    """
    with common.connect() as db:
        name = db.table(table).name
        known = next((one for one in db.locks() if (one.table, one.owner) == (name, owner)), None)
        confirm(_question(name, owner, known, keep=keep), yes=yes)
        if not db.release_lock(name, owner, keep=keep):
            raise NotFound(f"{name} has no owner {owner!r}; `kolk lock list` lists those that hold columns")
    what = "kept" if keep else "taken back"
    last = "" if known is None or known.epoch is None else f"; its last committed epoch was {known.epoch}"
    note(f"released {owner} of {name}; what it had not committed was {what}{last}")


# --- inside


def _question(table: str, owner: str, known: "OwnerInfo | None", *, keep: bool) -> str:
    """What is about to be lost."""
    if known is None:
        return f"{owner} holds no columns of {table}. Forget which epoch it has committed?"
    what = "Keep what it has not committed, as if it were" if keep else "Take back what it has not committed"
    return f"{owner} of {table} is {_state(known)}. {what}, and forget which epoch it has committed?"


def _all(found: "Sequence[OwnerInfo]") -> dict[str, Any]:
    """Everything, for programs."""
    import pyarrow as pa

    names = pa.list_(pa.string())
    return {
        "table": pa.array([one.table for one in found], pa.string()),
        "owner": pa.array([one.owner for one in found], pa.string()),
        "columns": pa.array([None if one.columns is None else list(one.columns) for one in found], names),
        "state": pa.array([_state(one) for one in found], pa.string()),
        "seconds_left": pa.array([one.seconds_left for one in found], pa.float64()),
        "epoch": pa.array([one.epoch for one in found], pa.int64()),
        "uncommitted": pa.array([one.is_dirty for one in found], pa.bool_()),
        "fence": pa.array([one.fence for one in found], pa.int64()),
        "undo": pa.array([one.undo for one in found], pa.string()),
    }


def _for_people(found: "Sequence[OwnerInfo]") -> dict[str, Any]:
    """The same in fewer letters, and times as people count them: from now."""
    import pyarrow as pa

    columns = ["all" if one.columns is None else ", ".join(one.columns) for one in found]
    left = [f"in {span(one.seconds_left, units=1)}" if one.is_live else None for one in found]
    words = {True: "yes", False: "no", None: None}
    shown: dict[str, Any] = {
        "table": pa.array([one.table for one in found], pa.string()),
        "owner": pa.array([one.owner for one in found], pa.string()),
        "columns": pa.array(columns, pa.string()),
        "state": pa.array([_state(one) for one in found], pa.string()),
        "expires": pa.array(left, pa.string()),
        "epoch": pa.array([one.epoch for one in found], pa.int64()),
        "uncommitted": pa.array([words[one.is_dirty] for one in found], pa.string()),
    }
    if any(one.undo != "always" for one in found):
        shown["undo"] = pa.array([one.undo for one in found], pa.string())
    return shown


def _state(one: "OwnerInfo") -> str:
    return "live" if one.is_live else "expired"
