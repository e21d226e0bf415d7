"""Kolk's column types and Spark's: which stands for which, and batches from one to the other without a guess.

Spark takes a batch only if its Arrow schema is to the letter the one that it expects, and checks the first batch alone;
so every batch goes through ``shown``. A value that Spark cannot hold, such as a time in nanoseconds, is an error that
names the column, never a rounded value.
"""

from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from kolk.errors import InvalidArgument, InvalidRows
from kolk.model.schema import Column, Schema
from kolk.model.types import DataType, Kind

_PLAIN: dict[Kind, st.DataType] = {
    Kind.BOOLEAN: st.BooleanType(),
    Kind.TINYINT: st.ByteType(),
    Kind.SMALLINT: st.ShortType(),
    Kind.INT: st.IntegerType(),
    Kind.BIGINT: st.LongType(),
    Kind.FLOAT: st.FloatType(),
    Kind.DOUBLE: st.DoubleType(),
    Kind.CHAR: st.StringType(),
    Kind.STRING: st.StringType(),
    Kind.BINARY: st.BinaryType(),
    Kind.BYTES: st.BinaryType(),
    Kind.DATE: st.DateType(),
    Kind.TIMESTAMP: st.TimestampNTZType(),
    Kind.TIMESTAMP_LTZ: st.TimestampType(),
}
_FINEST = 6
"""Digits of a second that Spark keeps."""


def spark_type(type: DataType) -> st.DataType:
    """The Spark type that holds a column."""
    match type.kind:
        case Kind.DECIMAL:
            return st.DecimalType(*type.arguments)
        case Kind.TIME:
            return st.TimeType(min(type.arguments[0], _FINEST))
        case Kind.ARRAY:
            item = type.fields[0]
            return st.ArrayType(spark_type(item.type), item.nullable)
        case Kind.MAP:
            key, value = type.fields
            return st.MapType(spark_type(key.type), spark_type(value.type), value.nullable)
        case Kind.ROW:
            return st.StructType(
                [st.StructField(each.name, spark_type(each.type), each.nullable) for each in type.fields]
            )
        case _:
            return _PLAIN[type.kind]


def spark_field(column: Column) -> st.StructField:
    """A column as Spark has it."""
    return st.StructField(column.name, spark_type(column.type), column.nullable)


def spark_schema(schema: Schema, names: tuple[str, ...] | None = None) -> st.StructType:
    """The columns of a table, or some of them in the order in which they are named."""
    unknown = [name for name in names or () if name not in schema.names]
    if unknown:
        raise InvalidArgument(f"there is no column {unknown[0]!r}; the columns are {', '.join(schema.names)}")
    return st.StructType([spark_field(schema.column(name)) for name in (names or schema.names)])


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """What Spark wants batches of these columns to be, to the letter."""
    return to_arrow_schema(schema, timezone="UTC")


def shown(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    """A batch with the columns that Spark wants, in its order and of its very types."""
    columns = [_cast(batch.column(field.name), field) for field in wanted]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    coarse = _coarse(column.type)
    if coarse == column.type == field.type:
        return column
    try:
        return column.cast(coarse).cast(field.type)
    except pa.ArrowInvalid as error:
        raise InvalidRows(
            f"the column {field.name!r} has values that Spark cannot hold exactly ({error}); leave it out with"
            " .option('columns', ...), or keep at most microseconds in it"
        ) from error


def _coarse(type: Any) -> pa.DataType:
    """An Arrow type with times in microseconds: those of Spark have room for more than Spark keeps, so a cast to them
    alone would let nanoseconds through."""
    if pt.is_time64(type):
        return pa.time64("us")
    if pt.is_list(type):
        return pa.list_(type.value_field.with_type(_coarse(type.value_type)))
    if pt.is_map(type):
        key, item = type.key_field, type.item_field
        return pa.map_(key.with_type(_coarse(key.type)), item.with_type(_coarse(item.type)))
    if pt.is_struct(type):
        return pa.struct([type.field(place).with_type(_coarse(type.field(place).type)) for place in range(len(type))])
    return type
