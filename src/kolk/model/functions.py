"""The aggregate functions: their names, the types they work on, what they take and what they promise.

One table, from which everything else is derived: what a schema may say, what a put hands in, the errors, the
documentation. It computes nothing; ``kolk.merge.aggregates`` does, under the same names.

A function has a *state*, which is what the column holds, and an *input*, which is what a put gives it. For most they
are the same type; a count is a bigint whatever is counted, a sketch is bytes whatever is put into it.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kolk.errors import InvalidSchema, UnknownAggregate
from kolk.model import parameters as p
from kolk.model.aggregate import Aggregate
from kolk.model.function_texts import TEXTS
from kolk.model.kinds import Kind
from kolk.model.types import DataType

_INTEGERS = (Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.BIGINT)
_NUMBERS = (*_INTEGERS, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL)
_TIMES = (Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMP_LTZ)
_ORDERED = (Kind.CHAR, Kind.STRING, *_NUMBERS, *_TIMES)
_ANY = tuple(Kind)

Values = Mapping[str, Any]
"""The parameters of a function, as values."""


def _same(type: DataType, _: Values) -> DataType:
    return type


def _declared(type: DataType, values: Values) -> DataType:
    return values.get("input") or type


def _item(type: DataType, _: Values) -> DataType:
    return type.fields[0].type


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """What there is to know of a function but how it is computed."""

    name: str
    kinds: tuple[Kind, ...]
    """What the column may be."""
    aliases: tuple[str, ...] = ()
    parameters: tuple[p.Parameter, ...] = ()
    takes: Callable[[DataType, Values], DataType] = _same
    """The type of what is given, by the column's type and the parameters."""
    refuses: Callable[[DataType, Values], str | None] = lambda _, __: None
    """What is wrong with a type of these kinds, if anything is."""
    is_retractable: Callable[[Values], bool] = lambda _: False
    """Whether what was given can be taken back."""
    is_idempotent: bool = False
    """Whether the same input once more changes nothing."""
    is_commutative: bool = False
    """Whether the order of inputs does not matter."""
    is_total: bool = False
    """Whether a null is counted for something, so that the state is never null."""
    is_optional: bool = False
    """Whether it works on rows, so that a put need not give the column."""
    implementation: Any = None
    """The code of a function that was registered; ours is found by name."""
    version: int | None = None
    """Of a function that was registered: kept with the column, so that nobody goes on with states of another one."""
    summary: str = ""
    """What it does, in one line."""
    nulls: str = "passed over"
    """What becomes of a null that is given."""
    size: str = "one value"
    """How large a state gets."""

    def values_of(self, aggregate: Aggregate) -> dict[str, Any]:
        """The parameters as values, defaults included."""
        given = dict(aggregate.parameters)
        return {parameter.name: parameter.value(given.get(parameter.name)) for parameter in self.parameters}

    def check(self, aggregate: Aggregate, type: DataType) -> Aggregate:
        """The aggregate in its canonical form, for a column of this type; InvalidSchema says what is wrong."""
        if type.kind not in self.kinds:
            kinds = ", ".join(kind.value for kind in self.kinds)
            raise InvalidSchema(f"{self.name} works on {kinds}, not on a {type.shown}")
        known = {parameter.name: parameter for parameter in self.parameters}
        for name, _ in aggregate.parameters:
            if name not in known:
                supported = ", ".join(known) or "none"
                raise InvalidSchema(f"{self.name} has no parameter {name[:60]!r}; its parameters: {supported}")
        given = tuple((name, known[name].checked(text)) for name, text in aggregate.parameters)
        if self.version is not None:
            given = self._versioned(given)
        for parameter in self.parameters:
            if parameter.required and parameter.name not in dict(given):
                raise InvalidSchema(f"{self.name} needs its parameter {parameter.name}, {parameter.says}")
        checked = Aggregate(self.name, given)
        if reason := self.refuses(type, self.values_of(checked)):
            raise InvalidSchema(reason)
        return checked

    def input(self, aggregate: Aggregate, type: DataType) -> DataType:
        """What a put gives to a column of this type."""
        return self.takes(type, self.values_of(aggregate))

    def _versioned(self, given: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """The parameters with the version that is registered; UnknownAggregate if they name another one."""
        found = dict(given).get("version", str(self.version))
        if found != str(self.version):
            raise UnknownAggregate(
                f"it was made with version {found} of {self.name}, and version {self.version} is registered here:"
                f" states of one are none of the other. Register version {found}, or copy the rows into a new table"
            )
        return tuple(sorted({**dict(given), "version": found}.items()))


def _always(_: Values) -> bool:
    return True


def _overflow(type: DataType, values: Values) -> str | None:
    if values["overflow"] == "wrap" and type.kind not in _INTEGERS:
        return f"overflow = wrap is for integers; a {type.shown} takes error or saturate"
    if values["overflow"] != "error" and type.kind in (Kind.FLOAT, Kind.DOUBLE):
        return f"a {type.shown} never overflows: it becomes infinite; leave the parameter overflow out"
    return None


def _average_state(type: DataType, _: Values) -> str | None:
    fields = {within.name: within.type.kind for within in type.fields}
    if list(fields) == ["sum", "count"] and fields["sum"] in _NUMBERS and fields["count"] is Kind.BIGINT:
        return None
    return f"avg keeps a row<sum t, count bigint>, such as row<sum double, count bigint>, not a {type.shown}"


def _items(type: DataType, values: Values) -> str | None:
    item = type.fields[0]
    if values["distinct"] and item.type.is_nested:
        return "distinct items are scalar; leave the parameter distinct out"
    if values["nulls"] == "keep" and values["input"] == "element" and not item.nullable:
        return f"nulls = keep puts nulls among the items, and those of a {type.shown} are not null"
    return None


def _item_is(*kinds: Kind) -> Callable[[DataType, Values], str | None]:
    def refuses(type: DataType, _: Values) -> str | None:
        within = type.fields[-1].type
        if within.kind in kinds:
            return None
        return f"its values are one of {', '.join(kind.value for kind in kinds)}, not {within.shown}"

    return refuses


def _summed(type: DataType, values: Values) -> str | None:
    return _item_is(*_NUMBERS)(type, values) or _overflow(type.fields[1].type, values)


def _collected(type: DataType, values: Values) -> DataType:
    return type.fields[0].type if values["input"] == "element" else type


_OVERFLOW = p.choice("overflow", "error", "wrap", "saturate")
_DISTINCT = p.flag("distinct")
_MAX_SIZE = p.number("max_size", 1, 1_000_000)
# Without it, elements that are null are passed over, and nulls within arrays are kept.
_NULLS = replace(p.choice("nulls", "skip", "keep"), default=None)
_MEASURED = tuple(kind.value for kind in (*_INTEGERS, Kind.FLOAT, Kind.DOUBLE))
_HASHED = ("boolean", *(kind.value for kind in _INTEGERS), "float", "double", "char", "string", "bytes", "binary")


def _first_or_last(name: str, *aliases: str, takes_back: bool = False) -> Function:
    return Function(name=name, aliases=aliases, kinds=_ANY, is_idempotent=True, is_retractable=lambda _: takes_back)


def _simple(name: str, kinds: tuple[Kind, ...], *aliases: str, idempotent: bool = True) -> Function:
    return Function(name=name, aliases=aliases, kinds=kinds, is_idempotent=idempotent, is_commutative=True)


def _collecting(name: str, of: str) -> Function:
    other = "array" if of == "element" else "element"
    return Function(
        name=name,
        kinds=(Kind.ARRAY,),
        parameters=(_DISTINCT, _MAX_SIZE, _NULLS, p.choice("input", of, other)),
        takes=_collected,
        refuses=_items,
        # A set does not know how often a thing was put into it, nor a full list what was left out.
        is_retractable=lambda values: not values["distinct"] and values["max_size"] is None,
    )


def _sketch(
    name: str, *parameters: p.Parameter, idempotent: bool = True, inputs: tuple[str, ...] = _HASHED
) -> Function:
    return Function(
        name=name,
        aliases=(f"{name}_sketch",),
        kinds=(Kind.BYTES,),
        parameters=(*parameters, p.type_of_input(*inputs)),
        takes=_declared,
        is_idempotent=idempotent,
        is_commutative=True,
    )


def _bitmap(name: str, *aliases: str, inputs: tuple[str, ...]) -> Function:
    return Function(
        name=name,
        aliases=aliases,
        kinds=(Kind.BYTES,),
        parameters=(p.type_of_input(*inputs),),
        takes=_declared,
        is_idempotent=True,
        is_commutative=True,
    )


def _of_map(name: str, kinds: tuple[Kind, ...]) -> Function:
    return Function(
        name=name,
        kinds=(Kind.MAP,),
        refuses=_item_is(*kinds),
        is_idempotent=True,
        is_commutative=name != "merge_map",
        is_retractable=lambda _: name == "merge_map",
    )


def _best(name: str) -> Function:
    return Function(
        name=name,
        kinds=(Kind.ARRAY,),
        parameters=(p.number("n", 1, 10_000, required=True), _DISTINCT),
        takes=_item,
        refuses=_item_is(*_ORDERED),
        is_commutative=True,
    )


def _by(name: str, *aliases: str) -> Function:
    return Function(name=name, aliases=aliases, kinds=_ANY, parameters=(p.column("by"),), is_idempotent=True)


_OWN = (
    Function(
        name="sum",
        kinds=_NUMBERS,
        parameters=(_OVERFLOW,),
        refuses=_overflow,
        is_retractable=_always,
        is_commutative=True,
    ),
    Function(name="product", kinds=_NUMBERS, parameters=(_OVERFLOW,), refuses=_overflow, is_commutative=True),
    _simple("max", _ORDERED),
    _simple("min", _ORDERED),
    _first_or_last("last_value", "replace", "any_last", takes_back=True),
    _first_or_last("last_value_ignore_nulls", "last_non_null_value", "replace_if_not_null", takes_back=True),
    _first_or_last("first_value", "any"),
    _first_or_last("first_value_ignore_nulls", "first_non_null_value", "replace_if_null"),
    Function(
        name="listagg",
        aliases=("string_agg", "group_concat"),
        kinds=(Kind.STRING, Kind.CHAR),
        parameters=(p.words("delimiter", ","), _DISTINCT),
    ),
    _simple("bool_and", (Kind.BOOLEAN,), "every"),
    _simple("bool_or", (Kind.BOOLEAN,), "some"),
    _bitmap("rbm32", "bitmap_union", inputs=("tinyint", "smallint", "int", "bigint")),
    _bitmap("rbm64", inputs=("tinyint", "smallint", "int", "bigint")),
    Function(
        name="count",
        kinds=(Kind.BIGINT,),
        parameters=(p.type_of_input(),),
        takes=_declared,
        is_retractable=_always,
        is_commutative=True,
        is_total=True,
    ),
    Function(
        name="count_rows",
        kinds=(Kind.BIGINT,),
        is_retractable=_always,
        is_commutative=True,
        is_total=True,
        is_optional=True,
    ),
    Function(
        name="avg", kinds=(Kind.ROW,), takes=_item, refuses=_average_state, is_retractable=_always, is_commutative=True
    ),
    _collecting("array_agg", "element"),
    _collecting("collect", "array"),
    _by("max_by", "arg_max"),
    _by("min_by", "arg_min"),
    _simple("bit_and", (*_INTEGERS, Kind.BINARY)),
    _simple("bit_or", (*_INTEGERS, Kind.BINARY)),
    Function(name="bit_xor", kinds=(*_INTEGERS, Kind.BINARY), is_retractable=_always, is_commutative=True),
    _of_map("merge_map", _ANY),
    Function(
        name="sum_map",
        kinds=(Kind.MAP,),
        parameters=(_OVERFLOW,),
        refuses=_summed,
        is_retractable=_always,
        is_commutative=True,
    ),
    _of_map("min_map", _ORDERED),
    _of_map("max_map", _ORDERED),
    Function(
        name="histogram",
        kinds=(Kind.ARRAY,),
        parameters=(p.numbers("bounds"), p.type_of_input(*_MEASURED)),
        takes=lambda _, values: values["input"] or DataType.parse("double"),
        refuses=_item_is(Kind.BIGINT),
        is_retractable=_always,
        is_commutative=True,
    ),
    _best("top_n"),
    _best("bottom_n"),
    _sketch("hll", p.number("lg_k", 4, 21, 12)),
    _sketch("theta", p.number("lg_k", 5, 26, 12)),
    _sketch("cpc", p.number("lg_k", 4, 20, 11)),
    _sketch(
        "kll",
        p.number("k", 8, 65_535, 200),
        idempotent=False,
        inputs=_MEASURED,
    ),
)  # fmt: skip

FUNCTIONS = tuple(replace(each, **TEXTS.get(each.name, {})) for each in _OWN)
_BY_NAME = {name: function for function in FUNCTIONS for name in (function.name, *function.aliases)}
# Replaced whole by register alone, so that readers see one state or the next, and can tell that it is another.
_registered: Mapping[str, Function] = {}


def names() -> list[str]:
    """The names of all functions, without aliases."""
    return sorted({function.name for function in (*FUNCTIONS, *_registered.values())})


def registered() -> Mapping[str, Function]:
    """The functions that users have registered, by name: another object whenever one came."""
    return _registered


def is_function(name: str) -> bool:
    """Whether there is a function of this canonical name or alias."""
    return name in _BY_NAME or name in _registered


def is_own(name: str) -> bool:
    """Whether it is one of Kolk's own, which every program has."""
    return name in _BY_NAME


def function(name: str) -> Function:
    """The function of this canonical name or alias; UnknownAggregate, which lists them, if there is none."""
    found = _BY_NAME.get(name) or _registered.get(name)
    if found is None:
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise UnknownAggregate(
            f"there is no aggregate function {name[:60]!r}{hint} The functions are {', '.join(names())}. One of your"
            " own is registered in every program that uses the table, kolk.register_aggregate(name, ...), and in its"
            " server: kolk serve --load MODULE"
        )
    return found


def register(new: Function) -> None:
    """Make a user's function known under its name; the same name again replaces it."""
    global _registered
    if new.name in _BY_NAME:
        raise InvalidSchema(f"the aggregate function {new.name!r} is one of Kolk's own; take another name")
    _registered = {**_registered, new.name: new}
