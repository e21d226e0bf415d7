"""``kolk snapshot``: which snapshots a table has, and take one now.

Snapshots are taken by themselves; an operator wants to see that they are, how much they take, and to have one before
something risky. It removes none: which may go is decided by the database, by who keeps them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kolk.cli.commands import App
from kolk.cli.common import Common, connected
from kolk.cli.formats import Format, FormatOption, chosen
from kolk.cli.notes import counted, note
from kolk.cli.rows import NameArgument
from kolk.cli.sizes import size_text
from kolk.runtime.clock import SystemClock

if TYPE_CHECKING:
    import pyarrow as pa

    from kolk.model.snapshot import SnapshotInfo

app = App(no_args_is_help=True, rich_markup_mode=None, help="List the snapshots of a table, and take one.")


@app.command("list")
@connected
def list_(common: Common, name: NameArgument, format: FormatOption = None) -> None:
    """List the snapshots of a table, bucket by bucket.

    Each stands for an offset of its bucket's log. Of its bytes the new ones were copied for it, and the others it
    shares with earlier ones. The newest few are kept, and those that leases or scans keep.
    """
    from kolk.cli.writers import write_list

    style = chosen(format)
    with common.connect() as db:
        found = db.table(name).snapshots()
    write_list(_rows(found, style), style)
    if style is Format.TABLE and not found:
        note(f"there are no snapshots yet; `kolk snapshot take {name}` takes one")


@app.command()
@connected
def take(common: Common, name: NameArgument, format: FormatOption = None) -> None:
    """Copy what changed since the last snapshot, as of one moment.

    Writes the newest one of every bucket.

    \b
    kolk snapshot take web.pages
    """
    from kolk.cli.writers import write_list

    style, clock = chosen(format), SystemClock()
    with common.connect() as db:
        table = db.table(name)
        before = {(each.bucket, each.id) for each in table.snapshots()}
        started = clock.monotonic()
        found = table.take_snapshot()
        seconds = clock.monotonic() - started
    write_list(_rows(found, style), style)
    note(_summary(found, [each for each in found if (each.bucket, each.id) not in before], seconds))


# --- inside


def _summary(found: "Sequence[SnapshotInfo]", new: "Sequence[SnapshotInfo]", seconds: float) -> str:
    """What was done, in a line."""
    if not new:
        buckets = "the bucket" if len(found) == 1 else f"all {len(found):,} buckets"
        return f"nothing has changed since the last snapshot of {buckets}"
    known = [each.rows for each in found if each.rows is not None]
    rows = f"{counted(sum(known), 'row')}, " if len(known) == len(found) else ""
    copied, whole = sum(each.new_bytes for each in new), sum(each.size_bytes for each in found)
    taken = f"took {len(new):,} of {counted(len(found), 'bucket')}"
    return f"{taken}: {rows}copied {size_text(copied)} of {size_text(whole)} in {seconds:.1f} s"


def _rows(found: "Sequence[SnapshotInfo]", style: Format) -> "pa.Table":
    import pyarrow as pa

    from kolk.cli.writers import moments_column

    rows: dict[str, Any] = {
        "bucket": pa.array([each.bucket for each in found], pa.string()),
        "snapshot": pa.array([each.id for each in found], pa.int64()),
        "offset": pa.array([each.offset for each in found], pa.int64()),
        "rows": pa.array([each.rows for each in found], pa.int64()),
        "schema": pa.array([each.schema_id for each in found], pa.int64()),
        "taken": moments_column([each.taken for each in found], style),
        "bytes": pa.array([each.size_bytes for each in found], pa.int64()),
        "new_bytes": pa.array([each.new_bytes for each in found], pa.int64()),
        "leases": pa.array([each.leases for each in found], pa.int64()),
    }
    return pa.table(rows)
