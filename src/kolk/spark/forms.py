"""Changes as Spark's users read them: under the names that Spark's own change feeds have, or as rows to be put.

There are three forms. ``cdc`` has every change with four columns more: what it is, its offset in the log of its bucket,
when it was committed, and that bucket. ``upserts`` has of each change the row that it leaves, or takes away, and one
column that says which: what a sink needs to make another table alike. ``rows`` has the table's columns alone, and so
cannot show that a row was deleted: it is an error, not a row that is left out.

A log table has appended rows alone, which are insertions in any form.
"""

from collections.abc import Mapping
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st

from kolk.errors import InvalidArgument, InvalidRows
from kolk.model.schema import CHANGE_COLUMN_NAMES, Schema
from kolk.spark.options import Options
from kolk.spark.types import spark_schema

CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP, BUCKET = (
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
    "_bucket",
)
INSERT = "insert"
_SYMBOLS = pa.array(["+I", "-U", "+U", "-D"])
_WORDS = pa.array([INSERT, "update_preimage", "update_postimage", "delete"])
_FIELDS = (
    st.StructField(CHANGE_TYPE, st.StringType(), nullable=False),
    st.StructField(COMMIT_VERSION, st.LongType(), nullable=False),
    st.StructField(COMMIT_TIMESTAMP, st.TimestampType(), nullable=False),
    st.StructField(BUCKET, st.StringType(), nullable=False),
)
_BEFORE, _GONE = "-U", "-D"
_, _OFFSET, _, _ = CHANGE_COLUMN_NAMES


class Form(StrEnum):
    """How changes are shown."""

    ROWS = "rows"
    UPSERTS = "upserts"
    CDC = "cdc"

    @staticmethod
    def of(options: Options, schema: st.StructType | None = None) -> "Form":
        """The form that is asked for. Who reads a changelog, or has chosen such columns himself, says it by that."""
        has_chosen = schema is not None and CHANGE_TYPE in schema.names
        if options.text("changes") is None and (has_chosen or (options.text("source") or "").lower() == "changelog"):
            return Form.CDC
        return Form(options.choice("changes", list(Form)))

    @property
    def fields(self) -> tuple[st.StructField, ...]:
        """The columns that it has besides the table's."""
        return {Form.ROWS: (), Form.UPSERTS: _FIELDS[:1], Form.CDC: _FIELDS}[self]


def changes_schema(schema: Schema, form: Form, names: tuple[str, ...] | None = None) -> st.StructType:
    """The columns of changes in a form: the table's, or some of them, and those that say what happened. Whoever names
    some of the latter has these alone."""
    if names == ():
        raise InvalidArgument("the option 'columns' names no column; leave it out to read all of them")
    added = {field.name: field for field in form.fields}
    given = schema.names if names is None else names
    taken = [name for name in added if name in schema.names and name in given]
    if taken:
        raise InvalidArgument(
            f"the table has a column {taken[0]!r}, as changes have; choose others with .option('columns', ...), or"
            " .option('changes', 'upserts')"
        )
    wanted = given if any(name in added for name in given) else (*given, *added)
    own = spark_schema(schema, tuple(name for name in wanted if name not in added) or None)
    found = {field.name: field for field in own.fields} | added
    return st.StructType([found[name] for name in wanted])


def table_columns(schema: st.StructType, form: Form) -> list[str]:
    """Those columns of a changelog that are the table's."""
    added = {field.name for field in form.fields}
    return [name for name in schema.names if name not in added]


def formed(batch: pa.RecordBatch, form: Form) -> pa.RecordBatch:
    """Some changes of a log, in a form."""
    kinds = batch.column(CHANGE_TYPE)
    if form is not Form.CDC:
        kept = pc.not_equal(kinds, _BEFORE)
        batch, kinds = batch.filter(kept), kinds.filter(kept)
    if form is Form.ROWS and pc.any(pc.equal(kinds, _GONE)).as_py():
        raise InvalidRows(
            "a row was deleted, and the table's columns alone cannot say so; read with .option('changes', 'upserts'),"
            " which a sink of kolk understands, or 'cdc'"
        )
    added = {CHANGE_TYPE: pc.take(_WORDS, pc.index_in(kinds, _SYMBOLS))}
    if form is Form.CDC:
        added |= {COMMIT_VERSION: batch.column(_OFFSET)}
        added |= {name: batch.column(name) for name in (COMMIT_TIMESTAMP, BUCKET)}
    return _with(batch.select([name for name in batch.schema.names if name not in CHANGE_COLUMN_NAMES]), added, form)


def as_insertions(rows: pa.RecordBatch, form: Form, bucket: str, last_offset: int, timestamp_ms: int) -> pa.RecordBatch:
    """Rows of a snapshot, as the insertions that they are to whoever begins with them. They have the last offset that
    they include, and the time at which they were leased."""
    count = rows.num_rows
    moment = pa.repeat(timestamp_ms, count).cast(pa.timestamp("ms", "UTC"))
    added = {CHANGE_TYPE: pa.repeat(INSERT, count), COMMIT_VERSION: pa.repeat(last_offset, count)}
    return _with(rows, {**added, COMMIT_TIMESTAMP: moment, BUCKET: pa.repeat(bucket, count)}, form)


def _with(rows: pa.RecordBatch, added: Mapping[str, pa.Array], form: Form) -> pa.RecordBatch:
    """Rows, and those columns that their form has besides."""
    names = [field.name for field in form.fields]
    return pa.RecordBatch.from_arrays(
        [*rows.columns, *(added[name] for name in names)], names=[*rows.schema.names, *names]
    )
