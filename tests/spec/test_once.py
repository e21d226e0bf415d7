"""A retried put is applied once, also across a restart; and one folder has one owner."""

import copy
import os
import shutil
import subprocess
import sys
import threading

import pytest

import kolk
from kolk.errors import (
    Closed,
    DiskFull,
    FolderInUse,
    InvalidArgument,
    PartialPut,
    StaleTag,
    Stopped,
    UnknownFormat,
    UsedAfterFork,
)
from kolk.model.ids import PlainTag
from kolk.tablet.dedup import KEPT_PER_WRITER

SCHEMA = kolk.Schema([kolk.Column("n", "int")])


def lines(table) -> list[int]:
    return [row["n"] for batch in table.changelog() for row in batch.to_pylist()]


def test_a_put_with_the_tag_of_an_acknowledged_one_is_answered_again_and_not_applied(db):
    events = db.create_table("events", SCHEMA, buckets=3)
    first = events.put({"n": 1})

    again = events.put({"n": 1}, tag=first.tag)

    assert again.offsets == first.offsets
    assert lines(events) == [1]


@pytest.mark.parametrize("changes", [True, False])
def test_a_retry_is_recognised_after_a_restart_even_if_the_put_changed_nothing(folder, config, changes):
    """Otherwise: put n=5 changes nothing, another writer sets 7, and the retry of the first sets 5 again."""
    schema = kolk.Schema([kolk.Column("id", "int"), kolk.Column("n", "int")], "id")
    with kolk.connect(folder, config=config) as db:
        table = db.create_table("t", schema)
        if not changes:
            table.put({"id": 1, "n": 5})
        first = table.put({"id": 1, "n": 5})
        table.put({"id": 1, "n": 7})

    with kolk.connect(folder, config=config) as db:
        table = db.table("t")
        table.put({"id": 1, "n": 5}, tag=first.tag)

        assert table.get_one(id=1)["n"] == 7


def test_a_retry_that_is_too_old_to_be_told_apart_is_refused(db):
    events = db.create_table("events", SCHEMA)
    for seq in range(KEPT_PER_WRITER + 1):
        events.put({"n": seq}, tag=PlainTag(writer=1, seq=seq))

    with pytest.raises(StaleTag, match="read the rows back"):
        events.put({"n": 0}, tag=PlainTag(writer=1, seq=0))
    events.put({"n": 1}, tag=PlainTag(writer=1, seq=1))
    assert lines(events) == list(range(KEPT_PER_WRITER + 1))


