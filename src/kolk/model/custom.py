"""A user's aggregate function among the others: what its class says of itself, as an entry of the table of functions.

The class says what it takes and promises by its attributes; here they are read once, and whatever makes no sense is
refused when it is registered, not when the first row comes. Nothing of it is called here but its constructor, and
``input`` where that is a function. How its methods are called is in ``kolk.merge.aggregates.custom``.
"""

from collections.abc import Callable, Iterable
from typing import Any

from kolk.errors import InvalidArgument, InvalidSchema
from kolk.model import parameters as p
from kolk.model.aggregate import Aggregate
from kolk.model.functions import Function, Values, register
from kolk.model.kinds import Kind, kind_named
from kolk.model.schema import data_type
from kolk.model.types import DataType

VERSION_MAX = 999_999_999
_NEEDED = ("init", "accumulate", "merge")
_OPTIONAL = ("retract", "finish")
_WORDS = frozenset({"after", "comment", "default", "first", "key", "not", "null", "primary"})
"""What may stand behind the type of a column in DDL, and so is no name of a function."""


def register_aggregate(name: str, implementation: Any, *, version: int = 1) -> None:
    """Make an aggregate function of your own known in this program: ``Column("score", "double", agg="ewma")``.

    ``implementation`` is a class without constructor arguments, or an instance, with the methods

    - ``init()``: the state of nothing,
    - ``accumulate(state, value)``: the state with one more value; nulls are passed over,
    - ``merge(state, other)``: the state of both, where ``other`` came later,
    - ``retract(state, value)``, optionally: the state without a value that was given before,
    - ``finish(state)``, optionally: what readers make of a state, see ``kolk.functions.finished``,

    and, optionally, the attributes ``types`` (of columns, as text: ``("double", "array<double>")``; any by default),
    ``input`` (the type of the values, or a function from the column's type to it; the column's type by default),
    ``output`` (the type of what ``finish`` gives), ``idempotent`` and ``commutative`` (both False).

    States are stored as values of the column's type. ``version`` is kept with every column that is made with the
    function: a table of one version takes no puts where another one is registered, so count it up whenever states of
    the old code are none to the new. Register the function in every program that writes to the table, and in its
    server. The same name again replaces the function.
    """
    register(_function(name, implementation, version))


def _function(name: str, implementation: Any, version: int) -> Function:
    canonical = Aggregate.make(name).name
    if canonical in _WORDS:
        raise InvalidArgument(f"{name!r} is a word of DDL and no name of a function; take another one")
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= VERSION_MAX:
        raise InvalidArgument(f"version is a number from 1 to {VERSION_MAX:,}, not {version!r}")
    made = _instance(canonical, implementation)
    wanted = _types(canonical, getattr(made, "types", None))
    summary = (type(made).__doc__ or "").strip().partition("\n")[0]
    return Function(
        name=canonical,
        kinds=tuple(dict.fromkeys(each if isinstance(each, Kind) else each.kind for each in wanted)),
        parameters=(p.number("version", 1, VERSION_MAX, version),),
        takes=_input(canonical, getattr(made, "input", None)),
        refuses=_refusing(canonical, wanted),
        is_retractable=lambda _: hasattr(made, "retract"),
        is_idempotent=_flag(canonical, made, "idempotent"),
        is_commutative=_flag(canonical, made, "commutative"),
        implementation=made,
        version=version,
        summary=summary or "A function of yours.",
        size="what its states take",
    )


def _instance(name: str, implementation: Any) -> Any:
    try:
        made = implementation() if isinstance(implementation, type) else implementation
    except Exception as error:
        raise InvalidArgument(f"the class of the aggregate function {name!r} cannot be made: {error!r}") from error
    missing = [method for method in _NEEDED if not callable(getattr(made, method, None))]
    if missing:
        raise InvalidArgument(
            f"the implementation of the aggregate function {name!r} has no method {', '.join(missing)};"
            f" it needs {', '.join(_NEEDED)}, and may have {', '.join(_OPTIONAL)}"
        )
    for method in _OPTIONAL:
        if hasattr(made, method) and not callable(getattr(made, method)):
            raise InvalidArgument(f"{method} of the aggregate function {name!r} is no method; leave it out")
    return made


def _flag(name: str, made: Any, attribute: str) -> bool:
    found = getattr(made, attribute, False)
    if not isinstance(found, bool):
        raise InvalidArgument(f"{attribute} of the aggregate function {name!r} is True or False, not {found!r}")
    return found


def _types(name: str, given: object) -> tuple[Kind | DataType, ...]:
    """Kinds that are taken whatever their arguments, and types that are taken as they are."""
    if given is None:
        return tuple(Kind)
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if not listed:
        raise InvalidArgument(f"types of the aggregate function {name!r} names none; leave it out for any")
    return tuple(_type(name, each) for each in listed)


def _type(name: str, given: object) -> Kind | DataType:
    kind = given if isinstance(given, Kind) else kind_named(given.strip()) if isinstance(given, str) else None
    if kind is not None:
        return kind
    try:
        return data_type(given)
    except InvalidSchema as error:
        raise InvalidArgument(f"types of the aggregate function {name!r}: {error}") from None


def _refusing(name: str, wanted: tuple[Kind | DataType, ...]) -> Callable[[DataType, Values], str | None]:
    def refuses(type: DataType, _: Values) -> str | None:
        if type.kind in wanted or type in wanted:
            return None
        return f"{name} works on {', '.join(_shown(each) for each in wanted)}, not on a {type.shown}"

    return refuses


def _shown(wanted: Kind | DataType) -> str:
    return wanted.value if isinstance(wanted, Kind) else wanted.shown


def _input(name: str, given: object) -> Callable[[DataType, Values], DataType]:
    if given is None:
        return lambda type, _: type
    if not callable(given):
        fixed = _checked_input(name, given)
        return lambda *_: fixed

    def takes(type: DataType, _: Values) -> DataType:
        try:
            found: object = given(type)
        except Exception as error:
            raise InvalidSchema(
                f"input of the aggregate function {name!r} fails for {type.shown}: {error!r}"
            ) from error
        return _checked_input(name, found)

    return takes


def _checked_input(name: str, given: object) -> DataType:
    try:
        return data_type(given)
    except InvalidSchema as error:
        raise InvalidSchema(f"input of the aggregate function {name!r}: {error}") from None
