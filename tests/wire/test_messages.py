"""Messages as bytes: what is encoded is decoded, and what is no message is refused with a name."""

import contextlib
import datetime

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.errors import InvalidArgument, InvalidInput, TooLarge
from kolk.model.follower import Follower, FollowerState, Session
from kolk.model.lease import LeaseInfo
from kolk.model.lease_state import LeasedTable, LeaseState
from kolk.model.owner import OwnerInfo, OwnerRecord, Task, UndoMode
from kolk.model.partition import Partition, PartitionEvent, PartitionEventKind
from kolk.model.scan import Resumed, ScanInfo
from kolk.model.snapshot import SnapshotInfo
from kolk.wire import keeping as k
from kolk.wire import messages as m
from kolk.wire import owners as o
from kolk.wire import transactions as t

INT64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.integers(0, 2**63 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
NAMES = st.lists(TEXTS, max_size=5)
WRITERS = st.binary(min_size=16, max_size=16)
SCAN_IDS = st.text(st.characters(codec="utf-8"), max_size=64)
PAGE_BYTES = st.integers(1, 2**31 - 1)
BUCKETS = st.none() | st.lists(TEXTS, max_size=4)
OFFSETS = st.dictionaries(TEXTS, INT64, max_size=4)
MOMENTS = st.datetimes(timezones=st.just(datetime.UTC))

LEASE_IDS = st.text(st.characters(codec="utf-8"), max_size=128)
PINS = st.dictionaries(TEXTS, IDS, max_size=4)
VERSIONS = st.integers(0, 65_535)
COLUMNS = st.builds(
    m.ColumnText, name=TEXTS, type=TEXTS, nullable=st.booleans(), default=st.none() | TEXTS, agg=st.none() | TEXTS
)
APPS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=256)
HANDLES = st.text("0123456789abcdef", min_size=32, max_size=32)
OF_HANDLE = {
    "handle": HANDLES,
    "app": APPS,
    "version": IDS,
    "table": IDS,
    "schema_id": VERSIONS,
    "action": TEXTS,
    "columns": st.none() | st.lists(IDS, max_size=4),
    "mode": TEXTS,
}
OF_OWNER = {"table": IDS, "number": IDS, "fence": IDS}

