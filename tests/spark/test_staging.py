"""The transaction sink by hand: its writers are called as Spark calls them, in this process, told where they stand."""

import pickle
import random
from itertools import count, pairwise

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from pyspark.sql import types as st

import kolk
from kolk.errors import DifferentRows, InvalidArgument, OldVersion
from kolk.spark.frames import checked
from kolk.spark.identity import Place
from kolk.spark.options import Options
from kolk.spark.staging import Identity, StagedStreamWriter, commit, stage
from kolk.spark.writing import batch_writer, stream_writer

SUMS = kolk.Schema(
    [
        kolk.Column("k", "bigint"),
        kolk.Column("v", "bigint", agg="sum"),
        kolk.Column("top", "bigint", agg="max"),
        kolk.Column("seen", "string", agg="listagg"),
        kolk.Column("n", "bigint", agg="count_rows"),
    ],
    primary_key=["k"],
)
SHAPE = st.StructType(
    [
        st.StructField("k", st.LongType()),
        st.StructField("v", st.LongType()),
        st.StructField("top", st.LongType()),
        st.StructField("seen", st.StringType()),
    ]
)
QUERY = "8d2bd1c6-21ab-4f5b-a3ef-58a8cc7cd92a"


def rows(pairs):
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    return pa.record_batch(
        {
            "k": pa.array(keys, pa.int64()),
            "v": pa.array(values, pa.int64()),
            "top": pa.array(values, pa.int64()),
            "seen": pa.array([str(value) for value in values], pa.string()),
        }
    )


def summed(table):
    return {row["k"]: row["v"] for row in table.scan().to_arrow().to_pylist()}


@pytest.fixture
def sums(db, name):
    return db.create_table(name, SUMS, buckets=2)


@pytest.fixture
def options(server, name):
    def make(**more):
        return Options.parse({"url": server.url, "table": name, **more})

    return make


def streamed(options, batch, parts, overwrite=False, query=QUERY):
    """One batch of a query, as Spark runs it: a writer for the tasks, and another one, made anew, to commit."""
    writer = pickle.loads(pickle.dumps(stream_writer(options, SHAPE, overwrite=overwrite)))
    messages = [writer.write_at(Place(place, query, batch), iter(part)) for place, part in enumerate(parts)]
    messages = pickle.loads(pickle.dumps(messages))
    stream_writer(options, SHAPE, overwrite=overwrite).commit(messages, batch)
    return messages


def test_a_batch_that_comes_again_counts_once_however_it_is_cut(db, sums, options):
    pairs = [(place % 7, place) for place in range(100)]
    how = options(**{"txn.on-different": "fail"})

    streamed(how, 0, [[rows(pairs[:60])], [rows(pairs[60:])]])
    streamed(how, 0, [[rows(pairs[70:]), rows(pairs[:5])], [], [rows(pairs[5:70])]])

    assert summed(sums) == {key: sum(value for k, value in pairs if k == key) for key in range(7)}
    assert [(each.state, each.rows) for each in db.transactions() if each.tables == (sums.name,)] == [("done", 100)]


def test_a_batch_that_comes_again_with_other_rows_is_passed_over_or_told(sums, options):
    streamed(options(), 0, [[rows([(1, 1)])]])
    streamed(options(), 0, [[rows([(1, 2)])]])

    with pytest.raises(DifferentRows, match="committed before with other rows"):
        streamed(options(**{"txn.on-different": "fail"}), 0, [[rows([(1, 3)])]])

    assert summed(sums) == {1: 1}


def test_a_batch_before_the_last_is_an_error_that_says_what_happened(db, sums, options):
    for batch in (0, 1, 2):
        streamed(options(), batch, [[rows([(1, 1)])]])

    with pytest.raises(OldVersion, match="a checkpoint was lost, or an old one restored"):
        streamed(options(), 1, [[rows([(1, 1)])]])
    streamed(options(**{"txn.on-old": "drop"}), 1, [[rows([(1, 1)])]])

    assert summed(sums) == {1: 3}
    assert [each.state for each in db.transactions() if each.tables == (sums.name,)] == ["done"]


def test_the_name_of_a_query_is_kept_or_chosen(db, sums, options):
    streamed(options(), 4, [[rows([(1, 1)])]])
    streamed(options(txnAppId="clicks"), 4, [[rows([(1, 1)])]])

    apps = {each.app: each.version for each in db.transactions() if each.tables == (sums.name,)}

    assert apps == {f"spark-query-{QUERY}": 4, "clicks": 4}
    assert summed(sums) == {1: 2}


