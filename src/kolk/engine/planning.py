"""What a commit is to do, worked out before any lock is taken: staged rows are read, prepared, and cut into shares.

A transaction is a put at the moment of its commit: columns are matched by id to the table as it is now. What cannot be
matched makes the commit impossible; nothing is left out silently.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from kolk.config import EngineConfig
from kolk.engine.catalog import Catalog
from kolk.engine.partitions import Partitions
from kolk.engine.routing import Routing
from kolk.engine.stagings import Stagings
from kolk.engine.tablets import Tablets
from kolk.errors import SchemaChanged, StagingGone, TooLarge
from kolk.merge.prepared import Prepared
from kolk.model.ids import BucketId, TableId
from kolk.model.schema import Column, Schema
from kolk.model.table import TableInfo
from kolk.model.transaction import PARTICIPANTS_MAX, CommitRequest, Seal, Staging
from kolk.model.write import Write, expected_columns


@dataclass(frozen=True, slots=True)
class Plan:
    """What a commit is to do: the shares of each bucket, in order, and the versions that they were prepared for."""

    infos: Mapping[TableId, TableInfo]
    shares: Mapping[BucketId, Sequence[Prepared]]


class Planning:
    """Reads what was staged. Thread-safe: it has no state of its own."""

    def __init__(
        self,
        stagings: Stagings,
        catalog: Catalog,
        partitions: Partitions,
        tablets: Tablets,
        routing: Routing,
        config: EngineConfig,
    ) -> None:
        self._stagings = stagings
        self._catalog = catalog
        self._partitions = partitions
        self._tablets = tablets
        self._routing = routing
        self._config = config

    def plan(self, request: CommitRequest, staged: Mapping[str, tuple[Staging, Seal]]) -> Plan:
        """The shares of all buckets that a commit is about."""
        infos = {table: self._catalog.by_id(table) for table in request.tables}
        shares: dict[BucketId, Sequence[Prepared]] = {}
        for table, info in infos.items():
            for handle in request.handles[table]:
                _check_columns(staged[handle][0], self._schema(staged[handle][0]), info.schema)
            shares |= self.shares(info, request.handles[table])
            if table in request.truncates:
                shares |= {bucket: () for bucket in self._partitions.buckets(info) if bucket not in shares}
        if len(shares) > PARTICIPANTS_MAX:
            raise TooLarge(f"a transaction takes at most {PARTICIPANTS_MAX:,} buckets, this one {len(shares):,}")
        return Plan(infos, shares)

    def shares(
        self, info: TableInfo, handles: Sequence[str], *, makes: bool = True
    ) -> dict[BucketId, Sequence[Prepared]]:
        """What was staged, prepared and cut. Handles that say the same of their columns become one write, so that a key
        has one change; too many rows for one become several."""
        merger = self._tablets.merger(info)
        shares: dict[BucketId, list[Prepared]] = {}
        stagings = [self._staging(handle) for handle in handles]
        for _, group in groupby(stagings, key=lambda one: (one.schema_id, one.action, one.columns, one.mode)):
            alike = list(group)
            for rows in self._batches(alike):
                schema = self._schema(alike[0])
                write = Write(
                    action=alike[0].action,
                    rows=rows,
                    columns=_names(alike[0], schema),
                    mode=alike[0].mode,
                    schema_id=schema.id,
                )
                # Without a bucket key any bucket will do, but it must be the same one each time.
                spread = int(alike[0].handle[:8], 16)
                for bucket, share in self._routing.split(info, merger.prepare(write), spread, makes=makes):
                    shares.setdefault(bucket, []).append(share)
        return dict(shares)

    def columns(self, staging: Staging) -> Sequence[Column]:
        """The columns that staged rows have."""
        schema = self._schema(staging)
        return expected_columns(schema, staging.action, _names(staging, schema), staging.mode)

    def _schema(self, staging: Staging) -> Schema:
        """The version of the table that staged rows are of."""
        info = self._catalog.by_id(staging.table)
        return self._catalog.versions(info).spoken(staging.schema_id)

    def _batches(self, stagings: Sequence[Staging]) -> Iterator[pa.RecordBatch]:
        """The rows of handles that are alike, in as few batches as a put may be large."""
        wanted = self.columns(stagings[0])
        schema = pa.schema([column.arrow for column in wanted])
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for staging in stagings:
            for batch in self._stagings.batches(staging.handle, schema):
                is_long = rows + batch.num_rows > self._config.put_rows_max
                if waiting and (is_long or size + batch.nbytes > self._config.put_bytes_max):
                    yield pa.concat_batches(waiting)
                    waiting, rows, size = [], 0, 0
                waiting.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
        if waiting:
            yield pa.concat_batches(waiting)

    def _staging(self, handle: str) -> Staging:
        found = self._stagings.sealed(handle)
        if found is None:
            raise StagingGone(f"what was staged under {handle} is not there any more")
        return found


def _check_columns(staging: Staging, source: Schema, target: Schema) -> None:
    """Values are never left out silently: a column that was dropped since makes a commit impossible."""
    ids = staging.columns if staging.columns is not None else [column.id for column in source.columns]
    for id in ids:
        if id not in target.by_id:
            raise SchemaChanged(
                f"the column {source.by_id[id].name!r} was dropped since rows were staged for it; stage them again"
            )


def _names(staging: Staging, schema: Schema) -> tuple[str, ...] | None:
    if staging.columns is None:
        return None
    unknown = [id for id in staging.columns if id not in schema.by_id]
    if unknown:
        raise SchemaChanged(f"there is no column of id {unknown[0]} in version {schema.id} of the schema")
    return tuple(schema.by_id[id].name for id in staging.columns)
