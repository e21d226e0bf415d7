"""Aggregate functions of users, from the first put to the next process: embedded, and over the network."""

import sys

import pyarrow as pa
import pytest

import kolk
from kolk.config import EngineConfig, ServerConfig
from kolk.engine.restore import restore
from kolk.errors import InvalidArgument, InvalidRows, InvalidSchema, UnknownAggregate
from kolk.merge.finishing_custom import finished
from kolk.model import functions

STATE = "row<total double, seen bigint>"
DDL = f"CREATE TABLE scores (player STRING, score {STATE} MEAN, games BIGINT COUNT_ROWS, PRIMARY KEY (player))"
MODULE = """
import kolk

class Mean:
    types = "row<total double, seen bigint>"
    input = "double"
    output = "double"

    def init(self):
        return {"total": 0.0, "seen": 0}

    def accumulate(self, state, value):
        if value < 0:
            raise ValueError("a score is not negative")
        return {"total": state["total"] + value, "seen": state["seen"] + 1}

    def merge(self, state, other):
        if other["total"] == 666:
            raise ValueError("a bad day")
        return {"total": state["total"] + other["total"], "seen": state["seen"] + other["seen"]}

    def retract(self, state, value):
        seen = state["seen"] - 1
        return {"total": state["total"] - value, "seen": seen} if seen else None

    def finish(self, state):
        return state["total"] / state["seen"]
"""


@pytest.fixture(autouse=True)
def mean(monkeypatch):
    """The class; it is registered."""
    monkeypatch.setattr(functions, "_registered", {})
    space = {}
    exec(MODULE, space)
    kolk.register_aggregate("mean", space["Mean"])
    return space["Mean"]


def forget(monkeypatch):
    monkeypatch.setattr(functions, "_registered", {})


def means(table):
    rows = finished(table.scan().to_arrow(), table.schema).to_pylist()
    return {row["player"]: row["score"] for row in rows}


def test_values_go_in_and_states_come_out(db):
    scores = db.execute(DDL)

    scores.put([{"player": "ada", "score": 1.0}, {"player": "ada", "score": 2.0}, {"player": "bob", "score": None}])
    scores.put({"player": "ada", "score": 6.0})

    assert scores.get_one(player="ada") == {"player": "ada", "score": {"total": 9.0, "seen": 3}, "games": 3}
    assert means(scores) == {"ada": 3.0, "bob": None}


def test_states_that_were_made_elsewhere_are_merged(db):
    scores = db.execute(DDL)
    scores.put({"player": "ada", "score": 1.0})

    scores.put(
        scores.preaggregate([{"player": "ada", "score": 2.0}, {"player": "ada", "score": 3.0}]), mode="merge_state"
    )

    assert scores.get_one(player="ada")["score"] == {"total": 6.0, "seen": 3}


def test_what_was_put_can_be_taken_back(db):
    scores = db.create_table(
        "scores", kolk.Schema([kolk.Column("player", "string"), kolk.Column("score", STATE, agg="mean")], "player")
    )
    scores.put([{"player": "ada", "score": 1.0}, {"player": "ada", "score": 2.0}])

    scores.retract({"player": "ada", "score": 1.0})
    scores.put(pa.table({"player": ["ada", "ada"], "score": [2.0, 5.0], "_change_type": ["-U", "+U"]}))

    assert scores.get_one(player="ada")["score"] == {"total": 5.0, "seen": 1}


def test_states_cannot_be_taken_back_for_there_is_no_method_that_would(db):
    scores = db.execute(DDL)
    rows = scores.preaggregate({"player": "ada", "score": 2.0})
    rows = rows.append_column("_change_type", pa.array(["-D"]))

    with pytest.raises(InvalidRows, match="takes back values and not states"):
        scores.put(rows, mode="merge_state")


def test_what_a_function_raises_fails_the_put_alone_and_the_table_goes_on(db):
    scores = db.execute(DDL)
    scores.put({"player": "ada", "score": 1.0})
    before = scores.describe()["offsets"]

    with pytest.raises(InvalidRows, match=r"'mean' of the column 'score' failed to accumulate: .*not negative"):
        scores.put([{"player": "ada", "score": 1.0}, {"player": "bob", "score": -1.0}])
    with pytest.raises(InvalidRows, match=r"'mean' of the column 'score' failed to merge: .*a bad day"):
        scores.put({"player": "ada", "score": 666.0})

    assert scores.describe()["offsets"] == before
    scores.put({"player": "ada", "score": 2.0})
    assert means(scores) == {"ada": 1.5}


def test_a_state_that_does_not_fit_its_column_is_refused(db, mean):
    mean.accumulate = lambda self, state, value: {"total": "much", "seen": 1}
    scores = db.execute(DDL)

    with pytest.raises(InvalidRows, match="a state that the aggregate function 'mean' gave does not fit"):
        scores.put({"player": "ada", "score": 1.0})

    assert scores.scan().to_arrow().num_rows == 0


