"""The writer that ``kolk.spark.sink`` gives away refuses what would be lost on it. Both kinds of it, without Spark."""

import pytest
from pyspark.sql import types as st
from pyspark.sql.streaming.readwriter import DataStreamWriter as ClassicWriter

import kolk.spark
from kolk.errors import InvalidArgument
from kolk.spark.sink_writers import guarded


class Java:
    """The writer of the JVM, which notes what it is told."""

    def __init__(self):
        self.told = []

    def option(self, key, value):
        self.told.append((key, value))
        return self

    def queryName(self, name):
        return self.option("name", name)


class ClassicFrame:
    """A frame without a JVM."""

    sparkSession = None

    def __init__(self):
        self._jdf = self

    def writeStream(self):
        return Java()


@pytest.fixture(params=["classic", "connect"])
def writer(request):
    if request.param == "classic":
        plain = ClassicWriter(ClassicFrame())
    else:
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter  # it warns when it is imported

        plain = DataStreamWriter(None, None)
    made = guarded(plain, "append")
    assert isinstance(made, type(plain))
    return made


def told(writer):
    return dict(writer._jwrite.told) if isinstance(writer, ClassicWriter) else dict(writer._write_proto.options)


def test_another_output_mode_is_refused_wherever_it_is_said(writer):
    assert writer.outputMode("Append") is writer

    for say in (lambda: writer.outputMode("update"), lambda: writer.start(outputMode="update")):
        with pytest.raises(InvalidArgument, match=r"in mode append.*kolk\.spark\.sink\(\.\.\., output_mode='update'\)"):
            say()


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("merge-mode", r"merge_mode=\.\.\."),
        ("mergeMode", r"merge_mode=\.\.\."),
        ("owner", r"owner=\.\.\."),
        ("url", r"url=\.\.\."),
        ("txn.on-old", r"\*\*\{'txn\.on-old': \.\.\.\}"),
    ],
)
def test_an_option_of_kolk_is_refused_with_the_place_to_give_it(writer, name, where):
    for say in (
        lambda: writer.option(name, "x"),
        lambda: writer.options(**{name: "x"}),
        lambda: writer.start(**{name: "x"}),
    ):
        with pytest.raises(InvalidArgument, match=rf"is an option of Kolk.*sink\(\.\.\., {where}\)"):
            say()

    assert told(writer) == {}


def test_what_is_of_spark_reaches_spark(writer):
    writer = writer.option("checkpointLocation", "/c").options(asyncProgressTrackingEnabled=True).option("url", None)

    assert told(writer) == {"checkpointLocation": "/c", "asyncProgressTrackingEnabled": "true"}
    assert writer.queryName("q") is writer


def test_what_would_take_the_place_of_the_sink_is_refused(writer):
    for say in (
        lambda: writer.format("console"),
        lambda: writer.start(format="console"),
        lambda: writer.foreach(print),
        lambda: writer.foreachBatch(print),
        lambda: writer.toTable("t"),
    ):
        with pytest.raises(InvalidArgument, match="would take its place"):
            say()


def test_a_table_that_is_named_twice_is_refused_since_the_second_write_would_be_dropped():
    with pytest.raises(InvalidArgument, match=r"'default\.pages' is the table pages, which is named twice"):
        kolk.spark.sink(ClassicFrame(), {"pages": None, "default.pages": None}, url="kolk://127.0.0.1:1")
    with pytest.raises(InvalidArgument, match="name a table"):
        kolk.spark.sink(ClassicFrame(), {}, url="kolk://127.0.0.1:1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"output_mode": "complete", "exactly_once": "undo"}, "in one transaction: leave exactly-once out"),
        ({"new_query": "replace", "exactly_once": "undo"}, "in one transaction: leave exactly-once out"),
        ({"output_mode": "complete", "columns": ["v"]}, "leave 'columns' out"),
    ],
)
def test_what_the_first_batch_would_be_refused_for_is_refused_when_the_sink_is_made(db, server, name, given, message):
    db.execute(f"CREATE TABLE {name} (k BIGINT PRIMARY KEY, v BIGINT, w BIGINT)")
    frame = ClassicFrame()
    frame.schema = st.StructType([st.StructField(each, st.LongType()) for each in ("k", "v", "w")])

    with pytest.raises(InvalidArgument, match=message):
        kolk.spark.sink(frame, name, url=server.url, **given)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"checkpointLocation": "/c"}, r"for Spark: kolk\.spark\.sink\(\.\.\.\)\.option\('checkpointlocation'"),
        ({"outputMode": "update"}, "output_mode='update'"),
        ({"where": "v > 1"}, "which rows are read"),
        ({"txnVersion": "3"}, "made by the sink"),
    ],
)
def test_an_option_that_the_sink_would_pass_over_is_refused_when_it_is_called(option, message):
    with pytest.raises(InvalidArgument, match=message):
        kolk.spark.sink(ClassicFrame(), "t", url="kolk://127.0.0.1:1", **option)
