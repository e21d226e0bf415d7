"""A put over several buckets that ends part way, seen through the network."""

import errno

import pytest

import kolk
from kolk.engine.database import Engine
from kolk.errors import DiskFull, PartialPut
from kolk.runtime.folder import Folder
from kolk.server.run import Server
from kolk.testing.faults import Call, FailingDisk

BUCKET_ONE = "/1/0/1/log/"  # table 1, no partition


@pytest.fixture
def disk():
    return FailingDisk()


@pytest.fixture
def used():
    """What share of the disk is in use."""
    return [0.1]


@pytest.fixture
def server(tmp_path, disk, used):
    engine = Engine(Folder(tmp_path / "data"), kolk.EngineConfig(), disk=disk)
    config = kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1)
    with Server(engine, config, engine.close, disk_used=lambda: used[0]) as server:
        yield server


def rows(count):
    return [{"id": number, "v": str(number)} for number in range(count)]


def test_the_client_completes_a_put_that_ended_part_way(server, disk, connect, schema):
    table = connect(server).create_table("t", schema, buckets=2)
    disk.fail_next(Call.WRITE, errno.ENOSPC, within=BUCKET_ONE)

    result = table.put(rows(50))

    assert set(result.offsets) == {"0", "1"}
    assert sum(batch.num_rows for batch in table.changelog()) == 50


def test_at_its_deadline_the_client_tells_what_is_durable_and_a_retry_with_the_tag_completes_it(
    server, disk, connect, schema, hurry
):
    db = connect(server)
    table = db.create_table("t", schema, buckets=2)
    hurry(db, 2)
    disk.fail_always(Call.WRITE, errno.ENOSPC, within=BUCKET_ONE)

    with pytest.raises(PartialPut) as caught:
        table.put(rows(50))

    assert set(caught.value.acknowledged) == {"0"}
    assert isinstance(caught.value.failed["1"], DiskFull)
    assert caught.value.retriable
    disk.heal()
    hurry(db, 30)
    result = table.put(rows(50), tag=caught.value.tag)
    assert result.offsets["0"] == caught.value.acknowledged["0"]
    assert sum(batch.num_rows for batch in table.changelog()) == 50


@pytest.mark.parametrize("puts", [lambda table: table.put(rows(50)), lambda table: list(table.put_stream([rows(50)]))])
def test_a_put_that_ended_part_way_and_is_refused_then_is_still_one_that_ended_part_way(
    server, disk, used, connect, schema, hurry, puts
):
    """The refusal means nothing of what is durable by then."""
    db = connect(server)
    table = db.create_table("t", schema, buckets=2)
    hurry(db, 5)
    disk.fail_always(Call.WRITE, errno.ENOSPC, within=BUCKET_ONE)
    retry = db._link.service._retry
    pause = retry._pause

    def fills_the_disk(seconds):
        used[0], server._disk._seen = 0.99, (float("-inf"), 0.0)
        pause(seconds)

    retry._pause = fills_the_disk
    with pytest.raises(PartialPut) as caught:
        puts(table)

    assert set(caught.value.acknowledged) == {"0"}
    assert isinstance(caught.value.__cause__, DiskFull)
    assert "refused above" in str(caught.value.__cause__)
