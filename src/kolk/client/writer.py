"""A writer that owns columns, for those who use it: what it writes is seen at once, and stands once it is committed.

``with table.writer(owner="job-1", columns=["pv"]) as w`` takes the columns, after what an earlier writer of that name
left uncommitted was taken back. ``w.put`` writes, ``w.commit`` lets what was written stand, and what is not committed
when the block ends, or when the process dies, is taken back: by the end of the block, or by whoever begins next. A job
that has decided elsewhere what stands leaves that to who begins next in any case: ``w.detach``.
"""

import json
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

from kolk.client.handle import Handle
from kolk.client.link import Link
from kolk.client.rows import Data
from kolk.client.writes import check_tag, delete_write, named_columns, put_write, targets_of
from kolk.errors import (
    Closed,
    CommitMismatch,
    CommitPointGone,
    Fenced,
    InvalidArgument,
    KolkError,
    LockExpired,
    OutcomeUnknown,
    OwnerRolledBack,
    OwnershipError,
    PartialPut,
    SchemaChanged,
    TableNotFound,
    TimedOut,
    Unreachable,
)
from kolk.model.durations import Duration, seconds_of
from kolk.model.ids import OwnerTag, PlainTag
from kolk.model.options import MergeMode
from kolk.model.owner import NO_EPOCH, Claim, OwnerRecord, UndoMode, check_epoch, check_owner, check_state
from kolk.model.schema import Schema
from kolk.model.write import Write
from kolk.runtime.ticker import Ticker

WRITER_TTL = "60s"
_TURNS = 3
_STATE_KEYS = {"owner", "table", "epoch", "columns", "undo"}


