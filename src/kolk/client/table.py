"""A table, for those who use it: put, delete, get, scan, follow."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import pyarrow as pa

from kolk.client.bootstrap import Bootstrap
from kolk.client.changelog import COMMIT_INTERVAL_SECONDS, Changelog, OnPartition, Start
from kolk.client.found import dicts_of
from kolk.client.handle import Handle
from kolk.client.kept_scan import KeptPages
from kolk.client.last_rows import last_rows
from kolk.client.lease import LEASE_TTL, Lease, OnLost, leased
from kolk.client.resume import Resumption
from kolk.client.rows import Data, key_batch, rows_batch
from kolk.client.scan import OnProgress, Scan
from kolk.client.service import ScanPages
from kolk.client.source import source_of
from kolk.client.tasks import Left, TaskWriter, abandon_tasks, commit_tasks
from kolk.client.transaction import Transaction
from kolk.client.where import Where, predicate_of
from kolk.client.writer import WRITER_TTL, Writer, written
from kolk.client.writes import check_tag, delete_write, named_columns, preaggregated, put_write, targets_of
from kolk.errors import InvalidArgument, KolkError, LeaseLost, PartitionNotFound
from kolk.model.durations import Duration, seconds_of
from kolk.model.ids import PlainTag
from kolk.model.options import MergeMode
from kolk.model.owner import Claim, UndoMode, check_owner
from kolk.model.partition import Partition, bucket_names, parse_partition, partition_name
from kolk.model.scan import ScanRequest, check_scan_id
from kolk.model.schema import Schema
from kolk.model.snapshot import SnapshotInfo
from kolk.model.write import Write


@dataclass(frozen=True, slots=True)
class PutResult:
    """An acknowledged put: durable, visible to every later read, and in the changelog.

    ``offsets`` maps each bucket that took part to its end offset after the put.
    """

    offsets: dict[str, int]
    tag: PlainTag


class Table(Handle):
    """One table. Thread-safe. Get it from ``db.table(name)`` or ``db.create_table(...)``.

    It goes on in the version of the schema that it was opened with, whoever alters the table meanwhile; ``refresh()``
    gives the newest.
    """

    def put(
        self,
        data: Data,
        columns: Sequence[str] | None = None,
        mode: str = "accumulate",
        *,
        tag: PlainTag | None = None,
    ) -> PutResult:
        """Insert or update rows; atomic per bucket.

        A column that has a default may be left out. ``columns`` makes it a partial update of these columns: the others
        keep their values, and in a new row have their defaults, or null. ``mode="overwrite"`` bypasses the table's
        merge engine; ``mode="merge_state"`` gives an aggregation table states instead of values, as ``preaggregate``
        makes them. Data with a column ``_change_type`` is a changelog: ``+I`` and ``+U`` rows are put, ``-D`` rows are
        deleted, or, as ``-U`` rows, taken back from aggregates.

        ``tag`` is for completing a put that failed part way: give the same data and the tag of the error, and what was
        applied is not applied again. A tag stands for its first data: with other data it is answered as done and
        nothing is written.
        """
        schema = self.schema
        return self._write(put_write(schema, data, targets_of(schema, columns), MergeMode.parse(mode)), tag)

    def retract(self, data: Data, columns: Sequence[str] | None = None, *, tag: PlainTag | None = None) -> PutResult:
        """Take back rows that were put into an aggregation table, where its functions can: a sum subtracts them.

        It is a put whose rows all have the ``_change_type`` ``-D``. Keys without a row are passed over.
        """
        schema = self._keyed("retract")
        if schema.aggregates:
            write = put_write(schema, data, targets_of(schema, columns), MergeMode.ACCUMULATE, retracts=True)
            return self._write(write, tag)
        raise InvalidArgument(f"{self.name} is not an aggregation table, so nothing adds up in it; delete rows instead")

    def preaggregate(self, data: Data, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Rows of an aggregation table as states, one row for each key, computed here:
        ``table.put(table.preaggregate(rows), mode="merge_state")`` does what ``table.put(rows)`` does, and sends less.

        With ``columns``, give the same ones to the put.
        """
        return preaggregated(self._keyed("aggregate"), data, targets_of(self.schema, columns))

    def put_stream(
        self,
        batches: Iterable[Data],
        columns: Sequence[str] | None = None,
        mode: str = "accumulate",
        *,
        tag: PlainTag | None = None,
    ) -> Iterator[PutResult]:
        """Put one batch after the other, in order: ``for result in table.put_stream(batches): ...``.

        Over the network several are under way at once, which is the quickest way to load a table: a result comes up to
        three batches later. Each is a put of its own, and the first that fails ends the stream; to go on, give the
        batches from that one on with ``tag=error.tag``. Batches are taken from the source as results are taken; those
        that were taken when you stop early are put all the same.
        """
        schema, how = self.schema, MergeMode.parse(mode)
        targets = targets_of(schema, columns)
        if not isinstance(batches, Iterable):
            raise InvalidArgument(f"batches is a list or an iterator of what put takes, not a {type(batches).__name__}")
        writes = (put_write(schema, data, targets, how) for data in batches)
        if tag is not None:
            check_tag(tag)
            return self._put_stream(writes, (_following(tag, place) for place in count()))
        return self._put_fresh_stream(writes)

    def delete(
        self,
        keys: Data,
        columns: Sequence[str] | None = None,
        mode: str = "accumulate",
        *,
        tag: PlainTag | None = None,
    ) -> PutResult:
        """Remove the rows of these keys, given as in ``get``; keys without a row are passed over.

        ``columns`` makes it a partial delete: these columns become null, and a row of which nothing but its key
        is left goes.
        """
        schema = self._keyed("delete")
        targets = targets_of(schema, columns)
        if targets == ():
            raise InvalidArgument("a partial delete names at least one column outside the key")
        return self._write(delete_write(schema, keys, targets, MergeMode.parse(mode)), tag)

    def get(self, keys: Data, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of these keys, in the order of the keys; a key without a row is left out.

        Keys are a list of values, ``["/"]``, for a key of several columns of tuples in their order, ``[("ada", 1)]``,
        or of dicts; an Arrow table or a frame that has the key's columns; or, for a key of one column, an array.
        """
        schema = self._keyed("look up")
        found = self._service.get(self._info.id, key_batch(keys, schema), _shown(schema, columns), schema.id)
        return pa.Table.from_batches([found])

    def get_one(self, /, **key: Any) -> dict[str, Any] | None:
        """The row of one key as a dict, or None: ``table.get_one(page="/")``."""
        schema = self.whole_key(key)
        found = self._service.get(self._info.id, key_batch([key], schema), None, schema.id)
        return dicts_of(found)[0] if found.num_rows else None

    def prefix(
        self, key: Mapping[str, Any] | None = None, /, *, columns: Sequence[str] | None = None, **values: Any
    ) -> pa.Table:
        """The rows whose key starts with these values, in key order: ``table.prefix(user="ada")``.

        The values must be the first columns of the primary key and hold the bucket key. ``columns`` chooses what is
        shown; a key column of that name is given in a dict: ``table.prefix({"columns": 3})``.
        """
        schema = self._keyed("look up")
        if key is not None and not isinstance(key, Mapping):
            raise InvalidArgument(f"a prefix is key columns and their values, not {key!r}")
        given = {**(key or {}), **values}
        wanted = schema.key_columns[: len(given)]
        if not given or set(given) != {column.name for column in wanted} or len(given) == len(schema.primary_key):
            allowed = ", ".join(schema.primary_key[:-1])
            raise InvalidArgument(
                f"a prefix names the first columns of the key, but not all of it: of {allowed}"
                if allowed
                else "this table's key has one column, so it has no prefix; use get"
            )
        rows = rows_batch([given], schema, wanted, ignorable=False)
        found = self._service.prefix(self._info.id, rows, _shown(schema, columns), schema.id)
        return pa.Table.from_batches([found])

    def scan(
        self,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        where: Where | None = None,
        source: "str | Lease" = "live",
        *,
        buckets: Sequence[str] | None = None,
        resume: str = "strict",
        ttl: Duration | None = None,
        shared: bool = False,
        nonce: str | None = None,
        linger: Duration | None = None,
        on_partition: OnPartition | None = None,
        on_progress: OnProgress | None = None,
    ) -> Scan:
        """The whole table at one moment, all buckets alike, whatever is written meanwhile.

        ``where`` selects rows before they travel: SQL, ``"pv > 100 AND day = '2026-11-15'"``, or a dict of columns and
        what they equal, ``{"day": date(2026, 11, 15), "region": ["eu", "us"], "title": None}``, all of it at once.
        ``limit`` is kept by the server; of a log table it gives the last rows. ``buckets`` scans some buckets only.

        A scan over the network that is not read for its ``ttl`` (60 s) is given up. What is lost then, or when a server
        is restarted, raises UnknownOrExpiredScan; ``resume="log"`` goes on in a new scan instead and mends what was
        read from the changelog, for ``to_arrow()`` and its like: the result is of one moment, the last.

        A ``shared`` scan is for several readers, here or elsewhere: ``table.join_scan(scan.id)``. With a ``nonce``
        everybody who opens it gets the same scan, and never another once that is gone; with ``linger`` it gives way: it
        is kept for so long after its end was read, and only until another needs its place. ``on_progress`` is called
        with the rows so far and about how many there are, or None. ``on_partition`` is called if a partition is dropped
        before its rows were read; without it the scan raises PartitionDropped, and can be read on.

        ``source="snapshot"`` shows the newest snapshots instead, and ``source=lease`` those that a lease keeps: however
        long it takes, and across restarts of the server.
        """
        schema = self.schema
        names = _shown(schema, columns)
        request = ScanRequest(
            names=names,
            limit=limit,
            where=predicate_of(where, schema),
            schema_id=schema.id,
            buckets=None if buckets is None else bucket_names(buckets),
            nonce="" if nonce is None else nonce,
            is_shared=shared or nonce is not None,
            ttl_seconds=None if ttl is None else seconds_of(ttl, "ttl"),
            linger_seconds=None if linger is None else seconds_of(linger, "linger"),
        )
        is_shared = request.is_shared
        kind, lease, generation = source_of(source, resume, is_log=not schema.primary_key, is_shared=is_shared)
        request = replace(request, source=kind, lease=lease, generation=generation)
        if not schema.primary_key:
            return Scan(self._link, last_rows(self._link, self._info, request), self.name, on_partition, on_progress)
        resumption = None
        if resume == "log":
            if names is not None:  # the key says which rows a change is about
                request = replace(request, names=tuple(dict.fromkeys((*names, *schema.primary_key))))
            resumption = Resumption(self._link, self._info, request)
        pages, shown = self._scan_pages(request, source), schema.arrow_of(names)
        return Scan(self._link, pages, self.name, on_partition, on_progress, resumption, shown, is_shared=is_shared)

    def join_scan(
        self,
        scan: str,
        *,
        buckets: Sequence[str] | None = None,
        token: str = "",
        on_partition: OnPartition | None = None,
        on_progress: OnProgress | None = None,
    ) -> Scan:
        """Read a scan that somebody has opened, from its start or from the token of a page on; all of it, or the
        buckets named. Rows, columns and the moment are as they were asked for there. It does not end with this
        reader."""
        pages = self._service.join_scan(check_scan_id(scan), token, None if buckets is None else bucket_names(buckets))
        return Scan(self._link, pages, self.name, on_partition, on_progress, is_shared=True)

    def bootstrap(
        self,
        where: Where | None = None,
        *,
        follow: bool = True,
        follower: str | None = None,
        ttl: Duration | None = None,
        commit_interval: Duration | None = COMMIT_INTERVAL_SECONDS,
        on_partition: OnPartition | None = None,
        on_progress: OnProgress | None = None,
    ) -> Bootstrap:
        """The whole table and then every change after it, without a gap or a duplicate, as batches of a changelog.

        The rows of the scan come as ``+I``. If the scan is lost in the middle, what happened to the rows that were
        handed out follows as changes, and the scan goes on. With the name of a ``follower`` that has got beyond the
        scan before, it goes on there and nothing is scanned. ``where`` chooses among the partitions.
        """
        return Bootstrap(
            self._link,
            self._info,
            where=predicate_of(where, self.schema),
            follow=follow,
            follower=follower,
            ttl_seconds=None if ttl is None else seconds_of(ttl, "ttl"),
            commit_interval=commit_interval,
            on_partition=on_partition,
            on_progress=on_progress,
        )

    def changelog(
        self,
        start: Start = None,
        stop: Mapping[str, int] | None = None,
        follow: bool = False,
        *,
        buckets: Sequence[str] | None = None,
        where: Where | None = None,
        schema: str | None = None,
        follower: str | None = None,
        commit_interval: Duration | None = COMMIT_INTERVAL_SECONDS,
        on_partition: OnPartition | None = None,
    ) -> Changelog:
        """Every change from ``start`` on: offsets by bucket (a bucket left out starts at its log start), a
        datetime (an error if the log has lost changes since), "earliest" (default) or "latest". Ends at ``stop``,
        else at the present end, unless ``follow``.
        ``where`` chooses among the partitions by their columns, as in a scan: ``where="day >= '2026-11-01'"``.

        A batch is in the version of the schema that its changes were written with, so that a table which is altered
        shows batches of several. ``schema="latest"`` shows all of them in the newest version, as of now.

        With the name of a ``follower`` it goes on where that has committed, and the log is kept for it; ``start`` is
        for its first use. What is handled is committed every ``commit_interval`` (5 s), or with None only by
        ``commit()``. Whoever opens a follower takes it over from the reader before.

        ``on_partition`` is called, in order with the changes, for every partition that comes and goes; without it one
        that is dropped before all of its changes were read raises PartitionDropped, and iterating again goes on.
        """
        return Changelog(
            self._link,
            self._info,
            start=start,
            stop=stop,
            follow=follow,
            buckets=buckets,
            where=predicate_of(where, self.schema),
            schema=schema,
            follower=follower,
            commit_interval=commit_interval,
            on_partition=on_partition,
        )

    def partitions(self) -> list[Partition]:
        """The partitions that there are now, by name."""
        return self._service.partitions(self._info.id)

    def add_partition(
        self, partition: str | Mapping[str, Any] | None = None, /, *, if_not_exists: bool = False, **values: Any
    ) -> Partition:
        """Make a partition before anybody writes to it: ``table.add_partition(day="2026-11-15")``."""
        return self._service.add_partition(self._info.id, self._named(partition, values), if_not_exists=if_not_exists)

    def drop_partition(
        self, partition: str | Mapping[str, Any] | None = None, /, *, if_exists: bool = False, **values: Any
    ) -> None:
        """Remove a partition with all its rows and its log, whoever reads it: ``table.drop_partition(day=...)``."""
        try:
            self._service.drop_partition(self._info.id, self._named(partition, values))
        except PartitionNotFound:
            if not if_exists:
                raise

    def take_snapshot(self) -> list[SnapshotInfo]:
        """Copy what changed since the last snapshot, as of one moment; the answer is the newest one of every bucket.

        It is done by itself every ten minutes, too. Files that an earlier snapshot has are not copied again.
        """
        return self._service.take_snapshot(self._info.id)

    def snapshots(self) -> list[SnapshotInfo]:
        """The snapshots that there are, by bucket and number."""
        return self._service.snapshots(self._info.id)

    def lease(
        self,
        ttl: Duration = LEASE_TTL,
        lease_id: str | None = None,
        *,
        snapshots: Mapping[str, int] | None = None,
        on_lost: OnLost | None = None,
    ) -> Lease:
        """Keep the newest snapshots of this table, and the log after them, for as long as the lease is held.

        It is renewed in the background, at every third of its ``ttl``; ``on_lost`` is called if it is lost all the
        same. ``snapshots`` names some by bucket instead of the newest; what does not exist is in ``lease.unavailable``.
        Without a ``lease_id`` it has a random one. ``db.lease([...])`` is for several tables.
        """
        return leased(self._link, {self._info.id: snapshots}, ttl, lease_id, on_lost)

    def writer(
        self,
        owner: str | None = None,
        columns: Sequence[str] | None = None,
        ttl: Duration = WRITER_TTL,
        *,
        state: str | None = None,
        resume_epoch: int | None = None,
        undo: str = "always",
        stream: str = "",
        reset: bool = False,
    ) -> Writer:
        """Own columns, or with None all of them, and write them: seen at once, and taken back unless committed::

            with table.writer(owner="job-1", columns=["pv"]) as w:
                w.put(rows)
                w.commit()

        Beginning takes back what an earlier writer of this name has not committed; ``resume_epoch`` is the last epoch
        that a job knows as done from a checkpoint of its own. The lock is renewed in the background, every third of its
        ``ttl``. ``state`` goes on where ``writer.state()`` was taken: it says who, up to which epoch and, unless they
        are named, with which columns. ``undo="none"`` is for functions that a replay does not change. A ``stream`` says
        what the epochs belong to, and ``reset`` forgets it.
        """
        return written(
            self._link,
            self,
            owner,
            columns,
            ttl,
            state=state,
            resume_epoch=resume_epoch,
            undo=undo,
            stream=stream,
            reset=reset,
        )

    def task(
        self,
        owner: str,
        columns: Sequence[str] | None = None,
        ttl: Duration = WRITER_TTL,
        *,
        attempt: str,
        epoch: int,
        partition: int,
        undo: str = "always",
        stream: str = "",
    ) -> TaskWriter:
        """Write a part of an owner's epoch, for engines that cut their work into tasks and try those again::

            with table.task("job-1", ["pv"], attempt=run, epoch=7, partition=3) as task:
                task.put(rows)
                left = task.seal()

        and then, once, somewhere: ``table.commit_tasks([left, ...])``. ``attempt`` is a token that all tasks of one run
        of an epoch share, and no other run has: the first of them takes back what an earlier run has left. The rows of
        a bucket are all put by one task; ``partition`` is its number, the same when it is tried again.
        """
        claim = Claim(
            owner=check_owner(owner),
            columns=named_columns(self.schema, columns),
            ttl_seconds=seconds_of(ttl, "ttl"),
            stream=stream,
            undo=UndoMode.parse(undo),
            attempt=attempt,
        )
        return TaskWriter(self._link, self, claim, epoch, partition)

    def commit_tasks(self, lefts: Sequence[Left], user_state: bytes = b"") -> None:
        """Let an epoch stand: what these attempts at its tasks have written, and nothing else of it. Idempotent."""
        commit_tasks(self._service, lefts, user_state)

    def abandon_tasks(self, lefts: Sequence[Left]) -> None:
        """Take back what is not committed of a run, if no newer one goes on, and let its columns go. Idempotent."""
        abandon_tasks(self._service, lefts)

    def transaction(
        self, app_id: str, version: int, *, on_different: str = "answer", on_old: str = "answer"
    ) -> Transaction:
        """Writes that are applied together, and once for each (``app_id``, ``version``), however often this is run::

            with table.transaction("nightly-load", 42) as tx:
                tx.put(rows)

        Nobody sees anything of them before the block ends. Versions grow: one that is not greater than the last that
        was committed is passed over, and ``tx.verdict`` says so. With ``on_different="fail"`` a version that was
        committed with other rows raises ``DifferentRows``, with ``on_old="fail"`` one before the last ``OldVersion``.
        ``db.transaction(...)`` is for several tables.
        """
        return Transaction(self._link, app_id, version, table=self, on_different=on_different, on_old=on_old)

    def truncate(self) -> dict[str, int]:
        """Remove every row, visibly to followers; the answer is the end offsets. A log table forgets its log."""
        return self._service.truncate(self._info.id)

    def __repr__(self) -> str:
        return f"<kolk.Table {self.name} {self.schema}>"

    def _scan_pages(self, request: ScanRequest, source: "str | Lease") -> ScanPages:
        """Open a scan; one of snapshots that is not shared goes on by itself when it is lost."""
        try:
            if request.is_live or request.is_shared:
                return self._service.open_scan(self._info.id, request)
            return KeptPages(self._service, self._info.id, request)
        except LeaseLost as error:
            assert isinstance(source, Lease), "nobody else asks for a lease"
            source.lose(error)
            raise

    def _named(self, partition: str | Mapping[str, Any] | None, values: Mapping[str, Any]) -> str:
        """A partition, named by its values or as ``day=2026-11-15``."""
        columns = self._info.partition_columns
        if not columns:
            raise InvalidArgument(f"{self.name} has no partitions; create the table with partition_by=[...]")
        if isinstance(partition, str) and not values:
            return parse_partition(columns, partition)
        if isinstance(partition, str) or not (partition is None or isinstance(partition, Mapping)):
            raise InvalidArgument("name a partition by its values, day='2026-11-15', or as text, 'day=2026-11-15'")
        return partition_name(columns, {**(partition or {}), **values})

    def _write(self, write: Write, tag: PlainTag | None) -> PutResult:
        if tag is not None:
            check_tag(tag)
            return self._put(write, tag)
        with self._link.tags.borrow() as fresh:
            return self._put(write, fresh)

    def _put(self, write: Write, tag: PlainTag) -> PutResult:
        try:
            return PutResult(self._service.put(self._info.id, write, tag), tag)
        except KolkError as error:
            error.tag = tag
            raise

    def _put_fresh_stream(self, writes: Iterable[Write]) -> Iterator[PutResult]:
        with self._link.tags.borrow_many() as tags:
            yield from self._put_stream(writes, tags)

    def _put_stream(self, writes: Iterable[Write], tags: Iterator[PlainTag]) -> Iterator[PutResult]:
        waiting: deque[PlainTag] = deque()

        def tagged() -> Iterator[tuple[Write, PlainTag]]:
            for write in writes:
                waiting.append(next(tags))
                yield write, waiting[-1]

        try:
            # Closed within: those that are under way when nobody wants more are waited for, and may fail, too.
            with closing(self._service.puts(self._info.id, tagged())) as results:
                for offsets in results:
                    yield PutResult(offsets, waiting.popleft())
        except KolkError as error:
            error.tag = waiting[0] if waiting else next(tags, None)  # there is none after the last count
            raise

    def whole_key(self, key: Mapping[str, Any]) -> Schema:
        """The schema that this handle speaks, if these are all columns of its key and no others."""
        schema = self._keyed("look up")
        if set(key) != set(schema.primary_key):
            raise InvalidArgument(f"name the whole key: {', '.join(f'{name}=...' for name in schema.primary_key)}")
        return schema

    def _keyed(self, what: str) -> Schema:
        """The schema that this handle speaks, which must have a key."""
        schema = self.schema
        if not schema.primary_key:
            raise InvalidArgument(f"{self.name} is a log table; without a primary key there is nothing to {what} by")
        return schema


def _shown(schema: Schema, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """The columns of an answer; there is at least one."""
    names = named_columns(schema, columns)
    if names == ():
        raise InvalidArgument("columns names no column; leave it out to get all of them")
    return names


def _following(tag: PlainTag, place: int) -> PlainTag:
    return PlainTag(tag.writer, tag.seq + place)
