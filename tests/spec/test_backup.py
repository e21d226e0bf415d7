"""A backup is the database as it was, made while it is used; what a restore makes of it goes on from there."""

import errno
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

import kolk
from kolk.codec.backup import decode_backup, encode_backup
from kolk.engine.restore import restore
from kolk.errors import (
    Corrupted,
    DiskFull,
    HolderLost,
    InvalidArgument,
    InvalidName,
    NotFound,
    PermissionDenied,
    Stopped,
    UnknownFormat,
)
from kolk.model.grant import Grant
from kolk.server.run import Server
from kolk.server.tokens import Tokens
from kolk.storage.copying import digest_of
from kolk.testing.faults import Call, FailingDisk

PAGES = kolk.Schema([kolk.Column("page", "string"), kolk.Column("pv", "bigint")], "page")
HITS = kolk.Schema([kolk.Column("day", "string"), kolk.Column("id", "bigint")], ["day", "id"])
EVENTS = kolk.Schema([kolk.Column("n", "bigint")])


class Place:
    """A database in one of its forms, and where its backups are."""

    def __init__(self, db, folder, backups, form):
        self.db = db
        self.folder = folder
        self._backups = backups
        self._form = form

    def backup(self, name="b", **options):
        """Make a backup; the answer is its folder."""
        target = self._backups / name if self._form == "embedded" else name
        info = self.db.backup(target, **options)
        assert Path(info.path) == self._backups / name
        return self._backups / name


@pytest.fixture
def place(form, folder, config, tmp_path):
    backups = tmp_path / "backups"
    if form == "embedded":
        with kolk.connect(folder, config=config) as db:
            yield Place(db, folder, backups, form)
        return
    served = kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1, backup_folder=str(backups))
    with Server.open(folder, served, config) as server, kolk.connect(server.url) as db:
        yield Place(db, folder, backups, form)


@pytest.fixture
def db(place):
    return place.db


@pytest.fixture
def restored(config, tmp_path):
    """Open the database that is made of a backup."""

    @contextmanager
    def make(backup):
        restore(backup, tmp_path / "restored")
        with kolk.connect(tmp_path / "restored", config=config) as there:
            yield there

    return make


def filled(db):
    """Tables of every kind, with a past."""
    pages = db.create_table("web.pages", PAGES, buckets=3, options={"table.changelog.image": "wal"})
    pages.put([{"page": f"/{number}", "pv": number} for number in range(50)])
    pages.add_column("title", "string")
    pages.put([{"page": "/7", "pv": 700, "title": "seven"}])
    pages.delete(["/8"])
    hits = db.create_table("web.hits", HITS, buckets=2, partition_by=["day"])
    hits.put([{"day": f"2026-11-1{number % 3}", "id": number} for number in range(30)])
    hits.drop_partition("day=2026-11-11")
    events = db.create_table("events", EVENTS, buckets=2)
    for number in range(20):
        events.put([{"n": number}])
    db.create_table("empty", PAGES, buckets=2)
    db.create_table("bare", HITS, partition_by=["day"])
    return pages, hits, events


def rows_of(table):
    return sorted(table.scan().to_arrow().to_pylist(), key=str)


def changes_of(table):
    return sorted((row for batch in table.changelog() for row in batch.to_pylist()), key=str)


def state_of(db):
    """All that a database is, but for the logs of tables with a key, which a backup does not have."""
    tables = db.tables()
    return {
        "tables": [table.info for table in tables],
        "versions": {
            table.name: [
                db._link.service.schema(table.info.id, number) for number in range(1, table.info.schema.id + 1)
            ]
            for table in tables
        },
        "rows": {table.name: rows_of(table) for table in tables if not table.info.is_log},
        "logs": {table.name: changes_of(table) for table in tables if table.info.is_log},
        "partitions": {table.name: table.partitions() for table in tables if table.info.is_partitioned},
        "ends": {
            table.name: {name: ends["end"] for name, ends in table.describe()["offsets"].items()} for table in tables
        },
    }


# --- what comes back


def test_a_restored_database_is_the_one_that_was_backed_up(place, db, restored):
    pages, hits, _ = filled(db)
    before = state_of(db)

    backup = place.backup()
    pages.put([{"page": "/later", "pv": 1, "title": None}])
    hits.put([{"day": "2026-11-20", "id": 1}])
    db.drop_table("events")

    with restored(backup) as there:
        assert state_of(there) == before


