"""Puts that change nothing: their frames take no offset, and neither memory nor the disk without end."""

from tests.tablet.test_tablet import abandon, put, rows, upsert

from kolk.storage.kv import Kv
from kolk.tablet import recovery
from kolk.tablet.changelog import read_changelog


class BatchKv(Kv):
    """Counts what it is given to write."""

    batches = 0

    def apply(self, writes, records, *, clear=False):
        type(self).batches += 1
        super().apply(writes, records, clear=clear)


def test_a_replay_of_many_puts_that_changed_nothing_goes_portion_by_portion(bench, monkeypatch):
    monkeypatch.setattr(recovery, "_REPLAY_FRAMES", 100)
    bench.kv = BatchKv
    tablet = bench.open()
    put(tablet, upsert((1, 1)), 0)
    for seq in range(1, 350):
        put(tablet, upsert((1, 1)), seq)
    abandon(tablet)
    BatchKv.batches = 0

    again = bench.open()

    assert BatchKv.batches == 4
    assert put(again, upsert((1, 9)), 349) == 1, "the retry of an acknowledged put"
    assert rows(again) == [{"id": 1, "n": 1, "s": None}]
    again.close()


def test_a_changelog_passes_over_puts_that_changed_nothing(bench):
    tablet = bench.open()
    put(tablet, upsert((1, 1)), 0)
    for seq in range(1, 200):
        put(tablet, upsert((1, 1)), seq)
    put(tablet, upsert((1, 2)), 200)

    page = read_changelog(tablet, 1)

    assert page.batch is not None
    assert page.batch.column("n").to_pylist() == [1, 2]
    assert len(tablet.read_log(1, tablet.end, 1)) == 1
    tablet.close()
