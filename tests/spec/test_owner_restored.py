"""Who may write to a database that was restored: nobody goes on who wrote to the one that the backup is of, and a
catalog that does not know what its logs have is refused."""

import shutil

import pytest
from tests.spec.owned import Owned, backed_up, open_rack, restoring

from kolk.errors import Corrupted, Fenced, InvalidArgument, MetaBehindLog, OwnerRolledBack

KEYS = range(8)


def every(**values):
    return {key: values for key in KEYS}


def listed(**values):
    return [{"k": key, **values} for key in KEYS]


@pytest.fixture
def rack(folder):
    with open_rack(folder) as rack:
        yield rack


@pytest.fixture
def t(rack):
    return rack.create(buckets=2)


@pytest.fixture
def restored(tmp_path):
    with restoring(tmp_path) as make:
        yield make


def test_nobody_who_began_before_a_restore_goes_on_in_the_copy(t, restored):
    """Neither who had the fence when the backup was made, for it may have written since, nor who came after, under the
    fence that is given next: all are told."""
    a = t.begin()
    a.put(every(pv=1), 0)
    a.commit(0)
    backup = backed_up(t.rack)
    a.put(every(pv=10), 1)
    later = t.begin()
    later.put(every(pv=100), 1)

    again = restored(t.rack, backup)
    for zombie in (a, later):
        zombie.owned = again
        for call, *given in ((zombie.put, every(pv=5), 1), (zombie.commit, 1), (zombie.renew,)):
            with pytest.raises(OwnerRolledBack, match="backup"):
                call(*given)
        zombie.rest()
        assert not zombie.release()
    new = again.begin()
    for zombie in (a, later):
        with pytest.raises(Fenced):
            zombie.put(every(pv=5), 1)

    assert new.record.fence > later.record.fence + 2**32
    new.put(every(pv=10), 1)
    assert again.rows() == every(pv=11)


def test_numbers_that_owners_were_given_after_the_backup_are_not_given_again(t, restored):
    """H20: also if there was no owner at all when it was made."""
    backup = backed_up(t.rack)
    late = t.begin("late")
    late.put(every(pv=1))

    again = restored(t.rack, backup)
    new = again.begin("new")
    late.owned = again
    with pytest.raises(Fenced):
        late.put(every(pv=1))

    assert new.record.number > late.record.number + 2**32
    assert again.rows() == {}


def test_two_databases_of_one_backup_give_no_fence_and_no_number_twice(t, restored):
    t.begin()
    backup = backed_up(t.rack)
    one, other = (restored(t.rack, backup) for _ in range(2))

    assert one.begin().record.fence != other.begin().record.fence
    assert one.begin("b", ["top"]).record.number != other.begin("b", ["top"]).record.number


def test_a_run_whose_first_tasks_wrote_to_the_other_database_is_over(t, restored):
    """A token is that of a run, which is not whole any more."""
    t.begin(attempt="one")
    again = restored(t.rack)

    with pytest.raises(Fenced):
        again.begin(attempt="one")
    again.begin(attempt="two")


def test_a_job_that_is_ahead_of_the_copy_is_told(t, restored):
    """H24 is for a job that died before it could say that it was done: here what it did is not there."""
    a = t.begin()
    a.put(every(pv=1), 4)
    a.commit(4)
    a.rest()
    backup = backed_up(t.rack)
    again = restored(t.rack, backup)

    for epoch in (3, 7):
        with pytest.raises(OwnerRolledBack, match="resumes at epoch"):
            again.begin(resume_epoch=epoch)
    again.rack.reopen()
    with pytest.raises(OwnerRolledBack):
        again.begin(resume_epoch=7)
    assert again.begin(resume_epoch=4).record.committed == 4
    assert again.begin(resume_epoch=7).record.committed == 7


