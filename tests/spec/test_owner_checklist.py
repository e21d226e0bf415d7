"""What the field asks of undo and of its offsets (F, G, H), as far as a commit point that is an epoch leaves it to do;
and the hazards that others have met."""

import pytest
from tests.spec.owned import PLAIN, TTL, open_rack

import kolk
from kolk.errors import ColumnLockConflict, Corrupted, Fenced
from kolk.model.ids import OwnerTag, UndoTag

KEYS = range(8)


@pytest.fixture
def rack(folder):
    with open_rack(folder) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


def every(keys=KEYS, **values):
    return {key: values for key in keys}


def whole(keys, **values):
    return [{"k": key, "a": None, "b": None, "at": None} | values for key in keys]


# --- F: what is undone


def test_f4_each_bucket_takes_back_its_own_keys_once(t):
    """Two buckets: what was new goes, what was changed comes back, however often it was touched."""
    t.put([{"k": key, "pv": 1} for key in (0, 1, 2, 3)], columns=["pv"])
    a = t.begin()
    for _ in range(3):
        a.put(every(range(2, 7), pv=5))

    t.begin()

    assert t.engine.status()["owners"]["undone_rows"] == 5
    done = [tag for bucket in (0, 1) for tag in t.frames(bucket) if isinstance(tag, UndoTag) and tag.done]
    assert len(done) == 2
    t.check(every((0, 1, 2, 3), pv=1))


def test_f8_a_history_that_is_read_in_many_pieces_is_one(t, monkeypatch):
    monkeypatch.setattr("kolk.tablet.undoing._READ_BYTES", 100)
    t.put([{"k": key, "pv": 1} for key in KEYS], columns=["pv"])
    a = t.begin()
    for number in range(6):
        a.put(every(pv=10**number))
        t.put([{"k": number, "title": "x"}], columns=["title"])

    t.begin()

    assert {key: row["pv"] for key, row in t.rows().items()} == dict.fromkeys(KEYS, 1)


def test_f10_puts_that_changed_nothing_are_taken_back_by_the_mark_alone(t):
    """Frames without rows, at the beginning, in the middle and at the end of what is looked at, and nothing else."""
    t.put([{"k": key, "top": 9} for key in KEYS], columns=["top"])
    a = t.begin(columns=["top"])
    for _ in range(3):
        a.put(every(top=1))
    ends = t.table.describe()["offsets"]

    t.begin(columns=["top"])

    assert t.table.describe()["offsets"] == ends
    for bucket in (0, 1):
        tags = t.frames(bucket)[1:]
        assert [type(tag) for tag in tags] == [OwnerTag] * 3 + [UndoTag]
    t.rack.reopen()
    t.begin(columns=["top"])
    assert t.table.describe()["offsets"] == ends


def test_f11_changes_between_puts_that_changed_nothing_are_taken_back(t):
    t.put([{"k": key, "top": 5} for key in KEYS], columns=["top"])
    a = t.begin(columns=["top"])
    for value in (1, 9, 2):
        a.put(every(top=value))

    t.begin(columns=["top"])

    t.check(every(top=5))


def test_f17_a_bucket_that_had_nothing_when_it_was_committed_is_undone_from_its_start(t):
    one, other = t.a_key_of_each_bucket()
    a = t.begin()
    a.put({one: {"pv": 1}}, 0)
    a.commit(0)
    a.put({one: {"pv": 5}, other: {"pv": 5}}, 1)

    t.begin()

    t.check({one: {"pv": 1}})


# --- G: jobs that fail


def test_g1_of_many_keys_in_many_buckets_each_is_as_it_was_committed(rack):
    """New keys are gone; those that were updated, updated thrice, deleted, or deleted and made anew are back."""
    p = rack.create("p", PLAIN, buckets=4)
    keys = range(100)
    a = p.begin(columns=None)
    a.put(whole(keys, a=1, b="x"), 0)
    a.commit(0)
    a.put(whole(range(100, 150), a=9), 1)
    a.put(whole(range(25), a=9), 1)
    for value in (7, 8, 9):
        a.put(whole(range(25, 50), a=value), 1)
    a.delete(range(50, 75), 1, whole=True)
    a.put(whole(range(60, 75), a=9), 1)

    p.begin(columns=None)

    p.check({key: {"a": 1, "b": "x"} for key in keys})


def test_g4_in_each_partition_what_was_inserted_updated_and_deleted_is_taken_back(rack):
    """Also in one that came after the commit, of which nothing is left."""
    schema = kolk.Schema([kolk.Column("day", "int"), kolk.Column("k", "int"), kolk.Column("a", "int")], ["day", "k"])
    p = rack.create("p", schema, partition_by=["day"], buckets=2)
    w = p.table.writer("a", ["a"])
    w.put([{"day": day, "k": 10 * day + key, "a": key} for day in (1, 2) for key in KEYS])
    w.commit()
    before = p.rows()
    w.put([{"day": day, "k": 10 * day + key, "a": 99} for day in (1, 2, 3) for key in (0, 1, 9)])
    w.delete([{"day": day, "k": 10 * day + key} for day in (1, 2) for key in (1, 2)])
    assert p.rows() != before
    w.detach()

    p.table.writer("a", ["a"]).detach()

    p.check(before)
    assert {row["day"] for row in before.values()} == {1, 2}


