"""Rows for people: a table that fits the terminal.

Numbers stand to the right, nulls are dim, what is too long is cut with an ellipsis, and columns for which there is no
room are left out, with a word about it. Control characters are shown and not sent: what is stored in a table must not
steer anyone's terminal. Without a terminal nothing is cut.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH_MIN = 8
"""A column is cut down to this before another one is left out."""
_GAP = 2  # one of padding, one where a line would be
_CONTROLS = {code: repr(chr(code))[1:-1] for code in [*range(32), *range(127, 160)]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of text. ``styles`` paints some of its values."""

    name: str
    cells: Sequence[str | None]
    is_number: bool = False
    styles: Mapping[str, str] | None = None


def stdout() -> Console:
    """The terminal, or whatever stdout is, at its width; without a terminal or COLUMNS it is as wide as need be."""
    is_bounded = sys.stdout.isatty() or bool(os.environ.get("COLUMNS"))
    width = shutil.get_terminal_size((100, 24)).columns if is_bounded else 100_000
    # Of NO_COLOR rich takes the colours alone; bold and dim are no less in the way of who wants plain text.
    colours = None if os.environ.get("NO_COLOR") else "auto"
    return Console(
        file=sys.stdout, width=width, color_system=colours, highlight=False, emoji=False, markup=False, soft_wrap=False
    )


def print_grid(columns: Sequence[Column], *, keep_first: bool = False) -> int:
    """Show the columns; the answer is how many there was no room for. ``keep_first`` is for lists: who sees a cut name
    or id cannot use it."""
    console = stdout()
    shown = [_visible(column) for column in columns]
    widths = fitted([_width(column) for column in shown], console.width, keep_first=keep_first)
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0), header_style="bold"
    )
    for column, width in zip(shown, widths, strict=False):
        justify = "right" if column.is_number else "left"
        table.add_column(Text(column.name), width=width, no_wrap=True, overflow="ellipsis", justify=justify)
    painted = [_painted(column) for column, _ in zip(shown, widths, strict=False)]
    for row in zip(*painted, strict=True):
        table.add_row(*row)
    console.print(table)
    return len(columns) - len(widths)


def fitted(natural: Sequence[int], room: int, *, keep_first: bool = False) -> list[int]:
    """The widths that fit: the widest columns give way first, and at last the columns at the end. The first one, if it
    is kept, gives way to nothing but the edge of the terminal."""
    if keep_first and natural:
        first = min(natural[0], room)
        rest = room - first - _GAP
        return [first, *(fitted(natural[1:], rest) if rest >= WIDTH_MIN + _GAP else [])]
    widths = list(natural)
    while len(widths) > 1 and sum(min(width, WIDTH_MIN) + _GAP for width in widths) > room:
        widths.pop()
    excess = sum(width + _GAP for width in widths) - room
    while excess > 0:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= min(WIDTH_MIN, room):
            break
        second = max((width for place, width in enumerate(widths) if place != widest), default=WIDTH_MIN)
        cut = min(excess, max(1, widths[widest] - max(second, WIDTH_MIN)))
        widths[widest] -= cut
        excess -= cut
    return widths


def visible(text: str) -> str:
    """The text with its control characters written out."""
    return text.translate(_CONTROLS)


def _visible(column: Column) -> Column:
    cells = [None if cell is None else visible(cell) for cell in column.cells]
    return Column(name=column.name, cells=cells, is_number=column.is_number, styles=column.styles)


def _width(column: Column) -> int:
    return max([cell_len(column.name), *(4 if cell is None else cell_len(cell) for cell in column.cells)])


def _painted(column: Column) -> list[Text]:
    styles = column.styles or {}
    return [Text("null", style="dim") if cell is None else Text(cell, styles.get(cell, "")) for cell in column.cells]
