"""Ids that nobody types in full: how much of them is shown, and which one is meant by its beginning."""

from collections.abc import Sequence

from kolk.cli.failures import Misuse

RANDOM_LENGTH = 32
"""The digits of an id that was drawn at random."""
SHOWN_LENGTH_MIN = 8
"""How much of such an id people see, and need to write, unless two begin alike."""


def meant(id: str, known: Sequence[str], what: str) -> str:
    """The id that is written here, or that begins like this; the text itself if there is none."""
    found = [id] if id in known else [each for each in known if id and each.startswith(id)]
    if len(found) > 1:
        raise Misuse(f"{len(found)} {what} begin with {id}: {', '.join(found)}; write more of the id")
    return found[0] if found else id


def telling_length(ids: Sequence[str]) -> int:
    """How much of the ids tells them all apart."""
    lengths = range(SHOWN_LENGTH_MIN, RANDOM_LENGTH + 1)
    return next((length for length in lengths if len({id[:length] for id in ids}) == len(ids)), RANDOM_LENGTH)


def shown(ids: Sequence[str]) -> list[str]:
    """The ids for people: of one that was drawn at random as much as tells it apart, and one with a name as it is."""
    length = telling_length(ids)
    return [id[:length] if _is_random(id) else id for id in ids]


def _is_random(id: str) -> bool:
    return len(id) == RANDOM_LENGTH and set(id) <= set("0123456789abcdef")
