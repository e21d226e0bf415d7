"""A task of an owner: one of many processes that write an epoch together, each of which may fail and be tried again.

An engine such as Spark cuts an epoch into tasks, runs each of them somewhere, some of them twice, and says at the end
which attempts count. ``with table.task(...) as task`` is such an attempt. Its rows are seen at once. What it leaves, a
``Left``, travels to whoever commits; a task that is through already, or whose epoch was committed by an earlier run,
says so and wants no rows. An attempt that fails needs no care: the next one takes back what it wrote, and if there is
none, the commit does, or the next run. A task that knows that it had all its rows ends with ``seal``: then it stays,
whoever tries it again. One that cannot know, as in Spark, ends with ``leave``, and stays once it is committed.

Nothing here decides what counts: the engine does, by the ``Left`` that it commits with. The rows of a bucket must all
come in one task, or ``BucketSplit`` says so.
"""

import json
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import TracebackType

from kolk.client.handle import Handle
from kolk.client.link import Link
from kolk.client.rows import Data
from kolk.client.service import Service
from kolk.client.writer import targets_within
from kolk.client.writes import put_write
from kolk.errors import (
    BucketSplit,
    Closed,
    CommitMismatch,
    CommitPointGone,
    EpochClosed,
    InvalidArgument,
    KolkError,
    OwnershipError,
    PartialPut,
    TableNotFound,
    TooLarge,
)
from kolk.model.ids import OwnerTag, TableId
from kolk.model.options import MergeMode
from kolk.model.owner import MESSAGE_BYTES_MAX, NO_EPOCH, Claim, OwnerRecord, check_epoch
from kolk.model.write import Write, empty_write
from kolk.runtime.ticker import Ticker

_TURNS = 3
_ROWS_MAX = 100_000
_BYTES_MAX = 8 * 2**20
"""About how much is put at once: a message holds 64 MiB, and the values of some rows may be much longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What an attempt at a task leaves for the commit of its epoch: under which fence and ticket it has written, and
    its last put in each bucket. Without a ticket it has written nothing. Plain values; it may be pickled."""

    table: TableId
    owner: str
    number: int
    fence: int
    epoch: int
    partition: int
    ticket: int = 0
    rows: int = 0
    seqs: Mapping[str, int] = field(default_factory=dict[str, int])
    is_sealed: bool = True
    """Whether the attempt itself knew that it is through; if not, whoever commits does."""

    def encoded(self) -> bytes:
        """For the server, which keeps it for whoever tries the task again."""
        message = zlib.compress(json.dumps(asdict(self)).encode())
        if len(message) > MESSAGE_BYTES_MAX:
            raise TooLarge(
                f"a task has written to {len(self.seqs):,} buckets, more than what it leaves can name; let it write to"
                " fewer partitions of the table at once"
            )
        return message

    @staticmethod
    def decoded(message: bytes) -> "Left":
        """The other way round."""
        return Left(**json.loads(zlib.decompress(message)))


