"""How the help of a command looks: in the words of the shell.

Typer writes the Python type behind the name of every argument, such as ``KEY <list[str]>``. Whoever reads help writes
text, and what is said of an argument says what text that is.
"""

from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand


class Command(TyperCommand):
    """A command whose arguments are shown by their names alone."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write what the arguments and options are; an option has its own word for what it takes."""
        arguments: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        for one in self.get_params(ctx):
            record = one.get_help_record(ctx)
            if record is None:
                continue
            if isinstance(one, TyperArgument):
                arguments.append((one.display_name_raw, record[1]))
            else:
                options.append(record)
        for title, records in (("Arguments", arguments), ("Options", options)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class App(typer.Typer):
    """Commands of this kind."""

    def command(self, name: str | None = None, **options: Any) -> Any:
        """See ``typer.Typer``."""
        return super().command(name, cls=options.pop("cls", Command), **options)
