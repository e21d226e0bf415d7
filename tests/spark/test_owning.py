"""Writes as an owner, by hand: the runs, tasks, commits and aborts of Spark, called one by one in this process."""

import pyarrow as pa
import pytest
from pyspark.sql import types as st
from tests.spark.owned import BATCH, FRAME, SUMMED, SUMS, Job

import kolk
from kolk.errors import (
    BucketSplit,
    ColumnLockConflict,
    CommitMismatch,
    CommitPointGone,
    Fenced,
    InvalidArgument,
    OwnerRolledBack,
    StreamChanged,
)
from kolk.spark.frames import checked
from kolk.spark.options import Options
from kolk.spark.owning import OwnedStreamWriter, OwnedWriter, owner_of_checkpoint


@pytest.fixture
def job(server, db, name):
    db.create_table(name, SUMS, buckets=1)

    def make(**options):
        return Job(server, db, name, **options)

    return make


def test_rows_are_seen_before_the_commit_and_stand_after_it(job):
    one = job()
    message = one.task(one.run(), 0, 0, BATCH)
    assert one.rows() == SUMMED

    one.commit(message)

    one.task(one.run(), 1, 0)
    assert one.rows() == SUMMED


def test_the_next_run_of_a_batch_begins_where_the_last_commit_is(job):
    one = job()
    one.task(one.run(), 0, 0, BATCH)

    again = one.run()
    one.task(again, 0, 0)
    assert one.rows() == {}

    one.commit(one.task(again, 0, 0, BATCH))
    assert one.rows() == SUMMED


def test_an_attempt_whose_input_was_cut_off_is_not_taken_for_the_whole(job):
    """Spark ends the input of a task that fails as if it were complete."""
    one = job()
    run = one.run()
    one.task(run, 0, 0, BATCH.slice(0, 1))

    one.commit(one.task(run, 0, 0, BATCH))

    assert one.rows() == SUMMED


def test_an_abort_takes_back_what_is_not_committed_and_lets_the_columns_go(job, db):
    one = job()
    message = one.task(one.run(), 0, 0, BATCH)

    one.abort(message, None)

    assert one.rows() == {}
    assert [lock for lock in db.locks() if lock.table == one.table.name] == []
    with pytest.raises(OwnerRolledBack):
        one.commit(message)


def test_an_abort_after_a_commit_that_was_not_heard_of_takes_nothing_back(job):
    one = job()
    message = one.task(one.run(), 0, 0, BATCH)
    one.commit(message)
    one.commit(message)

    one.abort(message)
    one.abort(None, None)

    assert one.rows() == SUMMED
    one.commit(one.task(one.run(), 1, 0, BATCH))
    assert one.rows() == {key: 2 * value for key, value in SUMMED.items()}


def test_an_abort_that_fails_does_not_hide_why_it_was_called(job, db, caplog):
    one = job()
    message = one.task(one.run(), 0, 0, BATCH)
    db.drop_table(one.table.name)

    one.abort(message)

    assert "is taken back when it begins again" in caplog.text


def test_a_commit_of_what_a_copy_has_displaced_is_refused(job):
    one = job()
    run = one.run()
    first = one.task(run, 0, 0, BATCH)
    one.task(run, 0, 0, BATCH)

    with pytest.raises(CommitMismatch):
        one.commit(first)


def test_two_tasks_with_rows_of_one_bucket_are_told_how_to_bring_them_together(job):
    one = job()
    run = one.run()
    one.task(run, 0, 0, BATCH)

    with pytest.raises(BucketSplit, match="by_bucket"):
        one.task(run, 0, 1, BATCH)


def test_an_earlier_run_is_told_that_it_is_over(job):
    one = job()
    first, second = one.run(), one.run()
    message = one.task(first, 0, 0, BATCH)
    one.task(second, 0, 0, BATCH)

    with pytest.raises(Fenced, match=r"'job' cannot write.*running twice"):
        one.task(first, 0, 1, BATCH)
    with pytest.raises(Fenced):
        one.commit(message)


def test_a_second_query_on_the_same_columns_is_told_whose_they_are(job):
    one = job(owner="hourly")
    one.task(one.run(), 0, 0, BATCH)
    other = job(owner="daily")

    with pytest.raises(ColumnLockConflict, match="'daily' cannot write: 'hourly' owns the columns v, n"):
        other.task(other.run(), 0, 0, BATCH)


def test_another_checkpoint_under_the_owner_s_name_is_refused(job):
    one = job()
    one.commit(one.task(one.run(), 0, 0, BATCH, query="q1"))

    with pytest.raises(StreamChanged, match=r"new checkpoint.*kolk lock release"):
        one.task(one.run(), 0, 0, BATCH, query="q2")


def test_an_old_checkpoint_is_noticed_and_so_is_an_old_table(job):
    one = job()
    for batch in (4, 5):
        one.commit(one.task(one.run(), batch, 0, BATCH))

    with pytest.raises(CommitPointGone, match="newest checkpoint"):
        one.task(one.run(), 4, 0, BATCH)
    with pytest.raises(OwnerRolledBack, match="at batch 7, and 5 is the last"):
        one.task(one.run(), 7, 0, BATCH)