def test_offsets_go_on_from_where_the_backup_was(place, db, restored):
    pages, _, events = filled(db)
    ends = {name: offsets["end"] for name, offsets in pages.describe()["offsets"].items()}
    count = sum(offsets["end"] for offsets in events.describe()["offsets"].values())

    with restored(place.backup()) as there:
        again = there.table("web.pages")
        assert again.describe()["offsets"] == {name: {"start": end, "end": end} for name, end in ends.items()}
        with again.scan() as scan:
            assert scan.offsets == ends
        put = again.put([{"page": "/new", "pv": 1, "title": None}])
        ((bucket, end),) = put.offsets.items()
        changes = changes_of(again)
        assert (end, [change["_log_offset"] for change in changes]) == (ends[bucket] + 1, [ends[bucket]])
        there.table("events").put([{"n": 99}])
        assert len(changes_of(there.table("events"))) == count + 1


def test_the_record_of_partitions_goes_on(place, db, restored):
    _, hits, _ = filled(db)
    with hits.scan() as scan:
        position = scan.offsets["partitions"]

    with restored(place.backup()) as there:
        again = there.table("web.hits")
        again.put([{"day": "2026-11-11", "id": 1}])
        told = []
        with again.scan() as scan:
            assert scan.offsets["partitions"] == position + 1
            offsets = {name: offset for name, offset in scan.offsets.items() if "2026-11-11" not in name}
        log = again.changelog(start=offsets | {"partitions": position}, on_partition=told.append)
        assert sum(batch.num_rows for batch in log) == 1
        assert [(event.partition, event.kind.value) for event in told] == [("day=2026-11-11", "created")]


def test_a_put_that_is_retried_after_the_restore_is_applied_once(place, db, restored):
    pages, _, events = filled(db)
    tags = {
        pages.name: pages.put([{"page": "/tagged", "pv": 1, "title": None}]).tag,
        events.name: events.put([{"n": 1_000}]).tag,
    }

    with restored(place.backup()) as there:
        ends = state_of(there)["ends"]
        there.table(pages.name).put([{"page": "/tagged", "pv": 1, "title": None}], tag=tags[pages.name])
        there.table(events.name).put([{"n": 1_000}], tag=tags[events.name])
        assert state_of(there)["ends"] == ends


def test_followers_come_back_and_who_would_miss_changes_is_told(place, db, restored):
    pages, _, events = filled(db)
    for _ in pages.changelog(follower="done"):
        pass
    pages.changelog(follower="behind").close()
    events.changelog(follower="reader").close()

    with restored(place.backup()) as there:
        assert {(each.table, each.name) for each in there.followers()} == {
            ("web.pages", "done"),
            ("web.pages", "behind"),
            ("events", "reader"),
        }
        again = there.table("web.pages")
        put = again.put([{"page": "/new", "pv": 1, "title": None}])
        seen = [row["page"] for batch in again.changelog(follower="done") for row in batch.to_pylist()]
        assert seen == ["/new"]
        assert put.offsets
        with pytest.raises(HolderLost):
            again.changelog(follower="behind")
        reread = [row["n"] for batch in there.table("events").changelog(follower="reader") for row in batch.to_pylist()]
        assert sorted(reread) == list(range(20))


def test_its_snapshots_are_of_one_moment_and_nobody_leases_them(place, db, restored):
    pages, _, _ = filled(db)

    with pages.lease(lease_id="job"):
        backup = place.backup()

    with restored(backup) as there:
        again = there.table("web.pages")
        assert there.leases() == []
        assert [each.leases for each in again.snapshots()] == [0, 0, 0]
        with again.scan(source="snapshot") as scan:
            assert scan.consistent
        with again.lease() as lease:
            assert lease.consistent
        assert there.status()["snapshots"]["taken"] == 0
        again.put([{"page": "/new", "pv": 1, "title": None}])
        assert len(again.take_snapshot()) == 3


def test_a_restored_database_is_backed_up_and_restored_in_turn(place, db, config, tmp_path):
    filled(db)
    before = state_of(db)
    restore(place.backup(), tmp_path / "first")
    with kolk.connect(tmp_path / "first", config=config) as first:
        first.backup(tmp_path / "again")
    restore(tmp_path / "again", tmp_path / "second")

    with kolk.connect(tmp_path / "second", config=config) as second:
        assert state_of(second) == before


def test_an_empty_database_has_a_backup(place, restored):
    with restored(place.backup()) as there:
        assert there.tables() == []
        there.create_table("t", PAGES).put([{"page": "/", "pv": 1}])


def test_the_tokens_of_the_server_come_along(place, tmp_path):
    Tokens(place.folder / "tokens.json").create("etl", [Grant.parse("*=all")])
    with kolk.connect(place.folder) as db:
        db.backup(tmp_path / "b")

    restore(tmp_path / "b", tmp_path / "restored")

    assert [token.name for token in Tokens(tmp_path / "restored" / "tokens.json").list()] == ["etl"]


