"""From rows to the buckets that they belong to: by partition first, then by the hash of the bucket key.

Writing makes the partitions that are missing, if the table lets it; reading and deleting never do. All work on whole
batches.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.codec.bucketing import bucket_of
from kolk.codec.partitioning import part
from kolk.engine.partitions import Partitions
from kolk.errors import PartitionNotFound, TooManyPartitions
from kolk.merge.prepared import Prepared
from kolk.model.ids import BucketId
from kolk.model.partition import Layout, check_name
from kolk.model.schema import Schema
from kolk.model.table import TableInfo
from kolk.model.write import Action

Codes = NDArray[np.int64] | NDArray[np.int32]


class Routing:
    """Finds buckets. Thread-safe: it has no state of its own."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def split(
        self, info: TableInfo, prepared: Prepared, spread: int, *, makes: bool = True
    ) -> list[tuple[BucketId, Prepared]]:
        """The share of each bucket that has any, in the order of the keys; their partitions exist afterwards. There is
        nothing to delete from partitions that do not exist, and none is made for it.

        A write is prepared once and then cut: to prepare every share by itself costs the more the smaller they are.
        Without a bucket key the rows of a partition all go to one bucket, chosen by ``spread``. Unless it ``makes``
        partitions, the rows of those that are missing are left out.
        """
        # Of a delete that the table ignores no row is left, and yet its buckets are to answer where they end.
        rows = prepared.rows if prepared.rows.num_rows else prepared.write.rows
        names, codes = _codes(info, prepared.schema, rows, spread)
        layout = None
        if info.is_partitioned:
            wanted = _wanted(prepared, names, codes // info.spec.buckets)
            layout = self._ready(info, wanted) if wanted and makes else self._partitions.of(info)
        counts = np.bincount(codes, minlength=len(names) * info.spec.buckets)
        present = [code for code in np.flatnonzero(counts).tolist() if _is_there(info, layout, names, code)]
        buckets = [_bucket(info, layout, names, code) for code in present]
        if not prepared.rows.num_rows or (len(present) == 1 and counts[present[0]] == rows.num_rows):
            return [(bucket, prepared) for bucket in buckets]
        # numpy sorts 16-bit numbers by radix: stable, and ten times as fast as wider ones.
        order = np.argsort(codes.astype(np.uint16 if len(counts) <= 2**16 else np.uint32), kind="stable")
        starts = np.cumsum(counts) - counts
        together = prepared.take(order)
        shares = [together.slice(int(starts[code]), int(counts[code])) for code in present]
        return list(zip(buckets, shares, strict=True))

    def find(
        self, info: TableInfo, keys: pa.RecordBatch, schema: Schema | None = None
    ) -> Iterator[tuple[BucketId, list[int] | None]]:
        """Each bucket that some of these keys belong to, and their places, None for all of them; keys of partitions
        that do not exist are left out. The keys are of this version of the table's schema, or the current one."""
        if info.spec.buckets == 1 and not info.is_partitioned:
            yield info.bucket_id(0), None
            return
        names, codes = _codes(info, schema or info.schema, keys, 0)
        layout = self._partitions.of(info) if info.is_partitioned else None
        # For the one key of most lookups numpy takes longer than RocksDB.
        present = codes.tolist() if len(codes) == 1 else np.unique(codes).tolist()
        for code in present:
            if _is_there(info, layout, names, code):
                places = None if len(present) == 1 else np.flatnonzero(codes == code).tolist()
                yield _bucket(info, layout, names, code), places

    def _ready(self, info: TableInfo, names: list[str]) -> Layout:
        """The table's partitions, these among them."""
        layout = self._partitions.of(info)
        missing = [name for name in names if name not in layout.partitions]
        if not missing:
            return layout
        if len(missing) > self._partitions.most:
            raise TooManyPartitions(
                f"the rows belong to {len(names):,} partitions, and a table has at most {self._partitions.most:,};"
                " partition by something coarser"
            )
        for name in missing:
            check_name(info.partition_columns, name)
        if not info.spec.options.dynamic_partitions:
            raise PartitionNotFound(
                f"{info.name} has no partition {missing[0]}, and its puts make none"
                " (table.dynamic-partition.enabled=false); add it first with table.add_partition(...)"
            )
        # All of them: one that was there may be gone by now.
        return self._partitions.create(info, names)


def _codes(info: TableInfo, schema: Schema, rows: pa.RecordBatch, spread: int) -> tuple[list[str], Codes]:
    """The partitions of these rows, and for each row a number: the place of its partition times the number of buckets,
    plus its bucket."""
    buckets = info.spec.buckets
    if buckets == 1:
        codes: Codes = np.zeros(rows.num_rows, np.int32)
    elif info.spec.bucket_key:
        # By id: rows of another version may have other names for the same columns.
        key = tuple(schema.by_id[info.schema.column(name).id] for name in info.spec.bucket_key)
        codes = bucket_of(rows, key, buckets)
    else:
        codes = np.full(rows.num_rows, spread % buckets, np.int32)
    if not info.is_partitioned:
        return [""], codes
    names, places = part(rows, info.partition_columns)
    return names, places * buckets + codes


def _wanted(prepared: Prepared, names: list[str], places: Codes) -> list[str]:
    """The partitions that get rows; what only takes rows, or something from them, needs none."""
    is_dropped = prepared.write.action is Action.CHANGE and not prepared.rows.num_rows
    if prepared.write.action is Action.DELETE or is_dropped:
        return []
    if prepared.gone is None:
        return names
    return [names[place] for place in np.unique(places[~prepared.gone]).tolist()]


def _is_there(info: TableInfo, layout: Layout | None, names: list[str], code: int) -> bool:
    return layout is None or names[code // info.spec.buckets] in layout.partitions


def _bucket(info: TableInfo, layout: Layout | None, names: list[str], code: int) -> BucketId:
    place, bucket = divmod(code, info.spec.buckets)
    return info.bucket_id(bucket, None if layout is None else layout.partitions[names[place]])
