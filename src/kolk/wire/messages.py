"""The messages between client and server, as frozen values.

A message is ``u32 length of the head, head, zeros up to a multiple of 8, rows``: the head is one of the structs below,
in MessagePack; the rows are one Arrow record batch (``wire.rows``) or nothing. Heads are decoded against their types,
so what is no message of this protocol is refused here. Nothing is executed and nothing is decoded from the rows.

Requests with rows travel over a persistent exchange, in order, each with an answer; the others are single actions.
A changelog, and the rest of a large scan, are tickets: the first and only message of an exchange, answered by Flight
data, page by page, each with a ``Page`` as metadata.
"""

import struct
from typing import Annotated, Any, TypeVar

import msgspec
import pyarrow as pa

from kolk.errors import InvalidArgument, TooLarge
from kolk.model.ids import PlainTag
from kolk.model.partition import PartitionEvent
from kolk.model.scan import NONCE_LENGTH_MAX, Resumed
from kolk.wire.keeping import AboutKeeping, LeaseId
from kolk.wire.message import BucketNames, Message, Names, Number, Offset, OfWrite, Table, Version
from kolk.wire.owners import AboutOwners, PutOwned
from kolk.wire.transactions import AboutTransactions, Stage

PROTOCOL = 6
"""Raised when an older peer would misunderstand; both sides must have the same."""

HEAD_BYTES_MAX = 4 * 2**20
_LENGTH = struct.Struct("<I")
_ALIGNMENT = 8
T = TypeVar("T")

ScanId = Annotated[str, msgspec.Meta(max_length=64)]
Nonce = Annotated[str, msgspec.Meta(max_length=NONCE_LENGTH_MAX)]
PageBytes = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class Hello(Message, frozen=True, tag="hello"):
    """What a client says first."""

    protocol: int
    client: str = ""


class Status(Message, frozen=True, tag="status"):
    """How the server is."""


