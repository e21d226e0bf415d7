"""What a bucket's KV says of itself, in the same batch as the rows it speaks of: up to where it has the log, and how
many rows there are.

Records: ``applied``, ``rows`` and ``csn``, the number of the last transaction, an ``i64`` each. A table whose changelog
has the WAL image writes rows without looking whether they are new, so nobody knows how many it has; its buckets have no
second record.
"""

import struct
from collections.abc import Iterable, Mapping

from kolk.merge.append import Appender
from kolk.merge.changes import KvWrites
from kolk.merge.engine import Merger
from kolk.model.options import ChangelogImage

APPLIED = b"applied"
ROWS = b"rows"
CSN = b"csn"
_NUMBER = struct.Struct("<q")


def applied_offset(records: Mapping[bytes, bytes]) -> int:
    """Up to where a KV with these records has the log."""
    return _number(records.get(APPLIED)) or 0


def row_count(records: Mapping[bytes, bytes]) -> int | None:
    """How many rows a KV with these records has; None if they were not counted."""
    return _number(records.get(ROWS))


def last_csn(records: Mapping[bytes, bytes]) -> int:
    """The number of the last transaction in a KV with these records; 0 if there was none."""
    return _number(records.get(CSN)) or 0


def is_counted(merger: Merger | Appender) -> bool:
    """Whether the rows of a table are counted as they come and go."""
    return isinstance(merger, Merger) and merger.options.changelog_image is not ChangelogImage.WAL


def counted(rows: int | None, writes: Iterable[KvWrites]) -> int | None:
    """How many rows there are after these writes."""
    for write in writes:
        rows = None if rows is None or write.added is None else rows + write.added
    return rows


def state_records(applied: int, rows: int | None, csn: int = 0) -> dict[bytes, bytes]:
    """The records of a bucket in this state."""
    found = {APPLIED: _NUMBER.pack(applied)} | ({} if rows is None else {ROWS: _NUMBER.pack(rows)})
    return found | ({CSN: _NUMBER.pack(csn)} if csn else {})


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(_NUMBER.unpack(value)[0])
