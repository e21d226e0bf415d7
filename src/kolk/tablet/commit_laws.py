"""What must be true of transactions in one bucket's log, whatever happened: judged frame by frame.

The numbers of commits grow along the log, each is one unbroken group of frames, and none is greater than what the
catalog has given. Of each commit whose record there still is, the group is where the record says. Of others nobody
knows in which buckets they belong.
"""

from collections.abc import Iterable

from kolk.codec.frame import FrameHeader
from kolk.model.ids import BucketId, TransactionTag
from kolk.model.transaction import CommitRecord
from kolk.tablet.faults import Faults, Law, place_of

ONE_BACKUP = "the folder was put together of copies of different moments; restore all of it from one backup"
RESTORE = "do not write to the table; restore the folder from a backup, and keep this one to be looked at"


class CommitLaws:
    """Looks at the frames of one log in order. Confined to one caller."""

    def __init__(
        self, table: str, bucket: BucketId, newest: int, records: Iterable[CommitRecord], faults: Faults
    ) -> None:
        self._place = place_of(table, bucket)
        self._bucket = bucket
        self._newest = newest
        self._records = {record.csn: record for record in records if bucket in record.bases}
        self._faults = faults
        self._last = 0
        self._open: TransactionTag | None = None
        self._base = 0
        # Where the commits that there are records of begin and end here.
        self._groups: dict[int, tuple[int, int]] = {}

    def take(self, header: FrameHeader) -> None:
        """The next frame."""
        tag, before = header.tag, self._open
        follows = isinstance(tag, TransactionTag) and before is not None and before.csn == tag.csn
        if before is not None and not follows:
            self._broken(f"commit {before.csn} ends in the middle, before offset {header.base_offset}")
        self._open = None
        if not isinstance(tag, TransactionTag):
            return
        if tag.part != (before.part + 1 if follows and before is not None else 0):
            self._broken(f"a part of commit {tag.csn} is missing before offset {header.base_offset}")
        if not follows:
            self._begin(tag, header)
        if header.more:
            self._open = tag
        elif tag.csn in self._records:
            self._groups[tag.csn] = (self._base, header.end_offset)

    def finish(self, start: int, end: int, stored: int | None) -> None:
        """That was all. ``stored`` is the number of the last commit that the KV has; None if there is no KV."""
        has_kv, stored = stored is not None, stored or 0
        if stored > self._newest:
            self._unknown(f"the KV of {self._place} has commit {stored}")
        for csn, record in self._records.items():
            base, found = record.bases[self._bucket], self._groups.get(csn)
            name = f"commit {csn} (version {record.version} of {record.app!r})"
            if found is not None:
                if found != (base, record.ends.get(self._bucket, found[1])):
                    where = f"{base:,} to {record.ends.get(self._bucket, 0):,}"
                    self._broken(f"{name} is at offsets {found[0]:,} to {found[1]:,}, and not {where}")
            elif not record.is_done:
                if end > base:
                    self._broken(f"{name} is pending and was to follow offset {base:,}, but the log goes on to {end:,}")
            elif start <= base and record.ends.get(self._bucket) != base:
                self._broken(f"{name} is done, and is not here")
            elif has_kv and stored < csn and self._last < csn:  # of an empty share only the number is left
                self._broken(f"{name} is done, and the rows are those before it")

    def _begin(self, tag: TransactionTag, header: FrameHeader) -> None:
        if tag.csn <= self._last:
            self._broken(f"commit {tag.csn} follows commit {self._last} at offset {header.base_offset:,}")
        if tag.csn > self._newest:
            self._unknown(f"the log of {self._place} has commit {tag.csn} at offset {header.base_offset:,}")
        self._last, self._base = max(self._last, tag.csn), header.base_offset

    def _broken(self, what: str) -> None:
        self._faults.add(Law.COMMITS, f"{self._place}: {what}", RESTORE)

    def _unknown(self, what: str) -> None:
        self._faults.add(Law.CATALOG, f"{what}, and the catalog knows {self._newest} only", ONE_BACKUP)
