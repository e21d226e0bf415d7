"""Every law of a database, broken by hand: a doctor finds it, says where, and what to do next."""

import struct
from zlib import crc32

import pytest
from tests.engine.surgery import SOMEBODY, Patient
from tests.spec.owned import open_rack

from kolk.codec.transaction import CSN_KEY
from kolk.merge.changes import KvWrites
from kolk.model.ids import OwnerTag, SystemTag, SystemWork, TransactionTag, UndoTag
from kolk.tablet.records import CSN, ROWS

A, B = 1, 2
"""The numbers of the owners."""


@pytest.fixture
def rack(tmp_path):
    with open_rack(tmp_path / "data") as rack:
        yield rack


@pytest.fixture
def patient(rack):
    """There is one commit. ``a`` owns pv, and ``b`` top: each has committed epoch 0 and written some of epoch 1."""
    t = rack.create(buckets=1)
    with t.table.transaction("app", 1) as tx:
        tx.put([{"k": 1, "title": "x"}], columns=["title"])
    for name, column in (("a", "pv"), ("b", "top")):
        grip = t.begin(name, [column])
        grip.put({1: {column: 1}}, 0)
        grip.commit(0)
        grip.put({1: {column: 2}}, 1)
    info = t.table.info
    rack.close()
    found = Patient(rack.folder, info)
    assert found.laws() == set()
    return found


def row(**values):
    return {"k": 1, "pv": 3, "top": 2, "title": "x", **values}


def update(**values):
    """An update of the row as it is."""
    return ("-U", row()), ("+U", row(**values))


# --- commits


def test_commits_out_of_order(patient):
    patient.append(TransactionTag(1, 0))

    assert patient.laws() == {"commits"}
    assert "bucket 0 of t: commit 1 follows commit 1 at offset 9" in patient.text()
    assert "backup" in patient.text()


def test_a_commit_that_has_no_end(patient):
    patient.set_meta(CSN_KEY, b"2")
    patient.append_group(patient.frame(TransactionTag(2, 0), *update(note="y"), more=True), patient.frame(SOMEBODY))

    assert patient.laws() == {"commits"}
    assert "commit 2 ends in the middle, before offset 11" in patient.text()


@pytest.mark.parametrize("parts", [[1], [0, 2]], ids=["the first", "the second"])
def test_a_commit_that_lacks_a_part(patient, parts):
    patient.set_meta(CSN_KEY, b"2")
    frames = [patient.frame(TransactionTag(2, part), more=part != parts[-1]) for part in parts]

    patient.append_group(*frames)

    assert patient.laws() == {"commits"}
    assert "a part of commit 2 is missing" in patient.text()


def test_a_commit_that_the_catalog_does_not_know(patient):
    patient.append(TransactionTag(9, 0))

    assert patient.laws() == {"catalog"}
    assert "commit 9 at offset 9, and the catalog knows 1 only" in patient.text()


def test_a_commit_in_the_rows_that_the_catalog_does_not_know(patient):
    with patient.kv() as kv:
        kv.apply([], {CSN: struct.pack("<q", 9)})

    assert patient.laws() == {"catalog"}


def test_a_commit_that_only_the_hint_knows(patient):
    number = struct.pack("<Q", 9)
    (patient.folder / "csn").write_bytes(number + struct.pack("<I", crc32(number)))

    assert patient.laws() == {"catalog"}


def test_a_commit_that_is_done_and_not_there(patient):
    patient.add_commit(2, base=7, end=9, app="other")

    assert patient.laws() == {"commits"}
    assert "commit 2 (version 1 of 'other') is done, and is not here" in patient.text()


def test_an_empty_share_that_is_done_and_not_there(patient):
    patient.add_commit(2, base=9, end=9, app="other")

    assert patient.laws() == {"commits"}


@pytest.mark.parametrize(("base", "end"), [(0, 2), (9, 9)])
def test_a_commit_that_is_somewhere_else(patient, base, end):
    patient.add_commit(1, base=base, end=end)

    assert patient.laws() == ({"commits"})


def test_a_pending_commit_that_something_followed(patient):
    patient.add_commit(2, base=8, is_done=False, app="other")

    assert patient.laws() == {"commits"}
    assert "is pending and was to follow offset 8" in patient.text()


def test_a_pending_commit_that_is_still_to_come_is_no_fault(patient):
    patient.add_commit(2, base=9, is_done=False, app="other")

    assert patient.laws() == set()


