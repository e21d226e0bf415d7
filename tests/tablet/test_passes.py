"""How much a pass reads of what is stored: puts in pieces, each with its own fate."""

import pytest
from tests.tablet.test_tablet import delete, partial_put, put, rows, together, upsert

from kolk.errors import TooLarge
from kolk.model.ids import PlainTag
from kolk.storage.kv import Kv
from kolk.tablet import readers, stored


class CountingKv(Kv):
    """Counts the bytes that lookups bring."""

    read_bytes = 0

    def get(self, keys):
        values = super().get(keys)
        type(self).read_bytes += sum(map(len, filter(None, values)))
        return values


@pytest.fixture
def counting(bench, monkeypatch):
    """A tablet with 400 rows of 10 KB, 4 MB in all, of which 1 MB may be read for a put and 200 KB for a pass."""
    bench.kv = CountingKv
    tablet = bench.open()
    put(tablet, upsert(*((n, n, "x" * 10_000) for n in range(400))), 0)
    monkeypatch.setattr(stored, "BATCH_BYTES_MAX", 1_000_000)
    monkeypatch.setattr(stored, "PASS_BYTES", 200_000)
    monkeypatch.setattr(readers, "_GET_BYTES", 50_000)
    monkeypatch.setattr(readers, "_GET_KEYS_MIN", 4)
    CountingKv.read_bytes = 0
    yield tablet
    tablet.close()


def test_a_put_over_more_stored_bytes_than_it_may_read_fails_before_they_are_read(counting):
    with pytest.raises(TooLarge, match="fewer rows at once"):
        put(counting, delete(*range(400)), 1)

    assert CountingKv.read_bytes < 1_200_000
    assert len(rows(counting)) == 400
    put(counting, delete(*range(80)), 2)
    assert len(rows(counting)) == 320


def test_a_put_that_reads_too_much_fails_alone_in_its_pass(counting):
    outcomes = together(
        counting,
        [(upsert((400, 1)), PlainTag(1, 0)), (delete(*range(400)), PlainTag(2, 0)), (delete(5, 6), PlainTag(3, 0))],
    )

    assert outcomes[0] == 401
    assert isinstance(outcomes[1], TooLarge)
    assert outcomes[2] == 403
    assert {row["id"] for row in rows(counting)} == set(range(401)) - {5, 6}


def test_puts_that_read_too_much_together_are_served_in_several_passes_and_in_order(counting):
    writes = [(delete(*range(start, start + 10)), PlainTag(start, 0)) for start in range(0, 300, 10)]

    ends = together(counting, writes)

    assert ends == list(range(410, 710, 10))
    assert [frame.header.tag.writer for frame in counting.log.frames(400)] == list(range(0, 300, 10))
    assert {row["id"] for row in rows(counting)} == set(range(300, 400))
    assert CountingKv.read_bytes < 3 * 3_000_000, "what is found to be too much is not read again and again"


def test_a_put_sees_the_puts_before_it_also_where_a_pass_is_too_large_to_be_read_at_once(counting):
    many = delete(*range(100, 115))

    together(
        counting,
        [
            (partial_put(1, -2), PlainTag(1, 0)),
            (many, PlainTag(2, 0)),
            (partial_put(1, -3), PlainTag(3, 0)),
            (delete(2), PlainTag(4, 0)),
            (partial_put(2, -4), PlainTag(5, 0)),
            (delete(*range(120, 130)), PlainTag(6, 0)),
        ],
    )

    found = {row["id"]: (row["n"], row["s"]) for row in rows(counting)}
    assert found[1] == (-3, "x" * 10_000)
    assert found[2] == (-4, None)
    assert found.keys() == set(range(400)) - set(range(100, 115)) - set(range(120, 130))


def test_everything_of_a_pass_is_read_at_once_where_it_is_little(bench):
    calls = []

    class Watched(Kv):
        def get(self, keys):
            calls.append(list(keys))
            return super().get(keys)

    bench.kv = Watched
    tablet = bench.open()
    put(tablet, upsert(*((n, n) for n in range(20))), 0)
    calls.clear()

    together(tablet, [(upsert((n, -n)), PlainTag(n, 0)) for n in range(20)])

    assert [len(keys) for keys in calls] == [20]
    assert calls[0] == sorted(calls[0])
