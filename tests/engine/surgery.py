"""A data folder under the knife: frames, records and rows that no Kolk would write, put there by hand."""

from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from kolk.codec.owner import PREFIX, decode_owner, encode_owner, owner_key
from kolk.codec.transaction import CSN_KEY, encode_record, record_key
from kolk.config import Durability
from kolk.engine.examination import examined
from kolk.merge.changes import OP, change_schema
from kolk.model.change import SYMBOLS
from kolk.model.ids import BucketId, PlainTag, TableId
from kolk.model.transaction import CommitRecord
from kolk.runtime.disk import OsDisk
from kolk.storage.kv import Kv, KvMemory
from kolk.storage.log import Log, PendingFrame
from kolk.storage.meta import Meta

SOMEBODY = PlainTag(7, 7)


class Patient:
    """A folder that nobody has open, with one table of one bucket."""

    def __init__(self, folder, info):
        self.folder = folder
        self.info = info
        self.bucket = info.bucket_ids[0]
        self.path = folder / "tables" / self.bucket.folder

    def laws(self):
        """The laws that a doctor finds broken."""
        return {fault.law.value for fault in examined(self.folder).found}

    def text(self):
        """All that it says."""
        return "\n".join(f"{fault.found} -> {fault.next_step}" for fault in examined(self.folder).found)

    def append(self, tag, *changes):
        """One more frame: changes are a sign and a row each, ``("+I", {"k": 1})``."""
        self.append_group(self.frame(tag, *changes))

    def append_group(self, *frames):
        """More frames, at once."""
        with self.log() as log:
            log.append(frames)
            log.sync()

    def frame(self, tag, *changes, more=False):
        schema, body = self.info.schema, None
        if changes:
            rows = [{OP.name: SYMBOLS.index(sign), **row} for sign, row in changes]
            body = pa.RecordBatch.from_pylist(rows, schema=change_schema(schema)).serialize()
        return PendingFrame(tag=tag, schema_id=schema.id, rows=len(changes), body=body, timestamp_ms=10**13, more=more)

    def log(self):
        return Log.open(OsDisk(), str(self.path / "log"), Durability.MACHINE)

    def kv(self):
        return closing(Kv(self.path / "kv", KvMemory(block_cache_bytes=2**23, write_buffer_bytes=2**23)))

    def set_owner(self, name="a", **fields):
        """Let the record of an owner say something else."""
        with closing(Meta(self.folder / "meta.sqlite")) as meta:
            records = [decode_owner(found.value) for found in meta.list(PREFIX)]
            record = replace(next(each for each in records if each.name == name), **fields)
            meta.write([meta.replacement(owner_key(record), encode_owner(record))])

    def set_meta(self, key, value):
        with closing(Meta(self.folder / "meta.sqlite")) as meta:
            meta.write([meta.replacement(key, value)])

    def add_commit(self, csn, *, base, end=None, is_done=True, version=1, app="app", tables=()):
        """A record of a commit that was never made."""
        bucket = BucketId(self.info.id, self.bucket.partition, self.bucket.bucket)
        everything = [self.info.id, *map(TableId, tables)]
        record = CommitRecord(
            app=app,
            version=version,
            csn=csn,
            is_done=is_done,
            handles=dict.fromkeys(everything, ()),
            schemas=dict.fromkeys(everything, 1),
            truncates=frozenset(),
            bases={bucket: base},
            timestamp_ms=0,
            rows=1,
            checksum=0,
            ends={} if end is None else {bucket: end},
        )
        self.set_meta(record_key(record), encode_record(record))
        self.set_meta(CSN_KEY, str(csn).encode())
