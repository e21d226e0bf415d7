"""Tables of a server as frames and views of a session, with what only the driver knows filled in.

``spark.read.format("kolk")`` does the same with options; here they have names that an editor knows, and the number of
tasks is that of the session's cores.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from kolk.client.where import Where, predicate_of
from kolk.errors import InvalidArgument
from kolk.spark import connections
from kolk.spark.options import Options, check_read

_PER_CORE = 2
_NOT_IN_A_NAME = re.compile(r"[^0-9A-Za-z_]")


def table(
    spark: SparkSession,
    name: str,
    *,
    url: str | None = None,
    columns: Sequence[str] | None = None,
    where: Where | None = None,
    limit: int | None = None,
    source: str | None = None,
    **options: Any,
) -> DataFrame:
    """A table as a frame: ``kolk.spark.table(spark, "web.pages", columns=["page", "pv"], where="pv > 100")``.

    Each action on it sees the newest rows, all of one moment. ``columns``, ``where`` and ``limit`` are done by the
    server, so what is not wanted does not travel; ``where`` is SQL or a dict of columns and what they equal. ``source``
    is ``live``, ``snapshot``, ``changelog`` or ``lease:ID``. The other options are those of docs/spark.md, with
    underlines for dashes.
    """
    if isinstance(columns, str):
        raise InvalidArgument(f"columns is a list of names, [{columns!r}]")
    given = {
        "url": url,
        "table": name,
        "columns": None if columns is None else ",".join(columns),
        "limit": limit,
        "source": source,
        "parallelism": _tasks(spark),
        **options,
    }
    found = {key: str(value) for key, value in given.items() if value is not None}
    if where is not None:
        found["where"] = where if isinstance(where, str) else _text(where, found)
    check_read(Options.parse(found), is_stream=False)  # what is wrong in them is told here, and not out of the JVM
    return spark.read.format("kolk").options(**found).load()


def attach(
    spark: SparkSession,
    url: str | None = None,
    *,
    prefix: str = "",
    tables: Sequence[str] | None = None,
    **options: Any,
) -> dict[str, str]:
    """Make a temporary view of every table of a server, or of some: ``web.pages`` is ``web_pages`` in SQL, after the
    ``prefix``. The answer is the views by table.

    A query sees the newest rows; ``INSERT INTO web_pages`` writes them. Tables that are made later are there after
    another call.
    """
    given = {name: str(value) for name, value in {"url": url, **options}.items() if value is not None}
    known = [each.name for each in connections.database(Options.parse(given)).tables()]
    unknown = [name for name in tables or () if name not in known]
    if unknown:
        raise InvalidArgument(f"there is no table {unknown[0]!r} to attach; there are {', '.join(known[:20])}")
    views: dict[str, str] = {}
    for name in known if tables is None else tables:
        view = prefix + _NOT_IN_A_NAME.sub("_", name)
        other = next((each for each, taken in views.items() if taken.lower() == view.lower()), None)
        if other is not None:
            raise InvalidArgument(f"{other} and {name} would both be {view}; attach them apart, by tables= and prefix=")
        views[name] = view
    for name, view in views.items():
        table(spark, name, url=url, **options).createOrReplaceTempView(view)
    return views


def _tasks(spark: SparkSession) -> int | None:
    """How many tasks are good for this session; None if it runs elsewhere and does not say."""
    try:
        return _PER_CORE * spark.sparkContext.defaultParallelism
    except PySparkException:
        return None


def _text(where: Mapping[str, Any], given: Mapping[str, str]) -> str:
    found = predicate_of(where, connections.table(Options.parse(given)).schema)
    assert found is not None, "a mapping says something"
    return found.text
