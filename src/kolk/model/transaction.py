"""Transactions as values: what is staged, what a commit asks for, what is kept of it, and which version wins.

An application commits under its own name and a version that grows. Of each (application, table) only the greatest
version that was committed counts: the same again is a duplicate, a smaller one is old, and nothing of either is
applied. Everything here is pure; the engine does it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from kolk.errors import InvalidArgument, MixedVersions
from kolk.model.ids import BucketId, TableId
from kolk.model.names import plain_text
from kolk.model.options import MergeMode
from kolk.model.shown import shown
from kolk.model.write import Action

APP_LENGTH_MAX = 256
VERSION_MAX = 2**63 - 1
HANDLES_MAX = 10_000
PARTICIPANTS_MAX = 20_000
_HANDLE = re.compile(r"[0-9a-f]{32}")


class Verdict(Enum):
    """What became of a commit."""

    COMMITTED = "committed"
    DUPLICATE = "duplicate"
    """This version was committed before; that stands."""
    DUPLICATE_DIFFERENT = "duplicate-different"
    """The same, and what was committed then were other rows."""
    OLD = "old"
    """A later version was committed before."""


class Reaction(Enum):
    """What becomes of a verdict that a job may not expect: an answer, with which it goes on, or an error."""

    ANSWER = "answer"
    FAIL = "fail"

    @staticmethod
    def parse(option: str, word: object) -> "Reaction":
        """People write the word."""
        words = {reaction.value: reaction for reaction in Reaction}
        if not isinstance(word, str) or word not in words:
            raise InvalidArgument(f"{option} is one of {', '.join(words)}, not {word!r}"[:500])
        return words[word]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """What a handle stands for: rows of one write to one table, for one version of one application.

    ``columns`` are the target columns by id; None is all of them.
    """

    handle: str
    app: str
    version: int
    table: TableId
    schema_id: int
    action: Action = Action.UPSERT
    columns: tuple[int, ...] | None = None
    mode: MergeMode = MergeMode.ACCUMULATE
    principal: str = ""


@dataclass(frozen=True, slots=True)
class Seal:
    """What was staged under a handle, once nothing is added any more. The checksum does not depend on the order of
    rows, nor on how they were cut into handles: those of several are added."""

    rows: int
    bytes: int
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """A commit as it is asked for: the handles of each table, in the order in which they are merged."""

    app: str
    version: int
    handles: Mapping[TableId, Sequence[str]]
    truncates: frozenset[TableId] = frozenset()
    """Tables of which every row goes first."""
    checksum: int | None = None
    """Of the rows as they were before anything was made of them; else it is that of what was staged."""
    rows: int | None = None

    def __post_init__(self) -> None:
        check_app(self.app)
        check_version(self.version)
        handles = [handle for each in self.handles.values() for handle in each]
        if not self.handles:
            raise InvalidArgument("a commit names the tables that it is about, one at least")
        if len(handles) > HANDLES_MAX:
            raise InvalidArgument(f"a commit has at most {HANDLES_MAX:,} handles, this one has {len(handles):,}")
        if len(set(handles)) < len(handles):
            raise InvalidArgument("a commit names a handle twice")
        for handle in handles:
            check_handle(handle)

    @property
    def tables(self) -> tuple[TableId, ...]:
        """The tables, in order."""
        return tuple(sorted(self.handles))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """What is kept of a commit; that it is kept is the commit.

    ``bases`` are the buckets that take part, with the end of each log before it; ``ends`` are those after it, as far as
    they are known.
    """

    app: str
    version: int
    csn: int
    is_done: bool
    handles: Mapping[TableId, tuple[str, ...]]
    schemas: Mapping[TableId, int]
    truncates: frozenset[TableId]
    bases: Mapping[BucketId, int]
    timestamp_ms: int
    rows: int
    checksum: int
    ends: Mapping[BucketId, int] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[TableId, ...]:
        """The tables, in order."""
        return tuple(sorted(self.handles))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitResult:
    """The answer to a commit: the end offsets of the buckets that took part, by table."""

    verdict: Verdict
    offsets: Mapping[TableId, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionInfo:
    """A transaction as ``db.transactions()`` shows it. ``state`` is staging, sealed, pending or done.

    What is staged has its ``handles`` and whose they are; what is committed has the moment. ``problem`` is why one that
    is pending could not be finished yet.
    """

    app: str
    version: int
    tables: tuple[str, ...]
    state: str
    rows: int
    bytes: int | None = None
    timestamp_ms: int | None = None
    handles: tuple[str, ...] = ()
    principal: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionCounts:
    """What there is of transactions, and what became of those that were committed since the start."""

    handles: int = 0
    staged_bytes: int = 0
    apps: int = 0
    pending: int = 0
    committed: int = 0
    duplicates: int = 0
    different: int = 0
    """Those of the duplicates that had other rows."""
    old: int = 0


def last_version(records: Sequence[CommitRecord], table: TableId) -> int | None:
    """The greatest version of an application that a table has, pending or done; None if it has none."""
    return max((record.version for record in records if table in record.handles), default=None)


def latest_of(records: Sequence[CommitRecord], table: TableId) -> list[CommitRecord]:
    """What the applications have committed to one table last, as commits of that table alone, which are done."""
    last: dict[str, CommitRecord] = {}
    for record in records:
        if table in record.handles and (record.app not in last or record.version > last[record.app].version):
            last[record.app] = record
    return [
        replace(
            record,
            is_done=True,
            handles={table: ()},
            schemas={table: record.schemas[table]},
            truncates=frozenset(),
            bases={bucket: base for bucket, base in record.bases.items() if bucket.table == table},
            ends={bucket: end for bucket, end in record.ends.items() if bucket.table == table},
        )
        for record in last.values()
    ]


def judged(request: CommitRequest, records: Sequence[CommitRecord]) -> Verdict | None:
    """What becomes of a commit, given all records of its application; None if it is to be made."""
    lasts = [last_version(records, table) for table in request.tables]
    if all(last is None or request.version > last for last in lasts):
        return None
    if all(last == request.version for last in lasts):
        return Verdict.DUPLICATE
    if all(last is not None and request.version <= last for last in lasts):
        return Verdict.OLD
    raise MixedVersions(
        f"version {request.version} of {request.app!r} is new to some of the tables {list(request.tables)} and not to"
        f" others (they have {lasts}); nothing was done. Commit them by themselves, or with a greater version"
    )


def check_app(app: object) -> str:
    """The name of an application; InvalidArgument if it cannot be one."""
    if not isinstance(app, str) or not 1 <= len(app) <= APP_LENGTH_MAX or not app.isprintable():
        raise InvalidArgument(f"app_id is a text of 1 to {APP_LENGTH_MAX} printable characters, not {shown(app)}")
    return plain_text(app)


def check_version(version: object) -> int:
    """A version; InvalidArgument if it cannot be one."""
    if not isinstance(version, int) or isinstance(version, bool) or not 0 <= version <= VERSION_MAX:
        raise InvalidArgument(f"version is a whole number from 0 on, such as Spark's batch id, not {shown(version)}")
    return int(version)


def check_handle(handle: object) -> str:
    """A handle: it names a file, so it is nothing but what a uuid is."""
    if not isinstance(handle, str) or not _HANDLE.fullmatch(handle):
        raise InvalidArgument(f"a handle is 32 hexadecimal digits, not {handle!r}"[:200])
    return plain_text(handle)