ACTIONS = st.one_of(
    st.builds(m.Hello, protocol=INT64, client=TEXTS),
    st.builds(m.Status),
    st.builds(
        m.CreateTable,
        name=TEXTS,
        columns=st.lists(COLUMNS, max_size=4),
        primary_key=NAMES,
        buckets=INT64,
        bucket_key=NAMES,
        options=st.dictionaries(TEXTS, TEXTS, max_size=4),
        if_not_exists=st.booleans(),
    ),
    st.builds(m.GetTable, name=TEXTS),
    st.builds(m.ListTables),
    st.builds(m.DropTable, name=TEXTS, table=st.none() | IDS),
    st.builds(
        m.AlterTable,
        table=IDS,
        based_on=VERSIONS,
        changes=st.lists(
            st.one_of(
                st.builds(m.AddColumn, COLUMNS, first=st.booleans(), after=st.none() | TEXTS),
                st.builds(m.DropColumn, TEXTS),
                st.builds(m.RenameColumn, TEXTS, TEXTS),
                st.builds(m.WidenColumn, TEXTS, TEXTS),
                st.builds(m.MoveColumn, TEXTS, first=st.booleans(), after=st.none() | TEXTS),
                st.builds(m.DropNotNull, TEXTS),
            ),
            max_size=3,
        ),
    ),
    st.builds(m.SetOptions, table=IDS, options=st.dictionaries(TEXTS, TEXTS, max_size=3)),
    st.builds(m.GetSchema, table=IDS, schema_id=VERSIONS),
    st.builds(m.Truncate, table=IDS),
    st.builds(m.Bounds, table=IDS),
    st.builds(m.OffsetsAt, table=IDS, timestamp_ms=INT64),
    st.builds(m.Describe, table=IDS),
    st.builds(m.ListPartitions, table=IDS),
    st.builds(m.AddPartition, table=IDS, name=TEXTS, if_not_exists=st.booleans()),
    st.builds(m.DropPartition, table=IDS, name=TEXTS, number=st.none() | IDS),
    st.builds(m.ListFollowers, after=st.none() | st.tuples(TEXTS, TEXTS)),
    st.builds(m.JoinScan, scan=SCAN_IDS),
    st.builds(m.CloseScan, scan=SCAN_IDS, nonce=TEXTS),
    st.builds(m.ListScans),
    st.builds(k.TakeSnapshot, table=IDS),
    st.builds(k.ListSnapshots, table=IDS),
    st.builds(
        k.AcquireLease,
        lease=LEASE_IDS,
        holder=WRITERS,
        ttl_seconds=st.floats(allow_nan=False),
        tables=st.lists(st.builds(k.LeaseTable, IDS, st.none() | PINS), max_size=3),
        generation=IDS,
    ),
    st.builds(k.JoinLease, lease=LEASE_IDS, holder=WRITERS, ttl_seconds=st.none() | st.floats(allow_nan=False)),
    st.builds(k.RenewLease, lease=LEASE_IDS, generation=IDS, ttl_seconds=st.none() | st.floats(allow_nan=False)),
    st.builds(k.ReleaseLease, lease=LEASE_IDS, generation=IDS, buckets=st.dictionaries(TEXTS, BUCKETS, max_size=3)),
    st.builds(k.DropLease, lease=LEASE_IDS, generation=st.none() | IDS),
    st.builds(k.GetLease, lease=LEASE_IDS),
    st.builds(k.ListLeases),
    st.builds(t.KeepHandle, **OF_HANDLE),
    st.builds(t.SealHandle, **OF_HANDLE, batches=IDS),
    st.builds(
        t.Commit,
        app=APPS,
        version=IDS,
        tables=st.lists(
            st.builds(t.CommitTable, table=IDS, handles=st.lists(HANDLES, max_size=3), truncate=st.booleans()),
            min_size=1,
            max_size=3,
        ),
        rows=st.none() | IDS,
        checksum=st.none() | IDS,
    ),
    st.builds(t.Discard, handles=st.lists(HANDLES, max_size=3)),
    st.builds(t.ListTransactions, after=st.none() | TEXTS),
    st.builds(
        o.BeginOwner,
        table=IDS,
        owner=APPS,
        columns=st.none() | NAMES,
        ttl_seconds=st.floats(allow_nan=False),
        stream=TEXTS,
        resume_epoch=st.none() | IDS,
        undo=TEXTS,
        reset=st.booleans(),
        attempt=TEXTS,
    ),
    st.builds(o.CommitOwner, **OF_OWNER, epoch=IDS, seqs=PINS, state=st.binary(max_size=20)),
    st.builds(o.RenewOwner, **OF_OWNER),
    st.builds(o.RestOwner, **OF_OWNER),
    st.builds(o.ReleaseOwner, table=IDS, owner=APPS, number=st.none() | IDS, fence=st.none() | IDS, keep=st.booleans()),
    st.builds(o.BeginTask, **OF_OWNER, epoch=IDS, partition=IDS),
    st.builds(o.SealTask, **OF_OWNER, partition=IDS, ticket=IDS, seqs=PINS, message=st.binary(max_size=20)),
    st.builds(
        o.CommitTasks,
        **OF_OWNER,
        epoch=IDS,
        tasks=st.dictionaries(TEXTS, st.tuples(IDS, IDS), max_size=4),
        state=st.binary(max_size=20),
    ),
    st.builds(o.ListOwners, after=st.none() | st.tuples(TEXTS, TEXTS)),
)
CALLS = st.one_of(
    st.builds(
        m.Put,
        table=IDS,
        writer=WRITERS,
        seq=IDS,
        schema=st.binary(max_size=40),
        action=TEXTS,
        columns=st.none() | NAMES,
        mode=TEXTS,
    ),
    st.builds(m.Get, table=IDS, schema=st.binary(max_size=40), prefix=st.integers(0, 32), names=st.none() | NAMES),
    st.builds(
        m.OpenScan,
        table=IDS,
        page_bytes=PAGE_BYTES,
        names=st.none() | NAMES,
        limit=st.none() | IDS,
        where=st.none() | TEXTS,
        schema_id=VERSIONS,
        buckets=BUCKETS,
        nonce=TEXTS,
        shared=st.booleans(),
        ttl_seconds=st.none() | st.floats(allow_nan=False),
        resume=TEXTS,
        source=TEXTS,
        lease=LEASE_IDS,
        generation=IDS,
        pins=st.none() | PINS,
        position=st.none() | IDS,
    ),
    st.builds(
        m.NextPage,
        scan=SCAN_IDS,
        cursor=st.text(st.characters(codec="utf-8"), min_size=1, max_size=64),
        seq=IDS,
        page_bytes=PAGE_BYTES,
        token=TEXTS,
        buckets=BUCKETS,
    ),
    st.builds(t.Stage, **OF_HANDLE, number=IDS, schema=st.binary(max_size=40)),
    st.builds(
        o.PutOwned,
        **OF_OWNER,
        ticket=IDS,
        epoch=IDS,
        seq=IDS,
        schema=st.binary(max_size=40),
        action=TEXTS,
        columns=st.none() | NAMES,
        mode=TEXTS,
        schema_id=VERSIONS,
    ),
)
TICKETS = st.one_of(
    st.builds(m.ReadScan, scan=SCAN_IDS, token=TEXTS, buckets=BUCKETS),
    st.builds(
        m.Follow,
        table=IDS,
        starts=st.dictionaries(TEXTS, INT64, max_size=4),
        stops=st.dictionaries(TEXTS, st.none() | INT64, max_size=4),
    ),
)
PLAIN = st.recursive(
    st.none() | st.booleans() | INT64 | TEXTS | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ANSWERS = st.builds(m.Answer, result=PLAIN, error=st.none() | st.binary(max_size=40))
EVENTS = st.builds(
    PartitionEvent,
    kind=st.sampled_from(PartitionEventKind),
    partition=TEXTS,
    position=INT64,
    timestamp_ms=INT64,
    unread=st.none() | INT64,
)
PARTS = st.builds(
    m.ScanPart,
    token=TEXTS,
    runs=st.lists(st.tuples(TEXTS, INT64), max_size=3).map(tuple),
    last=st.booleans(),
    event=st.none() | EVENTS,
)
PAGES = st.builds(
    m.Page,
    part=st.none() | PARTS,
    bucket=st.none() | TEXTS,
    next_offset=INT64,
    event=st.none() | EVENTS,
    schema_id=INT64,
    rows=st.binary(max_size=20),
)
RECORDS = st.one_of(
    PARTS,
    st.builds(
        m.ScanRecord,
        scan=TEXTS,
        table=IDS,
        offsets=OFFSETS,
        schema_id=VERSIONS,
        names=st.none() | NAMES,
        estimate=st.none() | INT64,
        resumed=st.none() | st.builds(Resumed, NAMES.map(tuple), st.none() | TEXTS, st.binary(max_size=20)),
        first=st.none() | PARTS,
    ),
    st.builds(
        ScanInfo,
        id=TEXTS,
        table=TEXTS,
        principal=TEXTS,
        is_shared=st.booleans(),
        is_drained=st.booleans(),
        views=INT64,
        rows=INT64,
        size_bytes=INT64,
        opened=MOMENTS,
        last_use=MOMENTS,
        expires=st.none() | MOMENTS,
    ),
    st.builds(
        Follower,
        table=TEXTS,
        name=TEXTS,
        offsets=OFFSETS,
        lag=INT64,
        pinned_bytes=INT64,
        last_use=MOMENTS,
        expires=MOMENTS,
        state=st.sampled_from(FollowerState),
    ),
    st.builds(Session, epoch=INT64, offsets=OFFSETS),
    st.builds(
        SnapshotInfo,
        table=TEXTS,
        bucket=TEXTS,
        id=INT64,
        offset=INT64,
        rows=st.none() | INT64,
        schema_id=INT64,
        taken=MOMENTS,
        size_bytes=INT64,
        new_bytes=INT64,
        leases=INT64,
    ),
    st.builds(
        LeaseInfo,
        id=TEXTS,
        principal=TEXTS,
        created=MOMENTS,
        expires=MOMENTS,
        ttl_seconds=st.floats(allow_nan=False),
        pins=INT64,
        pinned_bytes=INT64,
        tables=NAMES.map(tuple),
        is_readable=st.booleans(),
    ),
    st.builds(
        LeaseState,
        id=TEXTS,
        generation=INT64,
        principal=TEXTS,
        created=MOMENTS,
        expires=MOMENTS,
        ttl_seconds=st.floats(allow_nan=False),
        tables=st.dictionaries(
            TEXTS,
            st.builds(
                LeasedTable,
                table=IDS,
                snapshots=OFFSETS,
                offsets=OFFSETS,
                position=st.none() | INT64,
                is_consistent=st.booleans(),
            ),
            max_size=3,
        ),
        unavailable=st.dictionaries(TEXTS, OFFSETS, max_size=3),
    ),
    st.builds(Partition, id=INT64, name=TEXTS, created_ms=INT64),
    st.builds(
        OwnerRecord,
        **OF_OWNER,
        name=TEXTS,
        columns=st.none() | st.lists(IDS, max_size=4).map(tuple),
        ttl_seconds=st.floats(allow_nan=False),
        committed=INT64,
        committed_fence=IDS,
        stream=TEXTS,
        undo=st.sampled_from(UndoMode),
        state=st.binary(max_size=20),
        evicted=st.booleans(),
        is_resting=st.booleans(),
        attempt=TEXTS,
        past=NAMES.map(tuple),
        tickets=IDS,
    ),
    st.builds(
        OwnerInfo,
        table=TEXTS,
        owner=TEXTS,
        columns=st.none() | NAMES.map(tuple),
        fence=IDS,
        epoch=st.none() | IDS,
        is_live=st.booleans(),
        seconds_left=st.floats(allow_nan=False),
        undo=TEXTS,
        is_recovering=st.booleans(),
    ),
    st.builds(Task, epoch=IDS, ticket=IDS, message=st.none() | st.binary(max_size=20)),
)
DECODERS = {
    m.decode_action: ACTIONS,
    m.decode_call: CALLS,
    m.decode_ticket: TICKETS,
    m.decode_answer: ANSWERS,
    m.decode_page: PAGES,
}
HEADS = st.one_of(*DECODERS.values())


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
@given(data=st.data())
def test_a_head_that_is_decoded_is_the_one_that_was_encoded(decode, data):
    head = data.draw(DECODERS[decode])

    assert decode(m.encode(head)) == head


@given(record=RECORDS)
def test_a_record_in_an_answer_is_the_one_that_was_put_there(record):
    answer = m.decode_answer(m.encode(m.Answer(result=record)))

    assert m.as_record(answer.result, type(record)) == record


@pytest.mark.parametrize(
    "kind",
    [
        m.ScanRecord, m.ScanPart, ScanInfo, Follower, Session, Partition, SnapshotInfo, LeaseInfo, LeaseState,
        OwnerRecord, OwnerInfo, Task,
    ],
)  # fmt: skip
@given(plain=PLAIN | RECORDS.map(m.encode).map(msgspec.msgpack.decode))
def test_a_part_of_an_answer_that_is_something_else_is_refused(kind, plain):
    _is_typed(lambda: m.as_record(plain, kind))


@pytest.mark.parametrize("page_bytes", [None, 0, -1, 2**31])
@pytest.mark.parametrize("kind", [m.OpenScan, m.NextPage])
def test_a_page_without_a_size_or_of_no_size_is_no_message(kind, page_bytes):
    """N7, V11: what is illegal is not even a message. Opening, going on and closing are messages of their own, so that
    one which does two of these at once cannot be written."""
    given = {"table": 1} if kind is m.OpenScan else {"scan": "a", "cursor": "c", "seq": 0}
    size = {} if page_bytes is None else {"page_bytes": page_bytes}
    head = msgspec.msgpack.encode({"op": kind.__struct_config__.tag, **given, **size})

    with pytest.raises(InvalidArgument, match="page_bytes"):
        m.decode_call(head)


@pytest.mark.parametrize("seq", [None, -1, 2**63, "0"])
def test_a_page_without_its_number_is_no_message(seq):
    """V9: the number of a call is required; only an open has none, because its nonce does that."""
    given = {"op": "next_page", "scan": "a", "cursor": "c", "page_bytes": 1} | ({} if seq is None else {"seq": seq})

    with pytest.raises(InvalidArgument, match="seq"):
        m.decode_call(msgspec.msgpack.encode(given))


@given(head=HEADS, rows=st.none() | st.binary(max_size=100))
def test_a_message_splits_into_what_it_was_joined_of(head, rows):
    joined = m.join(head, None if rows is None else pa.py_buffer(rows))

    found, rest = m.split(joined)

    assert bytes(found) == m.encode(head)
    assert rest.to_pybytes() == (rows or b"")


@given(head=HEADS, rows=st.binary(min_size=1, max_size=100))
def test_rows_start_at_a_multiple_of_eight(head, rows):
    joined = m.join(head, pa.py_buffer(rows))

    _, rest = m.split(joined)

    assert (rest.address - joined.address) % 8 == 0


@given(head=HEADS, rows=st.binary(max_size=40), data=st.data())
def test_a_message_that_is_cut_off_in_its_head_is_refused(head, rows, data):
    whole = m.join(head, pa.py_buffer(rows)).to_pybytes()
    kept = data.draw(st.integers(0, 4 + len(m.encode(head)) - 1))

    with pytest.raises(InvalidArgument):
        m.split(pa.py_buffer(whole[:kept]))


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
@given(data=st.data())
def test_garbage_is_refused_as_invalid_and_nothing_else(decode, data):
    garbage = data.draw(st.binary(max_size=60) | PLAIN.map(msgspec.msgpack.encode) | _damaged(DECODERS[decode]))

    _is_typed(lambda: decode(garbage))


@given(garbage=st.binary(max_size=60))
def test_garbage_splits_or_is_refused(garbage):
    _is_typed(lambda: m.split(pa.py_buffer(garbage)))


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
@pytest.mark.parametrize(
    "bomb",
    [
        b"\x91" * 100_000,
        b"\x81\xa1a" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x01",
        b"\xa2\xff\xfe",
    ],
    ids=["deep lists", "deep maps", "long list", "long map", "long bytes", "long text", "long extension", "no UTF-8"],
)
def test_a_bomb_in_a_head_is_refused(decode, bomb):
    with pytest.raises(InvalidArgument):
        decode(bomb)


def test_a_head_that_says_it_is_too_long_is_refused():
    with pytest.raises(TooLarge):
        m.split(pa.py_buffer((m.HEAD_BYTES_MAX + 1).to_bytes(4, "little") + b"\0" * 64))


def test_an_action_that_is_too_long_is_refused():
    with pytest.raises(TooLarge):
        m.decode_action(b"\0" * (m.HEAD_BYTES_MAX + 1))


def test_requests_without_rows_are_not_taken_for_requests_with_rows():
    with pytest.raises(InvalidArgument):
        m.decode_call(m.encode(m.Status()))


def _damaged(heads):
    """Encoded heads with one byte changed."""
    return st.tuples(heads.map(m.encode), st.integers(0, 2**31), st.integers(1, 255)).map(
        lambda drawn: _flipped(drawn[0], drawn[1] % len(drawn[0]), drawn[2])
    )


def _flipped(data: bytes, place: int, by: int) -> bytes:
    return data[:place] + bytes([data[place] ^ by]) + data[place + 1 :]


def _is_typed(step):
    """Whether it succeeds, or fails by saying that the input is wrong."""
    with contextlib.suppress(InvalidInput):
        step()
