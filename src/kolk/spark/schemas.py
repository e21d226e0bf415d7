"""A table's schema from a Spark frame: ``kolk.spark.schema_for(df, primary_key=["page"], agg={"pv": "sum"})``.

The way back of ``kolk.spark.types``: every Spark type that a table can hold becomes the one that reads as it again.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import types as st

from kolk.errors import InvalidSchema
from kolk.model.aggregate import Aggregate
from kolk.model.schema import CHANGE_COLUMN_NAMES, Column, Schema
from kolk.model.types import DataType, Field, Kind

_PLAIN = {
    st.BooleanType: Kind.BOOLEAN,
    st.ByteType: Kind.TINYINT,
    st.ShortType: Kind.SMALLINT,
    st.IntegerType: Kind.INT,
    st.LongType: Kind.BIGINT,
    st.FloatType: Kind.FLOAT,
    st.DoubleType: Kind.DOUBLE,
    st.StringType: Kind.STRING,
    st.VarcharType: Kind.STRING,
    st.BinaryType: Kind.BYTES,
    st.DateType: Kind.DATE,
}
_MOMENTS = {st.TimestampType: Kind.TIMESTAMP_LTZ, st.TimestampNTZType: Kind.TIMESTAMP}
_DIGITS = 6
"""Of a second, in Spark's timestamps."""
_OF_CHANGES = {*CHANGE_COLUMN_NAMES, "_commit_version"}


def schema_for(
    frame: DataFrame | st.StructType,
    primary_key: Sequence[str] | str = (),
    *,
    agg: Mapping[str, str | Aggregate] | None = None,
) -> Schema:
    """The schema of a table for this frame; ``agg`` names aggregate functions: ``{"pv": "sum"}``.

    All columns but the key may be null: that a frame has no nulls today says nothing of tomorrow's. Columns that a
    changelog adds are left out.
    """
    fields = frame if isinstance(frame, st.StructType) else frame.schema
    functions = dict(agg or {})
    columns = [
        Column(field.name, kolk_type(field.dataType, field.name), agg=functions.pop(field.name, None))
        for field in fields
        if field.name.lower() not in _OF_CHANGES
    ]
    if functions:
        raise InvalidSchema(
            f"agg names {next(iter(functions))!r}, which is not a column; they are {', '.join(fields.names)}"
        )
    return Schema(columns, primary_key)


def kolk_type(type: st.DataType, name: str) -> DataType:
    """The column type that holds a Spark type; InvalidSchema if none does."""
    match type:
        case st.DecimalType():
            return DataType(Kind.DECIMAL, (type.precision, type.scale))
        case st.CharType():
            return DataType(Kind.CHAR, (type.length,))
        case st.TimeType():
            return DataType(Kind.TIME, (type.precision,))
        case st.ArrayType():
            item = Field("item", kolk_type(type.elementType, f"{name}.item"), type.containsNull)
            return DataType(Kind.ARRAY, fields=(item,))
        case st.MapType():
            key = Field("key", kolk_type(type.keyType, f"{name}.key"), nullable=False)
            value = Field("value", kolk_type(type.valueType, f"{name}.value"), type.valueContainsNull)
            return DataType(Kind.MAP, fields=(key, value))
        case st.StructType():
            fields = [Field(each.name, kolk_type(each.dataType, f"{name}.{each.name}"), each.nullable) for each in type]
            return DataType(Kind.ROW, fields=tuple(fields))
        case _:
            return _scalar(type, name)


def _scalar(type: st.DataType, name: str) -> DataType:
    for kind, found in _MOMENTS.items():
        if isinstance(type, kind):
            return DataType(found, (_DIGITS,))
    for kind, found in _PLAIN.items():
        if isinstance(type, kind):
            return DataType(found)
    raise InvalidSchema(
        f"no column holds what {name!r} is, {type.simpleString()}; cast it, to a string say, or leave it out"
    )
