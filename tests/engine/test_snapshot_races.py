"""Readers of a bucket's snapshots, the end of a bucket, and everything at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.engine.snapshot_rack import BUCKET, HOME, FakeKv, Rack

from kolk.engine.bucket_snapshots import BucketSnapshots
from kolk.errors import Closed, Corrupted, PartitionDropped, SnapshotNotFound


@pytest.fixture
def rack():
    return Rack()


# --- readers


def test_a_readers_view_keeps_its_snapshot_when_nobody_else_does():
    rack = Rack(1)
    rack.add()
    view = rack.own.view(1, None, b"\x01", b"\x02")

    rack.add(2)
    assert rack.ids == rack.on_disk == [1, 3]
    assert view.offset == 1
    view.close()

    assert rack.freed == [BUCKET], "and whoever reclaims is told"
    rack.own.reclaim()
    assert rack.on_disk == [3]


def test_two_readers_share_one_open_folder_and_the_last_one_closes_it():
    opened = []

    class Noted(FakeKv):
        def __init__(self, path):
            super().__init__(path)
            opened.append(self)

    rack = Rack(1)
    rack.own = BucketSnapshots(BUCKET, rack.store, Noted, 1, rack.freed.append)
    rack.add()
    first, second = (rack.own.view(1, None, b"\x01", b"\x02") for _ in range(2))

    first.close()
    first.close()
    assert [kv.is_closed for kv in opened] == [False]
    second.close()

    assert [kv.is_closed for kv in opened] == [True]
    rack.own.view(1, None, b"\x01", b"\x02").close()
    assert len(opened) == 2


def test_a_folder_that_cannot_be_opened_leaves_no_reader_behind():
    def refuse(path):
        raise Corrupted("no")

    rack = Rack(1)
    rack.own = BucketSnapshots(BUCKET, rack.store, refuse, 1, rack.freed.append)
    rack.add()

    with pytest.raises(Corrupted):
        rack.own.view(1, None, b"\x01", b"\x02")

    assert rack.ids == [], "and it is not offered again"
    rack.add()
    assert rack.on_disk == [2]


def test_damage_that_a_reader_finds_is_known_once_he_is_gone():
    rack = Rack(2)
    rack.add(2)
    view = rack.own.view(2, None, b"\x01", b"\x02")
    rack.own._opened[2].kv.is_damaged = True

    view.close()

    assert rack.ids == [1]


# --- the end of it


def test_what_is_retired_keeps_nothing_and_says_why(rack):
    rack.add(2)
    view = rack.own.view(2, None, b"\x01", b"\x02")

    rack.own.retire(PartitionDropped("the partition is gone", "day=1"))

    for call in (
        lambda: rack.own.pin(2),
        lambda: rack.own.view(2, None, b"\x01", b"\x02"),
        rack.publish,
        lambda: view.take(b"", 1),
    ):
        with pytest.raises(PartitionDropped):
            call()
    assert not view.is_open
    assert rack.own.reclaim().removed == 0


def test_whoever_retires_it_waits_for_a_copy_which_ends_soon_and_leaves_nothing():
    rack = Rack(2)
    rack.add(2)
    is_copying, is_retired = threading.Event(), threading.Event()
    copy = rack.store._copy

    def slowly(*args):
        is_copying.set()
        while rack.own._refusal is None:
            pass
        copy(*args)

    rack.store._copy = slowly
    with ThreadPoolExecutor(2) as pool:
        publishing = pool.submit(rack.publish)
        assert is_copying.wait(30)
        retiring = pool.submit(lambda: (rack.own.retire(Closed("the end")), is_retired.set()))
        with pytest.raises(Closed):
            publishing.result(30)
        retiring.result(30)

    assert rack.reopened().ids == rack.reopened().on_disk == [1, 2]


# --- all at once


def test_whatever_was_pinned_can_be_read_and_nothing_that_is_pinned_ever_goes():
    """Acquire against retention, thousands of times, in the two orders that there are."""
    rack, is_over = Rack(1), threading.Event()
    rack.add()
    counts = {"pinned": 0, "missed": 0}

    def read(which):
        pinned = missed = 0
        while not is_over.is_set():
            id = rack.own._last - which
            if rack.own.pin(id) is None:
                missed += 1
                continue
            try:
                for _ in range(2):
                    assert rack.files(id) == {"000001.sst": b"shared", f"{id:06}.own.sst": b"own %d" % id}
                assert rack.own.find(id).offset == id
                pinned += 1
            finally:
                rack.own.let_go(id)
        counts["pinned"] += pinned
        counts["missed"] += missed

    with ThreadPoolExecutor(4) as pool:
        reading = [pool.submit(read, which) for which in (0, 0, 1, 1)]
        rack.add(1_500)
        is_over.set()
        for each in reading:
            each.result(60)
    rack.own.reclaim()

    assert rack.ids == rack.on_disk == [1_501]
    assert counts["pinned"] > 500
    assert counts["missed"] > 0, "so both outcomes were met"


def test_readers_pins_and_retention_at_once_leave_only_what_is_retained():
    rack, is_over = Rack(2), threading.Event()
    rack.add()

    def read():
        while not is_over.is_set():
            id = rack.own.newest().id
            try:
                view = rack.own.view(id, None, b"\x01", b"\x02")
            except SnapshotNotFound:
                continue
            assert rack.disk.exists(f"{HOME}/{id}/000001.sst")
            view.close()
            rack.own.reclaim()

    with ThreadPoolExecutor(3) as pool:
        reading = [pool.submit(read) for _ in range(3)]
        rack.add(400)
        is_over.set()
        for each in reading:
            each.result(60)
    rack.own.reclaim()

    assert rack.ids == rack.on_disk == [400, 401]
    assert rack.own._opened == {}
    assert not rack.own._pins
