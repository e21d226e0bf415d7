"""Rows by key in Spark: for the keys of a frame, many at once, and for one key in SQL.

A join with a table reads all of it. Where there are few keys and many rows it is quicker to ask for those: a batch of
keys is one call. What is found is as of that call; for one moment of the whole table there is the batch read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as st
from pyspark.sql.functions import udtf
from pyspark.sql.udtf import AnalyzeArgument, AnalyzeResult, UserDefinedTableFunction

from kolk.client.found import dicts_of
from kolk.client.table import Table
from kolk.errors import InvalidArgument
from kolk.spark import connections
from kolk.spark.options import Options
from kolk.spark.types import arrow_schema, shown, spark_field

KEYS_MAX = 10_000
"""How many keys are asked for at once."""
_ASKED, _FOUND = "\0asked", "\0found"
_JOINS = {"inner": "inner", "left": "left outer"}


def join_lookup(
    df: DataFrame,
    name: str,
    on: Sequence[str] | Mapping[str, str] | str,
    *,
    how: str = "inner",
    columns: Sequence[str] | None = None,
    url: str | None = None,
    **options: Any,
) -> DataFrame:
    """A frame with the columns of a table added, found by key: ``join_lookup(visits, "web.pages", on="page")``.

    ``on`` names the columns that hold the key, in the order of the table's, or maps them to it, ``{"url": "page"}``.
    ``how`` is ``inner`` or ``left``; ``columns`` are those to add, else all outside the key.
    """
    if how not in _JOINS:
        raise InvalidArgument(f"how is one of {', '.join(_JOINS)}, not {how!r}")
    given = {"url": url, "table": name, **options}
    parsed = Options.parse({key: str(value) for key, value in given.items() if value is not None})
    found = connections.table(parsed)
    keys = _keys(found, on, df.columns)
    added = tuple(columns) if columns is not None else _others(found)
    twice = [each for each in added if each.lower() in {column.lower() for column in df.columns}]
    if twice:
        raise InvalidArgument(f"the frame has a column {twice[0]!r} already; rename it, or choose with columns=[...]")
    fields = [spark_field(found.schema.column(each)) for each in added]
    nullable = [st.StructField(each.name, each.dataType, each.nullable or how == "left") for each in fields]
    schema = st.StructType([*df.schema.fields, *nullable])
    return df.mapInArrow(partial(joined, options=parsed, keys=keys, added=added, how=how, schema=schema), schema)


def joined(
    batches: Iterable[pa.RecordBatch],
    *,
    options: Options,
    keys: Mapping[str, str],
    added: Sequence[str],
    how: str,
    schema: st.StructType,
) -> Iterator[pa.RecordBatch]:
    """Batches with what their keys find; ``keys`` maps columns of the table's key to those of the batches."""
    table = connections.table(options)
    wanted = arrow_schema(schema)
    for batch in batches:
        for start in range(0, batch.num_rows, KEYS_MAX):
            yield shown(_joined(table, batch.slice(start, KEYS_MAX), keys, added, how), wanted)


def _joined(
    table: Table, batch: pa.RecordBatch, keys: Mapping[str, str], added: Sequence[str], how: str
) -> pa.RecordBatch:
    names = list(keys)
    asked = pa.table({name: batch[column] for name, column in keys.items()})
    asked = asked.append_column(_ASKED, pa.array(range(asked.num_rows), pa.int64()))
    known = asked.drop_null()
    distinct = known.group_by(names).aggregate([])
    found = table.get(distinct, columns=[*names, *added])
    places = found.select(names).append_column(_FOUND, pa.array(range(found.num_rows), pa.int64()))
    places = pa.table({field.name: places[field.name].cast(_plain(asked, field)) for field in places.schema})
    # Numbers alone are joined: Arrow cannot carry nested columns through a join, and takes them by number.
    pairs = asked.join(places, names, join_type=_JOINS[how]).sort_by(_ASKED)
    rows = batch.take(_one(pairs[_ASKED]))
    more = found.select(list(added)).combine_chunks().take(_one(pairs[_FOUND]))
    columns = [*rows.columns, *(_one(column) for column in more.columns)]
    return pa.RecordBatch.from_arrays(columns, names=[*rows.schema.names, *added])


