"""``kolk scans``: which scans are open, whose, how far they are and when they are given up; and end one.

An open scan keeps the rows of its moment on disk, whatever is written meanwhile, and takes one of so many places. So an
operator wants to see them, and to end those that nobody needs.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from kolk.cli.commands import App
from kolk.cli.common import Common, connected
from kolk.cli.durations import span
from kolk.cli.formats import Format, FormatOption, chosen
from kolk.cli.ids import meant, telling_length
from kolk.cli.notes import note
from kolk.errors import PermissionDenied, UnknownOrExpiredScan
from kolk.runtime.clock import SystemClock

if TYPE_CHECKING:
    from datetime import datetime

    from kolk.client.database import Database
    from kolk.model.scan import ScanInfo


class _Listed(TyperGroup):
    """Without a command it is the list: who says ``kolk scans`` wants to see them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See ``TyperGroup``."""
        is_bare = not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names)
        return super().parse_args(ctx, ["list", *args] if is_bare and not ctx.resilient_parsing else args)


app = App(cls=_Listed, rich_markup_mode=None, help="List the open scans, and close one.")


@app.command("list")
@connected
def list_(common: Common, format: FormatOption = None) -> None:
    """List the open scans.

    An open one takes a place, and keeps its rows in so many views, one per bucket, until it is closed or nobody has
    read it for its time; a shared one is open for several readers. A drained one was read to its end, and goes in a
    moment. On a terminal only the beginning of an id is shown; it is enough to close the scan.
    """
    import pyarrow as pa

    from kolk.cli.writers import write_list

    style = chosen(format)
    with common.connect() as db:
        scans = db.scans()
    write_list(pa.table(_for_people(scans) if style is Format.TABLE else _all(scans)), style)
    if style is Format.TABLE and not scans:
        note("there are no open scans")


@app.command()
@connected
def close(
    common: Common,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="As the list has it, or its beginning.")],
) -> None:
    """Close scans, whoever reads them; ends with 3 if one is not there.

    A reader is told with its next page, and fails.

    \b
    kolk scans close 3f2a9c01
    """
    with common.connect() as db:
        known = [each.id for each in db.scans()]
        left = [id for id in (meant(id, known, "scans") for id in ids) if not _is_closed(db, id)]
        theirs = [each for each in db.scans() if each.id in left]
    if theirs:
        scan = theirs[0]
        raise PermissionDenied(
            f"the scan {scan.id} is not yours but of {scan.principal or 'the server itself'}: to close it takes a token"
            f" that may alter {scan.table}"
        )
    if left:
        raise UnknownOrExpiredScan(f"there is no open scan {', '.join(left)}; `kolk scans` lists them")


# --- inside


def _is_closed(db: "Database", id: str) -> bool:
    is_closed = db.close_scan(id)
    if is_closed:
        note(f"closed {id}")
    return is_closed


def _all(scans: "Sequence[ScanInfo]") -> dict[str, Any]:
    """Everything, for programs."""
    import pyarrow as pa

    moment = pa.timestamp("ms", "UTC")
    return {
        "id": pa.array([each.id for each in scans], pa.string()),
        "table": pa.array([each.table for each in scans], pa.string()),
        "principal": pa.array([each.principal or None for each in scans], pa.string()),
        "state": pa.array([_state(each) for each in scans], pa.string()),
        "shared": pa.array([each.is_shared for each in scans], pa.bool_()),
        "opened": pa.array([each.opened for each in scans], moment),
        "last_use": pa.array([each.last_use for each in scans], moment),
        "expires": pa.array([each.expires for each in scans], moment),
        "rows": pa.array([each.rows for each in scans], pa.int64()),
        "views": pa.array([each.views for each in scans], pa.int64()),
        "bytes": pa.array([each.size_bytes for each in scans], pa.int64()),
    }


def _for_people(scans: "Sequence[ScanInfo]") -> dict[str, Any]:
    """The same in fewer letters, and times as people count them: from now."""
    import pyarrow as pa

    now = SystemClock().now_ms() / 1_000
    length = telling_length([each.id for each in scans])

    def texts(values: "Sequence[str | None]") -> pa.Array:
        return pa.array(values, pa.string())

    def since(moment: "datetime") -> str:
        return span(max(now - moment.timestamp(), 0), units=1)

    def until(moment: "datetime | None") -> str:
        return "never" if moment is None else "in " + span(max(moment.timestamp() - now, 0), units=1)

    return {
        "id": texts([each.id[:length] for each in scans]),
        "table": texts([each.table for each in scans]),
        "principal": texts([each.principal or None for each in scans]),
        "state": texts(["shared" if each.is_shared else _state(each) for each in scans]),
        "age": texts([since(each.opened) for each in scans]),
        "idle": texts([since(each.last_use) for each in scans]),
        "expires": texts([until(each.expires) for each in scans]),
        "rows": pa.array([each.rows for each in scans], pa.int64()),
        "views": pa.array([each.views for each in scans], pa.int64()),
        "bytes": pa.array([each.size_bytes for each in scans], pa.int64()),
    }


def _state(scan: "ScanInfo") -> str:
    return "drained" if scan.is_drained else "open"
