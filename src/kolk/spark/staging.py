"""Writes by transactions, ``exactly-once=transaction``: tasks stage their rows, and a commit applies them, all or none.

A task stages under a handle of its own and seals it; only handles whose messages come to the commit count, so that
neither retries nor speculation nor tasks that nobody waits for any more leave anything behind. A commit is known by the
name and version of its writer: for a stream the query's id and the batch's, which are the same whenever Spark runs a
batch again; for a batch write a name drawn at random, or what the options say, so that a scheduler may run it again.

What runs where is Spark's choice, and each of these is another object in another process: ``write`` in the tasks, once
for every attempt; ``commit`` and ``abort`` on the driver. Identity therefore travels in the messages. ``abort`` is also
called after a commit that raised, whose outcome nobody knows: it forgets handles, which the server refuses for those
that a commit names.

A query with a new checkpoint is a new one, and reads again what an earlier one has written. With ``new-query=replace``
its first batch truncates the table in the transaction that loads it, so that sums are not doubled; that batch is the
first one whenever it is run again, and counts once as any other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kolk.client.link import Link
from kolk.client.staging import StagedWrites, discard
from kolk.codec.checksum import added
from kolk.errors import InvalidArgument
from kolk.model.ids import TableId
from kolk.model.transaction import HANDLES_MAX, CommitRequest, CommitResult, check_app, check_version
from kolk.runtime.rng import Rng
from kolk.spark.connections import database, until_answered
from kolk.spark.frames import Frame
from kolk.spark.identity import Place
from kolk.spark.options import Options, replaces_first, version_of
from kolk.spark.verdicts import judge


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose write it is, and which one: what a commit is known by."""

    app: str
    version: int

    @staticmethod
    def of_query(query: str, batch: int) -> "Identity":
        """That of a batch of a streaming query. Its name is not that of a write that is made once: it is remembered
        for as long as a query may stand still."""
        return Identity(f"spark-query-{query}", batch)


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What a task has staged. ``rows`` and ``checksum`` are of the rows as Spark gave them, whatever was made of them:
    they are the same when the batch comes again, however it is cut then."""

    identity: Identity
    table: TableId
    partition: int
    handles: tuple[str, ...] = ()
    rows: int = 0
    checksum: int = 0


class StagedWriter(DataSourceArrowWriter):
    """``df.write``. One object, pickled to the tasks, so that its name is drawn where it is made."""

    def __init__(self, options: Options, frame: Frame, *, overwrite: bool) -> None:
        _check_replacing(options, frame, overwrite=overwrite)
        self._options = options
        self._frame = frame
        self._overwrite = overwrite
        self._identity = _of_batch_write(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: stage its rows."""
        return stage(_link(self._options), self._frame, self._identity, Place.here().partition, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: apply what all tasks have staged."""
        commit(self._options, messages, truncates=self._overwrite)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: forget what was staged."""
        forget(self._options, messages)


class StagedStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``. Spark makes one for the tasks of every batch, and others to commit and to abort it."""

    def __init__(self, options: Options, frame: Frame, *, overwrite: bool) -> None:
        _check_replacing(options, frame, overwrite=overwrite)
        if options.text("txnVersion") is not None:
            raise InvalidArgument(
                "a stream has a version for each batch, its batch id: leave txnVersion out, or write with foreachBatch"
            )
        if options.text("txnAppId") is not None and replaces_first(options):
            raise InvalidArgument(
                "with a txnAppId a query with a new checkpoint is not a new one, so new-query=replace would never"
                " replace anything: leave one of them out"
            )
        self._options = options
        self._frame = frame
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: stage its rows, under the query and batch that Spark tells a task of."""
        return self.write_at(Place.here(), iterator)

    def write_at(self, place: Place, batches: Iterable[pa.RecordBatch]) -> Staged:
        """The same, in a task that stands there."""
        if place.query is None or place.batch is None:
            raise InvalidArgument("Spark does not say which query this is: write with kolk.spark.sink(..., app_id=...)")
        app = self._options.text("txnAppId")
        identity = Identity.of_query(place.query, place.batch)
        if app is not None:
            identity = Identity(check_app(app), place.batch)
        return stage(_link(self._options), self._frame, identity, place.partition, batches)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: apply what all tasks have staged, once for this batch."""
        commit(self._options, messages, truncates=self._overwrite)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: forget what was staged."""
        forget(self._options, messages)


def stage(link: Link, frame: Frame, identity: Identity, partition: int, batches: Iterable[pa.RecordBatch]) -> Staged:
    """Stage the rows of one attempt of one task; without rows there is nothing to stage."""
    table, schema = frame.info.id, frame.schema
    staged: StagedWrites | None = None
    rows = checksum = 0
    try:
        for sent, given in frame.writes(batches):
            if staged is None:
                _check_partition(partition)
                staged = StagedWrites.begin(link, identity.app, identity.version, table, schema, sent)
            staged.add(sent.rows)
            rows += given.rows.num_rows
            if sent is not given:
                checksum = added(checksum, frame.checksum(given))
        if staged is None:
            return Staged(identity, table, partition)
        seal = staged.seal()
    except BaseException:
        if staged is not None:
            staged.close()
            discard(link, [staged.handle])
        raise
    # Of rows that were sent as they are, the server's checksum is the same.
    return Staged(identity, table, partition, (staged.handle,), rows, checksum or seal.checksum)


def commit(options: Options, messages: Sequence[WriterCommitMessage | None], *, truncates: bool) -> CommitResult:
    """Apply what the tasks have staged, in the order of their partitions, and judge the answer."""
    staged = sorted((each for each in messages if isinstance(each, Staged)), key=lambda each: each.partition)
    if len({(each.identity, each.table) for each in staged}) != 1:
        raise InvalidArgument("the tasks of this write do not belong together; nothing was written")
    identity, table = staged[0].identity, staged[0].table
    checksum = 0
    for each in staged:
        checksum = added(checksum, each.checksum)
    request = CommitRequest(
        app=identity.app,
        version=identity.version,
        handles={table: tuple(handle for each in staged for handle in each.handles)},
        truncates=frozenset([table] if truncates or (identity.version == 0 and replaces_first(options)) else []),
        rows=sum(each.rows for each in staged),
        checksum=checksum,
    )
    result = until_answered(options, lambda: _link(options).service.commit_transaction(request))
    judge(options, identity.app, identity.version, result.verdict)
    return result


def forget(options: Options, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Drop what was staged by a write that failed; what is committed stays."""
    discard(_link(options), [handle for each in messages if isinstance(each, Staged) for handle in each.handles])


def _check_replacing(options: Options, frame: Frame, *, overwrite: bool) -> None:
    """What cannot take the place of all rows, found before anything is staged. Columns that are all named are all."""
    if not (overwrite or replaces_first(options)):
        return
    if frame.info.is_log:
        raise InvalidArgument(
            f"{frame.info.name} is a log table, which keeps every row, so mode('overwrite'), the output mode complete"
            " and new-query=replace cannot put others in their place: append; table.truncate() empties it"
        )
    if frame.targets is not None:
        left = [column.name for column in frame.schema.value_columns if column.name not in frame.targets]
        raise InvalidArgument(
            "mode('overwrite'), the output mode complete and new-query=replace put whole rows in the place of all that"
            f" are there, so what {', '.join(left)} hold{'s' if len(left) == 1 else ''} would be lost, while the option"
            " 'columns' is to keep it: append, which changes the named columns of the rows that are given, or leave"
            " 'columns' out"
        )


def _of_batch_write(options: Options) -> Identity:
    app, version = options.text("txnAppId"), options.text("txnVersion")
    if version is None and replaces_first(options):
        raise InvalidArgument("new-query is for streams; of a batch write, mode('overwrite') replaces all rows")
    if app is None and version is None:
        return Identity(Rng().token_hex(), 0)
    if app is None or version is None:
        raise InvalidArgument("a version is one of a name: give both txnAppId and txnVersion, or neither")
    return Identity(check_app(app), check_version(version_of(version, digits=19)))


def _check_partition(partition: int) -> None:
    """Found by the task rather than after hours by the commit."""
    if partition >= HANDLES_MAX:
        raise InvalidArgument(
            f"the frame has more than {HANDLES_MAX:,} partitions, which one commit cannot name;"
            f" write df.coalesce({HANDLES_MAX // 10:,}), or less"
        )


def _link(options: Options) -> Link:
    return database(options).link