def test_abort_takes_back_what_is_staged_and_never_what_is_committed(db, sums, options):
    kept = streamed(options(), 0, [[rows([(1, 1)])], [rows([(2, 2)])]])
    writer = stream_writer(options(), SHAPE, overwrite=False)
    staged = writer.write_at(Place(0, QUERY, 1), iter([rows([(3, 3)])]))

    writer.abort([*kept, None, staged], 1)

    assert summed(sums) == {1: 1, 2: 2}
    assert [each.state for each in db.transactions() if each.tables == (sums.name,)] == ["done"]
    with pytest.raises(kolk.errors.StagingGone):
        writer.commit([staged], 1)


def test_a_task_that_fails_leaves_nothing_staged(db, sums, options):
    def broken():
        yield rows([(1, 1)] * 70_000)
        yield rows([(1, 1)] * 70_000)
        raise RuntimeError("the task is over")

    writer = stream_writer(options(), SHAPE, overwrite=False)

    with pytest.raises(RuntimeError, match="the task is over"):
        writer.write_at(Place(0, QUERY, 0), broken())

    assert [each for each in db.transactions() if each.tables == (sums.name,)] == []


def test_attempts_that_nobody_names_go_with_the_commit(db, sums, options):
    writer = stream_writer(options(), SHAPE, overwrite=False)
    for _ in range(2):
        writer.write_at(Place(0, QUERY, 0), iter([rows([(1, 100)])]))

    streamed(options(), 0, [[rows([(1, 1)])]])

    assert summed(sums) == {1: 1}
    assert [each.state for each in db.transactions() if each.tables == (sums.name,)] == ["done"]


def test_batches_and_partitions_without_rows_are_fine(db, sums, options):
    streamed(options(), 0, [[]])
    streamed(options(), 1, [[], [rows([])], [rows([(1, 1)])], []])
    streamed(options(), 2, [[], []])

    assert summed(sums) == {1: 1}
    assert [(each.version, each.rows) for each in db.transactions() if each.tables == (sums.name,)] == [(2, 0)]


def test_overwriting_replaces_all_and_without_rows_leaves_none(sums, options):
    streamed(options(), 0, [[rows([(key, key) for key in range(20)])]])
    for _ in range(2):
        streamed(options(), 1, [[rows([(1, 10)])], [rows([(2, 20)])]], overwrite=True)

    assert summed(sums) == {1: 10, 2: 20}

    streamed(options(), 2, [[]], overwrite=True)

    assert summed(sums) == {}


def test_two_queries_on_the_same_columns_add_up(sums, options):
    for app in ("one", "other"):
        for batch in (0, 1):
            streamed(options(txnAppId=app), batch, [[rows([(1, 1), (2, 5)])]])

    assert summed(sums) == {1: 4, 2: 20}


def test_a_thousand_partitions_are_one_commit(db, sums, options):
    frame, how = checked(options(), SHAPE, sums.info), options()
    staged = [
        stage(db.link, frame, Identity("wide", 0), place, [rows([(place % 5, 1)])] if place % 10 else [])
        for place in range(1_000)
    ]
    random.Random(1).shuffle(staged)

    commit(how, staged, truncates=False)

    assert summed(sums) == {0: 100, 1: 200, 2: 200, 3: 200, 4: 200}


def test_more_partitions_than_a_commit_can_name_are_refused_by_the_task(db, sums, options):
    frame = checked(options(), SHAPE, sums.info)

    with pytest.raises(InvalidArgument, match=r"more than 10,000 partitions.*coalesce"):
        stage(db.link, frame, Identity("wide", 0), 10_000, [rows([(1, 1)])])
    stage(db.link, frame, Identity("wide", 0), 10_000, [])


def test_a_name_and_a_version_come_together_and_a_stream_has_its_own_versions(sums, options):
    for half in ({"txnAppId": "a"}, {"txnVersion": "1"}):
        with pytest.raises(InvalidArgument, match="give both txnAppId and txnVersion, or neither"):
            batch_writer(options(**half), SHAPE, overwrite=False)
    with pytest.raises(InvalidArgument, match="txnVersion is a whole number from 0 on, not '-1'"):
        batch_writer(options(txnAppId="a", txnVersion="-1"), SHAPE, overwrite=False)
    with pytest.raises(InvalidArgument, match="leave txnVersion out"):
        stream_writer(options(txnVersion="1"), SHAPE, overwrite=False)
    with pytest.raises(InvalidArgument, match="which query this is"):
        stream_writer(options(), SHAPE, overwrite=False).write(iter([]))


