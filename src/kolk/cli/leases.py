"""``kolk lease``: who keeps which snapshots, until when, and end a lease.

A lease keeps snapshots, and the log after them, from being removed, so the disk grows for it. An operator wants to see
whose it is, and to end one that nobody needs. It takes none: a lease belongs to a process that renews it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kolk.cli.commands import App
from kolk.cli.common import Common, connected
from kolk.cli.durations import span
from kolk.cli.formats import Format, FormatOption, chosen
from kolk.cli.ids import meant, shown
from kolk.cli.notes import counted, note
from kolk.cli.sizes import size_text
from kolk.errors import Corrupted, LeaseLost, PermissionDenied
from kolk.runtime.clock import SystemClock

if TYPE_CHECKING:
    from datetime import datetime

    from kolk.client.database import Database
    from kolk.model.lease import LeaseInfo
    from kolk.model.lease_state import LeaseState

app = App(no_args_is_help=True, rich_markup_mode=None, help="List, show and drop the leases on snapshots.")
_ID = typer.Argument(metavar="ID", help="As the list has it, or its beginning.")


@app.command("list")
@connected
def list_(common: Common, format: FormatOption = None) -> None:
    """List the leases: whose, what they keep, when they expire.

    One that is unreadable is damaged: nobody knows what it keeps, so nothing at all is removed until it is dropped.
    """
    import pyarrow as pa

    from kolk.cli.writers import write_list

    style = chosen(format)
    with common.connect() as db:
        leases = db.leases()
    write_list(pa.table(_for_people(leases) if style is Format.TABLE else _all(leases)), style)
    if style is Format.TABLE and not leases:
        note("there are no leases; `table.lease()` takes one")


@app.command()
@connected
def show(common: Common, id: Annotated[str, _ID], format: FormatOption = None) -> None:
    """Show every pin of a lease.

    That is a table, a bucket, its snapshot, and the offset from which the changelog goes on.
    """
    import pyarrow as pa

    from kolk.cli.writers import write_list

    style = chosen(format)
    with common.connect() as db:
        lease = db.describe_lease(_found(id, db.leases()).id)
    pins = [
        (name, bucket, snapshot, table.offsets[bucket])
        for name, table in sorted(lease.tables.items())
        for bucket, snapshot in table.snapshots.items()
    ]
    rows = {
        "table": pa.array([pin[0] for pin in pins], pa.string()),
        "bucket": pa.array([pin[1] for pin in pins], pa.string()),
        "snapshot": pa.array([pin[2] for pin in pins], pa.int64()),
        "offset": pa.array([pin[3] for pin in pins], pa.int64()),
    }
    write_list(pa.table(rows), style)
    if style is Format.TABLE:
        note(_about(lease))


@app.command()
@connected
def drop(common: Common, ids: Annotated[list[str], _ID]) -> None:
    """End leases, whoever holds them; ends with 3 if one is not there.

    What nobody else keeps is removed soon. Its holder is told when it next renews the lease; a scan that is open goes
    on.

    \b
    kolk lease drop 3f2a9c01
    """
    with common.connect() as db:
        known = {each.id: each for each in db.leases()}
        wanted = [meant(id, list(known), "leases") for id in ids]
        left = [id for id in wanted if not _is_dropped(db, id, known.get(id))]
        theirs = [each for each in db.leases() if each.id in left]
    if theirs:
        lease = theirs[0]
        raise PermissionDenied(
            f"the lease {lease.id} is not yours but of {lease.principal or 'the server itself'}: to drop it takes a"
            f" token that may alter {', '.join(lease.tables) or 'every table'}"
        )
    if left:
        raise LeaseLost(f"there is no lease {', '.join(left)}; `kolk lease list` lists them", "unknown")


# --- inside


def _found(id: str, known: "Sequence[LeaseInfo]") -> "LeaseInfo":
    """The lease that is meant, which can be read."""
    whole = meant(id, [each.id for each in known], "leases")
    lease = next((each for each in known if each.id == whole), None)
    if lease is None:
        raise LeaseLost(f"there is no lease {id}; `kolk lease list` lists them", "unknown")
    if not lease.is_readable:
        raise Corrupted(
            f"the lease {lease.id} cannot be read, so nothing is removed on its account; if its holder is gone:"
            f" kolk lease drop {lease.id}"
        )
    return lease


def _is_dropped(db: "Database", id: str, lease: "LeaseInfo | None") -> bool:
    is_dropped = db.drop_lease(id)
    if is_dropped and lease is not None:
        note(f"dropped {id}, which kept {_kept(lease)}")
    elif is_dropped:
        note(f"dropped {id}")
    return is_dropped


def _kept(lease: "LeaseInfo") -> str:
    """What is free to go now."""
    if not lease.is_readable:
        return "nobody knows what, and everything on its account"
    return f"{counted(lease.pins, 'snapshot')} of {', '.join(lease.tables)}, {size_text(lease.pinned_bytes)}"


def _about(lease: "LeaseState") -> str:
    mixed = [name for name, table in sorted(lease.tables.items()) if not table.is_consistent]
    moments = f"; not of one moment: {', '.join(mixed)}" if mixed else "; each table is of one moment"
    return f"{lease.id} of {lease.principal or 'this process'}, expires {_until(lease.expires)}{moments}"


def _all(leases: "Sequence[LeaseInfo]") -> dict[str, Any]:
    """Everything, for programs."""
    import pyarrow as pa

    moment = pa.timestamp("ms", "UTC")
    return {
        "id": pa.array([each.id for each in leases], pa.string()),
        "principal": pa.array([each.principal or None for each in leases], pa.string()),
        "state": pa.array([_state(each) for each in leases], pa.string()),
        "tables": pa.array([list(each.tables) for each in leases], pa.list_(pa.string())),
        "pins": pa.array([each.pins for each in leases], pa.int64()),
        "bytes": pa.array([each.pinned_bytes for each in leases], pa.int64()),
        "created": pa.array([each.created if each.is_readable else None for each in leases], moment),
        "expires": pa.array([each.expires if each.is_readable else None for each in leases], moment),
        "ttl_seconds": pa.array([each.ttl_seconds if each.is_readable else None for each in leases], pa.float64()),
    }


def _for_people(leases: "Sequence[LeaseInfo]") -> dict[str, Any]:
    """The same in fewer letters, and times as people count them: from now."""
    import pyarrow as pa

    now = SystemClock().now_ms() / 1_000

    def texts(values: "Sequence[str | None]") -> "pa.Array":
        return pa.array(values, pa.string())

    ages = [span(max(now - each.created.timestamp(), 0), units=1) if each.is_readable else None for each in leases]
    return {
        "id": texts(shown([each.id for each in leases])),
        "principal": texts([each.principal or None for each in leases]),
        "state": texts([_state(each) for each in leases]),
        "tables": texts([", ".join(each.tables) for each in leases]),
        "pins": pa.array([each.pins for each in leases], pa.int64()),
        "bytes": pa.array([each.pinned_bytes for each in leases], pa.int64()),
        "age": texts(ages),
        "expires": texts([_until(each.expires) if each.is_readable else "never" for each in leases]),
    }


def _until(moment: "datetime") -> str:
    return "in " + span(max(moment.timestamp() - SystemClock().now_ms() / 1_000, 0), units=1)


def _state(lease: "LeaseInfo") -> str:
    return "live" if lease.is_readable else "unreadable"