def test_states_are_sent_where_that_is_less_and_come_to_the_same(job, db):
    many = pa.record_batch({"k": [place % 3 for place in range(3_000)], "v": list(range(3_000))})
    for epoch, how in enumerate(("auto", "true", "false")):
        one = job(preaggregate=how)
        message = one.task(one.run(), epoch, 0, many)
        one.commit(message)
        assert message.left.rows == (3_000 if how == "false" else 3)

    found = one.table.scan(columns=["k", "v", "n"]).to_arrow().to_pylist()
    assert {row["k"]: (row["v"], row["n"]) for row in found} == {
        key: (3 * sum(range(key, 3_000, 3)), 3_000) for key in range(3)
    }


def test_a_batch_write_says_who_it_is_and_which_write(job):
    one = job(columns="v,n", owner=None)
    for given in ({}, {"owner": "job"}, {"txnVersion": "1"}, {"owner": "job", "txnVersion": "-1"}):
        options = Options.parse({**one.options.given, **given})
        with pytest.raises(InvalidArgument, match="txnVersion"):
            OwnedWriter(options, one.frame, overwrite=False)

    for version in (3, 3, 5):
        options = Options.parse({**one.options.given, "txnAppId": "nightly", "txnVersion": str(version)})
        writer = OwnedWriter(options, one.frame, overwrite=False)
        message = writer.write(iter([BATCH]))
        writer.commit([message])
        writer.abort([message])

    assert one.rows() == {key: 2 * value for key, value in SUMMED.items()}


def test_a_sink_may_leave_no_batch_out_and_a_foreach_of_one_s_own_may(job):
    def write(version, **more):
        options = Options.parse({**one.options.given, "txnVersion": str(version), **more})
        writer = OwnedWriter(options, one.frame, overwrite=False)
        writer.commit([writer.write(iter([BATCH]))])

    one = job()
    for batch in (0, 2):
        write(batch)
    write(3, everybatch="true")
    with pytest.raises(OwnerRolledBack, match="at batch 5, and 3 is the last"):
        write(5, everybatch="true")

    assert one.rows() == {key: 3 * value for key, value in SUMMED.items()}


def test_what_cannot_be_taken_back_is_refused_where_it_is_planned(job, db, name):
    one = job()
    log = db.create_table(f"{name}_log", kolk.Schema([kolk.Column("k", "bigint"), kolk.Column("v", "bigint")]))
    frame = checked(Options.parse({"table": log.name}), FRAME, log.info)
    for writer in (OwnedWriter, OwnedStreamWriter):
        with pytest.raises(InvalidArgument, match="transaction"):
            writer(one.options, one.frame, overwrite=True)
        with pytest.raises(InvalidArgument, match="log table"):
            writer(one.options, frame, overwrite=False)
    with pytest.raises(InvalidArgument, match="foreachBatch"):
        OwnedStreamWriter(Options.parse({**one.options.given, "txnVersion": "1"}), one.frame, overwrite=False)
    with pytest.raises(InvalidArgument, match=r"kolk\.spark\.sink"):
        one.task(one.run(), None, 0, BATCH, query=None)


def test_an_owner_is_named_by_its_query_s_checkpoint_if_by_nothing_else(job):
    assert owner_of_checkpoint("file:///data/ck/") == owner_of_checkpoint("/data/ck") == "spark /data/ck"
    assert owner_of_checkpoint("x" * 500) == "x" * 256
    assert job(owner=None, checkpointLocation="s3://a/b").run().owner == "spark s3://a/b"
    assert job(owner=None, txnAppId="app", checkpointLocation="s3://a/b").run().owner == "app"
    with pytest.raises(InvalidArgument, match="checkpointLocation"):
        job(owner=None).run()


def test_a_checkpoint_is_one_owner_however_its_path_is_spelled(tmp_path, monkeypatch):
    (tmp_path / "checkpoints" / "c").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    whole = f"{tmp_path}/checkpoints/c"

    spellings = ["checkpoints/c", "./checkpoints//c/", whole, f"file:{whole}", f"file://{whole}/", f"{whole}/../c"]

    assert {owner_of_checkpoint(each) for each in spellings} == {f"spark {whole}"}


def test_a_checkpoint_on_another_file_system_is_not_looked_for_on_this_machine(tmp_path, monkeypatch):
    """Where it is relative to, this process does not know, and its own folder may be another one with every start."""
    monkeypatch.chdir(tmp_path)

    assert owner_of_checkpoint("checkpoints/c/") == owner_of_checkpoint("./checkpoints/c") == "spark checkpoints/c"
    assert owner_of_checkpoint("hdfs:/data/c/") == "spark hdfs:/data/c"
    assert owner_of_checkpoint("/") == "spark /"


def test_without_undo_a_replay_is_written_over_what_is_there(server, db, name):
    db.create_table(name, SUMS, buckets=1)
    frame = st.StructType([st.StructField("k", st.LongType()), st.StructField("top", st.LongType())])
    one = Job(server, db, name, frame, columns="top", undo="none")
    tops = pa.record_batch({"k": [1, 1], "top": [5, 7]})
    one.task(one.run(), 0, 0, tops)

    one.commit(one.task(one.run(), 0, 0, tops))

    assert [row["top"] for row in one.table.scan().to_arrow().to_pylist()] == [7]
    assert [lock.undo for lock in db.locks() if lock.table == name] == ["none"]