class Writer:
    """Writes as an owner of columns. Confined to one thread; its lock is renewed by another one.

    ``epoch`` is the one that is being written, one more than ``committed``, the last that stands (None: none yet).
    """

    def __init__(self, link: Link, table: Handle, claim: Claim) -> None:
        self._link = link
        self._table = table
        self._record = link.service.begin_owner(table.info.id, claim)
        self._check_columns(claim)
        self._epoch = self._record.committed + 1
        self._seq = 0
        self._seqs: dict[int, dict[str, int]] = {}
        self._unsure: tuple[int, int] | None = None
        self._lost: KolkError | None = None
        self._is_over, self._has_columns = False, True
        self._ticker = Ticker(
            partial(_turn, weakref.ref(self)),
            seconds=claim.ttl_seconds / _TURNS,
            clock=link.clock,
            name="kolk-writer",
        )
        self._unclosed = weakref.finalize(self, self._ticker.stop)
        self._unclosed.atexit = False
        self._ticker.start()

    @property
    def owner(self) -> str:
        """Its name."""
        return self._record.name

    @property
    def committed(self) -> int | None:
        """The last epoch that stands."""
        return None if self._record.committed == NO_EPOCH else self._record.committed

    @property
    def epoch(self) -> int:
        """The epoch that is being written."""
        return self._epoch

    @property
    def user_state(self) -> bytes:
        """What was committed with the last epoch: where the job had got to, say."""
        return self._record.state

    def put(
        self,
        data: Data,
        columns: Sequence[str] | None = None,
        mode: str = "accumulate",
        *,
        epoch: int | None = None,
        tag: PlainTag | None = None,
    ) -> dict[str, int]:
        """Write rows of the owner's columns, or of some of them; the answer is the end offsets by bucket.

        After a ``PartialPut``, or one whose outcome nobody knows, only the same put again, with ``tag=error.tag``, goes
        on: everything else would leave its rows once too often, or once too few.
        """
        schema = self._table.schema
        write = put_write(schema, data, targets_within(self._record, schema, columns), MergeMode.parse(mode))
        return self._write(write, epoch, tag)

    def delete(self, keys: Data, *, epoch: int | None = None, tag: PlainTag | None = None) -> dict[str, int]:
        """Let the owner's columns of these rows be null; a row with nothing left goes."""
        schema = self._table.schema
        write = delete_write(schema, keys, targets_within(self._record, schema, None), MergeMode.OVERWRITE)
        return self._write(write, epoch, tag)

    def commit(self, epoch: int | None = None, user_state: bytes = b"") -> None:
        """Let what was written stand, up to this epoch; the next one begins. ``user_state`` takes the place of what was
        committed before; an epoch that is committed already keeps the one it has. It is not too late when the time is
        up, as long as nobody has taken the writer's place."""
        self._check_open(is_commit=True)
        self._check_sure(None)
        epoch = self._epoch if epoch is None else check_epoch(epoch)
        check_state(user_state)
        record = self._record
        # Its answer is the truth: the epoch may be committed already, by a call whose answer was lost.
        self._record = self._link.service.commit_owner(
            self._table.info.id, record.number, record.fence, epoch, self._seqs.get(epoch, {}), user_state
        )
        self._epoch = max(self._epoch, epoch + 1)
        self._seqs = {each: seqs for each, seqs in self._seqs.items() if each > epoch}

    def state(self, epoch: int | None = None) -> str:
        """What another process needs to go on after this epoch, in JSON: see ``table.writer(state=...)``.

        By default that is the last commit. A job that keeps it in a checkpoint of its own names the epoch that the
        checkpoint decides about, once all of it is acknowledged, and before ``commit``: it stands then also if the
        commit is never made.
        """
        if epoch is not None:
            self._check_open(is_commit=True)
            self._check_sure(None)
            epoch = check_epoch(epoch)
            if epoch < self._record.committed:
                raise InvalidArgument(f"epoch {self.committed} is committed, so nobody goes on after {epoch} any more")
        record = self._record
        known = {
            "owner": record.name,
            "table": record.table,
            "epoch": self.committed if epoch is None else epoch,
            "columns": record.names(self._table.schema),
            "undo": record.undo.value,
        }
        return json.dumps(known)

    def close(self) -> None:
        """Take back what is not committed, and let the columns go. Idempotent; of a table that was dropped nothing is
        left to do."""
        self._end()
        is_ours = self._lost is None or isinstance(self._lost, LockExpired)  # then perhaps nobody took over
        if self._has_columns and is_ours:
            with suppress(TableNotFound):
                self._link.service.rest_owner(self._record.table, self._record.number, self._record.fence)
        self._has_columns = False  # if that failed it can be called again

    def detach(self) -> None:
        """Stop here, as if the process had died: nothing is taken back, nothing is let go, and the lock is not renewed
        any more. What is uncommitted is left to whoever begins next, whose ``resume_epoch`` decides. For jobs whose own
        checkpoint, or whose commit to another table, may have decided an epoch that is not committed here; closing
        would take that back. Idempotent, also after ``close``; nothing is left to do at the end of a block."""
        self._end()
        self._has_columns = False

    def release(self) -> None:
        """Close, and forget the owner with all that it has committed: the rows stay, its name begins anew."""
        self._end()
        record = self._record
        with suppress(TableNotFound):
            self._link.service.release_owner(record.table, record.name, record.fence, number=record.number)
        self._has_columns = False

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(KolkError):  # what went wrong before is told; what is left, whoever begins next takes back
            self.close()

    def __repr__(self) -> str:
        end = ", closed" if self._is_over else "" if self._lost is None else ", lost"
        return f"<kolk.Writer {self.owner!r} of {self._table.name}, epoch {self.epoch}{end}>"

    def turn(self) -> None:
        """Renew, as is due every third of its time. Called in the background."""
        if self._is_over or self._lost is not None:
            return
        try:
            self._link.service.renew_owner(self._table.info.id, self._record.number, self._record.fence)
        except OwnershipError as error:
            self._lost = error
        except KolkError:
            return  # the next turn tries again; the server decides whether it is too late

    def _end(self) -> None:
        self._is_over = True
        self._ticker.close()

    def _check_columns(self, claim: Claim) -> None:
        """Raise SchemaChanged, and let them go, if the columns are others than those that the handle has under these
        names: what is put into those would be passed over."""
        known = self._record.names(self._table.schema)
        if claim.columns is None or known is None or set(claim.columns) == set(known):
            return
        self._link.service.rest_owner(self._record.table, self._record.number, self._record.fence)
        raise SchemaChanged(
            f"columns of {self._table.name} were renamed, or made anew under their names; call table.refresh(), look at"
            " the schema, and begin again"
        )

    def _write(self, write: Write, epoch: int | None, retried: PlainTag | None) -> dict[str, int]:
        self._check_open()
        if retried is not None:
            check_tag(retried)
        self._check_sure(retried)
        epoch = self._epoch if epoch is None else check_epoch(epoch)
        if self._unsure is not None:
            epoch, seq = self._unsure
        else:
            self._seq = seq = self._seq + 1
        record = self._record
        self._unsure = (epoch, seq)
        try:
            ends = self._link.service.put_owned(
                self._table.info.id, write, OwnerTag(record.number, record.fence, 0, epoch, seq)
            )
        except PartialPut as error:
            for failed in error.failed.values():
                if isinstance(failed, Fenced | LockExpired):
                    self._lost = failed
            raise
        except (OutcomeUnknown, Unreachable, TimedOut) as error:
            error.tag = PlainTag(0, seq)
            raise
        except KolkError as error:
            self._unsure = None  # nothing was written anywhere
            if isinstance(error, Fenced | LockExpired | OwnerRolledBack):
                self._lost = error
            raise
        self._unsure = None
        self._epoch = max(self._epoch, epoch)
        if epoch > record.committed:
            self._seqs.setdefault(epoch, {}).update(dict.fromkeys(ends, seq))
        return ends

    def _check_sure(self, retried: PlainTag | None) -> None:
        """Raise if a put may be in some buckets and not in others, and this is not its retry."""
        seq = None if self._unsure is None else self._unsure[1]
        if (None if retried is None else retried.seq) == seq:
            return
        if seq is None:
            raise InvalidArgument("tag is that of a put that failed; the last one did not")
        raise CommitMismatch(
            f"put {seq} has failed, and may have arrived in some buckets: put it again with tag=error.tag, or begin"
            " again with another writer, which takes it back"
        )

    def _check_open(self, *, is_commit: bool = False) -> None:
        """Raise if this writer writes no more. Whether one whose time is up may commit, only the server knows."""
        if self._is_over:
            raise Closed("this writer was closed or detached; begin another one")
        if self._lost is not None and not (is_commit and isinstance(self._lost, LockExpired)):
            raise self._lost


