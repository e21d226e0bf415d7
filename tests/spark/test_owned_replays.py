"""Batches of an owner that were committed and come again, by hand: they count once, and what differs is told."""

import pickle

import pyarrow as pa
import pytest
from pyspark.sql import types as st
from tests.spark.owned import BATCH, SUMMED, SUMS, Job

from kolk.errors import CommitPointGone, DifferentRows, InvalidArgument
from kolk.spark.accounts import Account
from kolk.spark.frames import checked
from kolk.spark.identity import Place
from kolk.spark.options import Options
from kolk.spark.owning import OwnedWriter, written

OTHER = pa.record_batch({"k": [1, 2, 2], "v": [1, 2, 4]})
TOPS = st.StructType([st.StructField("k", st.LongType()), st.StructField("top", st.LongType())])


@pytest.fixture
def job(server, db, name):
    db.create_table(name, SUMS, buckets=2)

    def make(**options):
        return Job(server, db, name, **options)

    return make


def test_a_batch_that_comes_again_is_read_to_its_end_and_not_written(job):
    one = job(**{"txn.on-different": "fail"})
    one.commit(one.task(one.run(), 0, 0, BATCH))
    iterator = iter([BATCH.slice(0, 1), BATCH.slice(1)])

    one.commit(written(one.options, one.frame, one.run(), Place(0, "q", 0), iterator))

    assert next(iterator, None) is None
    assert one.rows() == SUMMED


def test_a_batch_that_comes_again_in_another_cut_and_order_or_as_states_is_the_same(job):
    one = job(preaggregate="false", **{"txn.on-different": "fail"})
    one.commit(one.task(one.run(), 0, 0, BATCH))
    rows = BATCH.to_pylist()[::-1]

    run = one.run()
    parts = [one.task(run, 0, place, pa.RecordBatch.from_pylist([row], BATCH.schema)) for place, row in enumerate(rows)]
    one.commit(*pickle.loads(pickle.dumps(parts)), one.task(run, 0, 3))
    states = job(preaggregate="true", **{"txn.on-different": "fail"})
    states.commit(states.task(states.run(), 0, 0, BATCH))

    assert one.rows() == SUMMED


@pytest.mark.parametrize("rows", [OTHER, BATCH.slice(0, 2), BATCH.slice(0, 0)])
def test_a_batch_that_comes_again_with_other_rows_is_passed_over_with_a_warning_or_told(job, caplog, rows):
    one = job()
    one.commit(one.task(one.run(), 0, 0, BATCH))

    one.commit(one.task(one.run(), 0, 0, rows))
    assert "version 0 of 'job' was committed before with other rows" in caplog.text
    strict = job(**{"txn.on-different": "fail"})
    message = strict.task(strict.run(), 0, 0, rows)
    with pytest.raises(DifferentRows, match="committed before with other rows"):
        strict.commit(message)
    strict.abort(message)

    assert one.rows() == SUMMED


def test_what_is_kept_of_a_batch_is_that_of_the_run_that_was_committed(job):
    one = job(**{"txn.on-different": "fail"})
    one.task(one.run(), 0, 0, OTHER)
    one.commit(one.task(one.run(), 0, 0, BATCH))

    with pytest.raises(DifferentRows):
        one.commit(one.task(one.run(), 0, 0, OTHER))
    one.commit(one.task(one.run(), 0, 0, BATCH))
    one.commit(one.task(one.run(), 1, 0, OTHER))
    one.commit(one.task(one.run(), 1, 0, OTHER))

    assert one.rows() == {1: 2, 2: 11}


def test_a_second_write_of_other_columns_in_one_version_is_told_to_take_an_owner_of_its_own(server, db, name, job):
    def write(shape, rows, **options):
        given = {"url": server.url, "table": name, "exactly-once": "undo", "txnVersion": "7", **options}
        parsed = Options.parse(given)
        writer = OwnedWriter(parsed, checked(parsed, shape, one.table.info), overwrite=False)
        writer.commit([writer.write(iter([rows]))])

    one = job()
    tops = pa.record_batch({"k": [1], "top": [9]})
    sums = st.StructType([st.StructField("k", st.LongType()), st.StructField("v", st.LongType())])
    told = r"7 of 'job'.*columns v, n, and comes again with top.*owner of its own"
    for _ in range(2):  # the batch, and the batch again
        write(sums, BATCH, owner="job", columns="v,n")
        with pytest.raises(DifferentRows, match=told):
            write(TOPS, tops, owner="job", columns="top")
    for _ in range(2):  # as it says
        write(sums, BATCH, owner="job", columns="v,n")
        write(TOPS, tops, owner="tops", columns="top")

    found = {row["k"]: (row["v"], row["top"]) for row in one.table.scan().to_arrow().to_pylist()}
    assert found == {1: (1, 9), 2: (5, None)}


@pytest.mark.parametrize("state", [b"", b"at 17", b'{"at": 17}', b'{"spark": {"epoch": 0}}', b"[" * 60_000])
def test_what_an_older_version_or_another_writer_has_committed_is_not_compared(job, state):
    one = job(**{"txn.on-different": "fail"})
    message = one.task(one.run(), 0, 0, BATCH)
    one.table.commit_tasks([message.left], state)

    one.commit(one.task(one.run(), 0, 0, OTHER))

    assert one.rows() == SUMMED


def test_an_account_is_kept_for_its_epoch_alone(job):
    account = Account.of(job().frame, 3)

    assert Account.decoded(account.encoded(), 3) == account
    assert Account.decoded(account.encoded(), 4) is None


def test_after_the_table_was_altered_the_rows_of_a_batch_are_counted_alone(server, db, name):
    """With a default that the batch did not have, the same rows are others."""
    db.execute(f"CREATE TABLE {name} (k BIGINT PRIMARY KEY, v BIGINT)")
    how = {"columns": None, "txn.on-different": "fail"}
    one = Job(server, db, name, **how)
    one.commit(one.task(one.run(), 0, 0, BATCH))
    db.execute(f"ALTER TABLE {name} ADD COLUMN w BIGINT DEFAULT 5")
    again = Job(server, db, name, **how)

    again.commit(again.task(again.run(), 0, 0, BATCH))
    with pytest.raises(DifferentRows):
        again.commit(again.task(again.run(), 0, 0, BATCH.slice(1)))

    assert one.rows() == {1: 1, 2: 3}


def test_a_batch_before_the_last_is_passed_over_with_a_warning_if_it_is_said_so(job, caplog):
    one = job()
    for batch in (0, 1, 2):
        one.commit(one.task(one.run(), batch, 0, BATCH))
    with pytest.raises(CommitPointGone, match=r"txn\.on-old"):
        one.task(one.run(), 1, 0, BATCH)
    drops = job(**{"txn.on-old": "drop"})
    iterator = iter([BATCH, BATCH])

    run = drops.run()
    old = [written(drops.options, drops.frame, run, Place(part, "q", 1), iterator) for part in (0, 1)]
    drops.commit(*pickle.loads(pickle.dumps(old)))
    drops.abort(*old)
    assert next(iterator, None) is None
    assert "version 1 of 'job' is older than what" in caplog.text
    for batch in (2, 3):
        drops.commit(drops.task(drops.run(), batch, 0, BATCH))

    assert one.rows() == {key: 4 * value for key, value in SUMMED.items()}


def test_a_reaction_that_nobody_knows_is_refused_before_the_first_row(job):
    for wrong in ({"txn.on-different": "drop"}, {"txn.on-old": "answer"}):
        with pytest.raises(InvalidArgument, match="is one of"):
            job(**wrong).run()
