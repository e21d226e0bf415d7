"""The text of a predicate, as SQL writes what stands after WHERE::

    column = value      == != <> < <= > >= as well, and the sides may be exchanged
    column IN (value, ...)              column NOT IN (value, ...)
    column BETWEEN value AND value      column NOT BETWEEN value AND value
    column IS NULL                      column IS NOT NULL
    column                              of a boolean column: that it is true
    TRUE    FALSE    NOT p    p AND q    p OR q    (p)

Values are numbers, ``'text'`` (a quote within is doubled), TRUE and FALSE, ``X'00ff'``, and DATE, TIME, TIMESTAMP and
TIMESTAMP_LTZ before a string; beside a column of such a type, or a decimal, a string alone will do. Keywords are read
in any case; names are kept as written, and need `backticks` or "double quotes" if they are not a plain word. NULL is no
value: nothing is equal to it, so whoever writes ``= NULL`` means IS NULL, and is told so.

Whatever the text, it raises nothing but ``InvalidArgument``, and takes no longer than its limits allow.
"""

from functools import partial

from kolk.errors import InvalidArgument, InvalidInput
from kolk.model.literals import NAMED_FORMS, Exact, Form, Written, exact_of_written
from kolk.model.schema import Column, Schema
from kolk.model.terms import RESERVED, Always, IsNull, Node, Operator, all_of, any_of, compared, one_of
from kolk.model.tokens import Reader, Token, TokenKind, shown
from kolk.model.types import Kind

TEXT_LENGTH_MAX = 262_144
"""In characters, of what is read and of the text that means it: so that it fits the head of a message."""

TERMS_MAX = 1_000
"""Each is a pass over every page."""

VALUES_MAX = 10_000
"""Of all INs together: each page looks its rows up in hash tables of them."""

NESTING_MAX = 32
"""How many parentheses and NOTs stand within each other. A BETWEEN counts, since it may become an OR within."""

_COLUMNS_SHOWN_MAX = 20


def read_where(text: str, schema: Schema) -> Node:
    """The tree of a predicate about the columns of this schema."""
    if not isinstance(text, str):
        raise InvalidArgument(f"a predicate is text such as \"pv > 100 AND region = 'eu'\", not {text!r}")
    if len(text) > TEXT_LENGTH_MAX:
        raise InvalidArgument(f"the predicate has {len(text):,} characters; at most {TEXT_LENGTH_MAX:,} are read")
    try:
        return _Parser(text, schema).read()
    except InvalidInput as error:
        raise InvalidArgument(f"the predicate cannot be read: {error}") from None


