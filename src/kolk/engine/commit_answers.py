"""What a commit is asked for and what is told of it: whose handles they are, sums over them, where its buckets end."""

from collections.abc import Mapping, Sequence

from kolk.codec.checksum import added
from kolk.codec.frame import FrameHeader
from kolk.errors import PermissionDenied, StagingGone, TooLarge
from kolk.model.ids import TableId, TransactionTag
from kolk.model.transaction import CommitRecord, CommitRequest, Seal, Staging
from kolk.tablet.tablet import Tablet

_READ_BYTES = 2**20


def check_staged(request: CommitRequest, staged: Mapping[str, tuple[Staging, Seal]], principal: str) -> None:
    """Whether what the handles stand for was staged for this commit, by who makes it."""
    for table, handles in request.handles.items():
        for handle in handles:
            staging = staged[handle][0]
            if staging.principal != principal:
                raise PermissionDenied(f"what was staged under {handle} is somebody else's")
            if (staging.app, staging.version, staging.table) != (request.app, request.version, table):
                raise StagingGone(
                    f"what was staged under {handle} is for version {staging.version} of {staging.app!r} and table"
                    f" {staging.table}, not for this commit"
                )


def check_size(staged: Mapping[str, tuple[Staging, Seal]], bytes_max: int) -> None:
    """Whether a transaction is small enough to be merged in memory."""
    size = sum(seal.bytes for _, seal in staged.values())
    if size > bytes_max:
        raise TooLarge(
            f"the transaction has {size:,} bytes staged, and at most {bytes_max:,} are merged in one (txn_bytes_max);"
            " commit it in pieces, each with a greater version"
        )


def is_itself(request: CommitRequest, record: CommitRecord) -> bool:
    """Whether a commit is the one that the record is of: handles are drawn at random for every attempt."""
    given = {table: tuple(handles) for table, handles in request.handles.items()}
    is_alike = request.rows in (None, record.rows) and request.checksum in (None, record.checksum)
    return is_alike and given == dict(record.handles) and any(given.values())


def rows_of(request: CommitRequest, seals: Sequence[Seal]) -> int:
    """How many rows a commit is of: as it says, or as many as were staged."""
    return sum(seal.rows for seal in seals) if request.rows is None else request.rows


def checksum_of(request: CommitRequest, seals: Sequence[Seal]) -> int:
    """The checksum of these rows."""
    if request.checksum is not None:
        return request.checksum
    total = 0
    for seal in seals:
        total = added(total, seal.checksum)
    return total


def offsets_of(record: CommitRecord) -> dict[TableId, dict[str, int]]:
    """Where the buckets of a commit end, as far as that is known, by table and name."""
    found: dict[TableId, dict[str, int]] = {table: {} for table in record.tables}
    for bucket, end in record.ends.items():
        found[bucket.table][bucket.name] = end
    return found


def end_of(tablet: Tablet, record: CommitRecord) -> int | None:
    """Where a commit ends in a bucket that has it, as the log says: others may have written since. None if that part of
    the log is gone."""
    offset, until = record.bases[tablet.bucket], tablet.end
    if offset < tablet.log.start:
        return None

    def is_own(header: FrameHeader) -> bool:
        return isinstance(header.tag, TransactionTag) and header.tag.csn == record.csn

    while offset < until:
        for frame in tablet.read_log(offset, until, _READ_BYTES, is_own):
            header = frame.header
            if not is_own(header):
                return None
            if not header.more:
                return header.end_offset
            offset = header.end_offset
    return offset  # a share without rows, and nothing since