class ColumnText(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column as DDL writes it."""

    name: str
    type: str
    nullable: bool = True
    default: str | None = None
    agg: str | None = None


class CreateTable(Message, frozen=True, tag="create"):
    """Make a table."""

    name: str
    columns: Annotated[list[ColumnText], msgspec.Meta(max_length=1_600)]
    primary_key: Names = msgspec.field(default_factory=list)
    buckets: int = 1
    bucket_key: Names = msgspec.field(default_factory=list)
    partition_by: Names = msgspec.field(default_factory=list)
    options: dict[str, str] = msgspec.field(default_factory=dict)
    if_not_exists: bool = False


class GetTable(Message, frozen=True, tag="table"):
    """The table of this name."""

    name: str


class ListTables(Message, frozen=True, tag="tables"):
    """All tables that the caller may see."""


class DropTable(Message, frozen=True, tag="drop"):
    """Remove the table of this name, if it still is the one with this id."""

    name: str
    table: Table | None = None


class Change(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="do"):
    """The root of what an alter does."""


class AddColumn(Change, frozen=True, tag="add"):
    """See ``kolk.model.evolution``, as for those below."""

    column: ColumnText
    first: bool = False
    after: str | None = None


class DropColumn(Change, frozen=True, tag="drop"):
    """A column goes."""

    name: str


class RenameColumn(Change, frozen=True, tag="rename"):
    """A column gets another name."""

    name: str
    to: str


class WidenColumn(Change, frozen=True, tag="widen"):
    """A column gets a wider type."""

    name: str
    type: str


class MoveColumn(Change, frozen=True, tag="move"):
    """A column gets another place."""

    name: str
    first: bool = False
    after: str | None = None


class DropNotNull(Change, frozen=True, tag="drop_not_null"):
    """A column may be null."""

    name: str


Changes = AddColumn | DropColumn | RenameColumn | WidenColumn | MoveColumn | DropNotNull


class AlterTable(Message, frozen=True, tag="alter"):
    """Make the next version of a table's schema of the version that the client knows."""

    table: Table
    based_on: Version
    changes: Annotated[list[Changes], msgspec.Meta(max_length=1_600)]


class SetOptions(Message, frozen=True, tag="set_options"):
    """Set options of a table that exists."""

    table: Table
    options: dict[str, str]


class GetSchema(Message, frozen=True, tag="schema"):
    """A version of a table's schema; the answer is as the catalog keeps it."""

    table: Table
    schema_id: Version


class Truncate(Message, frozen=True, tag="truncate"):
    """Remove every row of a table."""

    table: Table


class Bounds(Message, frozen=True, tag="bounds"):
    """The start and end offsets of a table."""

    table: Table


class OffsetsAt(Message, frozen=True, tag="offsets_at"):
    """The offsets of a table at a time; if they are to be complete, null where changes since then may be gone."""

    table: Table
    timestamp_ms: Offset
    complete: bool = False


class Describe(Message, frozen=True, tag="describe"):
    """A table in plain values."""

    table: Table


class ListPartitions(Message, frozen=True, tag="partitions"):
    """The partitions of a table."""

    table: Table


class AddPartition(Message, frozen=True, tag="add_partition"):
    """Make a partition."""

    table: Table
    name: str
    if_not_exists: bool = False


class DropPartition(Message, frozen=True, tag="drop_partition"):
    """Remove the partition of this name, if it still is the one with this number."""

    table: Table
    name: str
    number: Table | None = None


class OpenFollower(Message, frozen=True, tag="open_follower"):
    """Begin to read in a follower's name, or go on. ``starts`` is for one that does not exist."""

    table: Table
    name: str
    reader: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    starts: dict[str, Offset] | None = None


class CommitFollower(Message, frozen=True, tag="commit_follower"):
    """How far a follower's reader has come."""

    table: Table
    name: str
    epoch: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    offsets: dict[str, Offset]


class DropFollower(Message, frozen=True, tag="drop_follower"):
    """Forget a follower."""

    table: Table
    name: str


class JoinScan(Message, frozen=True, tag="join_scan"):
    """What one must know of an open scan to read it."""

    scan: ScanId


class CloseScan(Message, frozen=True, tag="close_scan"):
    """End a scan of the caller, by its id or by the nonce that it was opened with; of an operator, anybody's."""

    scan: ScanId = ""
    nonce: Nonce = ""


class ListScans(Message, frozen=True, tag="scans"):
    """The open scans of tables that the caller may see."""


class ListFollowers(Message, frozen=True, tag="followers"):
    """The followers of the tables that the caller may see, those after a table's name and a follower's.

    An answer holds some of them; one that is empty is the end.
    """

    after: tuple[str, str] | None = None


AboutTables = (
    Hello
    | Status
    | CreateTable
    | GetTable
    | ListTables
    | DropTable
    | AlterTable
    | SetOptions
    | GetSchema
    | Truncate
    | Describe
    | ListPartitions
    | AddPartition
    | DropPartition
)
AboutReading = Bounds | OffsetsAt | OpenFollower | CommitFollower | DropFollower | ListFollowers
AboutScans = JoinScan | CloseScan | ListScans
Action = AboutTables | AboutReading | AboutScans | AboutKeeping | AboutTransactions | AboutOwners
"""Requests without rows, answered once."""


class Put(OfWrite, frozen=True, kw_only=True, tag="put"):
    """Rows to write."""

    writer: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    seq: Number

    @property
    def tag(self) -> PlainTag:
        """The write tag."""
        return PlainTag(int.from_bytes(self.writer, "big"), self.seq)


class Get(Message, frozen=True, tag="get"):
    """Look up the rows of some keys, or, with ``prefix``, of all keys that start with so many columns."""

    table: Table
    schema: bytes
    prefix: Annotated[int, msgspec.Meta(ge=0, le=32)] = 0
    names: Names | None = None
    schema_id: Version = 0


class OpenScan(Message, frozen=True, tag="open_scan"):
    """Open a scan, and answer with its first page; see ``kolk.model.scan.ScanRequest``.

    Made again with the same nonce it opens nothing, and answers the same.
    """

    table: Table
    page_bytes: PageBytes
    names: Names | None = None
    limit: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    where: str | None = None
    schema_id: Version = 0
    buckets: BucketNames | None = None
    nonce: Nonce = ""
    shared: bool = False
    ttl_seconds: float | None = None
    linger_seconds: float | None = None
    resume: str = ""
    source: str = "live"
    lease: LeaseId = ""
    generation: Number = 0
    pins: Annotated[dict[str, Number], msgspec.Meta(max_length=20_000)] | None = None
    position: Number | None = None


class NextPage(Message, frozen=True, tag="next_page"):
    """A page of an open scan. ``cursor`` names the reader, ``seq`` its calls: 0 begins, at the token or at the start;
    the last number again repeats the last page; the next one goes on."""

    scan: ScanId
    cursor: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    seq: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    page_bytes: PageBytes
    token: str = ""
    buckets: BucketNames | None = None


Call = Put | PutOwned | Get | OpenScan | NextPage | Stage
"""Requests with rows, or answers with rows, over an exchange."""


class ReadScan(Message, frozen=True, tag="read_scan"):
    """Stream what an open scan has after a token, or from its start on: all buckets, or some."""

    scan: ScanId
    token: str = ""
    buckets: BucketNames | None = None


class Follow(Message, frozen=True, tag="follow"):
    """Stream a table's changelog from these offsets on, each bucket up to its stop, for ever without one. ``where``, in
    SQL, chooses among the partitions.

    Everything in one version of the schema, or, without one, each page in the version that it was written with.
    """

    table: Table
    starts: dict[str, Offset]
    stops: dict[str, Offset | None]
    where: str | None = None
    schema_id: Version | None = None


Ticket = ReadScan | Follow
"""Requests that are answered by a stream of batches."""


class TableRecord(msgspec.Struct, frozen=True):
    """A table, as the catalog keeps it."""

    id: Table
    record: bytes


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The head of an answer: a result, or an error as ``wire.status`` writes it.

    A result is plain values, a record or a value of the model (a partition, a follower, a scan of a list), which is a
    map of its fields; ``as_record`` reads it back. A moment is MessagePack's own timestamp.
    """

    result: Any = None
    error: bytes | None = None


class ScanPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What stands beside the rows of a scan's page: which buckets they are of, where to go on, and whether it is the
    last. One with an event has no rows."""

    token: str
    runs: tuple[tuple[str, int], ...] = ()
    last: bool = False
    event: PartitionEvent | None = None


class ScanRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """An open scan, for its reader. Without an id there is nothing to read."""

    scan: str
    table: Table
    offsets: dict[str, int]
    schema_id: Version
    names: list[str] | None = None
    estimate: int | None = None
    resumed: Resumed | None = None
    first: ScanPart | None = None
    pins: dict[str, int] | None = None
    consistent: bool = True
    starts: dict[str, int] | None = None


class Page(msgspec.Struct, frozen=True, omit_defaults=True):
    """What stands beside a batch of a stream.

    Those of a scan have its part. Those of a changelog have the bucket, where it goes on, and the version of the
    schema. A stream of Flight has one schema: changes of another version stand here as ``rows``, an Arrow record batch
    message, beside an empty batch. One with an event stands beside nothing, and one without anything is only a sign of
    life.
    """

    part: ScanPart | None = None
    bucket: str | None = None
    next_offset: int = 0
    event: PartitionEvent | None = None
    schema_id: int = 0
    rows: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_actions = msgspec.msgpack.Decoder(Action)
_calls = msgspec.msgpack.Decoder(Call)
_tickets = msgspec.msgpack.Decoder(Ticket)
_answers = msgspec.msgpack.Decoder(Answer)
_pages = msgspec.msgpack.Decoder(Page)


def encode(head: msgspec.Struct) -> bytes:
    """A head alone."""
    return _encoder.encode(head)


def join(head: msgspec.Struct, rows: pa.Buffer | None = None) -> pa.Buffer:
    """A message for an exchange: a head and, perhaps, rows."""
    return framed(_encoder.encode(head), rows)


def framed(encoded: bytes, rows: pa.Buffer | None = None) -> pa.Buffer:
    """A message for an exchange, from the bytes of its head."""
    start = _LENGTH.size + len(encoded)
    if rows is None:
        return pa.py_buffer(_LENGTH.pack(len(encoded)) + encoded)
    return pa.py_buffer(b"".join((_LENGTH.pack(len(encoded)), encoded, bytes(-start % _ALIGNMENT), memoryview(rows))))


def split(message: pa.Buffer) -> tuple[memoryview, pa.Buffer]:
    """A message's head, still bytes, and its rows."""
    if message.size < _LENGTH.size:
        raise InvalidArgument("a message is cut off")
    (length,) = _LENGTH.unpack_from(message)
    if length > HEAD_BYTES_MAX:
        raise TooLarge(f"the head of a message has {length:,} bytes, more than {HEAD_BYTES_MAX:,}")
    start = _LENGTH.size + length
    if start > message.size:
        raise InvalidArgument("a message is cut off")
    rows = min(start + -start % _ALIGNMENT, message.size)
    return memoryview(message)[_LENGTH.size : start], message.slice(rows)


def decode_action(head: bytes | memoryview | pa.Buffer) -> Action:
    """A request without rows."""
    return _decode(_actions, head)


def decode_call(head: bytes | memoryview | pa.Buffer) -> Call:
    """A request with rows."""
    return _decode(_calls, head)


def decode_ticket(head: bytes | memoryview | pa.Buffer) -> Ticket:
    """A request for a stream."""
    return _decode(_tickets, head)


def decode_answer(head: bytes | memoryview | pa.Buffer) -> Answer:
    """The head of an answer; a server's may be long, as that with all tables is."""
    return _decode(_answers, head, limit=None)


def as_record(plain: Any, kind: type[T]) -> T:
    """A part of an answer, which is decoded as plain values, as what it is."""
    try:
        return msgspec.convert(plain, kind)
    except msgspec.ValidationError as error:
        raise _strange(error) from error


def decode_page(head: bytes | memoryview | pa.Buffer) -> Page:
    """What stands beside a batch of a stream; a server's, which may hold rows."""
    return _decode(_pages, head, limit=None)


def _decode(
    decoder: "msgspec.msgpack.Decoder[T]", head: bytes | memoryview | pa.Buffer, limit: int | None = HEAD_BYTES_MAX
) -> T:
    if limit is not None and len(head) > limit:
        raise TooLarge(f"the head of a message has {len(head):,} bytes, more than {HEAD_BYTES_MAX:,}")
    try:
        return decoder.decode(memoryview(head))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _strange(error) from error


def _strange(error: Exception) -> InvalidArgument:
    return InvalidArgument(f"this is no message of Kolk's protocol: {error}")
