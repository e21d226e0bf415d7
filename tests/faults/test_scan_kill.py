"""kill -9 of a server, and cuts of the wire to it, amid scans: a strict scan says so, a mended one is exact.

The table is larger than what is under way at any time, so that a scan is really in the middle. Whoever kills the server
also starts it again, and changes rows before and behind the reader before the reader notices.
"""

import random
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
from tests.faults.attacker import Ticks
from tests.faults.campaign import IS_FULL, write_figures
from tests.faults.relay import Relay, lost_answer
from tests.faults.servers import PATIENCE_SECONDS, Server
from tests.spec.replica import Key, Moments, Replica, Row, by_key

import kolk
from kolk.errors import UnknownOrExpiredScan, Unreachable

ROWS = 24_000
CHANGED = 400
RANDOM_KILLS = 40 if IS_FULL else 2
TIMEOUT_SECONDS = 60.0
DAYS = 3
FAULT = "kill -9 of a server in the middle of a scan"
CONFIG = kolk.EngineConfig(durability="process", kv_block_cache_bytes=2**24, kv_write_buffer_bytes=2**24)
COLUMNS = [
    kolk.Column("day", "int", nullable=False),
    kolk.Column("key", "int", nullable=False),
    kolk.Column("value", "int"),
    kolk.Column("payload", "string"),
]
SCHEMA = kolk.Schema(COLUMNS, primary_key=["day", "key"])
PAYLOAD = "x" * 1_000


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("scan-kill") / "data", CONFIG) as server:
        server.start()
        yield server


class Scene:
    """A server, a client, a large table, and how it was at every moment."""

    def __init__(self, server: Server, db: kolk.Database, name: str, *, is_cut: bool) -> None:
        self.server = server
        self.db = db
        self.table = db.create_table(name, SCHEMA, buckets=2, partition_by=["day"] if is_cut else [])
        self.rows: dict[Key, Row] = {}
        self.kills = 0
        self._moments = Moments(self.table)
        self._rng = random.Random(name)
        self.fill()

    def fill(self) -> None:
        """Make the table large, or large again."""
        keys = range(0, 2 * ROWS, 2)
        days, values = [key % DAYS for key in keys], [0] * ROWS
        columns = [pa.array(each, pa.int32()) for each in (days, keys, values)]
        self.table.put(pa.Table.from_arrays([*columns, pa.array([PAYLOAD] * ROWS)], SCHEMA.names))
        self.rows |= {(key % DAYS, key): row(key, 0) for key in keys}
        self._moments.note(self.rows)

    def kill(self) -> None:
        """kill -9, start again, and change the table."""
        self.server.kill_after(0)
        self.kills += 1
        self.server.start()
        self.change()

    def change(self) -> None:
        """Rows change, go and come, wherever they are; a partition goes, and comes again with less."""
        rng = self._rng
        there = rng.sample(sorted(self.rows), 2 * CHANGED)
        changed = [key for _, key in there[:CHANGED]] + rng.sample(range(1, 2 * ROWS, 2), CHANGED)
        rows = [row(key, rng.randrange(1, 100)) for key in changed]
        self.table.put(rows)
        self.rows |= {(each["day"], each["key"]): each for each in rows}
        self.table.delete([{"day": day, "key": key} for day, key in there[CHANGED:]])
        self.rows = {key: each for key, each in self.rows.items() if key not in set(there[CHANGED:])}
        if self.table.info.is_partitioned:
            gone = rng.randrange(DAYS)
            self.table.drop_partition(day=gone)
            self.rows = {key: each for key, each in self.rows.items() if key[0] != gone}
            self.table.put([row(DAYS * number + gone, 7) for number in range(50)])
            self.rows |= {(gone, DAYS * number + gone): row(DAYS * number + gone, 7) for number in range(50)}
        self._moments.note(self.rows)

    def at(self, offsets: dict[str, int]) -> dict[Key, Row]:
        return self._moments.at(offsets)

    def kill_at(self, *points: int) -> Callable[[int, int | None], None]:
        """Of a scan's progress: kill when so many rows have come, and again when so many more have."""
        left = list(points)

        def on_progress(rows: int, _: int | None) -> None:
            if left and rows >= left[0]:
                del left[0]
                self.kill()

        return on_progress


