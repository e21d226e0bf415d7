"""What a failed command says, and the number it ends with.

The numbers are a promise to scripts: 0 ok, 1 error, 2 usage, 3 not found, 4 denied, 5 unavailable, 130 interrupted. An
error is one line on stderr that says what happened and what to do next; the traceback is for those who ask for it.
"""

import errno
import os
import sys
import traceback

import typer

from kolk.cli.notes import note, say_error
from kolk.errors import AccessDenied, KolkError, NotFound, Unavailable

OK, ERROR, USAGE, NOT_FOUND, DENIED, UNAVAILABLE, INTERRUPTED = 0, 1, 2, 3, 4, 5, 130


class Misuse(typer.TyperException):
    """The command line asks for something that makes no sense."""

    exit_code = USAGE


def report(error: BaseException, *, debug: bool) -> int:
    """Say what went wrong; the answer is the number to end with."""
    if debug and not isinstance(error, KeyboardInterrupt):
        traceback.print_exception(error, file=sys.stderr)
    code = _say(error, debug=debug)
    for line in getattr(error, "__notes__", []):
        note(line)
    return code


def _say(error: BaseException, *, debug: bool) -> int:
    match error:
        case KeyboardInterrupt():
            return INTERRUPTED
        case OSError(errno=errno.EPIPE):
            _silence()
            return OK
        case KolkError():
            say_error(str(error))
            return exit_code(error)
        case OSError():
            say_error(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")
            return ERROR
        case Exception():
            say_error(f"{type(error).__name__}: {error}")
            if not debug:
                note("this should not happen; run it again with `kolk --debug ...` and report what it says")
            return ERROR
        case _:
            raise error


def exit_code(error: KolkError) -> int:
    """The number for this kind of error."""
    kinds = ((NotFound, NOT_FOUND), (AccessDenied, DENIED), (Unavailable, UNAVAILABLE))
    return next((code for kind, code in kinds if isinstance(error, kind)), ERROR)


def say_misuse(error: typer.TyperException) -> None:
    """A usage error in the same form as all others."""
    message = _in_words(error.format_message())
    if message.startswith("Usage:"):  # a group without a command shows its help instead
        sys.stderr.write(message + "\n")
        return
    say_error(message)
    command = getattr(getattr(error, "ctx", None), "command_path", None)
    if command:
        note(f"see `{command} --help`")


_WORDS = {
    "Value error, ": "",
    "Input should be a valid integer, unable to parse string as an integer": "write a whole number",
    "Input should be ": "it should be ",
}
"""What the library that reads options says to programmers, and what we say."""


def _in_words(message: str) -> str:
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    return message


def _silence() -> None:
    """Whoever read our output has gone. That is no failure (``kolk scan t | head``), and nobody wants to hear of it:
    neither from here, nor when the interpreter flushes what is left."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it lives as long as the process