def test_puts_of_many_threads_are_all_there_once_and_share_few_writers(db):
    events = db.create_table("events", SCHEMA)
    tags: list[PlainTag] = []

    def write(start: int) -> None:
        tags.extend([events.put({"n": start + n}).tag for n in range(50)])

    threads = [threading.Thread(target=write, args=(1000 * place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(lines(events)) == sorted(1000 * place + n for place in range(8) for n in range(50))
    assert len({tag.writer for tag in tags}) <= 8
    assert len(set(tags)) == 400


def test_connections_of_one_process_share_the_folder_and_the_last_one_closes_it(folder, config):
    first = kolk.connect(folder, config=config)
    second = kolk.connect(folder)
    first.create_table("events", SCHEMA).put({"n": 1})
    first.close()
    first.close()

    assert lines(second.table("events")) == [1]
    with pytest.raises(Closed):
        first.tables()
    with pytest.raises(InvalidArgument, match="other settings"):
        kolk.connect(folder, config=kolk.EngineConfig(durability="machine"))
    second.close()
    with kolk.connect(folder, config=kolk.EngineConfig(durability="machine")) as third:
        assert lines(third.table("events")) == [1]


def test_a_folder_open_elsewhere_is_refused_with_the_process_that_has_it(folder):
    holder = subprocess.Popen(
        [sys.executable, "-c", f"import kolk; db = kolk.connect({str(folder)!r}); print('open', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(FolderInUse, match=f"process {holder.pid}"):
            kolk.connect(folder)
    finally:
        holder.kill()
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    kolk.connect(folder).close()


def test_a_forked_child_may_not_use_its_parents_database(folder, config):
    script = f"""
import os, kolk
db = kolk.connect({str(folder)!r})
table = db.create_table("t", kolk.Schema([kolk.Column("id", "int")], "id"))
child = os.fork()
if child == 0:
    for attempt in (lambda: table.put({{"id": 1}}), lambda: kolk.connect({str(folder)!r})):
        try:
            attempt()
        except (kolk.errors.UsedAfterFork, kolk.errors.FolderInUse) as error:
            print(type(error).__name__, flush=True)
    db.close()
    del db, table
    print("child ends", flush=True)
    raise SystemExit  # as usual, with everything torn down
os.waitpid(child, 0)
table.put({{"id": 2}})
print(table.scan().to_arrow().num_rows, flush=True)
sleeper = os.fork()
if sleeper == 0:
    os.read(end, 1)
    os._exit(0)
db.close()
kolk.connect({str(folder)!r}).close()  # the child that still lives does not hold the folder
print("reopened", flush=True)
os.kill(sleeper, 9)
"""
    script = script.replace("import os, kolk", "import os, kolk\nend, _ = os.pipe()")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, timeout=60, check=True)

    expected = [b"UsedAfterFork", b"FolderInUse", b"child ends", b"1", b"reopened"]
    assert done.stdout.splitlines() == expected
    assert UsedAfterFork.retriable is False


def test_a_folder_of_a_newer_format_is_refused_by_name(folder):
    kolk.connect(folder).close()
    (folder / "FORMAT").write_text("kolk 99\n")

    with pytest.raises(UnknownFormat, match=r"format 99.*upgrade"):
        kolk.connect(folder)


def test_a_folder_with_other_files_is_not_taken(tmp_path):
    (tmp_path / "thesis.txt").write_text("")

    with pytest.raises(InvalidArgument, match="other files"):
        kolk.connect(tmp_path)
    with pytest.raises(InvalidArgument, match="is a file"):
        kolk.connect(tmp_path / "thesis.txt")
    assert os.path.exists(tmp_path / "thesis.txt")


def test_the_error_of_a_half_done_put_crosses_process_borders_whole():
    error = PartialPut({"0": 1}, {"1": DiskFull("full")}, PlainTag(1, 2))

    again = copy.copy(error)

    assert (again.acknowledged, again.tag, again.retriable) == ({"0": 1}, PlainTag(1, 2), True)
    assert str(again) == str(error)


def test_paths_that_cannot_be_folders_are_typed_errors():
    for path in ("a\0b", "/dev/null/x"):
        with pytest.raises(kolk.errors.KolkError):
            kolk.connect(path)
    with pytest.raises(InvalidArgument, match="EngineConfig"):
        kolk.connect("x", config={})


def test_a_folder_removed_under_an_open_database_is_not_served_as_if_it_were_there(folder, config):
    db = kolk.connect(folder, config=config)
    db.create_table("events", SCHEMA).put({"n": 1})
    shutil.rmtree(folder)

    with pytest.raises(Stopped, match="removed or replaced"):
        kolk.connect(folder)
    db.close()
    with kolk.connect(folder, config=config) as again:
        assert again.tables() == []


def test_a_connection_that_is_only_forgotten_lets_the_folder_go_at_the_next_chance(folder, config):
    for _ in range(3):
        db = kolk.connect(folder, config=config)
    db.close()

    with kolk.connect(folder, config=kolk.EngineConfig(durability="machine")) as other:
        assert other.tables() == []


def test_an_interrupt_after_the_catalog_changed_does_not_leave_it_half_known(folder, config, monkeypatch):
    with kolk.connect(folder, config=config) as db:
        db.create_table("keep", SCHEMA)
        meta = db._link.service._meta
        write = meta.write

        def interrupted(changes) -> None:
            write(changes)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(meta, "write", interrupted)
            with pytest.raises(KeyboardInterrupt):
                db.drop_table("keep")
            with pytest.raises(KeyboardInterrupt):
                db.create_table("new", SCHEMA)

        assert [table.name for table in db.tables()] == ["new"]
        assert db.create_table("new", SCHEMA, if_not_exists=True).put({"n": 1}).offsets == {"0": 1}


def test_a_signal_handler_may_close_the_database_in_the_middle_of_a_scan(folder):
    script = f"""
import signal, os, kolk
db = kolk.connect({str(folder)!r})
table = db.create_table("t", kolk.Schema([kolk.Column("id", "int")], "id"))
table.put([{{"id": n}} for n in range(2000)])
scan = table.scan()
(view,) = table._service._tablets.opened()[0]._views
pin = view._pin
values = pin._values
class Closing:
    def __iter__(self):
        return self
    def __next__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        return next(values)
pin._values = Closing()
signal.signal(signal.SIGTERM, lambda *_: db.close())
try:
    while len((taken := view.take(b"", 100)).all):
        view.used(taken, len(taken.all))
except kolk.errors.Closed:
    print("closed", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=True)

    assert done.stdout.strip() == b"closed"


def test_a_forked_child_may_not_read_its_parents_scan(folder, config):
    with kolk.connect(folder, config=config) as db:
        table = db.create_table("t", kolk.Schema([kolk.Column("id", "int")], "id"))
        table.put({"id": 1})
        pages = table.scan()._pages
        pages._scans._pid += 1  # as a child sees it

        with pytest.raises(UsedAfterFork):
            pages.next()
