"""Reading the log for an undo, and making the changes of it: which frames count, in which version of the schema.

A long history is taken back in several turns, each over a part of the keys, so that one turn fits in memory.
"""

from collections.abc import Iterator

import pyarrow as pa

from kolk.codec.row import stored_values
from kolk.codec.versions import RowCodecs
from kolk.errors import UndoImpossible
from kolk.merge.changes import Changes, change_schema
from kolk.merge.engine import Merger
from kolk.merge.undo import Images
from kolk.model.ids import BucketId, OwnerTag, SystemTag
from kolk.model.owner import OwnerRecord
from kolk.storage.kv import Kv
from kolk.storage.log import Log

_READ_BYTES = 8 * 2**20
UNDO_BYTES = 64 * 2**20
"""About how much log one turn of an undo holds in memory."""


def corrections(
    bucket: BucketId, log: Log, kv: Kv, merger: Merger, record: OwnerRecord, start: int, end: int
) -> Iterator[tuple[Changes, int]]:
    """What takes back an owner's frames of these offsets beyond its commit point, each with the number of its keys.

    The caller applies each before it asks for the next.
    """
    if start < log.start:
        raise UndoImpossible(
            f"bucket {bucket.name} must be taken back from offset {start} on, and its log starts at {log.start} only;"
            " `kolk lock release --keep` gives the columns free with what is in them"
        )
    parts = 1 + log.bytes_between(start, end) // UNDO_BYTES
    for part in range(parts):
        images = Images(merger.codec, record.columns, part, parts)
        gather(log, start, end, record, images, merger.codec)
        for write, olds in images.writes(lambda keys: stored_values(kv.get(keys))):
            prepared = merger.prepare(write, is_correction=True)
            assert len(prepared.keys) == len(olds), "every key is there once, in order"
            yield merger.merge(prepared, olds), len(olds)


def gather(log: Log, start: int, end: int, record: OwnerRecord, images: Images, codec: RowCodecs) -> None:
    """Let the images take in the frames of an owner beyond its commit point, and those of the store itself."""
    offset = start
    while offset < end:
        frames = log.read(offset, limit_bytes=_READ_BYTES, until=end)
        for frame in frames:
            tag = frame.header.tag
            is_own = isinstance(tag, OwnerTag) and tag.owner == record.number and tag.epoch > record.committed
            if is_own or isinstance(tag, SystemTag):
                schema = codec.of(frame.header.schema_id).schema
                rows = pa.ipc.read_record_batch(frame.body, change_schema(schema))
                (images.take if is_own else images.remove)(rows, schema)
        if not frames:
            return
        offset = frames[-1].header.end_offset
