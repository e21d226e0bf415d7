"""What ``kolk doctor`` finds in the files of a database that nobody has open: does everything hold that must always
hold, between the catalog, the logs and the rows?

It is done before the database is opened, because opening it recovers, and so changes, what a crash has left. If
something does not hold it is not opened at all, so that whoever looks closer finds it as it is.
"""

from collections.abc import Iterator
from pathlib import Path

from kolk.cli.findings import Finding, State
from kolk.cli.notes import counted
from kolk.cli.sizes import size_text
from kolk.errors import FolderInUse

LOGS_BYTES_USUAL = 128 * 2**20
"""Logs up to this size are read without being asked: that takes a few seconds."""


def of_files(folder: Path, *, is_deep: bool) -> Iterator[tuple[str, Finding]]:
    """The findings of a folder, which is only read."""
    from kolk.engine.examination import examined, log_bytes
    from kolk.runtime.looking import unused

    size = log_bytes(folder)
    if size > LOGS_BYTES_USUAL and not is_deep:
        found = f"{size_text(size)} of logs were not read"
        yield "consistency", Finding(State.OK, found, "kolk doctor --deep reads all logs and rows; it may take long")
        return
    try:
        with unused(folder):
            seen = examined(folder)
    except FolderInUse as error:
        yield (
            "consistency",
            Finding(State.OK, f"{error}: they were not read", "look again while no process has it open"),
        )
        return
    counts = seen.faults.counts
    for law in counts:
        faults = [fault for fault in seen.found if fault.law is law]
        more = f"; and {counts[law] - len(faults):,} more" if counts[law] > len(faults) else ""
        steps = list(dict.fromkeys(fault.next_step for fault in faults))
        yield law.value, Finding(State.FAIL, "; ".join(fault.found for fault in faults) + more, "; ".join(steps))
    if not counts:
        what = f"{counted(seen.buckets, 'bucket')}, {counted(seen.frames, 'frame')}, {size_text(size)} of logs"
        read = f"{what}: catalog, logs and rows agree"
        left = f"; without the rows of {', '.join(seen.not_compared)}" if seen.not_compared else ""
        yield "consistency", Finding(State.OK, read + left)
