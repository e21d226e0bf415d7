"""What the demo shows: a board of two tables, read at one moment each, how far they are, and what has happened so far.

In a terminal it stays in its place and moves; elsewhere it is lines, one for each thing that happens and a few on the
way. It reads tables and draws; what happens is decided in ``demo.py``.
"""

import time
from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import pyarrow as pa
import pyarrow.compute as pc
from rich.align import Align
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table as Grid
from rich.text import Text

import kolk
from kolk.functions import rb_cardinality

ROWS_MIN, ROWS_MAX, BAR_MIN, BAR_MAX = 3, 8, 10, 46
LINES_BESIDE, COLUMNS_BESIDE = 14, 54
"""What frames, heads and numbers take of a terminal; rows and bars have the rest."""
BARS = " ▁▂▃▄▅▆▇█"
PLAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Both tables, each at one moment."""

    pages: pa.Table
    sections: pa.Table
    taken: float
    seconds: float

    @property
    def views(self) -> int:
        """All clicks that the table of pages has."""
        return pc.sum(self.pages["views"]).as_py() or 0

    @property
    def section_views(self) -> int:
        """All clicks that the table of sections has."""
        return pc.sum(self.sections["views"]).as_py() or 0


def read(db: kolk.Database, now: float) -> Reading:
    """Scan both tables; how long it took is shown, too."""
    started = time.perf_counter()
    with db.table("web.pages").scan() as pages, db.table("web.sections").scan() as sections:
        tables = pages.to_arrow(), sections.to_arrow()
    return Reading(*tables, now, time.perf_counter() - started)


class Board:
    """The board. Confined to one thread, but for ``__rich__``, which draws what it finds."""

    def __init__(self, console: Console, clicks: int) -> None:
        self.console = console
        self.readings: list[Reading] = []
        self.made = 0
        self.spark = "[dim]not there[/]"
        self._clicks = clicks
        self._stories: list[tuple[float, str]] = []
        self._started = time.perf_counter()
        self._told = 0.0
        self._live = Live(self, console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> "Board":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    @property
    def now(self) -> float:
        """Seconds since the demo began."""
        return time.perf_counter() - self._started

    def tell(self, story: str) -> None:
        """Something has happened."""
        self._stories.append((self.now, story))
        if not self.console.is_terminal:
            self.console.print(f"{_clock(self.now)}  {story}", soft_wrap=True)

    def show(self, reading: Reading, made: int) -> None:
        """The tables have been read."""
        self.readings.append(reading)
        self.made = made
        if not self.console.is_terminal and self.now - self._told >= PLAIN_SECONDS:
            self._told = self.now
            counts = f"{made:,} clicks made, {reading.views:,} in web.pages, {reading.section_views:,} in web.sections"
            self.console.print(f"{_clock(self.now)}    {counts}", soft_wrap=True)

    @property
    def _rows(self) -> int:
        """How many rows of a table there is room for."""
        return _within((self.console.height - LINES_BESIDE) // 2, ROWS_MIN, ROWS_MAX)

    @property
    def _bar_width(self) -> int:
        return _within(self.console.width - COLUMNS_BESIDE, BAR_MIN, BAR_MAX)

    def __rich__(self) -> RenderableType:
        return Group(self._head(), self._tables(), self._progress(), self._told_so_far())

    def _head(self) -> RenderableType:
        head = Grid.grid(expand=True)
        head.add_column()
        head.add_column(justify="right")
        way = ("clicks", "Spark", "[cyan]web.pages[/]", "its changelog", "Spark", "[cyan]web.sections[/]")
        head.add_row(f" [bold]Kolk[/]   {' [dim]→[/] '.join(way)}", f"[bold]{_clock(self.now)}[/] ")
        return head

    def _tables(self) -> RenderableType:
        both = Grid.grid(expand=True)
        both.add_column(ratio=66)
        both.add_column(ratio=34)
        both.add_row(self._pages(), self._sections())
        return both

    def _pages(self) -> RenderableType:
        names = ("page", "views", "visitors", "mean ms", "slowest", "last from")
        grid = _grid(*names[: 6 if self._bar_width == BAR_MAX else 5])
        count = 0
        if self.readings:
            rows = self.readings[-1].pages
            count = rows.num_rows
            top = rows.sort_by([("views", "descending"), ("page", "ascending")]).slice(0, self._rows)
            for row, visitors in zip(top.to_pylist(), rb_cardinality(top["visitors"]).to_pylist(), strict=True):
                numbers = row["views"], visitors, round(row["millis"] / row["views"]), row["slowest"]
                cells = [row["page"], *(f"{number:,}" for number in numbers), row["came_from"]]
                grid.add_row(*cells[: len(grid.columns)])
        title = f"[cyan]web.pages[/] [dim]the top of {count} pages[/]"
        return _panel(grid, title, "waiting for the first batch", self._rows)

    def _sections(self) -> RenderableType:
        grid = _grid("section", "pages", "views")
        rows = self.readings[-1].sections.sort_by([("views", "descending")]).to_pylist() if self.readings else []
        for row in rows[: self._rows]:
            grid.add_row(row["section"], f"{row['pages']:,}", f"{row['views']:,}")
        return _panel(grid, "[cyan]web.sections[/]", "waiting for changes", self._rows)

    def _progress(self) -> RenderableType:
        last = self.readings[-1] if self.readings else None
        views, sections = (last.views, last.section_views) if last else (0, 0)
        grid = Grid.grid(padding=(0, 2, 0, 0))
        for number, width in enumerate((15, self._bar_width, 9, 18)):
            grid.add_column(justify="left" if number % 2 else "right", width=width, no_wrap=True)
        rates = self._rates()
        grid.add_row("clicks made", self._bar(self.made, "white"), f"{self.made:,}", f"[dim]of {self._clicks:,}[/]")
        grid.add_row("in web.pages", self._bar(views, "green"), f"{views:,}", _behind(self.made - views))
        grid.add_row("in web.sections", self._bar(sections, "cyan"), f"{sections:,}", _behind(self.made - sections))
        line = Text(_spark_line(rates, self._bar_width), "green")
        grid.add_row("counted", line, f"{rates[-1] if rates else 0:,.0f}", "[dim]clicks/s[/]")
        scans = f"scan {len(self.readings)} of both tables: {last.seconds * 1e3:.0f} ms" if last else ""
        grid.add_row("Spark", Text.from_markup(self.spark), "", "")
        grid.add_row("this dashboard", f"[dim]{scans}[/]", "", "")
        return Panel(grid)

    def _told_so_far(self) -> RenderableType:
        rows = _within(self.console.height - LINES_BESIDE - self._rows, ROWS_MIN, ROWS_MAX)
        grid = Grid.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim")
        grid.add_column(no_wrap=True)
        for at, story in self._stories[-rows:]:
            grid.add_row(_clock(at), story)
        return Panel(grid, title="what happens", title_align="left", height=rows + 2)

    def _bar(self, count: int, style: str) -> RenderableType:
        return ProgressBar(self._clicks, count, width=self._bar_width, complete_style=style, finished_style=style)

    def _rates(self) -> list[float]:
        """Clicks counted per second, from reading to reading."""
        found = zip(self.readings, self.readings[1:], strict=False)
        return [(new.views - old.views) / max(new.taken - old.taken, 0.1) for old, new in found]


def _grid(*names: str) -> Grid:
    grid = Grid(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim")
    for number, name in enumerate(names):
        is_text = number == 0 or name == "last from"
        grid.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    return grid


def _within(number: int, least: int, most: int) -> int:
    return max(least, min(number, most))


def _panel(grid: Grid, title: str, waiting: str, rows: int) -> RenderableType:
    body = grid if grid.row_count else Align.center(Text(waiting, "dim"), vertical="middle")
    return Panel(body, title=title, title_align="left", height=rows + 3)


def _behind(count: int) -> str:
    if count <= 0:
        return "[green]up to date[/]"
    return f"[yellow]{count:,} behind[/]"


def _spark_line(rates: list[float], width: int) -> str:
    """All rates in one line: if there are more than it is wide, each bar is the mean of some."""
    step = max(len(rates) / width, 1)
    cuts = [round(place * step) for place in range(min(len(rates), width) + 1)]
    bars = [sum(rates[low:high]) / (high - low) for low, high in pairwise(cuts)]
    top = max(bars, default=0) or 1
    return "".join(BARS[_within(ceil(bar / top * (len(BARS) - 1)), 0, len(BARS) - 1)] for bar in bars)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
