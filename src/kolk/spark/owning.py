"""Writes as an owner of columns, ``exactly-once=undo``: rows are seen while the batch runs, and taken back if it fails.

Every run of a batch has a token, made where Spark plans it; the first of its tasks to arrive takes back what an earlier
run has left, and the others join it. An attempt at a task writes under a ticket of its own, so that one that failed, or
runs twice, counts once (``kolk.client.tasks``). What a task leaves travels to the commit in its message, fence and all:
Spark plans, commits and aborts a batch with three different objects, in different processes. So nothing may be begun
where a writer is made: that would take back the very batch that it is to commit.

A task does not seal what it wrote. If something before it fails, Spark ends its input as if it were complete, and lets
the task itself know nothing of it: whoever seals then seals half of the rows, and the next attempt would be told that
all is done. Only the driver knows which attempts were whole, by the messages that it has. Until it commits, a copy of a
task may take the place of one that was through; then the commit is refused, and the batch runs again.

The batch of a query is its epoch, and the query is the stream of its owner. A batch that was committed and comes again
is not written, but read all the same: its commit has kept what it came to (``kolk.spark.accounts``), and other rows, or
those of other columns, must not vanish without a word.

All rows of a bucket must be in one task, which Spark does not do by itself: ``kolk.spark.by_bucket``. Refused: to
replace all rows, which is for a transaction, and a batch write that does not say which epoch it is.
"""

import logging
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from kolk.client.tasks import Left, TaskWriter
from kolk.errors import (
    BucketSplit,
    ColumnLockConflict,
    CommitPointGone,
    DifferentRows,
    EpochClosed,
    Fenced,
    InvalidArgument,
    KolkError,
    LockExpired,
    OwnerRolledBack,
    OwnershipError,
    StreamChanged,
)
from kolk.model.owner import NAME_LENGTH_MAX, UndoMode, check_epoch, check_owner
from kolk.model.schema import Schema
from kolk.model.transaction import Verdict
from kolk.runtime.rng import Rng
from kolk.spark.accounts import Account, total
from kolk.spark.connections import table, until_answered
from kolk.spark.frames import Frame
from kolk.spark.identity import Place
from kolk.spark.options import EVERY_BATCH, Options, replaces_first, version_of
from kolk.spark.verdicts import drops_old, fails_on_different, judge

_log = logging.getLogger(__name__)
_SCHEME = re.compile("[A-Za-z][A-Za-z0-9+.-]*:/")
_TTL = "5m"
"""Nobody renews a lock between two batches: it should outlast the time from one to the next."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a batch, as far as its driver knows it: who writes, and the token that its tasks have in common.

    ``epoch`` and ``stream`` are those of a batch write; of a stream, a task finds them where it stands. Whether none
    may be missing before it, ``is_gapless``, is known of streams and of what ``kolk.spark.sink`` writes; whoever calls
    ``foreachBatch`` may well leave some out.
    """

    owner: str
    attempt: str
    ttl_seconds: float
    undo: str
    is_gapless: bool
    epoch: int | None = None
    stream: str = ""

    def at(self, place: Place) -> "Run":
        """The run of the batch that a task is of; one whose epoch was told keeps it."""
        if self.epoch is not None:
            return self
        if place.query is None or place.batch is None:
            raise InvalidArgument(
                "Spark does not tell which query this is; write with kolk.spark.sink(..., exactly_once='undo')"
            )
        return replace(self, epoch=place.batch, stream=place.query)


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """What a task has written, and what that comes to; if the epoch was committed before, also what it came to then, as
    far as that is known."""

    left: Left
    account: Account
    before: Account | None = None


@dataclass(frozen=True, slots=True)
class PassedOver(WriterCommitMessage):
    """That a task has written nothing, since its epoch is older than what its owner has committed."""

    owner: str
    epoch: int


class OwnedStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``. Spark makes one for the tasks of every batch, and others to commit and to abort it."""

    def __init__(self, options: Options, frame: Frame, *, overwrite: bool) -> None:
        _check(options, frame, overwrite=overwrite)
        if options.text("txnVersion") is not None:
            raise InvalidArgument(
                "a stream has a version for each batch, its batch id: leave txnVersion out, or write with foreachBatch"
            )
        self._options = options
        self._frame = frame
        self._run = _run_of(options, _owner_of(options), is_gapless=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written | PassedOver:
        """In a task: write its rows, under the query and batch that Spark tells a task of."""
        return written(self._options, self._frame, self._run, Place.here(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: let stand what the tasks have written."""
        commit(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: take back what is not committed."""
        abandon(self._options, messages)


class OwnedWriter(DataSourceArrowWriter):
    """``df.write``, also within ``foreachBatch``: the options say which epoch it is, and of what."""

    def __init__(self, options: Options, frame: Frame, *, overwrite: bool) -> None:
        _check(options, frame, overwrite=overwrite)
        app, version = options.text("txnAppId"), options.text("txnVersion")
        owner = options.text("owner") or app
        if owner is None or version is None:
            raise InvalidArgument(
                "a batch write with exactly-once=undo says who writes, .option('owner', 'hourly-counts'), and which of"
                " its writes this is, .option('txnVersion', n): a number that grows, such as the batch id of"
                " foreachBatch or the run of a scheduler, and is the same when the write is tried again. Without such a"
                " number leave exactly-once out"
            )
        epoch = check_epoch(version_of(version, digits=18))
        self._options = options
        self._frame = frame
        run = _run_of(options, check_owner(owner), is_gapless=options.text(EVERY_BATCH) is not None)
        self._run = replace(run, epoch=epoch, stream=app or "")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written | PassedOver:
        """In a task: write its rows."""
        return written(self._options, self._frame, self._run, Place.here(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: let stand what the tasks have written."""
        commit(self._options, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: take back what is not committed."""
        abandon(self._options, messages)


def written(
    options: Options, frame: Frame, run: Run, place: Place, batches: Iterable[pa.RecordBatch]
) -> Written | PassedOver:
    """Write the rows of one attempt at one task. If they are not wanted, since another attempt has written them or an
    earlier run has committed them, they are read, to be compared."""
    run = run.at(place)
    assert run.epoch is not None
    with _explained(run.owner):
        try:
            task = _task(options, frame, run, place.partition)
        except CommitPointGone:
            if not drops_old(options):
                raise
            for _ in batches:  # Spark does not use a worker again that leaves its input unread
                pass
            return PassedOver(run.owner, run.epoch)
        with task:
            if run.is_gapless:
                _check_gap(run, task.committed)
            return _written(frame, run, task, batches)


def commit(options: Options, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Let an epoch stand. It is made again while the server does not answer: made twice it is the same. If an earlier
    run has made it, judge whether its rows were these."""
    old = next((each for each in messages if isinstance(each, PassedOver)), None)
    if old is not None:
        return judge(options, old.owner, old.epoch, Verdict.OLD)
    done = _done(messages)
    if not done:
        raise InvalidArgument("no task of this write has left what it wrote, so there is nothing to commit")
    lefts, account = [each.left for each in done], total([each.account for each in done])
    with _explained(lefts[0].owner):
        until_answered(options, lambda: table(options).commit_tasks(lefts, account.encoded()))
    before = done[0].before
    if before is not None and not before.is_like(account):
        judge(options, lefts[0].owner, account.epoch, Verdict.DUPLICATE_DIFFERENT)


def abandon(options: Options, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Take back what a run has not committed, if any of its tasks lived to say whose it is; if none did, the next run
    does it. Spark also calls this after a commit that raised: what that has committed stays. Whatever goes wrong here
    must not hide why the batch failed."""
    lefts = [each.left for each in _done(messages)]
    if not lefts:
        return
    try:
        table(options).abandon_tasks(lefts)
    except KolkError as error:
        _log.warning("what %r has not committed is taken back when it begins again: %s", lefts[0].owner, error)


def owner_of_checkpoint(location: str) -> str:
    """The name of the owner that a query is, if it has no other: its checkpoint, which is what makes it the same query
    when it starts again. Of a long one the end, which differs more; if two have the same, their queries do not."""
    return f"spark {_whole(location)}"[-NAME_LENGTH_MAX:]


def _whole(location: str) -> str:
    """The path of a checkpoint, in one spelling. One that is relative is of this folder if it is there, which it is by
    the time that a batch is planned; if not, Spark has another file system, and that another folder to begin in."""
    path = location.removeprefix("file://").removeprefix("file:")
    if _SCHEME.match(path):
        return path.rstrip("/")
    path = posixpath.normpath(path)
    return os.path.abspath(path) if os.path.isdir(path) else path


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [each for each in messages if isinstance(each, Written)]


def _check(options: Options, frame: Frame, *, overwrite: bool) -> None:
    # A word that nobody knows is told now, and not by a commit that has been made.
    drops_old(options)
    fails_on_different(options)
    if overwrite or replaces_first(options):
        raise InvalidArgument(
            "exactly-once=undo writes rows one by one, while mode('overwrite'), the output mode complete and"
            " new-query=replace put them in the place of all others, which is done in one transaction: leave"
            " exactly-once out"
        )
    if frame.info.is_log:
        raise InvalidArgument(
            f"{frame.info.name} is a log table, which has no columns to own and nothing to take back: leave"
            " exactly-once out"
        )


def _owner_of(options: Options) -> str:
    owner, location = options.text("owner") or options.text("txnAppId"), options.text("checkpointlocation")
    if owner is not None:
        return check_owner(owner)
    if location is None:
        raise InvalidArgument(
            "exactly-once=undo locks columns in the name of an owner, which is the same when the query starts again:"
            " .option('owner', 'hourly-counts'), or .option('checkpointLocation', ...), which names it as well. (One"
            " that is in the settings of Spark is not told to sinks.)"
        )
    return check_owner(owner_of_checkpoint(location))


def _run_of(options: Options, owner: str, *, is_gapless: bool) -> Run:
    return Run(
        owner=owner,
        attempt=Rng().token_hex(),
        ttl_seconds=options.seconds("lock-ttl", _TTL),
        undo=options.choice("undo", [mode.value for mode in UndoMode]),
        is_gapless=is_gapless,
    )


def _task(options: Options, frame: Frame, run: Run, partition: int) -> TaskWriter:
    assert run.epoch is not None
    return table(options).task(
        run.owner,
        frame.targets,
        run.ttl_seconds,
        attempt=run.attempt,
        epoch=run.epoch,
        partition=partition,
        undo=run.undo,
        stream=run.stream,
    )


def _written(frame: Frame, run: Run, task: TaskWriter, batches: Iterable[pa.RecordBatch]) -> Written:
    assert run.epoch is not None
    account = Account.of(frame, run.epoch)
    before = Account.decoded(task.user_state, run.epoch) if task.is_through else None
    if before is not None and before.columns != account.columns:
        raise _different_columns(run.owner, frame.schema, account, before)
    for sent, given in frame.writes(batches):
        task.write(sent)
        account = account.plus(frame, given)
    return Written(task.leave(), account, before)


def _check_gap(run: Run, committed: int | None) -> None:
    """A query writes every batch of its own, one after the other: if some are missing, they are lost."""
    assert run.epoch is not None
    if committed is not None and committed + 1 < run.epoch:
        raise OwnerRolledBack(
            f"the query is at batch {run.epoch}, and {committed} is the last that {run.owner!r} has committed here: the"
            " table was restored from a backup that is older than the query's checkpoint, or the query has written"
            " elsewhere meanwhile. Load what is missing; then `kolk lock release` lets the query go on from its batch"
        )


def _different_columns(owner: str, schema: Schema, account: Account, before: Account) -> DifferentRows:
    """One owner has one write for each of its epochs: a second one is not told from the first that comes again."""

    def named(ids: tuple[int, ...]) -> str:
        return ", ".join(schema.by_id[id].name if id in schema.by_id else "(dropped)" for id in ids) or "none"

    return DifferentRows(
        f"version {account.epoch} of {owner!r} was committed with the columns {named(before.columns)}, and comes again"
        f" with {named(account.columns)}; nothing of it was written. An owner has one write for each version: give a"
        " write of other columns an owner of its own, .option('owner', ...). If the query was changed to write other"
        " columns in the middle of a batch, let it end that batch with those that it had"
    )


_ADVICE: dict[type[OwnershipError], str] = {
    BucketSplit: "Bring the rows of each bucket into one task, with kolk.spark.by_bucket(df, table) as the last step"
    " before the write; kolk.spark.sink does it by itself",
    StreamChanged: "A query with a new checkpoint begins at batch 0, which this owner has long committed. Give the new"
    " query an owner of its own, .option('owner', ...); or, if it is to begin anew in this one's place, forget that"
    " once with `kolk lock release`",
    ColumnLockConflict: "One owner writes a column at a time. Let this query write other columns, .option('columns',"
    " ...), or stop the other one and wait until its lock-ttl has passed",
    LockExpired: "Its tasks did not come to renew it for too long. Start the query again; if it happens often, let"
    " .option('lock-ttl', ...) be longer",
    CommitPointGone: "Go on from the newest checkpoint; or, if what this one has to write is in the table, pass over"
    " it with .option('txn.on-old', 'drop'); or, to begin anew, give the query another owner and another checkpoint",
    EpochClosed: "Start the query again",
    Fenced: "A newer run of the query goes on, and this one is over: is it running twice? If not, start it again",
}


@contextmanager
def _explained(owner: str) -> Iterator[None]:
    """What became of an owner, with its name and what to do about it: all that is seen of it is the text."""
    try:
        yield
    except OwnershipError as error:
        advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), "")
        if not advice:
            raise
        raise type(error)(f"{owner!r} cannot write: {error}. {advice}") from error