def test_a_job_over_two_tables_goes_on_from_the_least_of_its_commits(rack, t, restored, monkeypatch):
    """Each table of a backup is of its own moment. H35 takes the greatest of the commits, and is told; from the least
    on, the table that is ahead drops what it has."""
    other = rack.create("u")  # copied after t
    cuts, both = rack.engine.backups._cuts, (t, other)

    def run(grips, epochs):
        for epoch in epochs:
            for call in ("put", "commit"):
                for grip in grips:
                    grip.put(every(pv=1), epoch) if call == "put" else grip.commit(epoch)

    grips = [each.begin() for each in both]
    run(grips, range(3))
    rows_cut = cuts._cut_rows

    def cut_rows(info, *rest):
        yield from rows_cut(info, *rest)
        if str(info.name) == "t":
            run(grips, range(3, 6))

    monkeypatch.setattr(cuts, "_cut_rows", cut_rows)
    first = restored(rack)
    both = (first, Owned(first.rack, "u"))
    commits = [lock.epoch for lock in first.rack.db.locks()]
    assert commits == [2, 5]
    with pytest.raises(OwnerRolledBack):
        first.begin(resume_epoch=max(commits))
    run([each.begin() for each in both], range(min(commits) + 1, 8))

    assert [each.rows() for each in both] == [every(pv=8)] * 2


def test_a_writer_state_of_a_later_epoch_is_not_resumed(t, restored):
    with t.table.writer("a", ["pv"]) as w:
        w.put(listed(pv=1))
        w.commit(user_state=b"one")
        backup = backed_up(t.rack)
        early = w.state()
        w.put(listed(pv=1))
        w.commit()
        late = w.state()

    table = restored(t.rack, backup).table
    with pytest.raises(OwnerRolledBack):
        table.writer(columns=["pv"], state=late)
    with table.writer(columns=["pv"], state=early) as w:
        assert w.user_state == b"one"


def test_a_table_made_again_under_its_name_has_nothing_of_its_owners(t, restored):
    a = t.begin()
    a.put(every(pv=1))
    with t.table.writer("w", ["top"]) as w:
        state = w.state()
    t.rack.db.drop_table("t")
    t.rack.create("t")

    again = restored(t.rack)

    for owned in (t, again):
        assert not owned.locks()
        with pytest.raises(InvalidArgument, match="made anew"):
            owned.table.writer(state=state)
        b = owned.begin()
        assert (b.record.number > a.record.number, b.record.committed) == (True, -1)
        with pytest.raises(Fenced):
            a.put(every(pv=1))
        b.put(every(pv=3))
        assert owned.rows() == every(pv=3)
        b.release()


# --- a catalog that is not the one


def older_catalog(rack, change):
    """The catalog of now, under logs in which more happened."""
    rack.engine.close()
    meta = rack.engine.path / "meta.sqlite"
    shutil.copy(meta, meta.with_name("older"))
    rack.reopen()
    change()
    rack.engine.close()
    meta.with_name("older").replace(meta)
    rack.reopen()


def test_a_catalog_that_does_not_know_a_fence_of_the_log_is_refused(t):
    """Section 0: it is not guessed at; else the fence would be given once more, for another writer's frames."""
    t.begin().put(every(pv=1))

    older_catalog(t.rack, lambda: t.begin().put(every(pv=5)))

    for call in (t.rows, t.begin, lambda: t.begin("b", ["top"])):
        with pytest.raises(MetaBehindLog, match="fence 2"):
            call()


def test_a_catalog_that_does_not_know_an_owner_of_the_log_gives_no_number(t, rack):
    other = rack.create("other")

    older_catalog(rack, lambda: t.begin().put(every(pv=5)))

    with pytest.raises(Corrupted):
        t.rows()
    with pytest.raises(MetaBehindLog):
        other.begin()


def test_an_owner_that_was_released_is_no_stranger(t):
    t.begin("gone").put(every(pv=1))
    t.rack.db.release_lock("t", "gone", keep=True)

    t.rack.reopen()

    assert t.rows() == every(pv=1)