# --- while it is used


def test_each_table_is_of_one_moment_while_others_write(place, db, restored):
    counters = db.create_table("counters", PAGES, buckets=8)
    events = db.create_table("events", EVENTS, buckets=4)
    pages = [f"/{number}" for number in range(16)]
    counters.put([{"page": page, "pv": 0} for page in pages])
    stop, written = threading.Event(), threading.Event()

    def write():
        round = 0
        while not stop.is_set():
            round += 1
            for page in pages:
                counters.put([{"page": page, "pv": round}])
                events.put([{"n": round}])
            written.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert written.wait(30)
        known = {row["page"]: row["pv"] for row in rows_of(counters)}
        backup = place.backup()
    finally:
        stop.set()
        writer.join()

    with restored(backup) as there:
        rounds = [there.table("counters").get_one(page=page)["pv"] for page in pages]
        seen = [row["n"] for row in changes_of(there.table("events"))]
        assert sorted(rounds, reverse=True) == rounds  # one after the other, so none is ahead of one before it
        assert rounds[0] - rounds[-1] <= 1
        assert all(round >= known[page] for page, round in zip(pages, rounds, strict=True))
        counts = [seen.count(round) for round in range(1, max(seen) + 1)]
        assert counts[:-1] == [len(pages)] * (len(counts) - 1)


def test_the_share_that_is_done_is_told(place, db):
    filled(db)
    told = []

    backup = place.backup(on_progress=lambda done, total: told.append((done, total)))

    assert told[-1][0] == told[-1][1] > 0
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert (backup / "BACKUP").exists()


# --- what is refused


def test_a_backup_goes_into_a_new_or_empty_folder_outside_of_the_database(folder, config, tmp_path):
    with kolk.connect(folder, config=config) as db:
        filled(db)
        (tmp_path / "empty").mkdir()
        db.backup(tmp_path / "empty")
        (tmp_path / "file").touch()
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "file").touch()
        refused = {
            "empty": "holds a backup already",
            "file": "is a file",
            "other": "is not empty",
            "data": "holds a database",
            "data/inside": "within each other",
            "other/../data/x": "within each other",
        }
        for name, why in refused.items():
            with pytest.raises(InvalidArgument, match=why):
                db.backup(tmp_path / name)
        for nothing in ("", 7, "a\0b"):
            with pytest.raises(InvalidArgument):
                db.backup(nothing)

    assert not (folder / "inside").exists()
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["file"]


def test_a_backup_is_not_opened_by_mistake(place, db, config):
    filled(db)

    backup = place.backup()

    with pytest.raises(InvalidArgument, match="no Kolk data"):
        kolk.connect(backup, config=config)


def test_a_server_makes_backups_only_where_it_is_told_to_and_by_who_may_alter_everything(folder, config, tmp_path):
    tokens = Tokens(folder / "tokens.json")
    folder.mkdir()
    secrets = {
        name: tokens.create(name, [Grant.parse(grant)])[1]
        for name, grant in {"operator": "*=alter", "reader": "*=read", "half": "web.*=all"}.items()
    }
    with kolk.connect(folder, config=config) as db:
        filled(db)

    def made(backup_folder, who, name="b"):
        served = kolk.ServerConfig(port=0, http_port=-1, drain_seconds=1, backup_folder=backup_folder)
        with Server.open(folder, served, config) as server, kolk.connect(server.url, token=secrets[who]) as db:
            return db.backup(name)

    backups = str(tmp_path / "backups")
    with pytest.raises(InvalidArgument, match="backup_folder"):
        made(None, "operator")
    for who in ("reader", "half"):
        with pytest.raises(PermissionDenied, match="every table"):
            made(backups, who)
    for name in ("../b", "/tmp/b", "a/b", ".", "..", "b c"):
        with pytest.raises(InvalidName):
            made(backups, "operator", name)
    assert not (tmp_path / "backups").exists()
    assert made(backups, "operator").tables == 5
    assert made(backups, "operator", "c").path == str(tmp_path / "backups" / "c")


# --- damage


