"""Odd requests about partitions, as a hostile client sends them: refused in few words, and the server goes on."""

import pytest

import kolk
from kolk.errors import InternalError, KolkError
from kolk.wire import messages as m

SCHEMA = kolk.Schema([kolk.Column("day", "string"), kolk.Column("key", "int")], primary_key=["day", "key"])
LONG = "x" * 3_000_000
MANY = {f"day=a/{n}": n for n in range(100_000)}
PLACES = [-(2**63), -5, 0, 99, 2**62, 2**63 - 1]


@pytest.fixture
def db(serve, connect):
    return connect(serve())


@pytest.fixture
def table(db):
    table = db.create_table("t", SCHEMA, buckets=2, partition_by=["day"])
    table.put([{"day": "a", "key": key} for key in range(10)])
    return table


def refusal(ask):
    with pytest.raises(KolkError) as caught:
        ask()
    assert not isinstance(caught.value, InternalError)
    assert len(str(caught.value)) < 1_000
    return caught.value


def changes(service, *arguments):
    """The first that a changelog brings; before it comes a sign of life."""
    pages = service.open_changes(*arguments)
    return next(filter(None, (pages.next(1) for _ in range(3))), None)


@pytest.mark.parametrize(
    "name",
    ["", "/", "day", f"day={LONG}", "day=a/" * 300_000, "=" * 3_000_000, "/" * 3_000_000, "day=\x00", "day=a/day=a"],
)
def test_a_name_that_is_none_is_refused(db, table, name):
    act = db._service._act
    refusal(lambda: act(m.AddPartition(table=table.info.id, name=name)))
    refusal(lambda: act(m.DropPartition(table=table.info.id, name=name, number=1)))

    assert [each.name for each in table.partitions()] == ["day=a"]


def test_a_message_beyond_all_bounds_is_refused_before_it_is_read(db, table):
    refusal(lambda: db._service._act(m.AddPartition(table=table.info.id, name="x" * 10_000_000)))


def test_a_number_that_the_partition_does_not_have_drops_nothing(db, table):
    for number in (0, 2, 2**63 - 1):
        refusal(lambda number=number: db._service._act(m.DropPartition(table.info.id, "day=a", number)))

    assert len(table.partitions()) == 1


@pytest.mark.parametrize("place", PLACES)
def test_a_place_that_the_record_does_not_have_is_refused(db, table, place):
    service, id = db._service, table.info.id
    refusal(lambda: changes(service, id, {"partitions": place}, {}))
    refusal(lambda: changes(service, id, {"partitions": place, **MANY}, {}))
    refusal(lambda: service.open_follower(id, "f", 1, {"partitions": place}))

    session = service.open_follower(id, "g", 1, None)
    if place > 2:
        refusal(lambda: service.commit_follower(id, "g", session.epoch, {"partitions": place}))


@pytest.mark.parametrize("starts", [{LONG: 1}, {"day=a/0": 2**62}, {"day=a/0": -5}, {"day=b/0": 0}, {"": 0}, MANY])
def test_offsets_of_what_is_not_there_are_refused(db, table, starts):
    service, id = db._service, table.info.id
    refusal(lambda: changes(service, id, starts, {}))
    refusal(lambda: changes(service, id, {"partitions": 2, **starts}, {}))
    refusal(lambda: service.open_follower(id, "f", 1, {"partitions": 2, **starts}))
    session = service.open_follower(id, "g", 1, None)
    if starts != {"day=a/0": -5}:  # which is behind where it is, and changes nothing
        refusal(lambda: service.commit_follower(id, "g", session.epoch, {"partitions": 2, **starts}))

    assert all(end <= 10 for follower in db.followers() for end in follower.offsets.values())


@pytest.mark.parametrize("stop", [*PLACES, None])
def test_any_stop_is_as_good_as_another(db, table, stop):
    pages = db._service.open_changes(table.info.id, {"partitions": 1}, {"partitions": stop, LONG[:1000]: 5, **MANY})

    assert pages.next(1) is None
    pages.close()
    assert table.get_one(day="a", key=1) is not None


def test_partitions_of_a_table_without_them_are_refused(db):
    plain = db.create_table("p", SCHEMA)
    plain.put([{"day": "a", "key": 1}])
    act, id = db._service._act, plain.info.id

    refusal(lambda: act(m.ListPartitions(table=id)))
    refusal(lambda: act(m.AddPartition(table=id, name="day=a")))
    refusal(lambda: act(m.DropPartition(table=id, name="day=a")))
    refusal(lambda: changes(db._service, id, {"partitions": 1}, {}))
    refusal(lambda: db._service.open_follower(id, "f", 1, {"partitions": 1}))
    session = db._service.open_follower(id, "g", 1, None)
    refusal(lambda: db._service.commit_follower(id, "g", session.epoch, {"partitions": 7}))
    assert db.followers()[0].offsets == {"0": 0}