def test_a_batch_write_that_a_scheduler_runs_again_is_applied_once(sums, options):
    how = options(txnAppId="nightly", txnVersion="0")
    for _ in range(2):
        writer = batch_writer(how, SHAPE, overwrite=False)
        writer.commit([writer.write(iter([rows([(1, 1)])]))])
    for _ in range(2):
        writer = batch_writer(options(), SHAPE, overwrite=False)
        writer.commit([writer.write(iter([rows([(1, 10)])]))])

    assert summed(sums) == {1: 21}


def test_tasks_of_different_writes_are_not_committed_together(db, sums, options):
    frame = checked(options(), SHAPE, sums.info)
    staged = [stage(db.link, frame, Identity("a", version), 0, [rows([(1, 1)])]) for version in (0, 1)]

    with pytest.raises(InvalidArgument, match="do not belong together"):
        commit(options(), staged, truncates=False)

    db.discard([handle for each in staged for handle in each.handles])


@given(
    some.lists(some.tuples(some.integers(0, 5), some.integers(-1_000, 1_000)), max_size=60),
    some.lists(some.integers(0, 60), max_size=4),
)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_states_give_the_same_rows_and_the_same_checksum_as_rows(db, server, pairs, cuts):
    found = []
    for how in ("true", "false", "auto"):
        name = f"law.t{next(_NUMBERS)}"
        table = db.create_table(name, SUMS, buckets=2)
        options = Options.parse({"url": server.url, "table": name, "preaggregate": how})
        bounds = sorted([0, len(pairs), *(min(cut, len(pairs)) for cut in cuts)])
        parts = [pairs[start:end] for start, end in pairwise(bounds)]
        messages = streamed(options, 0, [[rows(part)] for part in parts])
        total = sum(each.checksum for each in messages) % 2**63
        found.append((sorted(table.scan().to_arrow().to_pylist(), key=str), total))
        db.drop_table(name)

    assert found[0] == found[1] == found[2]


_NUMBERS = count()


def test_states_are_sent_only_where_they_are_fewer(db, sums, options):
    def staged_rows(pairs):
        frame = checked(options(), SHAPE, sums.info)
        message = stage(db.link, frame, Identity("size", 0), 0, [rows(pairs)])
        seen = next(each for each in db.transactions() if each.app == "size")
        db.discard(message.handles)
        assert message.rows == len(pairs)
        return seen.rows

    assert staged_rows([(1, place) for place in range(1_000)]) == 1
    assert staged_rows([(place, place) for place in range(1_000)]) == 1_000


def test_the_writer_of_a_stream_is_a_value(sums, options):
    writer = StagedStreamWriter(options(), checked(options(), SHAPE, sums.info), overwrite=True)

    assert pickle.loads(pickle.dumps(writer)).__dict__ == writer.__dict__


def test_a_new_query_that_replaces_does_so_once_and_with_its_first_batch(sums, options):
    replaces = options(**{"new-query": "replace"})
    streamed(options(), 0, [[rows([(1, 1), (2, 2)])]], query="another")
    streamed(options(), 1, [[rows([(1, 10)])]], query="another")

    streamed(replaces, 0, [[rows([(1, 100)])], [rows([(3, 3)])]])
    assert summed(sums) == {1: 100, 3: 3}
    streamed(replaces, 1, [[rows([(1, 10)])]])
    streamed(replaces, 2, [[rows([(1, 1)])]])

    assert summed(sums) == {1: 111, 3: 3}


def test_a_first_batch_that_comes_again_does_not_replace_again(sums, options):
    replaces = options(**{"new-query": "replace"})
    streamed(replaces, 0, [[rows([(1, 1)])]])
    sums.put([{"k": 7, "v": 7, "top": 7, "seen": "7"}])

    streamed(replaces, 0, [[rows([(1, 1)])]])

    assert summed(sums) == {1: 1, 7: 7}


