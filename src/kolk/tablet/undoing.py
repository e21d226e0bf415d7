"""Reading the log for an undo: which frames count, in which version of the schema."""

import pyarrow as pa

from kolk.codec.versions import RowCodecs
from kolk.merge.changes import change_schema
from kolk.merge.undo import Images
from kolk.model.ids import OwnerTag, SystemTag
from kolk.model.owner import OwnerRecord
from kolk.storage.log import Log

_READ_BYTES = 8 * 2**20


def gather(log: Log, start: int, end: int, record: OwnerRecord, images: Images, codec: RowCodecs) -> None:
    """Let the images take in the frames of an owner beyond its commit point, and those of the store itself."""
    offset = start
    while offset < end:
        frames = log.read(offset, limit_bytes=_READ_BYTES, until=end)
        for frame in frames:
            tag = frame.header.tag
            is_own = isinstance(tag, OwnerTag) and tag.owner == record.number and tag.epoch > record.committed
            if frame.header.rows and (is_own or isinstance(tag, SystemTag)):
                schema = codec.of(frame.header.schema_id).schema
                rows = pa.ipc.read_record_batch(frame.body, change_schema(schema))
                (images.take if is_own else images.remove)(rows, schema)
        if not frames:
            return
        offset = frames[-1].header.end_offset