def test_versions_that_go_back(patient):
    patient.add_commit(2, base=9, is_done=False, version=1, tables=[99])

    assert patient.laws() == {"commits"}
    assert "'app' committed version 1 after version 1" in patient.text()


# --- owners


def own(epoch=1, fence=1, ticket=0, owner=A, seq=9):
    return OwnerTag(owner, fence, ticket, epoch, seq)


def test_epochs_that_go_back(patient):
    patient.append(own(epoch=0))

    assert patient.laws() == {"epochs"}
    assert "'a' wrote epoch 0 at offset 9, after epoch 1" in patient.text()


def test_fences_that_go_back(patient):
    patient.set_owner(fence=3)
    patient.append(own(epoch=2, fence=3))
    patient.append(own(epoch=2, fence=2))

    # A bucket counts what is dirty for one fence alone, so it may not know of the other.
    assert patient.laws() >= {"epochs"}


def test_a_fenced_writer_that_writes_after_it_was_taken_back(patient):
    patient.set_owner(fence=2)
    patient.append(UndoTag(A, 2, done=True))
    patient.append(own())

    assert patient.laws() == {"epochs"}


def test_tickets_that_go_back(patient):
    patient.append(own(ticket=5))
    patient.append(own(ticket=4))

    assert patient.laws() == {"epochs"}


def test_a_new_fence_that_writes_before_the_old_one_is_taken_back(patient):
    patient.set_owner(fence=2)
    patient.append(UndoTag(A, 2, done=False), *update(pv=1))
    patient.append(own(fence=2))

    # A bucket counts what is dirty for one fence alone, so it may not know of the other.
    assert patient.laws() >= {"epochs"}
    assert "before what it left was taken back" in patient.text()


def test_an_undo_of_an_older_fence(patient):
    patient.set_owner(fence=3)
    patient.append(UndoTag(A, 3, done=True))
    patient.append(UndoTag(A, 2, done=True))

    assert patient.laws() == {"epochs"}


def test_a_fence_that_the_catalog_has_not_given(patient):
    patient.append(own(epoch=2, fence=2))

    # A bucket counts what is dirty for one fence alone, so it may not know of the other.
    assert patient.laws() >= {"catalog"}
    assert "'a' wrote with fence 2 at offset 9, and the catalog has given 1 only" in patient.text()


def test_an_owner_that_the_catalog_has_not_made(patient):
    patient.append(own(owner=9))

    assert patient.laws() == {"catalog"}


def test_an_owner_whose_number_was_not_given(patient):
    patient.set_owner(number=9)

    assert "catalog" in patient.laws()


def test_log_that_is_gone_and_would_be_needed(rack):
    t = rack.create(buckets=1)
    t.begin("a", ["pv"]).put({1: {"pv": 1}})
    with rack.engine._tablets.use_one(t.table.info, t.table.info.bucket_ids[0]) as tablet:
        t.put([{"k": 2, "title": "x"}], columns=["title"])
        tablet._kv.flush()
        tablet.log.clear()  # as no retention would
    patient = Patient(rack.folder, t.table.info)
    rack.close()

    assert patient.laws() == {"undo"}
    assert "'a' is to be taken back from offset 0 on, and the log starts at 2" in patient.text()
    assert "kolk lock release t a --keep" in patient.text()


# --- uncommitted changes


def test_somebody_else_changes_what_is_not_committed(patient):
    patient.append(SOMEBODY, *update(pv=9))

    assert patient.laws() == {"uncommitted"}
    assert "'a' had changes from offset 3 on that were not committed, and somebody else changed pv" in patient.text()
    assert "kolk lock release t a --keep" in patient.text()


@pytest.mark.parametrize(
    "change",
    [[("-D", {"k": 1, "pv": 3})], [("+I", {"k": 2, "pv": 3})]],
    ids=["removes a row with it", "makes a row with it"],
)
def test_somebody_else_removes_or_makes_rows_with_what_is_not_committed(patient, change):
    patient.append(SOMEBODY, *change)

    assert patient.laws() == {"uncommitted"}


def test_another_owner_changes_what_is_not_committed(patient):
    patient.append(own(owner=B), *update(pv=9))

    assert patient.laws() == {"uncommitted"}
    assert "'b' changed pv at offset 9" in patient.text()


def test_the_undo_of_another_owner_changes_what_is_not_committed(patient):
    patient.set_owner("b", fence=2)
    patient.append(UndoTag(B, 2, done=False), *update(pv=9))

    assert patient.laws() == {"uncommitted"}