def written(
    link: Link,
    table: Handle,
    owner: str | None,
    columns: Sequence[str] | None,
    ttl: Duration,
    *,
    state: str | None,
    resume_epoch: int | None,
    undo: str,
    stream: str,
    reset: bool,
) -> Writer:
    """A writer that has begun. A state says who, and up to where, and wins over what else is said of that; columns that
    are named win over those of the state, since a job may be changed between two runs."""
    if state is not None:
        known = _read_state(state)
        if known["table"] != table.info.id:
            raise InvalidArgument(
                f"this state is of another table than {table.name}, or of one before it was made anew"
            )
        owner, resume_epoch, undo = known["owner"], known["epoch"], known["undo"]
        columns = known["columns"] if columns is None else columns
    claim = Claim(
        owner=check_owner(owner),
        columns=named_columns(table.schema, columns),
        ttl_seconds=seconds_of(ttl, "ttl"),
        stream=stream,
        resume_epoch=None if resume_epoch is None else check_epoch(resume_epoch),
        undo=UndoMode.parse(undo),
        reset=reset,
    )
    writer = Writer(link, table, claim)
    if state is not None and resume_epoch is None and writer.committed is not None:
        writer.close()
        raise CommitPointGone(
            f"this state is from before the first commit of {writer.owner!r}, and {writer.committed} is committed here,"
            " which cannot be taken back; begin without a state, and go on after that"
        )
    return writer


def targets_within(record: OwnerRecord, schema: Schema, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """The columns that a write of an owner names, by default all that it has, under the names that they have in this
    schema. An owner of some columns names them also if they are all that there are, for by now there may be more."""
    own = record.names(schema)
    if own is None:
        return targets_of(schema, columns)
    if not own:
        raise InvalidArgument(f"the columns of {record.name!r} were all dropped; begin again with others")
    names = named_columns(schema, own if columns is None else columns) or ()
    return tuple(column.name for column in schema.value_columns if column.name in names)


def _read_state(state: str) -> Mapping[str, Any]:
    try:
        found = json.loads(state)
    except (TypeError, ValueError):
        found = None
    if not isinstance(found, dict) or not found.keys() >= _STATE_KEYS or not isinstance(found["undo"], str):
        raise InvalidArgument("state is what writer.state() gave, a JSON text")
    return found


def _turn(writer: "weakref.ref[Writer]") -> None:
    found = writer()
    if found is not None:
        found.turn()
