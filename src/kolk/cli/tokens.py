"""``kolk token``: who may use a server, told in the folder that it serves.

A token is made where the data lies: whoever can read the folder can read the data, so there is nothing to ask first. A
running server notices within a second.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kolk.cli.commands import App
from kolk.cli.common import folder_of, local
from kolk.cli.durations import seconds_of
from kolk.cli.formats import Format, FormatOption, chosen
from kolk.cli.notes import note
from kolk.errors import NotFound
from kolk.runtime.clock import SystemClock

if TYPE_CHECKING:
    from kolk.server.tokens import Tokens

app = App(no_args_is_help=True, rich_markup_mode=None, help="Make, list and revoke the tokens of a server.")

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", parser=folder_of, help="The folder that the server serves.")
]


@app.command()
@local
def create(
    folder: FolderArgument,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="Whose it is; several may share a name.")],
    allow: Annotated[
        list[str], typer.Option("--allow", metavar="GRANT", help="Such as 'web.*=read,write' or '*=all'; repeatable.")
    ],
    ttl: Annotated[str | None, typer.Option(metavar="TIME", help="It ends after this, such as 30d.")] = None,
) -> None:
    """Make a token. Its secret is written to stdout, once: nobody can ask for it again.

    \b
    kolk token create ./data --name etl --allow 'web.*=read,write' --ttl 30d > etl.token
    """
    from kolk.model.grant import Grant

    grants = [Grant.parse(text) for text in allow]
    token, secret = _tokens(folder, create=True).create(name, grants, None if ttl is None else seconds_of(ttl))
    sys.stdout.write(secret + "\n")
    note(f"token {token.id} of {token.name}: {'; '.join(map(str, token.grants))}")
    note("keep the secret now, it is not shown again; give it as KOLK_TOKEN or --token-file")


@app.command("list")
@local
def list_(folder: FolderArgument, format: FormatOption = None) -> None:
    """List the tokens, without their secrets."""
    import pyarrow as pa

    from kolk.cli.writers import moments_column, names_column, write_list

    style = chosen(format)
    tokens = _tokens(folder).list()
    now_ms = SystemClock().now_ms()
    rows = {
        "id": pa.array([token.id for token in tokens], pa.string()),
        "name": pa.array([token.name for token in tokens], pa.string()),
        "state": pa.array([token.state(now_ms).value for token in tokens], pa.string()),
        "allow": names_column([[str(grant) for grant in token.grants] for token in tokens], style),
        "created": moments_column([token.created_ms for token in tokens], style),
        "expires": moments_column([token.expires_ms for token in tokens], style),
    }
    write_list(pa.table(rows), style)
    if style is Format.TABLE and not tokens:
        note("there are no tokens; whoever can reach the server may do everything")


@app.command()
@local
def revoke(
    folder: FolderArgument, id: Annotated[str, typer.Argument(metavar="ID", help="As the list has it.")]
) -> None:
    """End a token, for good; calls that use it end within a second."""
    token = _tokens(folder).revoke(id)
    note(f"revoked {token.id} of {token.name}")


def _tokens(folder: Path, *, create: bool = False) -> "Tokens":
    from kolk.runtime.folder import TOKENS_FILE
    from kolk.server.tokens import Tokens

    if not create and not folder.is_dir():
        raise NotFound(f"there is no folder {folder}")
    return Tokens(folder / TOKENS_FILE)
