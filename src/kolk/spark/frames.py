"""From the frame of a Spark job to the writes of a table: which columns go where, and what becomes of each row.

Spark hands a sink whatever the frame has, by whatever names and types, and asks nobody. So a frame is checked against
the table before its first row is written, by the rules of ``table.put`` and with all that is wrong in one error. What
comes out, a ``Frame``, is a frozen value that goes to the tasks and turns batches into writes there.

Names are matched as Spark does, whatever their case. The columns that a changelog adds are understood: what Kolk's own
stream reads can be written as it is.
"""

import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_type

from kolk.client.writes import preaggregated, put_write, targets_of
from kolk.codec.checksum import checksum_of
from kolk.errors import InvalidArgument, InvalidInput, InvalidRows
from kolk.merge.engine import Merger
from kolk.model.change import ChangeKind
from kolk.model.conversion import converted
from kolk.model.options import MergeMode
from kolk.model.schema import Column, Schema
from kolk.model.table import TableInfo
from kolk.model.write import CHANGE, Action, Write, expected_columns
from kolk.spark.options import Options, check_write
from kolk.spark.types import spark_type

_PASSED_OVER = ("_commit_version", "_commit_timestamp", "_log_offset", "_bucket")
"""What a changelog has besides the kind of a change: it says where the row came from, not what it is."""
_GATHERED_ROWS = 65_536
_GATHERED_BYTES = 8 * 2**20
_WORTH = 2
"""States are sent instead of rows if they take so many times less."""


