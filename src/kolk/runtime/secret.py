"""Secrets that do not show, and a mask for those that slipped into a text after all.

A ``Secret`` is text that prints as stars wherever it goes: a log line, a traceback, the repr of a config that holds
it. It is not a ``str``, so that joining it to one is an error and not a leak; ``reveal`` is the only way out, and
easy to search for. ``masked`` is the last defence, for texts of others: it knows what Kolk's tokens and an HTTP
``Authorization`` look like, and nothing else. Neither keeps a secret from who can read the memory of the process.
"""

import hmac
import re

STARS = "***"

# The id of a token is no secret: it stays, because it is how one finds and revokes the token that slipped.
_TOKEN = re.compile(r"(kolk_[0-9a-f]{16}_)[0-9a-f]+", re.IGNORECASE)
# Up to what can end a value in JSON, in a repr or in prose.
_BEARER = re.compile(r"(\bBearer[\s:=]+[\"']?)[^\s\"'\\,;]+", re.IGNORECASE)


class Secret:
    """A text that shows as ``***``. Frozen."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the one who sends or checks it."""
        return self._text

    def __repr__(self) -> str:
        return STARS

    def __format__(self, spec: str) -> str:
        return format(STARS, spec)

    def __eq__(self, other: object) -> bool:
        """In a time that does not depend on where they differ."""
        if not isinstance(other, Secret):
            return NotImplemented
        mine, theirs = (each.reveal().encode("utf-8", "surrogatepass") for each in (self, other))
        return hmac.compare_digest(mine, theirs)

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __bool__(self) -> bool:
        return bool(self._text)


def masked(text: str) -> str:
    """The text without the tokens in it."""
    return _BEARER.sub(rf"\1{STARS}", _TOKEN.sub(rf"\1{STARS}", text))
