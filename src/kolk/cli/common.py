"""The options that every command has: which database, how to prove who one is, and ``--debug``.

They are described once, here, and may stand before or after the command's name. A flag beats the environment, and a
flag after the command beats one before it. The decorators build the signature that typer reads.
"""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kolk.cli.failures import Misuse
from kolk.client.address import Address, check_folder
from kolk.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from kolk.client.database import Database


@dataclass(slots=True)
class Common:
    """What was given so far, first before the command and then after it. Confined to one run."""

    url: str | None = None
    token: str | None = None
    token_file: Path | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    allow_plaintext: bool = False
    load: list[str] = field(default_factory=list)
    debug: bool = False

    @property
    def target(self) -> str:
        """The database: the path of a folder, or a URL."""
        target = self.url or os.environ.get("KOLK_URL")
        if not target:
            raise Misuse(
                "which database? Give --url FOLDER or --url kolk://HOST:PORT, or set the environment variable KOLK_URL"
            )
        return target

    @property
    def is_remote(self) -> bool:
        """Whether the database is a server and not a folder."""
        return "://" in self.target

    def connect(self, *, create: bool = False, timeout: float | None = None) -> "Database":
        """Open the database. A folder without one is an error, or a slip of the pen would make an empty database."""
        import kolk

        if self.is_remote:
            _check_address(self.target)
            patience: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
            return kolk.connect(self.target, **self._proofs(), **patience)
        folder_of(self.target)
        if not create and not (Path(self.target) / "FORMAT").exists():
            raise NotFound(f"there is no database in {self.target}; `kolk table create` makes one, or correct --url")
        return kolk.connect(self.target)

    def words(self) -> list[str]:
        """What was given on the command line, to be given again; but for a secret, which would be shown."""
        given = {
            "--url": self.url,
            "--token-file": self.token_file,
            "--tls-ca": self.tls_ca,
            "--tls-cert": self.tls_cert,
            "--tls-key": self.tls_key,
        }
        words = [word for flag, value in given.items() if value for word in (flag, str(value))]
        return words + (["--allow-plaintext"] if self.allow_plaintext else [])

    def load_modules(self) -> None:
        """Import the modules that were named: before anything is read that names their functions."""
        names = self.load or os.environ.get("KOLK_LOAD", "").replace(",", " ").split()
        if names:
            from kolk.runtime.modules import load_modules

            load_modules(names)

    def _proofs(self) -> dict[str, Any]:
        """What the server needs to know of us, and we of it; only what was given."""
        given = {
            "token": self.token or _secret(self.token_file) or os.environ.get("KOLK_TOKEN"),
            "tls_ca": self.tls_ca or os.environ.get("KOLK_TLS_CA"),
            "tls_cert": self.tls_cert,
            "tls_key": self.tls_key,
            "allow_plaintext": self.allow_plaintext,
        }
        return {name: value for name, value in given.items() if value}


def folder_of(text: str) -> Path:
    """The folder that an argument names. An address is none: as a path it would be the name of a new folder."""
    if "://" in text:
        raise Misuse(f"{text} is the address of a server; give the path of a folder on this machine")
    try:
        check_folder(text)
    except InvalidArgument as error:
        raise Misuse(str(error)) from None
    return Path(text)


def _check_address(url: str) -> None:
    """A URL that is none is a slip on the command line; the error does not repeat it, for it may hold a password."""
    try:
        Address.parse(url)
    except InvalidArgument as error:
        raise Misuse(f"--url: {error}") from error


def _secret(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return file.read_text().strip()
    except OSError as error:
        raise Misuse(f"--token-file {file}: {error.strerror}") from error


_DEBUG: dict[str, Any] = {
    "debug": Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")],
}
_LOAD = Annotated[
    list[str] | None,
    typer.Option(metavar="MODULE", help="Import a Python module first; repeatable. [KOLK_LOAD]"),
]
_CONNECTION: dict[str, Any] = {
    "url": Annotated[
        str | None,
        typer.Option("--url", "-u", metavar="URL", help="The database: a folder or kolk://HOST:PORT. [KOLK_URL]"),
    ],
    "token": Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Prove who you are; a file is more private. [KOLK_TOKEN]")
    ],
    "token_file": Annotated[Path | None, typer.Option(metavar="FILE", help="Read the token from this file.")],
    "tls_ca": Annotated[
        str | None, typer.Option(metavar="FILE", help="Authority that the server must be signed by. [KOLK_TLS_CA]")
    ],
    "tls_cert": Annotated[str | None, typer.Option(metavar="FILE", help="Client certificate, for mutual TLS.")],
    "tls_key": Annotated[str | None, typer.Option(metavar="FILE", help="Private key of the client certificate.")],
    "allow_plaintext": Annotated[
        bool, typer.Option("--allow-plaintext", help="Send the token to another machine without TLS.")
    ],
    "load": _LOAD,
}


def local(command: Callable[..., None]) -> Callable[..., None]:
    """A command that works on this machine: it has ``--debug`` alone, and is not told of it."""
    return _extended(command, _DEBUG, is_told=False)


def loading(command: Callable[..., None]) -> Callable[..., None]:
    """A command that works on this machine and may be given modules to load."""
    return _extended(command, {"load": _LOAD, **_DEBUG}, is_told=False)


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """A command that works on a database: it has all the options, and is given them as its first argument."""
    return _extended(command, {**_CONNECTION, **_DEBUG}, is_told=True)


def _extended(command: Callable[..., None], options: dict[str, Any], *, is_told: bool) -> Callable[..., None]:
    own = list(inspect.signature(command).parameters.values())[is_told:]

    def run(ctx: typer.Context, **given: Any) -> None:
        common = ctx.ensure_object(Common)
        for name in options:
            value = given.pop(name)
            if value:
                setattr(common, name, value)
        if "load" in options:
            common.load_modules()
        command(*([common] if is_told else []), **given)

    first = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False if name == "debug" else None, annotation=a
        )
        for name, a in options.items()
    ]
    parameters = [first, *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own), *added]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run