class Preaggregation(Enum):
    """Whether a task makes states of its rows before it sends them."""

    AUTO = "auto"
    """If there are much fewer bytes of them."""
    ALWAYS = "true"
    NEVER = "false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """How the rows of a Spark frame become writes of a table. Frozen; goes to the tasks as it is."""

    info: TableInfo
    """The table, in the version that the frame was checked against."""
    names: tuple[tuple[str, str], ...]
    """The columns that are written: as the frame has them, and as the table does."""
    change: str | None
    """The frame's column that says what becomes of a row."""
    targets: tuple[str, ...] | None
    """The columns outside the key that are written; None is all of them."""
    mode: MergeMode
    preaggregation: Preaggregation

    @property
    def schema(self) -> Schema:
        """The table's, in the version that writes are made for."""
        return self.info.schema

    @property
    def column_ids(self) -> tuple[int, ...]:
        """The columns outside the key that are given or asked for, by their ids: names may change."""
        names = {known for _, known in self.names} | {*(self.targets or ())}
        return tuple(sorted(self.schema.column(name).id for name in names.difference(self.schema.primary_key)))

    def write(self, rows: pa.RecordBatch) -> Write:
        """The write of some rows of the frame."""
        return put_write(self.schema, self._named(rows), self.targets, self.mode)

    def writes(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Write, Write]]:
        """The writes of a task, all of one kind, each as it is to be sent and as Spark gave it: they differ where the
        rows are aggregated first, which the first of them decide for all if nobody has said."""
        aggregates = {Preaggregation.ALWAYS: True, Preaggregation.NEVER: False}.get(self.preaggregation)
        for given in map(self.write, gathered(batches)):
            sent = given if aggregates is False else self.states(given)
            if aggregates is None:
                aggregates = sent.rows.nbytes * _WORTH <= given.rows.nbytes
            yield sent if aggregates else given, given

    def states(self, write: Write) -> Write:
        """The same write, aggregated: one row of states for each key."""
        rows = preaggregated(self.schema, write.rows, write.columns)
        return Write(
            action=Action.UPSERT,
            rows=rows,
            columns=write.columns,
            mode=MergeMode.MERGE_STATE,
            schema_id=write.schema_id,
        )

    def checksum(self, given: Write) -> int:
        """That of rows as Spark gave them: added up, it is the same however a batch is cut, and whatever is sent."""
        return checksum_of(given.rows, expected_columns(self.schema, given.action, given.columns, given.mode))

    def _named(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows under the table's names, with their change, and without what is not written."""
        arrays = [rows.column(given) for given, _ in self.names]
        names = [known for _, known in self.names]
        if self.change is not None:
            arrays.append(_kinds(rows.column(self.change)))
            names.append(CHANGE.name)
        return pa.RecordBatch.from_arrays(arrays, names=names)


def checked(options: Options, frame: st.StructType, info: TableInfo) -> Frame:
    """How a frame is written to a table; InvalidRows that lists all that does not fit."""
    check_write(options)
    schema = info.schema
    mode = MergeMode(options.choice("merge-mode", [mode.value for mode in MergeMode]))
    targets = targets_of(schema, options.names("columns"))
    problems: list[str] = []
    change = _change_column(options, frame, schema, problems)
    names = _matched(frame, schema, change, problems)
    action = Action.UPSERT if change is None else Action.CHANGE
    wanted = expected_columns(schema, Action.UPSERT, targets, mode)
    if targets is not None:
        kept = {column.name for column in wanted}
        names = {given: known for given, known in names.items() if known in kept}
    problems += _missing(wanted, names.values(), schema, targets, mode)
    types = _types(frame, wanted, names, problems)
    if problems:
        listed = "".join(f"\n- {problem}" for problem in problems)
        raise InvalidRows(f"the frame does not fit the table {info.name}, so nothing was written:{listed}")
    found = Frame(
        info=info,
        names=tuple(names.items()),
        change=change,
        targets=targets,
        mode=mode,
        preaggregation=_preaggregation(options, info, action, mode),
    )
    if change is not None:
        types[change] = _arrow_type(frame[change].dataType)
    empty = pa.RecordBatch.from_arrays([pa.array([], type) for type in types.values()], names=list(types))
    write = found.write(empty)
    if not info.is_log:
        Merger(schema, info.spec.options).prepare(write)  # what a put of no rows would be refused for
    return found


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches, where they are small: each has a price, whatever it holds. None is empty."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        if waiting and (rows + batch.num_rows > _GATHERED_ROWS or size + batch.nbytes > _GATHERED_BYTES):
            yield _joined(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _change_column(options: Options, frame: st.StructType, schema: Schema, problems: list[str]) -> str | None:
    """The frame's column of changes, if it has one."""
    asked = options.text("change-column")
    name = asked or CHANGE.name
    found = next((given for given in frame.names if given.lower() == name.lower()), None)
    if found is None:
        if asked is not None:
            problems.append(f"there is no column {name!r} in it, which the option 'change-column' names")
        return None
    if not schema.primary_key:
        problems.append(
            f"{found!r} says what becomes of a row, and a log table keeps every one: drop the column, or keep it under"
            " another name"
        )
        return None
    if not isinstance(frame[found].dataType, st.StringType | st.BooleanType | st.IntegralType):
        problems.append(
            f"{found!r} is {_shown(frame[found].dataType)}; a change is insert, update_preimage, update_postimage or"
            " delete, or a boolean that is true for rows to delete"
        )
        return None
    return found


def _matched(frame: st.StructType, schema: Schema, change: str | None, problems: list[str]) -> dict[str, str]:
    """The frame's columns, and those of the table that they are."""
    known = {name.lower(): name for name in schema.names}
    found: dict[str, str] = {}
    for given in frame.names:
        name = known.get(given.lower())
        if name is not None and name in found.values():
            problems.append(f"it has the column {name!r} twice")
        elif name is not None:
            found[given] = name
        elif given != change and given.lower() not in (*_PASSED_OVER, CHANGE.name):
            near = difflib.get_close_matches(given.lower(), known, n=1)
            hint = f"did you mean {known[near[0]]!r}?" if near else f"leave it out with .drop({given!r})"
            problems.append(f"there is no column {given!r} in the table; {hint}")
    return found


def _missing(
    wanted: Sequence[Column],
    names: Iterable[str],
    schema: Schema,
    targets: tuple[str, ...] | None,
    mode: MergeMode,
) -> Iterator[str]:
    """What a put would miss, in words."""
    present = set(names)
    for column in wanted:
        if column.name in present:
            continue
        stored = schema.column(column.name)
        counts = mode is MergeMode.ACCUMULATE and stored.function is not None and stored.function.is_optional
        if column.name in schema.primary_key:
            yield f"the key column {column.name!r} is missing; every row gives its whole key"
        elif not counts and (targets is not None or stored.default is None):
            yield (
                f"the column {column.name!r} is missing; add it, with nulls where there is nothing, or name the columns"
                " that you mean: .option('columns', ...)"
            )


def _types(
    frame: st.StructType, wanted: Sequence[Column], names: dict[str, str], problems: list[str]
) -> dict[str, pa.DataType]:
    """The frame's Arrow types, of those columns that are written and fit."""
    columns = {column.name: column for column in wanted}
    found: dict[str, pa.DataType] = {}
    for given, known in names.items():
        type, column = frame[given].dataType, columns[known]
        arrow = _arrow_type(type)
        try:
            if arrow is None:
                raise InvalidRows(f"the type {_shown(type)} has no form that Kolk can read")
            converted(pa.array([], arrow), column.type, known)
            found[given] = arrow
        except InvalidInput:
            cast = f"CAST({given} AS {_shown(spark_type(column.type))})"
            problems.append(
                f"{given!r} is {_shown(type)}, and the table takes {column.type.shown}, which does not follow exactly;"
                f" say how: {cast}"
            )
    return found


def _preaggregation(options: Options, info: TableInfo, action: Action, mode: MergeMode) -> Preaggregation:
    asked = Preaggregation(options.choice("preaggregate", [each.value for each in Preaggregation]))
    is_possible = info.schema.aggregates and action is Action.UPSERT and mode is MergeMode.ACCUMULATE
    if is_possible or asked is not Preaggregation.ALWAYS:
        return asked if is_possible else Preaggregation.NEVER
    raise InvalidArgument(
        "preaggregate makes states of rows that an aggregation table adds up; with a column of changes, with another"
        " merge-mode or for another table there are none, so leave it out"
    )


def _kinds(changes: pa.Array) -> pa.Array:
    """Changes as a put takes them; of a flag, the rows to delete."""
    if not pa.types.is_boolean(changes.type):
        return changes
    return pc.if_else(pc.fill_null(changes, False), int(ChangeKind.DELETE), int(ChangeKind.INSERT)).cast(pa.int8())


def _arrow_type(type: st.DataType) -> pa.DataType | None:
    try:
        return to_arrow_type(type, timezone="UTC")
    except (PySparkException, TypeError):
        return None


def _shown(type: st.DataType) -> str:
    return type.simpleString().upper()
