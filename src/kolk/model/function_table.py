"""The aggregate functions as people see them: one entry each, all of it derived from ``kolk.model.functions``.

``kolk functions`` and docs/aggregation.md show these entries, so neither can say what is not so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kolk.errors import InvalidSchema
from kolk.model.functions import FUNCTIONS, Function, registered
from kolk.model.kinds import Kind
from kolk.model.parameters import Parameter
from kolk.model.types import DataType

_ANY = frozenset(Kind)
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_GROUPS = {
    "numbers": (*_INTEGERS, "float", "double", "decimal"),
    "integers": _INTEGERS,
    "text": ("char", "string"),
    "times": ("date", "time", "timestamp", "timestamp_ltz"),
}
_SAMPLES = {Kind.ARRAY: "array<bigint>", Kind.MAP: "map<string, bigint>", Kind.ROW: "row<sum double, count bigint>"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What there is to say of a function."""

    name: str
    aliases: tuple[str, ...]
    types: tuple[str, ...]
    """The kinds of columns that it works on; one word, any, for all of them."""
    input: str
    """What a put gives."""
    nulls: str
    retract: str
    idempotent: bool
    order: str
    """Whether the order of values matters."""
    size: str
    parameters: tuple[Parameter, ...]
    summary: str
    version: int | None
    """Of a function that was registered."""


def entries() -> list[Entry]:
    """All functions: Kolk's own, and then those that users have registered, by name."""
    return [_entry(each) for each in (*FUNCTIONS, *(found for _, found in sorted(registered().items())))]


def types_text(types: Sequence[str]) -> str:
    """Types in few words: numbers for all seven kinds of them."""
    left, words = list(types), list[str]()
    for word, group in _GROUPS.items():
        if set(group) <= set(left):
            words.append(word)
            left = [each for each in left if each not in group]
    return ", ".join((*words, *left))


def parameter_text(parameter: Parameter) -> str:
    """A parameter in one line."""
    if parameter.required:
        return f"{parameter.name}: {parameter.says}; required"
    by_default = "" if parameter.default is None else f"; {parameter.default} by default"
    return f"{parameter.name}: {parameter.says}{by_default}"


def _entry(function: Function) -> Entry:
    return Entry(
        name=function.name,
        aliases=function.aliases,
        types=("any",) if set(function.kinds) >= _ANY else tuple(kind.value for kind in function.kinds),
        input=_input(function),
        nulls=function.nulls,
        retract=_retract(function),
        idempotent=function.is_idempotent,
        order="any" if function.is_commutative else "of the puts",
        size=function.size,
        parameters=() if function.version is not None else function.parameters,
        summary=function.summary,
        version=function.version,
    )


def _defaults(function: Function) -> dict[str, Any]:
    return {parameter.name: parameter.value(None) for parameter in function.parameters}


def _input(function: Function) -> str:
    """What is given for a column of a sample type, said of any."""
    if function.is_optional:
        return "nothing, or a value of the column's type, which is not looked at"
    kind = function.kinds[0]
    sample = DataType.parse(_SAMPLES[kind]) if kind in _SAMPLES else DataType.parse(kind.value)
    try:
        found = function.takes(sample, _defaults(function))
    except InvalidSchema:
        return "by the column's type"
    names = {parameter.name: parameter for parameter in function.parameters}
    base = "the column's type" if found == sample else str(found)
    if found != sample and sample.fields and found == sample.fields[0].type:
        base = "the type of its items" if kind is Kind.ARRAY else f"the type of its {sample.fields[0].name}"
    return f"{base}; another with the parameter input" if "input" in names else base


def _retract(function: Function) -> str:
    values = _defaults(function)
    if not function.is_retractable(values):
        return "no"
    spoilers = [name for name in values if not all(function.is_retractable({**values, name: set}) for set in (True, 1))]
    return f"yes, without {' and '.join(spoilers)}" if spoilers else "yes"