DAMAGED = {
    "rows": "snapshots/*/*/*/*/*.sst",
    "a manifest": "snapshots/*/*/*/*.manifest",
    "a log": "tables/3/*/*/log/*.log",
    "the records": "meta.sqlite",
    "the list": "FILES",
    "the head": "BACKUP",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A backup to copy: making one takes longer."""
    folder = tmp_path_factory.mktemp("model")
    with kolk.connect(folder / "data", config=kolk.EngineConfig(durability="process")) as db:
        filled(db)
        db.backup(folder / "b")
    return folder / "b"


@pytest.fixture
def whole(model, tmp_path):
    return shutil.copytree(model, tmp_path / "b")


@pytest.mark.parametrize("pattern", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_damaged_backup_is_refused_by_name_and_nothing_is_restored(whole, tmp_path, pattern, how):
    file = next(path for path in sorted(whole.glob(pattern)) if path.stat().st_size)
    data = bytearray(file.read_bytes())
    if how == "gone":
        file.unlink()
    elif how == "cut":
        file.write_bytes(data[:-1])
    else:
        data[len(data) // 2] ^= 1
        file.write_bytes(data)

    with pytest.raises(NotFound if (how, file.name) == ("gone", "BACKUP") else Corrupted, match=file.name):
        restore(whole, tmp_path / "restored")

    assert not (tmp_path / "restored").exists()


def test_a_list_that_leads_out_of_the_backup_is_refused(whole, tmp_path):
    files = (whole / "FILES").read_bytes().replace(b"meta.sqlite", b"tables/../../../x")
    head = decode_backup("", (whole / "BACKUP").read_bytes())
    (whole / "FILES").write_bytes(files)
    (whole / "BACKUP").write_bytes(encode_backup(type(head)(**{**_fields(head), "digest": digest_of(files)})))

    with pytest.raises(Corrupted, match="names no file of a backup"):
        restore(whole, tmp_path / "restored")


def _fields(head):
    return {name: getattr(head, name) for name in head.__struct_fields__}


def test_a_newer_backup_is_refused_and_an_older_one_brought_up_to_date(whole, tmp_path, config):
    head = decode_backup("", (whole / "BACKUP").read_bytes())

    def rewritten(**changes):
        (whole / "BACKUP").write_bytes(encode_backup(type(head)(**{**_fields(head), **changes})))

    rewritten(format=999)
    with pytest.raises(UnknownFormat, match="data of format 999"):
        restore(whole, tmp_path / "restored")
    (whole / "BACKUP").write_bytes(b"kolk-backup 2\n{}\n")
    with pytest.raises(UnknownFormat, match="backup format 2"):
        restore(whole, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()
    rewritten(format=1)
    restore(whole, tmp_path / "restored")

    with kolk.connect(tmp_path / "restored", config=config) as there:
        assert len(there.tables()) == 5
    assert (tmp_path / "restored" / "FORMAT").read_text() != "kolk 1\n"


def test_a_restore_goes_into_a_new_or_empty_folder(whole, folder, config, tmp_path):
    kolk.connect(folder, config=config).close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()

    for target, why in ((folder, "holds a database"), (tmp_path / "other", "is not empty"), (whole / "x", "within")):
        with pytest.raises(InvalidArgument, match=why):
            restore(whole, target)
    with pytest.raises(NotFound, match="no backup"):
        restore(folder, tmp_path / "new")

    assert not (tmp_path / "new").exists()
    assert not (whole / "x").exists()


def test_a_restore_onto_a_full_disk_leaves_nothing(whole, tmp_path, config):
    disk = FailingDisk()
    disk.fail_next(Call.WRITE, errno.ENOSPC, after=5, within="restored")

    with pytest.raises(DiskFull):
        restore(whole, tmp_path / "restored", disk=disk)

    assert not (tmp_path / "restored").exists()
    (tmp_path / "restored").mkdir()
    disk.fail_next(Call.SYNC, errno.EIO, after=5, within="restored")
    with pytest.raises(Stopped):
        restore(whole, tmp_path / "restored", disk=disk)
    assert list((tmp_path / "restored").iterdir()) == []
    told = []
    restore(whole, tmp_path / "restored", disk=disk, on_progress=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1]
    with kolk.connect(tmp_path / "restored", config=config) as there:
        assert len(there.tables()) == 5


def test_damage_in_the_database_is_found_when_it_is_backed_up(folder, config, tmp_path):
    with kolk.connect(folder, config=config) as db:
        pages, _, events = filled(db)
        pages.take_snapshot()
        sst = next(iter(folder.glob(f"snapshots/{pages.info.id}/*/*/*/*.sst")))
        _flip(sst)
        with pytest.raises(Corrupted, match=f"{sst.name}.*there is no backup"):
            db.backup(tmp_path / "b")
        assert not (tmp_path / "b").exists()
        assert db.leases() == []
        log = next(path for path in folder.glob(f"tables/{events.info.id}/*/*/log/*.log") if path.stat().st_size)
        db.drop_table("web.pages")
        _flip(log)
        with pytest.raises(Corrupted, match="log frame"):
            db.backup(tmp_path / "b")
        assert not (tmp_path / "b").exists()


def _flip(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