def lookup(spark: SparkSession, url: str | None = None, *, function: str = "kolk_lookup", **options: Any) -> None:
    """Make a table function for SQL: ``SELECT * FROM kolk_lookup('web.pages', '/')`` is the row of that key, or none.

    After the name of the table stand the values of its key; instead of them, a table with the key's columns asks for
    many at once: ``kolk_lookup('web.pages', TABLE(SELECT page FROM visits))``. Within a lateral join it is asked
    once for each row: ``join_lookup`` is much quicker.
    """
    given = {name: str(value) for name, value in {"url": url, **options}.items() if value is not None}
    parsed = Options.parse(given)
    connections.database(parsed)

    class Lookup(LookupRows):
        given = parsed

        @staticmethod
        def analyze(table: AnalyzeArgument, *keys: AnalyzeArgument) -> AnalyzeResult:
            return described(parsed, table, keys)

    made = udtf(Lookup)  # of a class it makes one, and with Spark Connect another kind of one
    spark.udtf.register(function, cast(UserDefinedTableFunction, made))


class LookupRows:
    """The table function. Confined to one task; rows of keys are gathered and asked for together."""

    given = Options()

    def __init__(self) -> None:
        self._table: Table | None = None
        self._waiting: list[dict[str, Any]] = []

    def eval(self, table: str, *keys: Any) -> Iterator[tuple[Any, ...]]:
        """One row of arguments."""
        self._table = self._table or _named(self.given, table)
        names = self._table.schema.primary_key
        if isinstance(keys[0], st.Row) and len(keys) == 1:
            self._waiting.append({name: keys[0][name] for name in names})
            if len(self._waiting) >= KEYS_MAX:
                yield from self._found()
        elif None not in keys:
            self._waiting.append(dict(zip(names, keys, strict=True)))
            yield from self._found()

    def terminate(self) -> Iterator[tuple[Any, ...]]:
        """The end of the rows of keys."""
        if self._waiting:
            yield from self._found()

    def _found(self) -> Iterator[tuple[Any, ...]]:
        assert self._table is not None, "a row has named it"
        asked, self._waiting = [key for key in self._waiting if None not in key.values()], []
        if asked:
            for row in dicts_of(self._table.get(asked)):
                yield tuple(row.values())


def described(options: Options, name: AnalyzeArgument, keys: Sequence[AnalyzeArgument]) -> AnalyzeResult:
    """What Spark is told before the table function runs: the columns of the table."""
    found = _named(options, name.value)
    names = found.schema.primary_key
    if not names:
        raise InvalidArgument(f"{found.name} is a log table; without a key there is nothing to look up")
    if len(keys) == 1 and keys[0].isTable:
        has = keys[0].dataType
        missing = [key for key in names if not (isinstance(has, st.StructType) and key in has.names)]
        if missing:
            raise InvalidArgument(f"the table of keys has no column {missing[0]!r}; it needs {', '.join(names)}")
    elif len(keys) != len(names):
        raise InvalidArgument(f"give the key of {found.name} after its name: {', '.join(names)}")
    return AnalyzeResult(st.StructType([spark_field(column) for column in found.schema.columns]))


def _named(options: Options, name: object) -> Table:
    if not isinstance(name, str):
        raise InvalidArgument("the first argument names the table, as text: kolk_lookup('web.pages', '/')")
    return connections.table(Options({**options.given, "table": name}))


def _keys(table: Table, on: Sequence[str] | Mapping[str, str] | str, columns: Sequence[str]) -> dict[str, str]:
    """The columns of the key, in order, and those of a frame that hold them."""
    names = table.schema.primary_key
    if not names:
        raise InvalidArgument(f"{table.name} is a log table; without a key there is nothing to look up")
    if isinstance(on, Mapping):
        found = {key: column for column, key in on.items()}
    else:
        given = [on] if isinstance(on, str) else list(on)
        found = dict(zip(names, given, strict=False)) if len(given) == len(names) else {}
    if set(found) != set(names):
        raise InvalidArgument(f"on names the columns of the whole key of {table.name}: {', '.join(names)}")
    missing = [column for column in found.values() if column not in columns]
    if missing:
        raise InvalidArgument(f"the frame has no column {missing[0]!r}; it has {', '.join(columns)}")
    return {name: found[name] for name in names}


def _others(table: Table) -> tuple[str, ...]:
    return tuple(name for name in table.schema.names if name not in table.schema.primary_key)


def _plain(asked: pa.Table, field: pa.Field) -> pa.DataType:
    return asked.schema.field(field.name).type if field.name in asked.schema.names else field.type


def _one(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found
