"""Copy a table while it is written to, and lose the server in the middle of it.

A dashboard wants 20 rows, and a cache wants the whole table and every change after it. The cache begins with
``table.bootstrap()``. When half of the rows are there, the server is killed with -9 and started again, and the table
goes on changing: rows that the cache has already, and rows that it has not. The cache does nothing about it. Then there
is the same once more, in one call: ``scan(resume="log").to_arrow()``. Ends with 1 if a copy is not the table.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import kolk

ROWS = 200_000
SCHEMA = kolk.Schema([kolk.Column("page", "bigint"), kolk.Column("pv", "bigint")], primary_key=["page"])


class Server:
    """A server that can be killed and comes back at the same address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = kolk.start(folder)
        self.url = self._process.url

    def kill_and_restart(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.close()
        port = int(self.url.rpartition(":")[2])
        self._process = kolk.start(self._folder, server=kolk.ServerConfig(port=port, http_port=0))

    def close(self) -> None:
        self._process.close()


def change(table: kolk.Table, turn: int) -> None:
    """Rows change, go and come, all over the table."""
    table.put(pa.table({"page": range(0, ROWS, 100), "pv": [turn] * (ROWS // 100)}))
    table.delete(pa.table({"page": range(turn, ROWS, 1_000)}))
    table.put(pa.table({"page": range(ROWS * turn, ROWS * turn + 500), "pv": [turn] * 500}))


def cached(server: Server, table: kolk.Table) -> dict[int, int]:
    """The whole table and all changes up to the present end, through a loss of the server."""
    cache: dict[int, int] = {}
    handed = 0
    is_lost = False
    with table.bootstrap(follow=False) as feed:
        for batch in feed:
            for kind, page, pv in zip(
                *(batch[name].to_pylist() for name in ("_change_type", "page", "pv")), strict=True
            ):
                if kind in ("+I", "+U"):
                    cache[page] = pv
                elif kind == "-D":
                    del cache[page]
            handed += batch.num_rows
            if not is_lost and handed >= ROWS // 2:
                print(f"  {handed:,} rows are here; kill -9 the server ...")
                server.kill_and_restart()
                change(table, turn=2)
                is_lost = True
    print(f"  {handed:,} rows and changes in all, and the cache has {len(cache):,} rows")
    return cache


def state(table: kolk.Table) -> dict[int, int]:
    rows = table.scan().to_arrow()
    return dict(zip(rows["page"].to_pylist(), rows["pv"].to_pylist(), strict=True))


def main() -> int:
    """Run it; 0 if both copies are right."""
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder) / "data")
        try:
            with kolk.connect(server.url) as db:
                table = db.create_table("web.pages", SCHEMA, buckets=2)
                table.put(pa.table({"page": range(ROWS), "pv": [0] * ROWS}))
                change(table, turn=1)
                top = table.scan(limit=20, where="pv > 0")
                print(f"20 pages for a dashboard: {top.to_arrow().num_rows} rows moved")

                print("a cache that starts in the middle of everything:")
                is_right = cached(server, table) == state(table)

                print("the whole table in one call, with the server lost on its way:")
                pieces: list[int] = []

                def on_progress(rows: int, about: int | None) -> None:
                    if not pieces and rows >= ROWS // 2:
                        pieces.append(rows)
                        print(f"  {rows:,} rows of about {about or 0:,} are here; kill -9 the server ...")
                        server.kill_and_restart()
                        change(table, turn=3)

                copy = table.scan(resume="log", on_progress=on_progress).to_arrow()
                rows = dict(zip(copy["page"].to_pylist(), copy["pv"].to_pylist(), strict=True))
                is_right = is_right and len(rows) == copy.num_rows and rows == state(table)
        finally:
            server.close()
    print("Both copies are the table." if is_right else "A copy is NOT the table.")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
