"""Text cut into tokens, and a reader that says what it expected where: shared by DDL and by column types.

It knows words, quoted names, strings, numbers and symbols of one character, skips blanks and comments, and looks
one token ahead. It knows no grammar, and whatever the text, it raises nothing but ``InvalidInput``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, TypeVar

from kolk.errors import InvalidInput, InvalidStatement

_NUMBER_DIGITS_MAX = 9
_T = TypeVar("_T")


class TokenKind(Enum):
    """What a token is. The values name the groups of ``_TOKEN``."""

    WORD = "word"
    BACKTICKED = "backticked"
    QUOTED = "quoted"
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"
    END = "end"


# One character or pair at a time, and no quote after the closing one: a text without end is tried once, not in
# every way. (Possessive quantifiers would say it better, but Python 3.11's first releases get them wrong.)
_GAP = re.compile(r"\s+|--[^\n]*|/\*.*?\*/", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>[0-9]+)"
    r"|'(?P<string>(?:[^']|'')*)'(?!')"
    r"|`(?P<backticked>(?:[^`]|``)*)`(?!`)"
    r'|"(?P<quoted>(?:[^"]|"")*)"(?!")'
    r"|(?P<symbol>.)",
    re.DOTALL,
)
_DECIMAL = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_QUOTES = {TokenKind.STRING: "'", TokenKind.BACKTICKED: "`", TokenKind.QUOTED: '"'}
_UNCLOSED = {"'": "string", "`": "name", '"': "name"}
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the text: ``text`` is what it means (unquoted), ``start`` and ``end`` where it stands."""

    kind: TokenKind
    text: str
    start: int
    end: int


def _token_after(text: str, position: int) -> Token:
    """The first token at or after ``position``; at the end of the text, an END token."""
    start = position
    while gap := _GAP.match(text, start):
        start = gap.end()
    match = _TOKEN.match(text, start)
    if match is None:
        # An error at the end points behind the last thing written, not at the empty line after it.
        return Token(TokenKind.END, "", len(text.rstrip()), len(text))
    kind = TokenKind(match.lastgroup)
    meaning = match[kind.value]
    if quote := _QUOTES.get(kind):
        meaning = meaning.replace(quote * 2, quote)
    if kind is TokenKind.SYMBOL and meaning in _UNCLOSED:
        raise InvalidStatement(_pointed(text, start, f"this {_UNCLOSED[meaning]} has no closing {meaning}"))
    if text.startswith("/*", start):
        raise InvalidStatement(_pointed(text, start, "this comment has no closing */"))
    return Token(kind, meaning, start, match.end())


class Reader:
    """Reads the tokens of one text from left to right. Confined to one call that reads it.

    It remembers what it was asked for in vain since the last token it took: that is what an error says was
    expected.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._wanted: list[str] = []
        self.token = _token_after(text, 0)

    def take(self) -> Token:
        """The token in front, which is then behind."""
        token, self.token = self.token, _token_after(self._text, self.token.end)
        self._wanted = []
        return token

    def at(self, lexeme: str) -> bool:
        """Whether this word or symbol is in front."""
        if self.token.kind is TokenKind.WORD:
            return self.token.text.upper() == lexeme
        return self.token.kind is TokenKind.SYMBOL and self.token.text == lexeme

    def accept(self, lexeme: str) -> bool:
        """Take this word or symbol if it is in front."""
        if self.at(lexeme):
            self.take()
            return True
        self._wanted.append(lexeme if lexeme.isalpha() else repr(lexeme))
        return False

    def accept_all(self, first: str, *others: str) -> bool:
        """Take a phrase: after its first word, the others must follow."""
        if not self.accept(first):
            return False
        for lexeme in others:
            self.expect(lexeme)
        return True

    def expect(self, lexeme: str) -> None:
        """Take this word or symbol, which must be in front."""
        if not self.accept(lexeme):
            self.fail()

    def name(self, what: str) -> Token:
        """Take a name, quoted or not."""
        return self._take_one_of((TokenKind.WORD, TokenKind.BACKTICKED, TokenKind.QUOTED), what)

    def string(self, what: str) -> Token:
        """Take a string in single quotes."""
        return self._take_one_of((TokenKind.STRING,), what)

    def number(self, what: str) -> str:
        """Take a whole number, as its digits."""
        if len(self.token.text) > _NUMBER_DIGITS_MAX:
            self.fail(f"{what} of at most {_NUMBER_DIGITS_MAX} digits")
        return self._take_one_of((TokenKind.NUMBER,), what).text

    def decimal(self, what: str) -> Token:
        """Take a number with a fraction and an exponent, if it has them, as it is written."""
        match = _DECIMAL.match(self._text, self.token.start)
        if match is None:
            self.fail(what)
        taken = Token(TokenKind.NUMBER, match[0], match.start(), match.end())
        self.token, self._wanted = _token_after(self._text, taken.end), []
        return taken

    def listed(self, read: Callable[[], _T], most: int) -> list[_T]:
        """``( item, item )``: at least one, and at most so many."""
        self.expect("(")
        items = [read()]
        while self.accept(","):
            if len(items) >= most:
                self.refuse(self.token, f"a list has at most {most} items")
            items.append(read())
        self.expect(")")
        return items

    def checked(self, token: Token, make: Callable[[], _T]) -> _T:
        """Let the model make something of what stands at a token; its error then also says where that is."""
        try:
            return make()
        except InvalidInput as error:
            raise type(error)(_pointed(self._text, token.start, str(error))) from None

    def fail(self, *expected: str) -> NoReturn:
        """Say what was found and what was expected instead."""
        found = "the end of the text" if self.token.kind is TokenKind.END else shown(self.token.text)
        wanted = [*self._wanted, *expected]
        choice = " or ".join(filter(None, [", ".join(wanted[:-1]), wanted[-1]]))
        before = self._text[max(self.token.start - 1, 0) : self.token.start]
        in_a_name = self.at("-") and before.isalnum()
        hint = "; a name with a - stands in `backticks`" if in_a_name else ""
        self.refuse(self.token, f"found {found}, expected {choice}{hint}")

    def refuse(self, token: Token, message: str) -> NoReturn:
        """Say what is wrong with this token, and show it."""
        raise InvalidStatement(_pointed(self._text, token.start, message))

    def _take_one_of(self, kinds: tuple[TokenKind, ...], what: str) -> Token:
        if self.token.kind not in kinds:
            self.fail(what)
        return self.take()


def _pointed(text: str, position: int, message: str) -> str:
    """The message with its place in the text, and the line with a caret under it."""
    line_start = text.rfind("\n", 0, position) + 1
    line_end = text.find("\n", position)
    left = max(line_start, position - 60)
    right = min(len(text) if line_end < 0 else line_end, position + 40)
    # Tabs and control characters would move the caret, or the terminal.
    line = "".join(character if character.isprintable() else " " for character in text[left:right])
    place = f"line {text.count(chr(10), 0, position) + 1}, column {position - line_start + 1}"
    return f"{place}: {message}\n  {line}\n  {' ' * (position - left)}^"


def shown(text: str) -> str:
    """The text as an error shows it: quoted, and not at length."""
    return repr(text) if len(text) <= 40 else repr(text[:37]) + "..."


def name_text(name: str) -> str:
    """A name as it must be written to be read back: in backticks unless it is a plain word."""
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name}`"
