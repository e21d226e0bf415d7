"""From what people put to the write that a table is asked for: which columns it is about, and what to do with them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kolk.client.rows import Data, batch_of, check_valid, columns_of, key_batch
from kolk.errors import InvalidArgument, InvalidRows
from kolk.merge.engine import Merger
from kolk.model.change import SYMBOLS, ChangeKind
from kolk.model.conversion import converted
from kolk.model.ids import PlainTag
from kolk.model.names import no_column, plain_text
from kolk.model.options import MergeEngine, MergeMode, TableOptions
from kolk.model.rows import checked_rows
from kolk.model.schema import CHANGE_COLUMN_NAMES, Column, Schema
from kolk.model.write import CHANGE, Action, Write, expected_columns, left_out

_SPARK_WORDS = ("insert", "update_preimage", "update_postimage", "delete")


def check_tag(tag: object) -> None:
    """Refuse what is no tag of a put."""
    if not isinstance(tag, PlainTag):
        raise InvalidArgument(f"tag is the tag of an earlier put or of its error, not {tag!r}")


def put_write(
    schema: Schema, data: Data, targets: tuple[str, ...] | None, mode: MergeMode, *, retracts: bool = False
) -> Write:
    """The write of a put. Data with a ``_change_type`` are changes; with ``retracts`` all of it is taken back."""
    schema.check_functions()
    shape = schema.input_columns if mode is MergeMode.ACCUMULATE else schema.columns
    has_rows = not isinstance(data, list | tuple) or len(data) > 0
    asked = None if targets is None else {*schema.primary_key, *targets, *CHANGE_COLUMN_NAMES}
    given = columns_of(data, (*shape, *_CHANGE_COLUMNS) if schema.primary_key and has_rows else shape, asked)
    if retracts or (CHANGE.name in given and schema.primary_key):
        kinds = pa.array(np.full(_count(given), ChangeKind.DELETE, "i1")) if retracts else _kinds(given[CHANGE.name])
        given = {name: given[name] for name in given if name not in CHANGE_COLUMN_NAMES} | {CHANGE.name: kinds}
    action = Action.CHANGE if CHANGE.name in given else Action.UPSERT
    if schema.aggregates and mode is not MergeMode.OVERWRITE:
        given, targets = _aggregated(schema, given, targets, mode)
    wanted = expected_columns(schema, action, targets, mode)
    rows = batch_of(given, schema, wanted, fills=targets is None)
    return Write(action=action, rows=rows, columns=targets, mode=mode, schema_id=schema.id)


def delete_write(schema: Schema, keys: Data, targets: tuple[str, ...] | None, mode: MergeMode) -> Write:
    """The write of a delete, of whole rows or of these columns."""
    return Write(action=Action.DELETE, rows=key_batch(keys, schema), columns=targets, mode=mode, schema_id=schema.id)


def preaggregated(schema: Schema, data: Data, targets: tuple[str, ...] | None) -> pa.RecordBatch:
    """The states of rows, one row for each key, as the server would make them."""
    if not schema.aggregates:
        raise InvalidArgument("this is not an aggregation table; there are no states to make")
    write = put_write(schema, data, targets, MergeMode.ACCUMULATE)
    if write.action is Action.CHANGE:
        raise InvalidArgument(
            "changes that are taken back cannot be aggregated before they are sent; put them as they are"
        )
    # What else the server does first: nobody looks at these rows again before they are read here.
    rows = checked_rows(write.rows, expected_columns(schema, write.action, write.columns, write.mode))
    merger = Merger(schema, TableOptions(merge_engine=MergeEngine.AGGREGATION))
    states = merger.prepare(replace(write, rows=rows)).rows
    # Of no rows there are no states, but they have the types of states all the same.
    return states if states.num_rows else pa.RecordBatch.from_pylist([], schema.arrow_of(states.schema.names))


def targets_of(schema: Schema, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """The target columns outside the key; all of them is the same as none named."""
    names = named_columns(schema, columns)
    if names is None:
        return None
    if not schema.primary_key:
        raise InvalidRows("a log table takes whole rows only; leave columns out")
    values = [column.name for column in schema.value_columns]
    targets = tuple(name for name in values if name in names)
    return None if len(targets) == len(values) else targets


def named_columns(schema: Schema, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Column names as people give them; InvalidArgument if there is none of such a name."""
    if columns is None:
        return None
    names = (columns,) if isinstance(columns, str) else tuple(columns) if isinstance(columns, Iterable) else None
    if names is None or not all(isinstance(name, str) for name in names):
        raise InvalidArgument(f"columns is a list of column names, not {columns!r}")
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise InvalidArgument(no_column(unknown[0], schema.names))
    if len(set(names)) < len(names):
        raise InvalidArgument("a column is named twice")
    return tuple(map(plain_text, names))


_CHANGE_COLUMNS = (
    Column("_change_type", "string"),
    Column("_log_offset", "bigint"),
    Column("_commit_timestamp", "timestamp_ltz(3)"),
    Column("_bucket", "string"),
)


def _aggregated(
    schema: Schema, given: dict[str, pa.Array], targets: tuple[str, ...] | None, mode: MergeMode
) -> tuple[dict[str, pa.Array], tuple[str, ...] | None]:
    """What is left out of a put to an aggregation table: columns that count rows do, others are not touched.

    States are another matter: nobody knows any more how many rows they were made of.
    """
    absent = [column for column in schema.value_columns if column.name not in given]
    rows = _count(given)
    for column in absent if mode is MergeMode.ACCUMULATE else ():
        wanted = targets is None or column.name in targets
        if wanted and column.function is not None and column.function.is_optional:
            given[column.name] = pa.nulls(rows, column.input.arrow)
    if targets is None and all(column.name in given or column.default is not None for column in absent):
        targets = left_out(schema, given, mode)
    return given, targets


def _count(given: dict[str, pa.Array]) -> int:
    return len(next(iter(given.values()))) if given else 0


def _kinds(words: pa.Array) -> pa.Array:
    """Changes by their numbers, from Kolk's symbols or from Spark's words."""
    check_valid(words, CHANGE.name)  # it is read here and nowhere else
    if pa.types.is_integer(words.type):
        try:
            return words.cast(pa.int8())
        except pa.ArrowInvalid:
            raise InvalidRows(f"{CHANGE.name} is one of {', '.join(SYMBOLS)}, or their numbers, 0 to 3") from None
    try:
        words = converted(words, _CHANGE_COLUMNS[0].type, CHANGE.name)
    except InvalidRows:
        raise InvalidRows(f"{CHANGE.name} is one of {', '.join(SYMBOLS)}, not a {words.type}") from None
    found = pc.coalesce(
        pc.index_in(words, pa.array(SYMBOLS)), pc.index_in(pc.utf8_lower(words), pa.array(_SPARK_WORDS))
    )
    if found.null_count:
        odd = words.filter(found.is_null())[0].as_py()
        raise InvalidRows(
            f"{CHANGE.name} is one of {', '.join(SYMBOLS)}, or of {', '.join(_SPARK_WORDS)}, not {str(odd)[:60]!r}"
        )
    return found.cast(pa.int8())
