"""Where the ``kolk`` script begins. To import the commands takes a moment, and whoever presses Ctrl-C in it wants to
see no traceback: so it is done inside of a function, and nothing else is done here."""

import sys

_INTERRUPTED = 130  # as kolk.cli.failures has it, which is not there yet


def main() -> None:
    """Import the commands and run one."""
    try:
        from kolk.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