def test_a_function_that_is_replaced_is_used_from_the_next_put_on(db, mean):
    scores = db.execute(DDL)
    scores.put({"player": "ada", "score": 1.0})

    class Doubled(mean):
        def accumulate(self, state, value):
            return super().accumulate(state, 2 * value)

    kolk.register_aggregate("mean", Doubled)
    scores.put({"player": "ada", "score": 1.0})

    assert scores.get_one(player="ada")["score"] == {"total": 3.0, "seen": 2}


def test_a_table_of_another_version_is_read_and_not_written(db, mean):
    scores = db.execute(DDL)
    scores.put({"player": "ada", "score": 1.0})

    kolk.register_aggregate("mean", mean, version=2)

    for write in (
        lambda: scores.put({"player": "ada", "score": 1.0}),
        lambda: scores.put({"player": "ada", "score": {"total": 1.0, "seen": 1}, "games": 1}, mode="overwrite"),
        lambda: scores.delete(["ada"]),
    ):
        with pytest.raises(UnknownAggregate, match="version 1 of mean, and version 2 is registered here"):
            write()
    assert scores.get_one(player="ada")["score"] == {"total": 1.0, "seen": 1}
    assert "version 2" in scores.describe()["schema"]["columns"][1]["agg"]["problem"]
    with pytest.raises(UnknownAggregate, match="version 1"):
        db.execute(scores.describe()["ddl"].replace("scores", "copy"))
    assert db.execute(DDL.replace("scores", "again")).schema.column("score").agg.get("version") == "2"

    kolk.register_aggregate("mean", mean, version=1)
    scores.put({"player": "ada", "score": 3.0})
    assert means(scores) == {"ada": 2.0}


def test_the_ddl_of_a_table_makes_another_like_it(db):
    scores = db.execute(DDL)

    copy = db.execute(scores.describe()["ddl"].replace("scores", "copy"))

    assert copy.schema == scores.schema


def test_a_column_with_a_users_function_is_added_and_only_widened_where_the_function_allows(db, mean):
    class Narrow(mean):
        types = ("int",)
        input = None

    kolk.register_aggregate("narrow", Narrow)
    table = db.execute("CREATE TABLE t (k BIGINT PRIMARY KEY, n BIGINT SUM)")

    table.add_column("score", STATE, agg="mean")
    table.add_column(kolk.Column("few", "int", agg="narrow"))
    table.put({"k": 1, "n": 1, "score": 2.0}, columns=["n", "score"])

    assert table.get_one(k=1)["score"] == {"total": 2.0, "seen": 1}
    with pytest.raises(InvalidSchema, match="narrow works on int, not on a bigint"):
        table.widen_column("few", "bigint")


def test_a_fallback_may_be_a_users_function(db):
    schema = kolk.Schema([kolk.Column("k", "bigint"), kolk.Column("a", STATE), kolk.Column("b", STATE)], "k")

    table = db.create_table("t", schema, options={"fields.default.agg": "mean"})
    table.put({"k": 1, "a": 1.0, "b": 2.0})

    assert table.get_one(k=1)["b"] == {"total": 2.0, "seen": 1}
    with pytest.raises(UnknownAggregate, match="no aggregate function 'meen'; did you mean 'mean'"):
        db.create_table("u", schema, options={"fields.default.agg": "meen"})


# --- functions that nobody has registered


def test_a_table_whose_function_nobody_knows_is_seen_but_neither_read_nor_written(timed, mean, monkeypatch):
    timed.db.execute(DDL).put({"player": "ada", "score": 1.0})
    timed.db.execute("CREATE TABLE others (k BIGINT PRIMARY KEY, n BIGINT SUM)").put({"k": 1, "n": 1})
    forget(monkeypatch)
    timed.reopen()
    db = timed.db

    scores = db.table("scores")
    assert [table.name for table in db.tables()] == ["others", "scores"]
    assert "no aggregate function 'mean'" in scores.describe()["schema"]["columns"][1]["agg"]["problem"]
    assert db.execute("DESCRIBE scores")["aggregate"].to_pylist() == [None, "mean(version = 1)", "count_rows"]
    for use in (
        lambda: scores.put({"player": "ada", "score": 1.0}),
        lambda: scores.put({"player": "ada", "score": None, "games": 1}, mode="overwrite"),
        lambda: scores.delete(["ada"]),
        lambda: scores.get(["ada"]),
        lambda: scores.get_one(player="ada"),
        lambda: scores.scan().to_arrow(),
        lambda: list(scores.changelog()),
        lambda: list(scores.bootstrap(follow=False)),
    ):
        with pytest.raises(UnknownAggregate, match=r"column 'score'.*register_aggregate.*kolk serve --load"):
            use()
    db.table("others").put({"k": 1, "n": 1})
    assert db.table("others").get_one(k=1) == {"k": 1, "n": 2}

    kolk.register_aggregate("mean", mean)
    scores.put({"player": "ada", "score": 3.0})
    assert means(scores) == {"ada": 2.0}


