"""Which rows a scan shows, as its caller says it: the living ones, the newest snapshots, or those of a lease."""

from kolk.client.lease import Lease
from kolk.errors import InvalidArgument
from kolk.model.scan import ScanSource

_RESUMES = ("strict", "log")


def source_of(source: object, resume: str, *, is_log: bool, is_shared: bool) -> tuple[ScanSource, str, int]:
    """Which rows are meant, and the id and generation of the lease; refused is what cannot be scanned that way."""
    if resume not in _RESUMES:
        raise InvalidArgument(f"resume is one of {', '.join(map(repr, _RESUMES))}, not {resume!r}")
    if resume == "log" and is_shared:
        raise InvalidArgument(
            'resume="log" goes on in another scan, which the other readers do not have; leave one out'
        )
    if is_log and is_shared:
        raise InvalidArgument(
            "a scan of a log table is not shared, since what it shows stays: let every reader have the same offsets,"
            " with table.changelog(start=..., stop=...)"
        )
    if source == "log" and not is_log:
        raise InvalidArgument('source="log" is for log tables; the changes of this one are in table.changelog()')
    if source in ("live", "log"):
        return ScanSource.LIVE, "", 0
    if source != "snapshot" and not isinstance(source, Lease):
        raise InvalidArgument(f"source is 'live', 'snapshot', a lease, or 'log' for a log table, not {source!r}")
    if is_log:
        raise InvalidArgument("a log table has no snapshots: its log is all there is; scan it with source='log'")
    if resume == "log":
        raise InvalidArgument('resume="log" is for living rows; a scan of snapshots goes on by itself')
    if isinstance(source, Lease):
        source.check()
        return ScanSource.LEASE, source.id, source.state.generation
    return ScanSource.SNAPSHOT, "", 0
