"""An aggregate function as a column names it: ``sum``, ``listagg(delimiter = '|')``; a value, and its text.

Which functions there are, and what each takes and promises, is in ``kolk.model.functions``. How they are computed is
the business of ``kolk.merge``; nothing is computed here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from kolk.errors import InvalidInput, InvalidSchema
from kolk.model.tokens import Reader, TokenKind, shown

PARAMETERS_MAX = 16
PARAMETER_LENGTH_MAX = 1_000
_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_PLAIN_VALUE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function by its name, and its parameters as text, in the order of their names."""

    name: str
    parameters: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def make(name: str, parameters: Mapping[str, object] | None = None) -> "Aggregate":
        """Names are read in any case, with ``-`` for ``_``; values are written out as text."""
        if not isinstance(name, str) or not isinstance(parameters or {}, Mapping):
            raise InvalidSchema("an aggregate function is a name such as 'sum', and its parameters are a dict")
        given = {canonical(str(key)): _text(value) for key, value in (parameters or {}).items()}
        if len(given) > PARAMETERS_MAX or any(len(value) > PARAMETER_LENGTH_MAX for value in given.values()):
            raise InvalidSchema(
                f"an aggregate function has at most {PARAMETERS_MAX} parameters of {PARAMETER_LENGTH_MAX:,} characters"
            )
        try:
            "".join(given.values()).encode()
        except UnicodeEncodeError:
            raise InvalidSchema("a parameter has half a surrogate pair, which is no character") from None
        return Aggregate(_checked_name(canonical(name)), tuple(sorted(given.items())))

    @staticmethod
    def parse(text: str) -> "Aggregate":
        """Read a function as DDL writes it."""
        if not isinstance(text, str):
            raise InvalidSchema(f"an aggregate function is named as text, such as 'sum', not {text!r}")
        if "(" not in text:
            return Aggregate.make(text)
        try:
            reader = Reader(text)
            aggregate = read_aggregate(reader)
            if reader.token.kind is not TokenKind.END:
                reader.fail("the end of the function")
        except InvalidInput as error:
            raise InvalidSchema(f"the aggregate function cannot be read: {error}") from None
        return aggregate

    def get(self, name: str) -> str | None:
        """The text of a parameter, if it is given."""
        return dict(self.parameters).get(name)

    def __str__(self) -> str:
        return self.name + self._shown

    @property
    def ddl(self) -> str:
        """The function in the capitals that DDL is written in."""
        return self.name.upper() + self._shown

    @property
    def _shown(self) -> str:
        if not self.parameters:
            return ""
        return f"({', '.join(f'{name} = {_literal(value)}' for name, value in self.parameters)})"


def canonical(name: str) -> str:
    """A name as it is kept."""
    return name.strip().replace("-", "_").lower()


def read_aggregate(reader: Reader) -> Aggregate:
    """``name`` or ``name(parameter = value, ...)``; a value is a word, a number or a text in quotes."""
    start = reader.take()
    parameters: dict[str, object] = {}
    if reader.at("("):
        for name, value in reader.listed(partial(_read_parameter, reader), PARAMETERS_MAX):
            if name in parameters:
                reader.refuse(start, f"the parameter {shown(name)} is given twice")
            parameters[name] = value
    return reader.checked(start, partial(Aggregate.make, start.text, parameters))


def _read_parameter(reader: Reader) -> tuple[str, str]:
    name = reader.name("a parameter").text
    reader.expect("=")
    if reader.token.kind in (TokenKind.STRING, TokenKind.WORD):
        return name, reader.take().text
    if reader.token.kind is TokenKind.NUMBER:
        return name, reader.decimal("a number").text
    reader.fail("a word", "a number", "a text in single quotes")


def _checked_name(name: str) -> str:
    if not name:
        raise InvalidSchema("the name of the aggregate function is empty")
    if not _NAME.fullmatch(name):
        raise InvalidSchema(f"{name[:60]!r} is not the name of an aggregate function")
    return name


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(value)


def _literal(value: str) -> str:
    if _PLAIN_VALUE.fullmatch(value):
        return value
    quoted = value.replace("'", "''")
    return f"'{quoted}'"
