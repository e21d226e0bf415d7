"""What a batch comes to, as the record of its owner keeps it: the columns that it wrote, its rows and their checksum.

Rows that are written at once are in no staging area where they could be compared when their batch comes again. So the
commit of an epoch takes its account along, as the state that an owner's record has room for, and whoever brings that
epoch again is held to it. A state that is none of ours, of a writer that is not Spark or of an older version, says
nothing, and nothing is compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from kolk.codec.checksum import added
from kolk.model.write import Write
from kolk.spark.frames import Frame

_OURS = "spark"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the rows of an epoch, or of one of its tasks, come to as Spark gave them: the same when they come again,
    however they are cut then. ``schema`` and ``columns`` are ids."""

    epoch: int
    schema: int
    columns: tuple[int, ...]
    rows: int = 0
    checksum: int = 0

    @staticmethod
    def of(frame: Frame, epoch: int) -> "Account":
        """That of an epoch without rows."""
        return Account(epoch=epoch, schema=frame.schema.id, columns=frame.column_ids)

    def plus(self, frame: Frame, given: Write) -> "Account":
        """The same with more rows, as Spark gave them."""
        checksum = added(self.checksum, frame.checksum(given))
        return replace(self, rows=self.rows + given.rows.num_rows, checksum=checksum)

    def is_like(self, other: "Account") -> bool:
        """Whether both are of the same rows. In another version of the schema the same rows have another checksum, so
        they are only counted."""
        return self.rows == other.rows and (self.checksum == other.checksum or self.schema != other.schema)

    def encoded(self) -> bytes:
        """As the state of its owner."""
        return msgspec.json.encode({_OURS: self})

    @staticmethod
    def decoded(state: bytes, epoch: int) -> "Account | None":
        """What is kept of an epoch; None if that is nothing that we have written."""
        try:
            found = msgspec.json.decode(state, type=dict[str, Account]).get(_OURS)
        except msgspec.DecodeError:
            return None
        return found if found is not None and found.epoch == epoch else None


def total(accounts: Sequence[Account]) -> Account:
    """That of all tasks of an epoch."""
    whole = accounts[0]
    for each in accounts[1:]:
        whole = replace(whole, rows=whole.rows + each.rows, checksum=added(whole.checksum, each.checksum))
    return whole