class _Parser:
    """Reads one text, from left to right. A part that stands under an odd number of NOTs is read as its opposite.
    Confined to one call."""

    def __init__(self, text: str, schema: Schema) -> None:
        self._reader = Reader(text)
        self._columns = {column.name: column for column in schema.columns}
        self._terms = 0
        self._values = 0

    def read(self) -> Node:
        node = self._either(False, 0)
        if self._reader.token.kind is not TokenKind.END:
            self._reader.fail("the end of the text")
        return node

    def _either(self, negated: bool, depth: int) -> Node:
        parts = [self._both(negated, depth)]
        while self._reader.accept("OR"):
            parts.append(self._both(negated, depth))
        return all_of(parts) if negated else any_of(parts)

    def _both(self, negated: bool, depth: int) -> Node:
        parts = [self._part(negated, depth)]
        while self._reader.accept("AND"):
            parts.append(self._part(negated, depth))
        return any_of(parts) if negated else all_of(parts)

    def _part(self, negated: bool, depth: int) -> Node:
        start = self._reader.token
        if self._reader.accept("NOT"):
            self._check_depth(start, depth + 1)
            return self._part(not negated, depth + 1)
        if self._reader.accept("("):
            self._check_depth(start, depth + 1)
            node = self._either(negated, depth + 1)
            self._reader.expect(")")
            return node
        self._terms += 1
        if self._terms > TERMS_MAX:
            self._reader.refuse(start, f"a predicate has at most {TERMS_MAX:,} comparisons; use IN (...)")
        return self._term(negated, depth)

    def _term(self, negated: bool, depth: int) -> Node:
        start = self._reader.token
        written = self._written("a column or a value")
        if written is None:
            return self._about(self._column(start), negated, depth)
        operator = self._operator()
        if operator is None:
            if written.form is Form.BOOLEAN:
                return Always((written.text == "TRUE") is not negated)
            self._reader.fail("a comparison")
        if self._reader.token.kind is TokenKind.WORD and self._reader.token.text.upper() in RESERVED:
            self._reader.fail("a column")
        column = self._column(self._reader.name("a column"))
        return self._compared(column, operator.mirrored, negated, self._exact(start, written, column))

    def _about(self, column: Column, negated: bool, depth: int) -> Node:
        """A term that begins with a column."""
        reader = self._reader
        if reader.accept("IS"):
            is_not = reader.accept("NOT")
            reader.expect("NULL")
            return IsNull(column.name, column.type, is_not is not negated)
        start = reader.token
        is_not = reader.accept("NOT")
        if reader.accept("IN"):
            exacts = reader.listed(partial(self._listed_value, column), VALUES_MAX)
            return one_of(column, exacts, is_not is not negated)
        if reader.accept("BETWEEN"):
            self._check_depth(start, depth + 1)
            return self._between(column, is_not is not negated)
        operator = None if is_not else self._operator()
        if operator is not None:
            return self._compared(column, operator, negated, self._value(column))
        if not is_not and column.type.kind is Kind.BOOLEAN:
            return compared(column, Operator.EQUAL, not negated)
        reader.fail(*(() if is_not else ("a comparison",)))

    def _between(self, column: Column, negated: bool) -> Node:
        self._terms += 1  # for there are two
        least = self._value(column)
        self._reader.expect("AND")
        greatest = self._value(column)
        below, above = (Operator.LESS, Operator.GREATER) if negated else (Operator.GREATER_EQUAL, Operator.LESS_EQUAL)
        terms = [compared(column, below, least), compared(column, above, greatest)]
        return any_of(terms) if negated else all_of(terms)

    def _compared(self, column: Column, operator: Operator, negated: bool, exact: Exact) -> Node:
        return compared(column, operator.negated if negated else operator, exact)

    def _operator(self) -> Operator | None:
        reader = self._reader
        if reader.accept("="):
            if reader.at("="):
                reader.take()
            return Operator.EQUAL
        if reader.accept("!"):
            reader.expect("=")
            return Operator.NOT_EQUAL
        if reader.accept("<"):
            if reader.accept(">"):
                return Operator.NOT_EQUAL
            return Operator.LESS_EQUAL if reader.accept("=") else Operator.LESS
        if reader.accept(">"):
            return Operator.GREATER_EQUAL if reader.accept("=") else Operator.GREATER
        return None

    def _listed_value(self, column: Column) -> Exact:
        self._values += 1
        if self._values > VALUES_MAX:
            self._reader.refuse(self._reader.token, f"a predicate has at most {VALUES_MAX:,} values in its INs")
        return self._value(column)

    def _value(self, column: Column) -> Exact:
        """The value in front, as one to compare this column with."""
        start = self._reader.token
        written = self._written("a value")
        if written is None:
            self._reader.refuse(start, "a column is compared with a value; text stands in 'single quotes'")
        return self._exact(start, written, column)

    def _exact(self, token: Token, written: Written, column: Column) -> Exact:
        return self._reader.checked(token, partial(exact_of_written, written, column.type))

    def _written(self, what: str) -> Written | None:
        """Take a value; None if it is a name that was taken, that of a column."""
        reader, token = self._reader, self._reader.token
        match token.kind:
            case TokenKind.STRING:
                return Written(Form.STRING, reader.take().text)
            case TokenKind.BACKTICKED | TokenKind.QUOTED:
                reader.take()
                return None
            case TokenKind.WORD:
                return self._written_word(what)
            case _:
                sign = reader.take().text if reader.at("-") or reader.at("+") else ""
                return Written(Form.NUMBER, sign + reader.decimal("a number" if sign else what).text)

    def _written_word(self, what: str) -> Written | None:
        reader, word = self._reader, self._reader.token.text.upper()
        if word in ("TRUE", "FALSE"):
            reader.take()
            return Written(Form.BOOLEAN, word)
        if word == "NULL":
            reader.refuse(reader.token, "nothing is equal to NULL; write IS NULL or IS NOT NULL")
        if word in RESERVED:
            reader.fail(what)
        reader.take()
        form = NAMED_FORMS.get(word)
        if form is not None and reader.token.kind is TokenKind.STRING:
            return Written(form, reader.take().text)
        return None

    def _column(self, token: Token) -> Column:
        column = self._columns.get(token.text)
        if column is None:
            names = list(self._columns)
            more = ", ..." if len(names) > _COLUMNS_SHOWN_MAX else ""
            listed = ", ".join(names[:_COLUMNS_SHOWN_MAX])
            self._reader.refuse(token, f"there is no column {shown(token.text)}; the columns are {listed}{more}")
        return column

    def _check_depth(self, token: Token, depth: int) -> None:
        if depth > NESTING_MAX:
            self._reader.refuse(token, f"parentheses and NOTs stand at most {NESTING_MAX} deep within each other")
