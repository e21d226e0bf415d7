"""The command: ``python -m bench [names] [--quick] [--json FILE] [--check]``."""

import argparse
import sys
from pathlib import Path

from bench.aggregation import aggregation
from bench.measure import Scale
from bench.network import network
from bench.owners import owners
from bench.partitions import partitions
from bench.processes import memory, reopen
from bench.put import put
from bench.reads import changelog, get
from bench.report import show, write_json
from bench.scans import scan
from bench.snapshots import snapshot
from bench.spark_reads import spark_read
from bench.spark_streams import spark_stream
from bench.transactions import transactions

_BENCHES = {
    bench.__name__: bench
    for bench in (
        put,
        transactions,
        aggregation,
        owners,
        get,
        scan,
        changelog,
        partitions,
        network,
        snapshot,
        reopen,
        memory,
        spark_read,
        spark_stream,
    )
}


def main() -> int:
    """Run the benches named, or all; the exit code tells of missed targets only with ``--check``."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Kolk against the floor it stands on.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(_BENCHES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="smaller tables, fewer rounds: a look, not a figure")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    given = parser.parse_args()
    if not set(given.names) <= set(_BENCHES):
        parser.error(f"the benches are {', '.join(_BENCHES)}")
    scale = Scale(keys=200_000, scan_keys=(200_000,), rounds=3, memory_rows=2_000_000) if given.quick else Scale()
    figures = show(figure for name in given.names or _BENCHES for figure in _BENCHES[name](scale))
    if given.json is not None:
        write_json(figures, given.json)
    return int(given.check and not all(figure.is_met for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
