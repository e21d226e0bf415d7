"""A sink for every output mode: ``kolk.spark.sink(df, table=..., url=...)`` writes each batch of a stream exactly once.

Spark's own ``df.writeStream.format("kolk")`` has the modes append and complete. For update there is ``foreachBatch``,
which writes every batch as a batch write; here it is given the identity of its query and batch, so that one that Spark
runs again is not applied again. It also writes several tables of one batch.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from kolk.errors import InvalidArgument
from kolk.model.names import TableName
from kolk.model.table import TableInfo
from kolk.model.transaction import check_app
from kolk.spark.connections import table as open_table
from kolk.spark.identity import QUERY_ID
from kolk.spark.options import EVERY_BATCH, OF_SPARK, Options, check_write
from kolk.spark.sink_writers import guarded
from kolk.spark.staging import Identity
from kolk.spark.writing import batch_writer

_MODES = ("append", "update", "complete")
_OWN = ("table", "path", "txnAppId", "txnVersion", EVERY_BATCH)
_NAMELESS = "Spark does not say which query this is: kolk.spark.sink(..., app_id='a name for it')"
Shape = Callable[[DataFrame], DataFrame]


def sink(
    df: DataFrame,
    table: str | Mapping[str, Shape],
    *,
    output_mode: str = "append",
    app_id: str | None = None,
    **options: Any,
) -> DataStreamWriter:
    """A stream into a table, to be started: ``kolk.spark.sink(df, "web.pages", output_mode="update").option(
    "checkpointLocation", ...).start()``.

    ``table`` may also say what to make of each batch for several tables: ``{"web.pages": pages_of, "web.users":
    users_of}``, each a transaction of its own. ``options`` are those of the format, such as ``url`` or ``merge_mode``;
    the writer itself takes what is Spark's, such as the checkpoint and the trigger, and refuses the rest.
    ``app_id`` names the query where Spark does not, which is on Spark Connect: give it the same name in every run, and
    another one with another checkpoint. What is checked there is checked with the first batch.

    A streaming aggregation of Spark in update mode gives running totals. In a column that adds them up they would be
    added over and over, so an aggregation table wants to be told: ``merge_mode="overwrite"`` lets the newest stand.
    """
    if output_mode not in _MODES:
        raise InvalidArgument(f"output_mode is one of {', '.join(_MODES)}, not {str(output_mode)[:60]!r}")
    given = {name: _text(value) for name, value in options.items() if value is not None}
    known = Options.parse(given)
    _check_options(known)
    shapes = _by_table({table: _as_it_is} if isinstance(table, str) else table)
    is_local, replaces = _is_local(df), output_mode == "complete"
    if is_local:
        for name, shape in shapes.items():
            # Made and thrown away: what the write of a batch would be refused for is refused now.
            batch_writer(_of(known, name, app_id or "query", 0), shape(df).schema, overwrite=replaces)
            _check_mode(known, name, output_mode)
    elif app_id is None:
        raise InvalidArgument(_NAMELESS)
    app = None if app_id is None else check_app(app_id)

    def each(batch: DataFrame, batch_id: int) -> None:
        found = app if app is not None else _app_of(batch)
        for name, shape in shapes.items():
            if not is_local:
                _check_mode(known, name, output_mode)
            writer = _placed(known, name, shape(batch)).write.format("kolk").options(**given).option("table", name)
            writer = writer.option("txnAppId", found).option("txnVersion", str(batch_id))
            writer = writer.option(EVERY_BATCH, "true")
            writer.mode("overwrite" if replaces else "append").save()

    return guarded(df.writeStream.outputMode(output_mode).foreachBatch(each), output_mode)


def _check_options(options: Options) -> None:
    """Whether the options are for the writes of batches; what the stream itself is told, its writer takes."""
    own = sorted(set(_OWN) & set(options.given))
    if own:
        raise InvalidArgument(f"the option {own[0]!r} is made by the sink: give it table= and app_id=")
    if "outputmode" in options.given:
        raise InvalidArgument("the sink calls it output_mode: kolk.spark.sink(..., output_mode='update')")
    of_stream = sorted(OF_SPARK & set(options.given))
    if of_stream:
        raise InvalidArgument(f"{of_stream[0]!r} is for Spark: kolk.spark.sink(...).option({of_stream[0]!r}, ...)")
    check_write(options)


def _by_table(given: Mapping[str, Shape]) -> dict[str, Shape]:
    """What to make of each batch, by the names of tables in full: a table has a version of a batch once, so of two
    writes to one the second would be taken for a retry, and dropped."""
    shapes: dict[str, Shape] = {}
    for name, shape in given.items():
        full = str(TableName.parse(name))
        if full in shapes:
            raise InvalidArgument(
                f"{name!r} is the table {full}, which is named twice, and a batch writes a table once: name it once,"
                " with a function that gives all its rows"
            )
        shapes[full] = shape
    if not shapes:
        raise InvalidArgument("name a table, or several with what to make of each batch for them")
    return shapes


def _placed(options: Options, name: str, batch: DataFrame) -> DataFrame:
    """A batch as it is to be cut: for one that may be taken back, all rows of a bucket in one task."""
    if options.text("exactly-once") != "undo":
        return batch
    from kolk.spark.co_location import gathered_by_bucket

    return gathered_by_bucket(batch, _info(options, name))


def _as_it_is(batch: DataFrame) -> DataFrame:
    return batch


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_local(df: DataFrame) -> bool:
    """Whether the driver is here; of Spark Connect it is elsewhere, and may reach servers that this process cannot."""
    return not type(df).__module__.startswith("pyspark.sql.connect")


def _info(options: Options, name: str) -> TableInfo:
    return open_table(Options({**options.given, "table": name})).info


def _of(options: Options, name: str, app: str, batch: int) -> Options:
    """The options of a batch's write to a table."""
    return Options({**options.given, "table": name, "txnAppId": app, "txnVersion": str(batch)})


def _check_mode(options: Options, name: str, output_mode: str) -> None:
    """What would go wrong without an error fails."""
    if output_mode == "update" and _info(options, name).schema.aggregates and options.text("merge-mode") is None:
        raise InvalidArgument(
            f"{name} aggregates what it is given, and in update mode an aggregation of Spark gives running totals, that"
            " would be counted over and over. Say merge_mode='overwrite' to let the newest total stand; or write the"
            " rows themselves, not aggregated, in append mode; or merge_mode='accumulate' if every row is to count"
        )


def _app_of(batch: DataFrame) -> str:
    """The name of the query whose batch this is."""
    query = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID) if _is_local(batch) else None
    if query is None:
        raise InvalidArgument(_NAMELESS)
    return Identity.of_query(query, 0).app
