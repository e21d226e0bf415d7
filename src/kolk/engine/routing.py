"""From rows to the buckets that they belong to: by partition first, then by the hash of the bucket key.

Writing makes the partitions that are missing, if the table lets it; reading never does. Both work on whole batches.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.codec.bucketing import bucket_of, split
from kolk.codec.partitioning import part
from kolk.engine.partitions import Partitions
from kolk.errors import PartitionNotFound, TooManyPartitions
from kolk.model.ids import BucketId
from kolk.model.partition import Layout, checked_value, values_of
from kolk.model.table import TableInfo

Codes = NDArray[np.int64] | NDArray[np.int32]


class Routing:
    """Finds buckets. Thread-safe: it has no state of its own."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions

    def split(self, info: TableInfo, rows: pa.RecordBatch, spread: int) -> list[tuple[BucketId, pa.RecordBatch]]:
        """The rows of each bucket that has any, in their order; their partitions exist afterwards.

        Without a bucket key the rows of a partition all go to one bucket, chosen by ``spread``.
        """
        names, codes = _codes(info, rows, spread)
        layout = self._ready(info, names) if info.is_partitioned else None
        shares = split(rows, codes, len(names) * info.spec.buckets)
        return [(_bucket(info, layout, names, code), share) for code, share in shares.items()]

    def find(self, info: TableInfo, keys: pa.RecordBatch) -> Iterator[tuple[BucketId, list[int] | None]]:
        """Each bucket that some of these keys belong to, and their places, None for all of them; keys of partitions
        that do not exist are left out."""
        names, codes = _codes(info, keys, 0)
        layout = self._partitions.of(info) if info.is_partitioned else None
        present = np.unique(codes).tolist()
        for code in present:
            if layout is None or names[code // info.spec.buckets] in layout.partitions:
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
            for column, value in values_of(name).items():
                checked_value(value, column)
        if not info.spec.options.dynamic_partitions:
            raise PartitionNotFound(
                f"{info.name} has no partition {missing[0]}, and its puts make none"
                " (table.dynamic-partition.enabled=false); add it first with table.add_partition(...)"
            )
        return self._partitions.create(info, missing)


def _codes(info: TableInfo, rows: pa.RecordBatch, spread: int) -> tuple[list[str], Codes]:
    """The partitions of these rows, and for each row a number: the place of its partition times the number of buckets,
    plus its bucket."""
    buckets = info.spec.buckets
    if buckets == 1:
        codes: Codes = np.zeros(rows.num_rows, np.int32)
    elif info.spec.bucket_key:
        codes = bucket_of(rows, tuple(info.schema.column(name) for name in info.spec.bucket_key), buckets)
    else:
        codes = np.full(rows.num_rows, spread % buckets, np.int32)
    if not info.is_partitioned:
        return [""], codes
    names, places = part(rows, info.partition_columns)
    return names, places * buckets + codes


def _bucket(info: TableInfo, layout: Layout | None, names: list[str], code: int) -> BucketId:
    place, bucket = divmod(code, info.spec.buckets)
    return info.bucket_id(bucket, None if layout is None else layout.partitions[names[place]])
