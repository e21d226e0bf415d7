"""A reader that takes its time, under a lease, while the table moves on and the server is lost.

A report wants the table of this morning. It leases the newest snapshots and reads them slowly; meanwhile every row
changes, twenty newer snapshots come and go, and the server is killed with -9 and started again. Then the report itself
is started again, and goes on with the lease whose id it wrote down. What it has read is the table of this morning,
to the row; with the changelog after it, it is the table of now. Ends with 1 if one of the two is not so.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import kolk

ROWS = 100_000
SNAPSHOTS = 20
SCHEMA = kolk.Schema([kolk.Column("page", "bigint"), kolk.Column("pv", "bigint")], primary_key=["page"])


def started(folder: Path, port: int = 0) -> kolk.ServerProcess:
    return kolk.start(folder, server=kolk.ServerConfig(port=port, http_port=0))


def morning(table: kolk.Table) -> dict[int, int]:
    table.put(pa.table({"page": range(ROWS), "pv": [1] * ROWS}))
    return dict.fromkeys(range(ROWS), 1)


def the_day_goes_on(table: kolk.Table) -> None:
    """Every row changes, and newer snapshots take the place of the old ones."""
    step = ROWS // SNAPSHOTS
    for turn in range(SNAPSHOTS):
        table.put(pa.table({"page": range(turn * step, (turn + 1) * step), "pv": [turn + 2] * step}))
        table.take_snapshot()
    kept = {snapshot.id for snapshot in table.snapshots()}
    print(f"  {SNAPSHOTS} snapshots later the server has {sorted(kept)}: the newest, and the one that is leased")


def replayed(rows: dict[int, int], changes: kolk.Changelog) -> dict[int, int]:
    for batch in changes:
        for kind, page, pv in zip(*(batch[name].to_pylist() for name in ("_change_type", "page", "pv")), strict=True):
            if kind in ("+I", "+U"):
                rows[page] = pv
            elif kind == "-D":
                del rows[page]
    return rows


def report(folder: Path, server: kolk.ServerProcess) -> tuple[bool, kolk.ServerProcess]:
    """Read the table of this morning in two lives; whether it was that, and then became the table of now."""
    url, port = server.url, int(server.url.rpartition(":")[2])
    rows: dict[int, int] = {}
    with kolk.connect(url) as db:
        table = db.create_table("web.pages", SCHEMA, buckets=2)
        expected = morning(table)
        lease = table.lease(ttl="5m")
        print(f"leased {lease.snapshots['web.pages']}, all of one moment: {lease.consistent}")
        with table.scan(source=lease) as scan:
            for batch in scan:
                rows |= zip(batch["page"].to_pylist(), batch["pv"].to_pylist(), strict=True)
                if len(rows) >= ROWS // 2 and len(table.snapshots()) <= 2:
                    print(f"  {len(rows):,} rows are read; the day goes on ...")
                    the_day_goes_on(table)
                    print("  kill -9 the server, and start it again ...")
                    os.kill(server.pid, signal.SIGKILL)
                    server.close()
                    server = started(folder, port)
        is_morning = rows == expected
        written_down = lease.detach().id
    print("  the report ends here, and is started again with the lease's id")
    with kolk.connect(url) as db:
        table = db.table("web.pages")
        with db.join_lease(written_down) as lease:
            now = replayed(rows, table.changelog(start=lease.offsets["web.pages"]))
        found = table.scan().to_arrow()
        is_now = now == dict(zip(found["page"].to_pylist(), found["pv"].to_pylist(), strict=True))
        print(f"  leases left: {len(db.leases())}")
    return is_morning and is_now, server


def main() -> int:
    """Run it; 0 if both states are right."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "data"
        server = started(folder)
        try:
            is_right, server = report(folder, server)
        finally:
            server.close()
    print("The report is right, then and now." if is_right else "The report is NOT right.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
