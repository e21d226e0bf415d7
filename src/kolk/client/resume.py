"""Going on after a scan was lost: a new scan shows another moment, and the changelog tells what happened in between.

A scan that is opened anew at a token shows the rows after it as they are *now*; the rows before it were read as they
were *then*. The changes from then to now, of the keys that had been read, carry those over: after that all rows are of
one moment again, the new one. Each loss is mended before the reading goes on, so there never are more than two moments.

All of it is done per bucket and over whole columns.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from kolk.client.changelog import Changelog, OnPartition
from kolk.client.link import Link
from kolk.client.service import ScanPages
from kolk.codec.key import KeyCodec
from kolk.errors import HolderLost, OffsetOutOfRange
from kolk.model.partition import PARTITIONS
from kolk.model.scan import Resumed, ScanRequest
from kolk.model.schema import CHANGE_COLUMN_NAMES
from kolk.model.table import TableInfo

LOSSES_MAX = 100
"""How often one result is mended before it is given up: a server that fails so often needs help of another kind."""
_CHANGE_TYPE, _, _, _BUCKET = CHANGE_COLUMN_NAMES
_PRESENT = pa.array(["+I", "+U"])
_BEFORE = "-U"


class Resumption:
    """How one scan is opened again. Stateless, so thread-safe.

    The request names the columns of the key among those it asks for, or all: without them nobody can tell which rows
    a change is about.
    """

    def __init__(self, link: Link, info: TableInfo, request: ScanRequest) -> None:
        self._link = link
        self._info = info
        self._request = replace(request, nonce="")
        self._keys = KeyCodec(info.schema)

    def open(self, token: str) -> ScanPages:
        """A new scan, of what comes after a token."""
        # With a limit nobody can tell which rows would be the first so many: begin again, it is not much.
        resume = token if self._request.limit is None else ""
        return self._link.service.open_scan(self._info.id, replace(self._request, resume=resume))

    def changes(
        self, then: Mapping[str, int], now: Mapping[str, int], resumed: Resumed, on_partition: OnPartition | None
    ) -> "Between":
        """What happened between two moments to the keys that had been read, by bucket, as a changelog has it.

        A partition that was made anew under its old name is none of those that had been read.
        """
        read = {*resumed.whole, *([] if resumed.bucket is None else [resumed.bucket])}
        with _typed():
            log = self._log(then, now, [name for name in now if name in read], on_partition)
        return Between(log, read, resumed, self._keys)

    def _log(
        self, then: Mapping[str, int], now: Mapping[str, int], read: Sequence[str], on_partition: OnPartition | None
    ) -> Changelog:
        schema = self._info.schema.id
        if PARTITIONS in then:
            return Changelog(self._link, self._info, start=then, stop=now, schema=schema, on_partition=on_partition)
        start, stop = {name: then[name] for name in read}, {name: now[name] for name in read}
        return Changelog(self._link, self._info, start=start, stop=stop, buckets=read, schema=schema)

    def mended(
        self, rows: list[pa.RecordBatch], changes: list[pa.RecordBatch], schema: pa.Schema
    ) -> list[pa.RecordBatch]:
        """The rows of a bucket after these changes, those alone that the scan asks for."""
        if not changes:
            return rows
        changed = pa.Table.from_batches(changes)
        changed = changed.filter(pc.not_equal(changed[_CHANGE_TYPE], _BEFORE)).combine_chunks()
        if not changed.num_rows:
            return rows
        batch = changed.to_batches()[0]
        keys = self._keys.encode(batch)
        last = self._is_last_of_its_key(keys)
        batch, keys = batch.filter(last), keys.filter(last)
        kept = [each.filter(pc.invert(pc.is_in(self._keys.encode(each), keys))) for each in rows]
        alive = batch.filter(pc.is_in(batch[_CHANGE_TYPE], _PRESENT))
        where = self._request.where
        if where is not None and alive.num_rows:
            alive = alive.filter(pa.array(where.mask(alive)))
        return [*kept, alive.select(schema.names).cast(schema)]

    @staticmethod
    def _is_last_of_its_key(keys: pa.BinaryArray) -> pa.BooleanArray:
        """Of several changes of one key the last one counts."""
        places = pa.table({"key": keys, "place": pa.array(range(len(keys)), pa.int64())})
        last = places.group_by("key").aggregate([("place", "max")])["place_max"].combine_chunks()
        return pc.is_in(places["place"].combine_chunks(), last)


class Between:
    """The changes between two moments; iterate for buckets and batches. Iterating again goes on, as with a changelog.
    Confined to one reader."""

    def __init__(self, log: Changelog, read: Collection[str], resumed: Resumed, keys: KeyCodec) -> None:
        self._log = log
        self._read = read
        self._resumed = resumed
        self._keys = keys

    def __iter__(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        with _typed():
            for batch in self._log:
                bucket: str = batch[_BUCKET][0].as_py()
                if bucket in self._read:
                    yield bucket, batch if bucket != self._resumed.bucket else self._up_to(batch)

    def close(self) -> None:
        """End the iteration. Idempotent."""
        self._log.close()

    def _up_to(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.less_equal(self._keys.encode(batch), pa.scalar(self._resumed.key, pa.binary())))


@contextmanager
def _typed() -> Iterator[None]:
    try:
        yield
    except OffsetOutOfRange as error:
        raise HolderLost(f"the changes that would mend this scan are gone ({error}); scan again") from error
