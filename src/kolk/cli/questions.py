"""What a command asks before it removes data, and how a script says yes beforehand."""

import sys
from typing import Annotated

import typer

from kolk.cli.failures import Misuse
from kolk.cli.notes import is_confirmed, note

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, *, yes: bool) -> None:
    """Go on only after a yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Misuse("this removes data; without a terminal to ask on, say --yes")
    if not is_confirmed(question):
        note("nothing was done")
        raise typer.Exit(1)