class TaskWriter:
    """Writes as one attempt at a task. Confined to one thread; the lock is renewed by another one.

    ``committed`` is the last epoch of its owner that stands (None: none yet).
    """

    def __init__(self, link: Link, table: Handle, claim: Claim, epoch: int, partition: int) -> None:
        self._link = link
        self._table = table
        self._epoch = check_epoch(epoch)
        self._partition = partition
        if not claim.attempt:
            raise InvalidArgument("attempt is the token of the run that a task is of, the same for all its tasks")
        self._ticket = 0
        self._seq = 0
        self._rows = 0
        self._seqs: dict[str, int] = {}
        self._record = link.service.begin_owner(table.info.id, claim)
        self._left = self._of_earlier_run(self._record)
        self._has_failed = False
        self._is_over = False
        self._ticker = Ticker(
            partial(_turn, weakref.ref(self)), seconds=claim.ttl_seconds / _TURNS, clock=link.clock, name="kolk-task"
        )
        self._unclosed = weakref.finalize(self, self._ticker.stop)
        self._unclosed.atexit = False
        self._ticker.start()

    @property
    def committed(self) -> int | None:
        """The last epoch of its owner that stands, as of the beginning of this attempt."""
        return None if self._record.committed == NO_EPOCH else self._record.committed

    @property
    def user_state(self) -> bytes:
        """What was committed with that epoch."""
        return self._record.state

    @property
    def is_through(self) -> bool:
        """Whether there is nothing to write any more: another attempt has done it, or an earlier run."""
        return self._left is not None

    def put(self, data: Data, columns: Sequence[str] | None = None, mode: str = "accumulate") -> bool:
        """Write rows of the owner's columns, or of some of them; False if none are wanted any more."""
        schema = self._table.schema
        targets = targets_within(self._record, schema, columns)
        return self.write(put_write(schema, data, targets, MergeMode.parse(mode)))

    def write(self, write: Write) -> bool:
        """The same of a write that is made already. The attempt begins with its first row: one that has none is no
        trouble to anybody."""
        self._check_open()
        if self._left is None and not self._ticket:
            self._begin()
        if self._left is not None:
            return False
        self._has_failed = True  # until it has not: which rows have arrived, nobody would know
        for piece in _pieces(write):
            self._seq += 1
            self._put(piece)
        self._has_failed = False
        return True

    def leave(self) -> Left:
        """What was written, for those who cannot know that it is all: an engine may end the input of a task that fails
        as if it were complete. It counts if the engine names it in the commit; until then another attempt may take its
        place. Fenced if one has."""
        self._check_open()
        record = self._record
        if self._left is not None:
            return self._left
        if self._ticket:
            tag = OwnerTag(record.number, record.fence, self._ticket, self._epoch, self._seq)
            self._link.service.put_owned(record.table, empty_write(self._table.schema), tag)
        return self._made(is_sealed=False)

    def seal(self) -> Left:
        """Let what was written be what this task leaves, whoever tries it again: for those who know that it is all.
        Idempotent."""
        self._check_open()
        record = self._record
        if self._left is None:
            left = self._made()
            if self._ticket:
                self._link.service.seal_task(
                    record.table, record.number, record.fence, self._partition, self._ticket, left.seqs, left.encoded()
                )
            self._left = left
        return self._left

    def close(self) -> None:
        """Stop here. What is not sealed is left to the next attempt, or to the commit, which take it back.
        Idempotent."""
        self._is_over = True
        self._ticker.close()

    def __enter__(self) -> "TaskWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def turn(self) -> None:
        """Renew, as is due every third of its time. Called in the background. Whether it was too late, the next put is
        told."""
        if not self._is_over:
            with suppress(KolkError):
                self._link.service.renew_owner(self._record.table, self._record.number, self._record.fence)

    def _of_earlier_run(self, record: OwnerRecord) -> Left | None:
        """What there is to commit if all of the epoch was committed by an earlier run, which nobody has heard of."""
        if self._epoch > record.committed:
            return None
        if record.fence == record.committed_fence:
            raise EpochClosed(f"epoch {self._epoch} of {record.name!r} was committed, without this attempt at a task")
        if self._epoch < record.committed:
            raise CommitPointGone(
                f"{record.name!r} is to write epoch {self._epoch}, but {record.committed} is committed here, which"
                " cannot be taken back: an older checkpoint was restored, or somebody else went on in its name"
            )
        return self._made()

    def _made(self, *, is_sealed: bool = True) -> Left:
        return Left(
            table=self._record.table,
            owner=self._record.name,
            number=self._record.number,
            fence=self._record.fence,
            epoch=self._epoch,
            partition=self._partition,
            ticket=self._ticket,
            rows=self._rows,
            seqs=dict(self._seqs),
            is_sealed=is_sealed,
        )

    def _begin(self) -> None:
        record = self._record
        task = self._link.service.begin_task(record.table, record.number, record.fence, self._epoch, self._partition)
        if task.message is None:
            self._ticket = task.ticket
        else:
            self._left = Left.decoded(task.message)

    def _put(self, write: Write) -> None:
        record = self._record
        tag = OwnerTag(record.number, record.fence, self._ticket, self._epoch, self._seq)
        try:
            ends = self._link.service.put_owned(record.table, write, tag)
        except PartialPut as error:
            # What became of its owner matters more than which of its buckets were quicker.
            decisive = [each for each in error.failed.values() if isinstance(each, OwnershipError)]
            raise decisive[0] if decisive else error from error
        self._seqs.update(dict.fromkeys(ends, self._seq))
        self._rows += write.rows.num_rows

    def _check_open(self) -> None:
        if self._is_over:
            raise Closed("this attempt at a task is over; begin another one")
        if self._has_failed:
            raise CommitMismatch("a put of this attempt has failed, so it cannot be sealed; try the task again")


def commit_tasks(service: Service, lefts: Sequence[Left], user_state: bytes = b"") -> None:
    """Let an epoch stand: what these attempts have written, and nothing else of it. Made again it changes nothing."""
    first = _of_one_run(lefts)
    tasks: dict[str, tuple[int, int]] = {}
    for left in lefts:
        for bucket, seq in left.seqs.items():
            if bucket in tasks:
                raise BucketSplit(f"two tasks of {left.owner!r} name bucket {bucket}; commit each of them once")
            tasks[bucket] = (left.ticket, seq)
    unsealed = not all(left.is_sealed for left in lefts)
    service.commit_tasks(first.table, first.number, first.fence, first.epoch, tasks, user_state, unsealed=unsealed)


def abandon_tasks(service: Service, lefts: Sequence[Left]) -> None:
    """Take back what is not committed of the run that these attempts are of, if it is still the newest one, and let its
    columns go. What is committed stays, also if the commit was not heard of. Of a table that is gone nothing is
    left."""
    first = _of_one_run(lefts)
    with suppress(TableNotFound):
        service.rest_owner(first.table, first.number, first.fence)


def _of_one_run(lefts: Sequence[Left]) -> Left:
    if not lefts:
        raise InvalidArgument("give what the tasks have left, of one at least: it says whose epoch this is")
    runs = {(left.table, left.number, left.fence, left.epoch) for left in lefts}
    if len(runs) > 1:
        raise CommitMismatch(
            f"tasks of different runs of {lefts[0].owner!r} are to be committed together, and only what the newest has"
            " written is there; run all of it again"
        )
    return lefts[0]


def _pieces(write: Write) -> Iterator[Write]:
    """A write in pieces that are neither too many rows nor too large. One without rows has no piece."""
    rows = write.rows
    if not rows.num_rows:
        return
    size = min(_ROWS_MAX, max(rows.num_rows * _BYTES_MAX // max(rows.nbytes, 1), 1))
    for start in range(0, rows.num_rows, size):
        piece = rows.slice(start, size)
        if 1 < piece.num_rows < rows.num_rows and piece.nbytes > 2 * _BYTES_MAX:  # some values are much longer
            yield from _pieces(replace(write, rows=piece))
        else:
            yield replace(write, rows=piece)


def _turn(task: "weakref.ref[TaskWriter]") -> None:
    found = task()
    if found is not None:
        found.turn()