def test_g6_a_log_that_cannot_be_read_is_told_and_nothing_counts_as_taken_back(t):
    t.put([{"k": key, "pv": 1} for key in KEYS], columns=["pv"])
    a = t.begin()
    a.put(every(pv=5))
    [path] = (t.rack.folder / "tables" / t.table.info.bucket_ids[1].folder / "log").glob("*.log")
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(len(whole) - 100)
        file.write(bytes(byte ^ 255 for byte in whole[-100:]))

    with pytest.raises(Corrupted):
        t.begin()
    with pytest.raises(ColumnLockConflict):
        t.put([{"k": key, "pv": 1} for key in KEYS], columns=["pv"])
    assert set(t.locks()) == {"a"}

    path.write_bytes(whole)
    t.rack.reopen()
    t.begin()
    t.check(every(pv=1))


@pytest.mark.parametrize("dies", ["before the commit", "after the commit"])
def test_g7_a_job_that_fails_over_again_and_again_counts_each_input_once(t, dies):
    """Ten inputs of ten epochs, and a crash in each: the sums are those of one clean run."""
    for epoch in range(10):
        a = t.begin()
        a.put(every(pv=7), epoch)
        if dies == "after the commit":
            a.put(every(pv=3), epoch)
            a.commit(epoch, state=b"%d" % epoch)
        a = t.begin()
        a.put(every(pv=7), epoch)
        a.put(every(pv=3), epoch)
        a.commit(epoch, state=b"%d" % epoch)

    t.check(every(pv=100))
    assert t.begin().record.state == b"9"


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_g11_a_run_may_be_cut_into_other_tasks_than_the_one_before(t, first, second):
    """More tasks, or fewer: those of an earlier run are over, and their rows gone, before the first of the next."""
    keys = t.a_key_of_each_bucket()

    def run(token, tasks, *, is_sealed):
        a = t.begin(attempt=token)
        named = {}
        for number in range(tasks):
            task = a.begin_task(0, number)
            buckets = [bucket for bucket in (0, 1) if bucket % tasks == number]
            a.put({keys[bucket]: {"pv": 1} for bucket in buckets}, 0, seq=1, ticket=task.ticket)
            if is_sealed:
                a.seal(number, task.ticket, {str(bucket): 1 for bucket in buckets})
                named |= {str(bucket): (task.ticket, 1) for bucket in buckets}
        return a, named

    run("r1", first, is_sealed=False)
    a, named = run("r2", second, is_sealed=True)
    a.commit_tasks(0, named)

    t.check({key: {"pv": 1} for key in keys})


def test_g14_a_job_that_ends_leaves_its_rows_and_nothing_else(t):
    with t.table.writer("once", ["pv"]) as w:
        w.put([{"k": key, "pv": 60} for key in KEYS])
        w.commit()
        w.release()

    assert not t.locks()
    assert not t.engine._meta.list("owner/")
    t.check(every(pv=60))


# --- H: what is kept of commit points


def test_field_h2_to_begin_again_keeps_the_first_commit_point(t):
    a = t.begin()
    a.put(every(pv=1), 3)
    a.commit(3, state=b"kept")

    for _ in range(3):
        again = t.begin()
        assert (again.record.committed, again.record.state) == (3, b"kept")


def test_field_h8_only_those_who_are_long_gone_are_given_up(t):
    """One is live, one is late, one is gone: only the last is taken back."""
    gone = t.begin("gone", ["title"])
    gone.put(every(title="x"), 0)
    t.rack.clock.advance(seconds=TTL + 86_390)
    late = t.begin("late", ["top"])
    late.put(every(top=1), 0)
    t.rack.clock.advance(seconds=TTL)
    live = t.begin("live", ["pv"])
    live.put(every(pv=1), 0)

    t.engine.reap()

    assert set(t.locks()) == {"late", "live"}
    live.put(every(pv=1), 0)
    t.check(every(top=1, pv=2))


# --- hazards that others have met


def test_one_owner_of_two_tables_has_a_commit_point_in_each(rack, t):
    """Rows that the second table had before its owner came are not taken back with what it wrote."""
    u = rack.create("u")
    for each in (t, u):
        each.put([{"k": key, "pv": 7} for key in KEYS], columns=["pv"])
    one = t.begin("job")
    one.put(every(pv=1), 0)
    one.commit(0)
    u.begin("job").put(every(pv=1), 0)

    t.begin("job")
    u.begin("job")

    t.check(every(pv=8))
    u.check(every(pv=7))


@pytest.mark.parametrize("days", [0, 2, 400])
def test_a_job_that_has_lost_its_state_keeps_what_it_committed(t, days):
    """However long it was away: what is committed never goes, and what is not always does."""
    a = t.begin()
    for epoch in range(3):
        a.put(every(pv=1), epoch)
        a.commit(epoch)
    a.put(every(pv=50), 3)
    t.rack.clock.advance(seconds=days * 86_400)
    t.engine.reap()

    b = t.begin()

    assert b.record.committed == 2
    t.check(every(pv=3))


def test_rows_that_others_made_without_values_are_not_taken_for_the_owners(rack):
    """Only own frames are looked at: somebody's row of nothing but its key stays."""
    p = rack.create("p", PLAIN, buckets=1)
    a = p.begin(columns=["a"])
    p.put([{"k": 1}], columns=[])
    p.put([{"k": 2, "b": None}], columns=["b"])
    a.put({3: {"a": 1}})
    p.table.delete([2], columns=["b"])
    p.put([{"k": 2, "b": None}], columns=["b"])

    p.begin(columns=["a"])

    p.check({1: {}, 2: {}})


def test_h3_the_retry_of_a_put_is_fenced_while_it_is_being_taken_back(t):
    """H3: a put that is about to go must not be acknowledged any more, also where it still stands."""
    a = t.begin()
    a.put(every(pv=1), 0, seq=1)
    told = []

    def retry(done, all):
        with pytest.raises(Fenced) as caught:
            a.put(every(pv=1), 0, seq=1)
        told.append(caught.value)

    t.begin(on_progress=retry)

    assert len(told) == 3
    t.check({})
