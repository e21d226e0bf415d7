"""A stream of puts: in order, each acknowledged, and resumable."""

import pytest

import kolk
from kolk.errors import InvalidRows, Unreachable


def batch(number, size=3):
    return [{"page": f"/{key}", "pv": number, "title": None} for key in range(size)]


def test_a_stream_of_puts_is_applied_in_order_and_acknowledged_one_by_one(pages):
    results = list(pages.put_stream(batch(number) for number in range(20)))

    assert [result.tag.seq for result in results] == list(range(20))
    assert len({result.tag.writer for result in results}) == 1
    assert set(pages.scan().to_arrow().column("pv").to_pylist()) == {19}
    ends = {bucket: end for result in results for bucket, end in result.offsets.items()}
    assert ends == {bucket: end for bucket, end in pages.scan().offsets.items() if end}


def test_the_first_batch_that_does_not_fit_ends_the_stream_after_those_before_it(pages):
    batches = [batch(0), batch(1), [{"page": "/", "pv": "no number", "title": None}], batch(3)]
    seen = []

    with pytest.raises(InvalidRows, match="pv"):
        seen.extend(pages.put_stream(batches))

    assert len(seen) == 2
    assert set(pages.scan().to_arrow().column("pv").to_pylist()) == {1}


def test_a_stream_goes_on_with_the_tag_of_its_failure_and_applies_nothing_twice(pages):
    first = next(iter(pages.put_stream([batch(0)])))
    before = pages.scan().offsets

    again = list(pages.put_stream([batch(0), batch(1)], tag=first.tag))

    assert again[0] == first
    assert again[1].tag == kolk.PlainTag(first.tag.writer, first.tag.seq + 1)
    assert sum(pages.scan().offsets.values()) == sum(before.values()) + 6


def test_partial_updates_can_be_streamed(pages):
    pages.put(batch(1))

    list(pages.put_stream([[{"page": "/0", "title": "home"}], [{"page": "/1", "title": "about"}]], columns=["title"]))

    assert pages.get_one(page="/0") == {"page": "/0", "pv": 1, "title": "home"}


def test_an_empty_stream_puts_nothing(pages):
    assert list(pages.put_stream([])) == []


def test_each_batch_is_put_before_more_are_asked_for_than_may_be_under_way(pages):
    taken = []

    def source():
        for number in range(8):
            taken.append(number)
            yield batch(number)

    for seen, _ in enumerate(pages.put_stream(source()), 1):
        assert len(taken) - seen <= 3


def test_what_was_taken_when_the_stream_is_left_early_is_put_all_the_same(pages):
    taken = []

    def source():
        for number in range(8):
            taken.append(number)
            yield [{"page": f"/{number}", "pv": number, "title": None}]

    results = pages.put_stream(source())
    next(results)
    results.close()

    assert sorted(pages.scan().to_arrow().column("pv").to_pylist()) == taken


def test_the_error_of_any_failed_put_has_its_tag(pages):
    with pytest.raises(InvalidRows) as caught:
        list(pages.put_stream([batch(0), [{"page": "/", "pv": "x", "title": None}]]))

    assert caught.value.tag.seq == 1


def test_a_put_that_fails_when_the_stream_is_left_early_has_a_tag(pages, monkeypatch):
    def puts(table, writes):
        for _ in range(3):
            next(writes)
        try:
            yield {}
        except GeneratorExit:
            raise Unreachable("the server went away") from None

    monkeypatch.setattr(pages._link.service, "puts", puts)
    stream = pages.put_stream(batch(number) for number in range(5))
    first = next(stream)

    with pytest.raises(Unreachable) as caught:
        stream.close()

    assert caught.value.tag == kolk.PlainTag(first.tag.writer, first.tag.seq + 1)
