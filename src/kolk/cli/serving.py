"""``kolk serve``: settings from a file and from flags, and then the server."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from kolk.cli.common import folder_of, local
from kolk.cli.failures import Misuse
from kolk.cli.settings import parse_listen, parse_set, read_settings
from kolk.config import EngineConfig, ServerConfig
from kolk.errors import InvalidArgument


class Level(StrEnum):
    """What an acknowledged put survives."""

    MACHINE = "machine"
    PROCESS = "process"


def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", parser=folder_of, help="The database; made if it is not there.")
    ],
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="For clients.  [default: 127.0.0.1:9123]")
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", help="For health and metrics; 0 for a free one, -1 for none.  [default: 9124]"),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificate chain; encrypts everything.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="Private key of the certificate.")] = None,
    tls_client_ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="Clients must have a certificate of this authority.")
    ] = None,
    allow_plaintext: Annotated[
        bool | None, typer.Option("--allow-plaintext", help="Listen beyond this machine without TLS.")
    ] = None,
    durability: Annotated[
        Level | None,
        typer.Option(
            metavar="LEVEL",
            help="What an acknowledged put survives: machine, a power cut; process, the process's end.",
        ),
    ] = None,
    load: Annotated[
        list[str] | None, typer.Option(metavar="MODULE", help="Import a Python module first; repeatable.")
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="TOML with [server] and [engine].")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting; repeatable.")
    ] = None,
) -> None:
    """Serve a database over the network, until SIGTERM or Ctrl-C.

    Flags beat the file. docs/configuration.md has all settings.

    \b
    kolk serve ./data
    kolk serve ./data --listen 0.0.0.0:9123 --tls-cert cert.pem --tls-key key.pem
    kolk serve ./data --config kolk.toml --set server.streams_max=100
    kolk serve ./data --load my_aggregates
    """
    named: dict[str, Any] = {
        "server.http_port": http_port,
        "server.tls_cert": tls_cert,
        "server.tls_key": tls_key,
        "server.tls_client_ca": tls_client_ca,
        "server.allow_plaintext": allow_plaintext,
        "server.load": load or None,
        "engine.durability": durability and durability.value,
    }
    flags = {name: value for name, value in named.items() if value is not None}
    server_config, engine_config = _settings(config, setting or [], flags, listen)
    from kolk.server.run import serve as run

    run(folder, server_config, engine_config)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(local(serve))


def _settings(
    file: Path | None, pairs: list[str], flags: dict[str, Any], listen: str | None
) -> tuple[ServerConfig, EngineConfig]:
    """All settings together. They are how the command is used, wherever they were written down, so a wrong one is
    misuse."""
    try:
        flags |= parse_listen(listen) if listen is not None else {}
        return read_settings(file, parse_set(pairs) | flags)
    except InvalidArgument as error:
        raise Misuse(str(error)) from error
