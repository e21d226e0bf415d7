"""The snapshots of all buckets: what is due goes, in rounds; what is dropped is nobody's any more."""

from pathlib import Path

import pytest
from tests.engine.snapshot_rack import IO_ERROR, FakeKv, Hall

from kolk.engine.snapshots import Snapshots
from kolk.errors import Closed, TableNotFound, Unavailable
from kolk.model.ids import BucketId, TableId


@pytest.mark.parametrize("retained", [1, 2])
def test_each_bucket_has_its_own(retained):
    """G1: three of each, the retained ones left, another start finds them and numbers on; an unknown one has none."""
    hall = Hall(retained)
    for bucket in hall.buckets:
        for _ in range(3):
            hall.publish(bucket)
    hall.all.note_due(hall.buckets)
    hall.all.reclaim()

    again = Snapshots(Path("snapshots"), hall.disk, FakeKv, retained, hall.check_alive)
    for bucket in hall.buckets:
        assert [each.id for each in again.of(bucket).all()] == list(range(4 - retained, 4))
    assert again.of(BucketId(TableId(3), 0, 0)).newest() is None
    hall.all = again
    assert hall.publish(hall.buckets[0]).id == 4
    assert hall.all.removed == 0


def test_a_drop_takes_the_snapshots_of_what_was_dropped_alone():
    """G2, I6: leased or not."""
    hall = Hall()
    for bucket in hall.buckets:
        hall.publish(bucket)
    hall.all.pin(dict.fromkeys(hall.buckets, 1))

    hall.all.drop(lambda bucket: bucket.table == 1, (1,), Closed("dropped"))

    assert hall.disk.list("snapshots") == ["2"]
    assert hall.all.pin(dict.fromkeys(hall.buckets[3:], 1)).keys() == set(hall.buckets[3:])
    hall.all.let_go(dict.fromkeys(hall.buckets[:3], 1))
    assert hall.all._buckets.keys() == set(hall.buckets[3:]), "and nothing of it is remembered"


def test_while_something_is_dropped_nobody_pins_it_any_more():
    """Also not what nobody has looked at before the drop."""
    hall = Hall()
    for bucket in hall.buckets[:2]:
        hall.publish(bucket)
    hall.all = Snapshots(Path("snapshots"), hall.disk, FakeKv, 2, hall.check_alive)
    hall.all.of(hall.buckets[0]).all()
    remove_tree, met = hall.disk.remove_tree, []

    def meet(path):
        for bucket in hall.buckets[:2]:
            assert hall.all.pin({bucket: 1}) == {}
            with pytest.raises(TableNotFound):
                hall.publish(bucket)
        met.append(path)
        remove_tree(path)

    hall.disk.remove_tree = meet
    hall.dropped.add(1)  # first its record goes, as that of a table does
    hall.all.drop(lambda bucket: bucket.table == 1, (1,), Closed("dropped"))

    assert met == ["snapshots/1"]
    assert not hall.disk.exists("snapshots/1")


def test_what_could_not_be_removed_of_an_idle_bucket_is_tried_again():
    hall = Hall(1)
    bucket = hall.buckets[0]
    hall.publish(bucket)
    hall.publish(bucket)
    hall.all.note_due([bucket])
    hall.disk.fail_next("remove", IO_ERROR)

    hall.all.reclaim()
    assert hall.on_disk(bucket) == ["1", "2"]
    hall.all.reclaim()

    assert hall.on_disk(bucket) == ["2"]
    assert hall.all.removed == 1


def test_a_bucket_that_cannot_be_looked_at_does_not_keep_the_others_from_going():
    hall = Hall(1)
    for bucket in hall.buckets:
        hall.publish(bucket)
        hall.publish(bucket)
    hall.all = Snapshots(Path("snapshots"), hall.disk, FakeKv, 1, hall.check_alive)
    for bucket in hall.buckets:
        hall.all.of(bucket)
    hall.all.note_due(hall.buckets)
    hall.disk.fail_next("read", IO_ERROR)

    hall.all.reclaim()

    assert [hall.on_disk(bucket) for bucket in hall.buckets] == [["1", "2"]] + [["2"]] * 5
    hall.all.reclaim()
    assert hall.on_disk(hall.buckets[0]) == ["2"]


def test_only_a_few_buckets_are_gone_through_at_once():
    hall = Hall(1)
    for bucket in hall.buckets:
        hall.publish(bucket)
        hall.publish(bucket)
    hall.all.note_due(hall.buckets)

    left = []
    for _ in range(3):
        hall.all.reclaim(2)
        left.append(sum(len(hall.on_disk(bucket)) for bucket in hall.buckets))

    assert left == [10, 8, 6]


def test_while_frozen_nothing_goes_and_afterwards_everything_that_was_due():
    hall = Hall(1)
    bucket = hall.buckets[0]
    hall.publish(bucket)
    hall.all.freeze()
    hall.all.freeze()
    hall.publish(bucket)
    hall.all.pin({bucket: 1})
    hall.all.let_go({bucket: 1})
    hall.all.thaw()
    hall.all.reclaim()
    assert (hall.all.is_frozen, hall.on_disk(bucket)) == (True, ["1", "2"])

    hall.all.thaw()
    hall.all.reclaim()

    assert (hall.all.is_frozen, hall.on_disk(bucket)) == (False, ["2"])


def test_after_the_end_nobody_takes_reads_or_pins_any_bucket():
    hall = Hall()
    hall.publish(hall.buckets[0])

    hall.all.close(Closed("the end"))

    for bucket in hall.buckets:
        with pytest.raises(Closed):
            hall.publish(bucket)
        with pytest.raises(Closed):
            hall.all.pin({bucket: 1})
    with pytest.raises(Closed):
        hall.all.check_open()
    assert hall.on_disk(hall.buckets[0]) == ["1"]


def test_a_pin_of_several_that_fails_keeps_none_of_them():
    hall = Hall()
    for bucket in hall.buckets:
        hall.publish(bucket)
    hall.all = Snapshots(Path("snapshots"), hall.disk, FakeKv, 2, hall.check_alive)
    hall.disk.fail_next("read", IO_ERROR, after=2)

    with pytest.raises(Unavailable, match="input/output"):
        hall.all.pin(dict.fromkeys(hall.buckets, 1))

    assert all(hall.all.of(bucket).pins(1) == 0 for bucket in hall.buckets)


def test_what_a_crash_left_of_a_dropped_table_is_swept():
    hall = Hall()
    for bucket in hall.buckets:
        hall.publish(bucket)

    Snapshots(Path("snapshots"), hall.disk, FakeKv, 2, hall.check_alive).sweep({TableId(2): None}, 3)

    assert hall.disk.list("snapshots") == ["2"]
