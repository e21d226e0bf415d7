"""The writer that ``kolk.spark.sink`` gives away: Spark's own, but for what would be lost on it without a word.

``sink`` has told each batch how it is written before anybody has the writer. An output mode that is set afterwards
reaches Spark and not the write, so that running totals would be added up; options of Kolk reach neither. They are
refused, and the error says where to give them. What is Spark's works: the checkpoint, the trigger, the name, the start.

Spark has two such classes, one of them for Spark Connect, whose constructors differ. So the class is made of the one
that the frame's own ``writeStream`` has, and takes over what that writer knows.
"""

from functools import cache
from typing import Any, Never, TypeVar

from kolk.errors import InvalidArgument
from kolk.spark.options import option_named

W = TypeVar("W")


def guarded(writer: W, output_mode: str) -> W:
    """A writer as this one, which refuses what would be passed over."""
    made: Any = object.__new__(_guarded_kind(type(writer)))
    vars(made).update(vars(writer), guarded_mode=output_mode)
    return made


class _Guard:
    """What comes before the methods of Spark's writer, which return the writer itself and are called by its ``start``,
    too. Confined to one thread, as that is."""

    guarded_mode: str

    def outputMode(self, outputMode: str) -> "_Guard":
        """The mode that there is; no other."""
        if str(outputMode).strip().lower() != self.guarded_mode:
            raise InvalidArgument(
                f"the sink writes in mode {self.guarded_mode}, which is decided when it is made:"
                f" kolk.spark.sink(..., output_mode={str(outputMode)[:60]!r})"
            )
        return self

    def option(self, key: str, value: Any) -> "_Guard":
        """An option of Spark."""
        _check_options({key: value})
        return super().option(key, value)  # pyright: ignore[reportAttributeAccessIssue]

    def options(self, **options: Any) -> "_Guard":
        """Options of Spark."""
        _check_options(options)
        return super().options(**options)  # pyright: ignore[reportAttributeAccessIssue]

    def format(self, source: str) -> Never:
        """Refused."""
        raise _decided("format")

    def foreach(self, f: object) -> Never:
        """Refused."""
        raise _decided("foreach")

    def foreachBatch(self, func: object) -> Never:
        """Refused."""
        raise _decided("foreachBatch")

    def toTable(self, tableName: str, *_: object, **__: object) -> Never:
        """Refused."""
        raise _decided("toTable")


@cache
def _guarded_kind(kind: type[Any]) -> type[Any]:
    return type("SinkWriter", (_Guard, kind), {"__doc__": _Guard.__doc__})


def _check_options(options: dict[str, Any]) -> None:
    for given, value in options.items():
        name = None if value is None else option_named(given)
        if name is not None:
            word = name.replace("-", "_")
            how = f"{word}=..." if word.isidentifier() else f"**{{{name!r}: ...}}"
            raise InvalidArgument(
                f"{given!r} is an option of Kolk, and what is written is decided when the sink is made:"
                f" kolk.spark.sink(..., {how})"
            )


def _decided(method: str) -> InvalidArgument:
    return InvalidArgument(
        f"the sink has decided what becomes of each batch, and .{method}(...) would take its place: call .start(), or"
        " leave kolk.spark.sink out"
    )
