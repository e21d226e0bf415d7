"""The report: one table that grows on the terminal, plain text in a pipe, JSON on request."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Column, Table

from bench.measure import Figure


def show(figures: Iterable[Figure]) -> list[Figure]:
    """Print the figures as they come; the answer is all of them."""
    console = Console() if Console().is_terminal else Console(width=200)
    numbers = [Column(name, justify="right", no_wrap=True) for name in ("rows/s", "floor rows/s", "ratio", "target")]
    box = SIMPLE_HEAD if console.is_terminal else None
    table = Table("bench", "case", *numbers, "", "note", box=box, pad_edge=False)
    shown: list[Figure] = []
    with Live(table, console=console):
        for figure in figures:
            verdict = "" if figure.target is None else "[green]ok[/]" if figure.is_met else "[red]below[/]"
            rates = (f"{rate:,.0f}" if rate else "" for rate in (figure.rate, figure.floor_rate))
            shares = ("" if share is None else f"{share:.2g}" for share in (figure.ratio, figure.target))
            table.add_row(figure.bench, figure.case, *rates, *shares, verdict, figure.note)
            shown.append(figure)
    return shown


def write_json(figures: Sequence[Figure], path: Path) -> None:
    """Write all figures as a list of objects."""
    lines = [{**asdict(figure), "is_met": figure.is_met} for figure in figures]
    path.write_text(json.dumps(lines, indent=2) + "\n", encoding="utf-8")