def test_under_a_fixed_name_a_new_query_is_refused_and_nothing_is_doubled(sums, options):
    named = options(txnAppId="orders", **{"txn.on-different": "fail"})
    streamed(named, 0, [[rows([(1, 1)])]])
    with pytest.raises(DifferentRows):  # a full refresh after one batch, with rows that are new
        streamed(named, 0, [[rows([(1, 1), (1, 10)])]], query="refreshed")
    streamed(named, 0, [[rows([(1, 1)])]], query="refreshed")  # and without: they are in the table
    streamed(named, 1, [[rows([(1, 10)])]])
    with pytest.raises(OldVersion, match="full refresh"):
        streamed(named, 0, [[rows([(1, 1), (1, 10)])]], query="refreshed")
    assert summed(sums) == {1: 11}

    sums.truncate()  # as the error says
    streamed(options(txnAppId="orders-2"), 0, [[rows([(1, 1), (1, 10)])]], query="refreshed")

    assert summed(sums) == {1: 11}


def test_what_cannot_replace_says_so(sums, options):
    replaces = {"new-query": "replace"}
    with pytest.raises(InvalidArgument, match="never"):
        stream_writer(options(txnAppId="orders", **replaces), SHAPE, overwrite=False)
    with pytest.raises(InvalidArgument, match="for streams"):
        batch_writer(options(**replaces), SHAPE, overwrite=False)
    with pytest.raises(InvalidArgument, match="in one transaction"):
        stream_writer(options(owner="o", **{"exactly-once": "undo"}, **replaces), SHAPE, overwrite=False)


def test_columns_that_are_to_be_kept_are_not_replaced(sums, options):
    sums.put([{"k": 1, "v": 1, "top": 1, "seen": "1"}, {"k": 2, "v": 2, "top": 2, "seen": "2"}])
    some_columns = {"columns": "v,top"}

    with pytest.raises(InvalidArgument, match=r"seen, n hold would be lost.*leave 'columns' out"):
        batch_writer(options(**some_columns), SHAPE, overwrite=True)
    with pytest.raises(InvalidArgument, match="would be lost"):
        stream_writer(options(**some_columns), SHAPE, overwrite=True)
    with pytest.raises(InvalidArgument, match="would be lost"):
        stream_writer(options(**some_columns, **{"new-query": "replace"}), SHAPE, overwrite=False)
    streamed(options(**some_columns), 0, [[rows([(1, 10)])]])

    assert summed(sums) == {1: 11, 2: 2}


def test_a_log_table_cannot_be_replaced_and_says_so_before_anything_is_staged(db, name, options):
    db.create_table(name, kolk.Schema([kolk.Column("k", "bigint")]))
    shape = st.StructType([st.StructField("k", st.LongType())])

    for make in (
        lambda: batch_writer(options(), shape, overwrite=True),
        lambda: stream_writer(options(), shape, overwrite=True),
        lambda: stream_writer(options(**{"new-query": "replace"}), shape, overwrite=False),
    ):
        with pytest.raises(InvalidArgument, match=r"is a log table.*append; table\.truncate\(\) empties it"):
            make()


def test_columns_that_are_all_named_are_whole_rows_and_may_replace(db, name, options):
    table = db.create_table(name, kolk.Schema([kolk.Column("k", "bigint"), kolk.Column("v", "bigint")], "k"))
    table.put([{"k": 1, "v": 1}, {"k": 2, "v": 2}])
    shape = st.StructType([st.StructField("k", st.LongType()), st.StructField("v", st.LongType())])

    writer = batch_writer(options(columns="v, k"), shape, overwrite=True)
    writer.commit([writer.write(iter([pa.record_batch({"k": [3], "v": [4]})]))])

    assert summed(table) == {3: 4}


@pytest.mark.parametrize("way", [{}, {"exactly-once": "undo", "owner": "o"}])
@pytest.mark.parametrize(
    "which", [{"where": "v > 1"}, {"limit": "1"}, {"source": "snapshot"}, {"start": "full"}, {"stop": "latest"}]
)
def test_a_write_that_is_told_which_rows_to_read_is_refused(sums, options, way, which):
    stream, batch = options(**way, **which), options(**way, **which, txnAppId="a", txnVersion="1")

    for writer, how in ((stream_writer, stream), (batch_writer, batch)):
        with pytest.raises(InvalidArgument, match=f"the option '{next(iter(which))}' says which rows are read"):
            writer(how, SHAPE, overwrite=False)


def test_what_a_view_says_of_how_it_is_read_is_no_harm_to_a_write(sums, options):
    streamed(options(parallelism="4", source="live", **{"cut-ttl": "1m"}), 0, [[rows([(1, 1)])]])

    assert summed(sums) == {1: 1}