def row(key: int, value: int) -> Row:
    return {"day": key % DAYS, "key": key, "value": value, "payload": PAYLOAD}


@pytest.fixture
def scene(server, request):
    with kolk.connect(server.url, timeout=TIMEOUT_SECONDS) as db:
        name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)[-100:]
        yield Scene(server, db, f"t{name}", is_cut="partitions" in request.node.name)
        assert server.failures() == []


POINTS = {"the first page": 1, "the middle": ROWS // 3, "near the end": ROWS * 9 // 10}


@pytest.mark.parametrize("point", POINTS)
def test_a_strict_scan_fails_when_its_server_was_killed_and_never_looks_finished(scene, point):
    scan = scene.table.scan(on_progress=scene.kill_at(POINTS[point]))

    for _ in range(2):
        with pytest.raises(UnknownOrExpiredScan, match="restarted"):
            scan.to_arrow()

    assert scan.rows < ROWS
    with pytest.raises(UnknownOrExpiredScan):
        next(iter(scan))


def test_a_strict_scan_fails_while_its_server_is_down(scene, server):
    with kolk.connect(server.url, timeout=1) as db:
        scan = db.table(scene.table.name).scan()
        batches = iter(scan)
        next(batches)
        server.kill_after(0)

        for _ in range(2):
            with pytest.raises(Unreachable):
                scan.to_arrow()
        server.start()
        with pytest.raises(Unreachable):
            scan.to_arrow()
        scan.close()


HOW: dict[str, dict[str, Any]] = {
    "everything": {},
    "a predicate": {"where": "value = 0 OR value > 50"},
    "no key": {"columns": ["value"]},
    "a limit": {"limit": 5_000},
    "a large limit": {"limit": 1_000_000, "columns": ["payload", "value"]},
    "partitions": {},
}
KILLED_AT = {
    "everything": [(ROWS // 3,), (ROWS * 9 // 10,), (1, ROWS // 2)],
    "a predicate": [(ROWS // 4,)],
    "no key": [(1,)],
    "a limit": [(100,)],
    "a large limit": [(ROWS // 4,)],
    "partitions": [(ROWS // 3,), (1, ROWS // 3)],
}
CASES = [pytest.param(how, points, id=f"{how} {points}") for how, each in KILLED_AT.items() for points in each]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("how", "points"), CASES)
def test_a_mended_scan_is_the_table_at_its_last_offsets_when_its_server_was_killed(scene, how, points):
    scan = scene.table.scan(**HOW[how], resume="log", on_progress=scene.kill_at(*points))
    begun = dict(scan.offsets)

    with scan:
        found = scan.to_arrow()

    assert scene.kills == len(points)
    assert scan.offsets != begun
    check(scene, scan, found, HOW[how])
    write_figures(FAULT, times=scene.kills, wrong=0)


def check(scene: Scene, scan: kolk.Scan, found: pa.Table, how: dict[str, Any]) -> None:
    expected = list(scene.at(scan.offsets).values())
    if "where" in how:
        expected = [row for row in expected if row["value"] == 0 or row["value"] > 50]
    names = how.get("columns", SCHEMA.names)
    wanted = sorted(tuple(row[name] for name in names) for row in expected)
    rows = sorted(tuple(row[name] for name in names) for row in found.to_pylist())
    if len(wanted) > how.get("limit", ROWS * 10):
        assert len(rows) == how["limit"]
        assert set(rows) <= set(wanted)
    else:
        assert len(rows) == len(wanted)
        assert rows == wanted


def test_a_mended_scan_is_exact_when_its_server_was_killed_after_it_was_opened(scene):
    scan = scene.table.scan(resume="log")
    scene.kill()

    with scan:
        found = scan.to_arrow()

    check(scene, scan, found, {})


@pytest.mark.timeout(300)
def test_a_mended_scan_is_exact_when_its_server_was_killed_in_the_middle_of_the_mending(scene):
    """The new server dies as soon as the scan is open again, which is when the changes are read."""
    killers: list[threading.Thread] = []

    def kill(rows: int, _: int | None) -> None:
        if rows > ROWS // 2 and not killers:
            scene.kill()
            for _ in range(3):
                scene.change()  # so that there is much to mend
            opened = scene.db.status()["scans"]["opened"]
            killers.append(threading.Thread(target=kill_when_opened, args=(scene, opened + 1)))
            killers[0].start()

    scan = scene.table.scan(resume="log", on_progress=kill)
    found = scan.to_arrow()
    killers[0].join()

    assert scene.kills == 2
    check(scene, scan, found, {})
    write_figures(FAULT, times=2, wrong=0)


def kill_when_opened(scene: Scene, scans: int) -> None:
    if Ticks(PATIENCE_SECONDS, 0.001).until(lambda: scene.db.status()["scans"]["opened"] >= scans):
        scene.kills += 1  # which the test counts
    scene.server.kill_after(0)
    scene.server.start()


@pytest.mark.timeout(300)
def test_a_mended_scan_that_fails_while_its_server_is_down_goes_on_with_all_that_it_had(scene, server):
    with kolk.connect(server.url, timeout=1) as db:

        def kill(rows: int, _: int | None) -> None:
            if rows > ROWS // 2 and not scene.kills:
                server.kill_after(0)
                scene.kills += 1

        scan = db.table(scene.table.name).scan(resume="log", on_progress=kill)
        with pytest.raises(Unreachable):
            scan.to_arrow()
        server.start()
        scene.change()

        found = scan.to_arrow()

    check(scene, scan, found, {})


def test_a_bootstrap_that_fails_while_its_server_is_down_goes_on_where_it_was(scene, server):
    """Down in the scan, and down again in the middle of what has happened meanwhile."""
    replica, downs = Replica(SCHEMA.primary_key), 0
    with kolk.connect(server.url, timeout=1) as db:
        boot = db.table(scene.table.name).bootstrap(follow=False, on_partition=replica.on_partition)
        while not boot.is_scanned:
            try:
                for batch in boot:
                    replica.apply(batch, is_log=boot.is_scanned)
                    assert replica.wrong == []
                    if not boot.is_scanned:
                        replica.go_on(boot.offsets, or_later=True)
                    if downs < 2 and len(replica.rows) > ROWS // 2 and server.is_alive:
                        downs += 1
                        server.kill_after(0)
            except Unreachable:
                server.start()
                for _ in range(3):
                    scene.change()

    assert downs == 2
    assert replica.rows == scene.rows


def bootstrapped(scene: Scene, kills: Callable[[Any, Replica, int], bool]) -> None:
    """Follow a table from a bootstrap to its end, and kill its server after the batches that are named."""
    replica, rows = Replica(SCHEMA.primary_key), 0
    with scene.table.bootstrap(follow=False, on_partition=replica.on_partition) as boot:
        for batch in boot:
            is_log = boot.is_scanned
            replica.apply(batch, is_log=is_log)
            assert replica.wrong == []
            if not is_log:
                replica.go_on(boot.offsets, or_later=True)
            rows += batch.num_rows
            if kills(boot, replica, rows):
                scene.kill()
    with scene.table.changelog(start=boot.offsets, on_partition=replica.on_partition) as rest:
        for batch in rest:
            replica.apply(batch)
    assert replica.wrong == []
    assert replica.rows == scene.rows == by_key(scene.table, scene.table.scan().to_arrow())


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("cut", "points"),
    [("plain", (1,)), ("plain", (ROWS // 3, ROWS // 2, ROWS)), ("partitions", (ROWS // 3, ROWS // 2))],
    ids=str,
)
def test_a_bootstrap_is_exact_when_its_server_was_killed(scene, cut, points):
    left = list(points)

    def kills(boot: Any, replica: Replica, rows: int) -> bool:
        return bool(left) and rows >= left[0] and bool(left.pop(0))

    bootstrapped(scene, kills)

    assert scene.kills == len(points)
    write_figures(FAULT, times=scene.kills, wrong=0)


def test_a_bootstrap_is_exact_when_its_server_was_killed_in_the_middle_of_the_mending(scene):
    seen = 0

    def kills(boot: Any, replica: Replica, rows: int) -> bool:
        """In the scan, and then after the first batch of what has happened meanwhile."""
        nonlocal seen
        is_time = rows > ROWS // 2 if not scene.kills else scene.kills == 1 and not boot.is_scanned and rows > seen
        seen = rows
        return is_time

    bootstrapped(scene, kills)

    assert scene.kills == 2
    write_figures(FAULT, times=2, wrong=0)


@pytest.mark.timeout(1_800)
def test_mended_scans_and_bootstraps_are_exact_wherever_their_server_is_killed_partitions_or_not(scene):
    rng = random.Random(20_261_116)
    for number in range(RANDOM_KILLS):
        scene.fill()
        points = sorted(rng.sample(range(1, ROWS), rng.choice((1, 2, 3))))
        if number % 2:
            left = list(points)
            bootstrapped(scene, lambda boot, replica, rows, left=left: bool(left) and rows >= left[0] and left.pop(0))
        else:
            scan = scene.table.scan(resume="log", on_progress=scene.kill_at(*points))
            check(scene, scan, scan.to_arrow(), {})

    write_figures(FAULT, times=scene.kills, wrong=0)


CUTS = {"a stream": ({}, [1, ROWS // 3, ROWS // 2]), "pages": ({"limit": 20_000}, [1, 500, 3_000])}


@pytest.mark.parametrize("form", CUTS)
def test_a_broken_wire_is_mended_in_the_same_scan_at_the_last_batch(scene, form):
    """Nothing is opened again, so nothing of another moment can come."""
    how, points = CUTS[form]
    with Relay(scene.server.url) as relay, kolk.connect(relay.url, timeout=TIMEOUT_SECONDS) as db:
        opened, left = scene.db.status()["scans"]["opened"], list(points)

        def cut(rows: int, _: int | None) -> None:
            if left and rows >= left[0]:
                del left[0]
                relay.cut()
                scene.change()

        scan = db.table(scene.table.name).scan(**how, on_progress=cut)
        id, offsets = scan.id, dict(scan.offsets)
        found = scan.to_arrow()

        assert (scan.id, scan.offsets) == (id, offsets)
        assert scene.db.status()["scans"]["opened"] == opened + 1 + len(points)  # those that note the moments
        assert relay.cuts == len(points)
    check(scene, scan, found, how)
    write_figures("a cut of the wire in the middle of a scan", times=len(points), wrong=0)


def test_an_answer_that_is_lost_is_given_again_and_opens_no_second_scan(scene):
    with ExitStack() as opened:
        relay = opened.enter_context(Relay(scene.server.url))
        table = opened.enter_context(kolk.connect(relay.url, timeout=TIMEOUT_SECONDS)).table(scene.table.name)
        before = scene.db.status()["scans"]

        with lost_answer(relay, more(scene, "opened")):
            scan = table.scan(limit=10_000)
        batches = iter(scan)
        found = [next(batches)]
        with lost_answer(relay, more(scene, "rows")):
            found.append(next(batches))
        found += batches

        assert relay.cuts == 2
        assert scene.db.status()["scans"]["opened"] == before["opened"] + 1
    check(scene, scan, pa.Table.from_batches(found), {"limit": 10_000})


def more(scene: Scene, counted: str) -> Callable[[], bool]:
    """Whether the server has counted more than it has now."""
    before = scene.db.status()["scans"][counted]
    return lambda: scene.db.status()["scans"][counted] > before
