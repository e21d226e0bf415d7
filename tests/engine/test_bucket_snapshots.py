"""Who keeps the snapshots of a bucket, and which go: the checklist of the field notes, and every race of it."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.engine.snapshot_rack import HOME, IO_ERROR, Rack, write

from kolk.errors import Corrupted, SnapshotNotFound, Unavailable
from kolk.model.snapshot import Snapshot
from kolk.testing.disk import Crash


@pytest.fixture
def rack():
    return Rack()


# --- retention


@pytest.mark.parametrize(("retained", "left"), [(1, [3]), (2, [2, 3]), (3, [1, 2, 3]), (9, [1, 2, 3])])
def test_the_newest_few_are_kept(retained, left):
    """C1, C2, C3, C5, K3: at least one stays, and none goes that need not."""
    rack = Rack(retained)

    rack.add(3)

    assert rack.ids == rack.on_disk == left
    assert [snapshot.id for snapshot in rack.own.retained()] == left
    assert rack.reopened(retained).ids == left


def test_the_newest_is_none_and_then_the_last_one(rack):
    """C4."""
    assert rack.own.newest() is None
    for id in (1, 2, 3):
        rack.add()
        assert rack.own.newest().id == id
    assert [snapshot.id for snapshot in rack.own.newest_first()] == [3, 2]


def test_one_that_cannot_be_published_takes_nothing_away(rack):
    """C6, T3: the error comes through, what was newest stays so, and the next one succeeds."""
    rack.add(2)
    rack.disk.fail_next("replace", IO_ERROR)

    with pytest.raises(Unavailable, match="input/output error"):
        rack.add()
    rack.own.reclaim()

    assert rack.ids == rack.on_disk == [1, 2]
    assert rack.own.newest().id == 2
    rack.add()
    assert rack.ids == rack.on_disk == [2, 3]


def test_many_who_publish_at_once_have_numbers_of_their_own():
    """C7, C9: ten times five, and never more than are retained."""
    rack = Rack(3)

    with ThreadPoolExecutor(10) as pool:
        made = [*pool.map(lambda _: [rack.publish().id for _ in range(5)], range(10))]
    rack.own.reclaim()

    assert sorted(id for ids in made for id in ids) == list(range(1, 51))
    assert rack.ids == rack.on_disk == [48, 49, 50]


def test_whoever_looks_while_others_come_and_go_sees_a_list_that_was_true():
    """C8, C10: numbers without a gap, the newest among them, never fewer than are retained."""
    rack, is_over = Rack(3), threading.Event()
    rack.add(3)
    seen = []

    def look():
        while not is_over.is_set():
            ids = rack.ids
            newest = rack.own.newest().id
            seen.append(ids)
            assert ids == list(range(ids[0], ids[-1] + 1))
            assert len(ids) >= 3
            assert newest >= ids[-1]

    with ThreadPoolExecutor(3) as pool:
        looking = [pool.submit(look) for _ in range(2)]
        rack.add(300)
        is_over.set()
        for each in looking:
            each.result()
    assert len(seen) > 10


# --- pins


def test_a_pinned_one_does_not_keep_those_between_from_going():
    """C11, K1: retain 1, snapshot 1 pinned, 3 taken: 1 and 3 are there."""
    rack = Rack(1)
    rack.add()
    rack.own.pin(1)

    rack.add(2)

    assert rack.ids == rack.on_disk == [1, 3]
    assert [snapshot.id for snapshot in rack.own.retained()] == [3]


def test_files_go_with_the_last_snapshot_that_has_them():
    """C12, R3, R4: of five with 1 and 3 pinned, only 2 goes, and all that is shared stays."""
    rack = Rack(2)
    rack.add()
    rack.own.pin(1)
    rack.add(2)
    rack.own.pin(3)
    rack.add(2)

    assert rack.on_disk == [1, 3, 4, 5]
    for id in (1, 3, 4, 5):
        assert rack.files(id) == {"000001.sst": b"shared", f"{id:06}.own.sst": b"own %d" % id}


def test_what_is_let_go_is_gone_after_the_next_reclaim_and_what_it_shared_is_not():
    """C13, and no new snapshot is needed for it: an idle bucket is reclaimed as well."""
    rack = Rack(1)
    rack.add()
    rack.own.pin(1)
    rack.add()

    rack.own.let_go(1)
    assert rack.on_disk == [1, 2], "nothing is removed before"
    reclaimed = rack.own.reclaim()

    assert (reclaimed.removed, reclaimed.is_all) == (1, True)
    assert rack.ids == rack.on_disk == [2]
    assert rack.files(2)["000001.sst"] == b"shared"


def test_pins_are_counted_and_one_too_many_that_is_taken_back_is_no_matter(rack):
    rack.add()

    assert rack.own.pin(1).snapshot == rack.own.pin(1).snapshot == 1
    assert rack.own.pins(1) == 2
    for left in (1, 0, 0):
        rack.own.let_go(1)
        assert rack.own.pins(1) == left
    rack.own.let_go(77)
    assert rack.own.pins(77) == 0


def test_what_does_not_exist_is_not_pinned(rack):
    """L6: never was, is to come, or went."""
    rack.add(3)

    assert [rack.own.pin(id) for id in (0, 1, 4, -1)] == [None] * 4
    assert rack.own.pin(3).offset == 3
    with pytest.raises(SnapshotNotFound, match=r"no snapshot 1; .*take the latest"):
        rack.own.find(1)


def test_a_pin_from_before_the_start_keeps_its_snapshot_out_of_retention():
    rack = Rack(1)
    rack.add()
    rack.own.pin(1)
    rack.add(2)

    after = rack.reopened(1)
    after.own.hold(1)
    after.add()

    assert after.ids == after.on_disk == [1, 4]
    after.own.let_go(1)
    after.own.reclaim()
    assert after.on_disk == [4]


def test_a_number_is_never_used_twice():
    """Not that of one that is gone, of a damaged one, nor of one that somebody has pinned and nobody can find."""
    rack = Rack(1)
    rack.add(3)
    rack.own.hold(7)
    assert rack.publish().id == 8
    rack.disk.flip(f"{HOME}/8/000001.sst", 0, 0)
    with pytest.raises(Corrupted):
        rack.own.restore(rack.own.find(8), _restored(rack))
    rack.own.reclaim()
    assert rack.on_disk == [3]

    assert rack.publish().id == 9


def _restored(rack):
    rack.disk.make_folder("restored")
    return "restored"


# --- damage


def test_a_damaged_newest_one_counts_no_more_and_goes():
    """A4: the one before it takes its place, shared files stay."""
    rack = Rack(2)
    rack.add(3)
    rack.disk.remove(f"{HOME}/3/000003.own.sst")

    after = rack.reopened()
    assert after.ids == [2]
    assert after.own.newest().id == 2
    with pytest.raises(Corrupted, match="damaged"):
        after.own.find(3)
    assert after.own.pin(3) is None
    after.own.reclaim()

    assert after.on_disk == [2]
    assert after.files(2)["000001.sst"] == b"shared"
    assert after.publish().id == 4


def test_a_damaged_one_that_is_leased_is_not_removed():
    rack = Rack(1)
    rack.add(2)
    rack.disk.remove(f"{HOME}/2/000002.own.sst")

    after = rack.reopened(1)
    after.own.hold(2)
    after.own.reclaim()

    assert after.on_disk == [2]
    after.own.let_go(2)
    after.own.reclaim()
    assert after.on_disk == []


def test_after_damage_the_next_snapshot_shares_nothing_with_the_others():
    """A file that is damaged in one is so in all that share it, whatever their manifests say."""
    rack = Rack(3)
    rack.add(2)
    rack.disk.flip(f"{HOME}/2/000001.sst", 0, 0)
    with pytest.raises(Corrupted):
        rack.own.restore(rack.own.find(2), _restored(rack))

    third, fourth = rack.publish(), rack.publish()

    assert third.new_bytes == third.size_bytes
    assert rack.files(third.id)["000001.sst"] == b"shared"
    assert fourth.new_bytes < fourth.size_bytes


def test_a_disk_that_cannot_be_read_is_not_one_without_snapshots(rack):
    """G5: nothing is answered, nothing removed, nothing numbered, until it can."""
    rack.add(2)
    after = rack.reopened()

    for call in (after.own.all, after.own.newest, after.publish, after.own.reclaim, lambda: after.own.pin(1)):
        rack.disk.fail_next("read", IO_ERROR)
        with pytest.raises(Unavailable, match=r"cannot be read.*input/output"):
            call()
        rack.disk.heal()

    assert after.ids == rack.on_disk == [1, 2]
    assert after.publish().id == 3


def test_a_transient_error_while_restoring_does_not_make_a_snapshot_a_damaged_one(rack):
    """A3."""
    rack.add()
    rack.disk.fail_next("read", IO_ERROR)

    with pytest.raises(OSError, match="input/output"):
        rack.own.restore(rack.own.find(1), _restored(rack))

    assert rack.ids == [1]
    assert rack.own.pins(1) == 0
    rack.own.restore(rack.own.find(1), "restored")


# --- failures


@pytest.mark.parametrize("operation", ["append", "sync", "create", "link", "replace", "sync_folder", "read"])
def test_after_a_publication_that_failed_anywhere_there_is_no_hole_and_no_orphan(operation):
    """T2, T4, T5, T6: whatever it turned out to be, the next one numbers on and everything is explained."""
    for after in range(50):
        rack = Rack(9)
        rack.add(2)
        write(rack.disk, "checkpoint", {"000001.sst": b"shared", "a.sst": b"a", "CURRENT": b"b"})
        rack.disk.fail_next(operation, IO_ERROR, after=after)
        try:
            rack.own.publish(Snapshot(id=0, offset=7, rows=1, schema_id=1, taken_ms=7), "checkpoint")
        except Unavailable:
            pass
        else:
            break
        rack.disk.heal()

        rack.own.reclaim()

        assert rack.ids == rack.on_disk == rack.reopened().ids
        assert rack.ids in ([1, 2], [1, 2, 3])
        assert rack.publish().id == rack.ids[-1] == len(rack.ids)
        assert [*Rack(9, rack.disk.crash(Crash.DROP)).ids] == rack.ids
    assert 0 < after < 49


def test_an_ambiguous_publication_counts_if_it_is_there(rack):
    """T4: the manifest got its name, and the sync after that failed."""
    rack.add()
    for after in range(30):
        rack.disk.fail_next("sync_folder", IO_ERROR, after=after)
        try:
            rack.publish()
        except (Unavailable, OSError):  # the second before there is anything to publish
            if rack.disk.exists(f"{HOME}/{rack.on_disk[-1]}.manifest") and len(rack.on_disk) > 1:
                break
        finally:
            rack.disk.heal()

    ids = rack.ids

    assert ids == rack.on_disk
    assert rack.publish().id == ids[-1] + 1


def test_what_cannot_be_removed_is_nobodys_any_more_and_is_tried_again(caplog):
    rack = Rack(1)
    rack.add()
    rack.publish()
    rack.disk.fail_next("remove", IO_ERROR)

    with caplog.at_level(logging.WARNING):
        first = rack.own.reclaim()

    assert (first.removed, first.is_all) == (0, False)
    assert "not removed yet" in caplog.text
    assert (rack.ids, rack.own.pin(1)) == ([2], None)
    assert rack.own.reclaim().is_all
    assert rack.on_disk == [2]


def test_what_was_to_go_stays_away_after_a_look_that_a_failure_made_necessary():
    rack = Rack(1)
    rack.add()
    rack.publish()
    rack.disk.fail_next("remove", IO_ERROR)
    rack.own.reclaim()
    rack.disk.fail_next("replace", IO_ERROR)
    with pytest.raises(Unavailable, match=r"cannot be written.*input/output"):
        rack.publish()

    assert rack.ids == [2]
    assert rack.own.pin(1) is None


def test_whoever_lets_go_does_not_wait_for_whoever_copies():
    """A large bucket is copied for minutes, and a scan of an older snapshot of it ends meanwhile."""
    rack = Rack(1)
    rack.add()
    rack.own.pin(1)
    rack.publish()
    is_copying, may_go_on = threading.Event(), threading.Event()
    publish = rack.store.publish

    def slowly(*args):
        is_copying.set()
        may_go_on.wait(30)
        return publish(*args)

    rack.store.publish = slowly
    with ThreadPoolExecutor(1) as pool:
        copying = pool.submit(rack.publish)
        assert is_copying.wait(30)
        rack.own.let_go(1)
        during = rack.own.reclaim()
        may_go_on.set()
        copying.result()

    assert (during.removed, during.is_all) == (0, False)
    assert rack.own.reclaim().removed == 2
    assert rack.on_disk == [3]
