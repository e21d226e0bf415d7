"""What a commit is asked for and what is told of it: sums over handles, where its buckets end, and the list of all."""

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby

from kolk.codec.checksum import added
from kolk.errors import PermissionDenied, StagingGone
from kolk.model.ids import TableId
from kolk.model.transaction import CommitRecord, CommitRequest, Seal, Staging, TransactionInfo


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


def listed(
    commits: Sequence[CommitRecord],
    named: Collection[str],
    stagings: Sequence[tuple[Staging, Seal, bool]],
    names: Mapping[TableId, str],
) -> list[TransactionInfo]:
    """What is staged, by application and version, but for what unfinished commits name, and what was committed."""
    found = [
        TransactionInfo(
            app=record.app,
            version=record.version,
            tables=tuple(names.get(table, str(table)) for table in record.tables),
            state="done" if record.is_done else "pending",
            rows=record.rows,
            timestamp_ms=record.timestamp_ms,
            handles=sum(map(len, record.handles.values())),
        )
        for record in commits
    ]
    staged = [each for each in stagings if each[0].handle not in named]
    by = sorted(staged, key=lambda each: (each[0].app, each[0].version, each[2]))
    for (app, version, is_sealed), group in groupby(by, key=lambda each: (each[0].app, each[0].version, each[2])):
        alike = list(group)
        found.append(
            TransactionInfo(
                app=app,
                version=version,
                tables=tuple(sorted({names.get(each[0].table, str(each[0].table)) for each in alike})),
                state="sealed" if is_sealed else "staging",
                rows=sum(seal.rows for _, seal, _ in alike),
                bytes=sum(seal.bytes for _, seal, _ in alike),
                handles=len(alike),
            )
        )
    return found
