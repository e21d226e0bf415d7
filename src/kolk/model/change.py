"""What a changelog row says of its key, and the numbers it is stored under.

The numbers are in every log ever written: never change or reuse them.
"""

from enum import IntEnum
from typing import NewType

Offset = NewType("Offset", int)
"""A position in a bucket's log: one per change row. End offsets are exclusive."""


class ChangeKind(IntEnum):
    """The kind of a change row."""

    INSERT = 0
    UPDATE_BEFORE = 1
    UPDATE_AFTER = 2
    DELETE = 3


SYMBOLS = ("+I", "-U", "+U", "-D")
"""``+I -U +U -D``, as people read them, by number."""
