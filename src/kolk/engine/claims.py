"""Whether an owner may have what it asks for, as far as its table and its own past decide: pure functions."""

from collections.abc import Collection

from kolk.config import EngineConfig
from kolk.errors import CommitPointGone, InvalidArgument, OwnerRolledBack, StreamChanged, TooManyOwners
from kolk.model.options import ChangelogImage
from kolk.model.owner import Claim, OwnerRecord, UndoMode, is_replayable
from kolk.model.table import TableInfo

_NAMED = 3
"""Of so many owners that nobody may need any more the names are told."""


def is_of(record: OwnerRecord, fence: int) -> bool:
    """Whether the newest writer is the one with this fence, or nobody has come after it."""
    return record.fence == fence or (record.evicted and record.fence == fence + 1)


def is_as_judged(record: OwnerRecord, judged: OwnerRecord) -> bool:
    """Whether an owner has neither begun nor committed since it was looked at."""
    return (record.number, record.fence, record.committed) == (judged.number, judged.fence, judged.committed)


def check_known(known: OwnerRecord, claim: Claim) -> None:
    """Whether an owner may go on like this."""
    if claim.stream and known.stream and claim.stream != known.stream:
        raise StreamChanged(
            f"{claim.owner!r} is the stream {known.stream!r}, not {claim.stream!r}: its epochs would be taken for those"
            " of the other. Take another owner, or begin with reset=True"
        )
    if known.undo is not claim.undo:
        raise InvalidArgument(f"undo of {claim.owner!r} is {known.undo.value!r}, which is decided once")
    epoch = claim.resume_epoch
    if epoch is None or epoch == known.committed:
        return
    if epoch < known.committed:
        raise CommitPointGone(
            f"{known.name!r} resumes at epoch {epoch}, but {known.committed} is committed here, which cannot be taken"
            " back; begin without resume_epoch, and go on after that"
        )
    if known.is_set_back or known.is_undoing:
        raise OwnerRolledBack(
            f"{known.name!r} resumes at epoch {epoch}, but {known.committed} is what is committed here: what came after"
            " was taken back, or came after the backup that this is of. Begin without resume_epoch, and write it again"
        )


def check_room(records: Collection[OwnerRecord], info: TableInfo, config: EngineConfig) -> None:
    """Raise TooManyOwners if one more would be too many, for its table or in all."""
    own = [record for record in records if record.table == info.id]
    advice = "let each job keep its name from run to run, and forget those that are over with `kolk lock release`"
    if len(own) >= config.owners_per_table_max:
        idle = sorted((record for record in own if not record.has_columns), key=lambda record: record.used_ms)
        such = f", such as {', '.join(repr(record.name) for record in idle[:_NAMED])}" if idle else ""
        raise TooManyOwners(
            f"{len(own):,} owners of {info.name} are remembered, and no more may be (owners_per_table_max); {advice}"
            f"{such}"
        )
    if len(records) >= config.owners_max:
        raise TooManyOwners(f"{len(records):,} owners are remembered, and no more may be (owners_max); {advice}")


def check_table(info: TableInfo, claim: Claim) -> None:
    """Whether a table can have such an owner."""
    if info.is_log:
        raise InvalidArgument(f"{info.name} is a log table; it has no columns to own")
    if info.spec.options.changelog_image is not ChangelogImage.FULL:
        raise InvalidArgument(
            f"{info.name} has table.changelog.image=wal, so nobody knows what an update replaced; owners need full"
        )
    if claim.undo is UndoMode.NONE:
        names = [column.name for column in info.schema.value_columns] if claim.columns is None else claim.columns
        for name in names:
            if not is_replayable(info.schema.column(name)):
                raise InvalidArgument(
                    f"undo='none' is for columns that a replay does not change (max, min, bool_*, bitmaps), not for"
                    f" {name!r}; leave it out"
                )


def union_of(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The columns of both; None is all."""
    return None if one is None or other is None else tuple(sorted({*one, *other}))