def test_what_was_changed_before_it_was_taken_back_is_found_afterwards(patient):
    patient.set_owner(fence=2)
    patient.append(SOMEBODY, *update(pv=9))
    patient.append(UndoTag(A, 2, done=True))

    assert patient.laws() == {"uncommitted"}
    assert "look at these columns" in patient.text()


def test_two_owners_of_one_column(patient):
    patient.set_owner("b", columns=tuple(patient.info.schema.column(name).id for name in ("pv", "top")))

    assert patient.laws() == {"uncommitted"}
    assert "'a' and 'b' both have uncommitted changes in the same columns" in patient.text()


@pytest.mark.parametrize("fields", [{"evicted": True}, {"is_resting": True}], ids=["evicted", "resting"])
def test_an_owner_without_columns_that_has_changes_left(patient, fields):
    patient.set_owner(**fields)

    assert patient.laws() == {"uncommitted"}


@pytest.mark.parametrize(
    ("tag", "changes"),
    [
        (SOMEBODY, update(note="y")),
        (SOMEBODY, [("+I", {"k": 2, "title": "y"})]),
        (SystemTag(SystemWork.TTL), [("-D", row())]),
        (own(), update(pv=9)),
        (own(epoch=2), update(pv=9)),
    ],
    ids=["other columns", "a row of others", "the row's time is up", "its own change", "its own next epoch"],
)
def test_what_may_happen_beside_uncommitted_changes_is_no_fault(patient, tag, changes):
    patient.append(tag, *changes)

    assert patient.laws() == set()


def test_once_it_is_committed_everybody_may_change_it(patient):
    patient.set_owner(committed=1, is_resting=True)
    patient.append(SOMEBODY, *update(pv=9))

    assert patient.laws() == set()


# --- rows


def test_a_row_that_is_not_what_the_log_makes(patient):
    with patient.kv() as kv:
        (value,) = kv.between(b"\x01", b"\x02")
        kv.apply([KvWrites([b"\x01\x80\x00\x00\x02"], [value])], {})

    assert patient.laws() == {"rows"}
    assert "the rows are not what the log makes up to offset 9" in patient.text()
    assert f"move tables/{patient.bucket.folder}/kv away" in patient.text()


def test_a_row_that_is_gone(patient):
    with patient.kv() as kv:
        kv.apply([], {}, clear=True)

    assert patient.laws() == {"rows"}


def test_rows_that_were_counted_wrong(patient):
    with patient.kv() as kv:
        kv.apply([], {ROWS: struct.pack("<q", 5)})

    assert patient.laws() == {"rows"}
    assert "there are 1 rows, and 5 were counted" in patient.text()


def test_uncommitted_changes_that_the_kv_has_forgotten(patient):
    with patient.kv() as kv:
        kv.apply([], dict.fromkeys(kv.records(b"o")))

    assert patient.laws() == {"rows"}
    assert "'a' has uncommitted changes from offset 3 on, and the KV does not know" in patient.text()


def test_rows_that_are_ahead_of_the_log(patient):
    with patient.kv() as kv:
        kv.apply([], {b"applied": struct.pack("<q", 99)})

    assert patient.laws() == {"logs"}


def test_rows_that_cannot_be_read(patient):
    (table,) = (patient.path / "kv").glob("*.sst")
    data = bytearray(table.read_bytes())
    data[:200] = bytes(200)
    table.write_bytes(data)

    assert patient.laws() == {"rows"}
    assert "the KV is damaged" in patient.text()


def test_a_kv_that_is_not_there_or_not_whole_is_no_fault(patient):
    """As a crash leaves it: it is built anew."""
    (patient.path / "kv" / "DAMAGED").touch()
    damaged = patient.laws()
    (patient.path / "kv").rename(patient.path / "away")

    assert (damaged, patient.laws()) == (set(), set())


# --- files


def test_a_log_that_is_damaged(patient):
    patient.append(SOMEBODY)  # which syncs what is before it
    (file,) = (patient.path / "log").glob("*.log")
    data = bytearray(file.read_bytes())
    data[100] ^= 1
    file.write_bytes(data)

    assert patient.laws() == {"logs"}
    assert "bucket 0 of t" in patient.text()


def test_a_catalog_that_is_damaged(patient):
    (patient.folder / "meta.sqlite").write_bytes(b"no catalog at all" * 1_000)

    assert patient.laws() == {"logs"}


def test_one_fault_a_thousand_times_is_told_of_a_few_times(patient):
    for _ in range(20):
        patient.append(TransactionTag(1, 0))

    assert patient.text().count("commit 1 follows commit 1") == 3