def test_a_table_whose_function_nobody_knows_is_kept_in_order_all_the_same(bench, tmp_path, mean, monkeypatch):
    timed = bench(kv_snapshot_interval_seconds=1.0)
    ddl = DDL.replace("games BIGINT COUNT_ROWS", "seen TIMESTAMP_LTZ LAST_VALUE") + (
        " WITH ('table.kv.ttl' = '1h', 'table.kv.ttl.column' = 'seen')"
    )
    scores = timed.db.execute(ddl)
    long_ago = pa.scalar(0, pa.timestamp("us", "UTC")).as_py()
    scores.put([{"player": "ada", "score": 1.0, "seen": None}, {"player": "old", "score": 1.0, "seen": long_ago}])
    forget(monkeypatch)
    timed.reopen()  # and so recover, when a bucket is first used
    engine, scores = timed.engine, timed.db.table("scores")

    timed.clock.advance(seconds=120)
    engine.tick()
    engine.take_due()
    engine.reap()
    (snapshot,) = scores.take_snapshot()
    with scores.lease():
        pass
    ends = [bucket["end"] for bucket in scores.describe()["offsets"].values()]

    assert snapshot.offset == ends[0] == 3  # two rows came, and the old one went
    scores.set_options({"table.kv.ttl": "2h"})
    scores.rename_column("seen", "last")
    scores.drop_column("score")
    assert scores.scan().to_arrow().to_pylist() == [{"player": "ada", "last": None}]
    scores.truncate()
    timed.db.drop_table("scores")
    assert timed.db.tables() == []


def test_a_backup_of_a_table_whose_function_nobody_knows_can_be_restored_and_used(
    folder, tmp_path, config, mean, monkeypatch
):
    with kolk.connect(folder, config=config) as db:
        db.execute(DDL).put({"player": "ada", "score": 1.0})
    forget(monkeypatch)

    with kolk.connect(folder, config=config) as db:
        db.backup(tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "restored")

    kolk.register_aggregate("mean", mean)
    with kolk.connect(tmp_path / "restored", config=config) as db:
        assert means(db.table("scores")) == {"ada": 1.0}


def test_a_function_that_nobody_knows_is_given_to_no_column(db, monkeypatch):
    table = db.execute("CREATE TABLE t (k BIGINT PRIMARY KEY, n BIGINT SUM)")
    column = kolk.Column("score", STATE, agg="mean")
    forget(monkeypatch)

    with pytest.raises(UnknownAggregate, match="'mean'"):
        kolk.Column("score", STATE, agg="mean")
    with pytest.raises(UnknownAggregate, match="'mean'"):
        table.add_column(column)
    with pytest.raises(UnknownAggregate, match="'mean'"):
        db.create_table("u", kolk.Schema([kolk.Column("k", "bigint"), column], "k"))


# --- servers that load modules


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's, in a folder of the user's path."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "kolk_test_means.py").write_text(MODULE + "\nkolk.register_aggregate('mean', Mean)\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    yield "kolk_test_means"
    sys.modules.pop("kolk_test_means", None)


def started(folder, *load):
    return kolk.start(folder, config=EngineConfig(durability="process"), load=load)


def test_a_server_that_loads_the_module_knows_the_function(folder, module):
    with started(folder, module) as server, kolk.connect(server.url) as db:
        scores = db.execute(DDL)
        scores.put([{"player": "ada", "score": 1.0}, {"player": "ada", "score": 3.0}])

        assert means(scores) == {"ada": 2.0}
    with started(folder) as server, kolk.connect(server.url) as db:
        scores = db.table("scores")

        with pytest.raises(UnknownAggregate, match="kolk serve --load"):
            scores.put({"player": "ada", "score": 1.0})


def test_a_client_need_not_know_a_function_to_read_but_to_write(folder, module, monkeypatch):
    with started(folder, module) as server, kolk.connect(server.url) as db:
        db.execute(DDL).put({"player": "ada", "score": 1.0})
        forget(monkeypatch)

        scores = db.table("scores")

        assert scores.get_one(player="ada")["score"] == {"total": 1.0, "seen": 1}
        with pytest.raises(UnknownAggregate, match="no aggregate function 'mean'"):
            scores.put({"player": "ada", "score": 1.0})


def test_a_module_that_cannot_be_loaded_keeps_a_server_from_starting(folder, tmp_path, module):
    (tmp_path / "lib" / "kolk_test_broken.py").write_text("1 / 0\n")

    with pytest.raises(InvalidArgument, match=r"'kolk_test_broken'.*ZeroDivisionError"):
        kolk.start(folder, load=["kolk_test_broken"])
    with pytest.raises(InvalidArgument, match=r"'no_such_module'.*is it installed"):
        kolk.start(folder, load=["no_such_module"])


@pytest.mark.parametrize("load", ["no/module", "", ["a b"], [7], 7])
def test_what_is_loaded_are_names_of_modules(load):
    with pytest.raises(InvalidArgument, match="load"):
        ServerConfig(load=load)
