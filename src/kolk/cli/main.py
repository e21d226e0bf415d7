"""``kolk``: the commands, and the one place where their errors become messages and exit codes.

Nothing here imports Arrow or RocksDB: each command imports what it needs when it runs, so that ``kolk --help`` and the
completion of a word answer at once.
"""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from kolk.cli import (
    backups,
    doctor,
    followers,
    functions,
    leases,
    locks,
    partitions,
    rows,
    scan,
    scans,
    serving,
    snapshots,
    status,
    tables,
    tail,
    tokens,
    transactions,
)
from kolk.cli.commands import App
from kolk.cli.common import Common, connected
from kolk.cli.failures import INTERRUPTED, report, say_misuse


class Commands(TyperGroup):
    """All commands, with Kolk's own way to fail. Help stays plain text: it comes sooner, and pipes well."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run, and end the process with the number of the outcome."""
        try:
            outcome = super().main(*args, **{**options, "standalone_mode": False})
        except typer.Abort:
            sys.exit(INTERRUPTED)
        except typer.TyperException as error:
            say_misuse(error)
            sys.exit(error.exit_code)
        sys.exit(outcome if isinstance(outcome, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; whatever it raises is reported here."""
        try:
            done = super().invoke(ctx)
            sys.stdout.flush()
            return done
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except BaseException as error:
            debug = isinstance(ctx.obj, Common) and ctx.obj.debug
            raise typer.Exit(report(error, debug=debug)) from error


app = App(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        import kolk

        sys.stdout.write(f"kolk {kolk.__version__}\n")
        raise typer.Exit


@app.callback()
@connected
def root(
    common: Common,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Kolk: tables that you put, look up, scan and follow.

    Data goes to stdout, everything else to stderr. Ends with 0 ok, 1 error, 2 usage, 3 not found, 4 denied,
    5 unavailable, 130 interrupted.
    """


rows.register(app)
scan.register(app)
tail.register(app)
app.add_typer(tables.app, name="table")
functions.register(app)
app.add_typer(partitions.app, name="partition")
app.add_typer(followers.app, name="follower")
app.add_typer(scans.app, name="scans")
app.add_typer(snapshots.app, name="snapshot")
app.add_typer(leases.app, name="lease")
app.add_typer(transactions.app, name="tx")
app.add_typer(locks.app, name="lock")
status.register(app)
serving.register(app)
backups.register(app)
app.add_typer(tokens.app, name="token")
doctor.register(app)


def main() -> None:
    """The entry point of the ``kolk`` script."""
    app(prog_name="kolk")


if __name__ == "__main__":
    main()
