"""The formats of output, and which one is meant where none is named."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kolk.cli.failures import Misuse


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


FormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="table, json, jsonl, csv, arrow or parquet.  [default: table on a terminal, jsonl in a pipe]",
    ),
]
DescriptionFormatOption = Annotated[
    Format | None,
    typer.Option(
        "--format",
        "-f",
        metavar="FORMAT",
        help="table, json or jsonl.  [default: table on a terminal, jsonl in a pipe]",
    ),
]
"""For what is no rows, and so has no form in the others."""
_ENDINGS = {
    ".json": Format.JSON,
    ".jsonl": Format.JSONL,
    ".ndjson": Format.JSONL,
    ".csv": Format.CSV,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".parquet": Format.PARQUET,
}


def chosen(given: Format | None, output: Path | None = None) -> Format:
    """The format that was given, or fits the file's name, or else the one for whoever reads stdout."""
    if output is not None:
        _check_output(output, given)
        format = given or _ENDINGS.get(output.suffix.lower())
        if format is None or format is Format.TABLE:
            raise Misuse(f"-o {output}: say which format with -f json, jsonl, csv, arrow or parquet")
        return format
    is_seen = sys.stdout.isatty()
    if is_seen and given is not None and given in (Format.ARROW, Format.PARQUET):
        raise Misuse(f"{given.value} is not for the eye; write it to a file with -o FILE, or into a pipe")
    return given or (Format.TABLE if is_seen else Format.JSONL)


def _check_output(output: Path, given: Format | None) -> None:
    """Refuse a file that cannot be, before anything is read for it."""
    if output.suffix.lower() == ".gz":  # `kolk put` goes by the ending, too, and would find that it is not packed
        format = given or _ENDINGS.get(Path(output.stem).suffix.lower()) or Format.CSV
        raise Misuse(f"-o {output}: Kolk does not compress; leave -o out and write ... -f {format} | gzip > {output}")
    if not output.parent.is_dir():
        raise Misuse(f"-o {output}: there is no folder {output.parent}")
