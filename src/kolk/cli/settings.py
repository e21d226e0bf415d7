"""From a TOML file and flags to the settings of a server.

The file has the sections ``[server]`` and ``[engine]``, with the names that ``ServerConfig`` and ``EngineConfig`` give
their fields. A name that nobody knows is an error, because a setting that is silently not made is worse than none.
Flags beat the file. Nothing here looks at the environment.
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from kolk.config import EngineConfig, ServerConfig
from kolk.errors import InvalidArgument

SECTIONS: dict[str, type[ServerConfig] | type[EngineConfig]] = {"server": ServerConfig, "engine": EngineConfig}
Settings = dict[str, dict[str, Any]]


def read_settings(file: Path | None, flags: Mapping[str, Any]) -> tuple[ServerConfig, EngineConfig]:
    """The settings of this file, overruled by flags such as ``{"server.port": 9123}``."""
    settings = {name: dict(section) for name, section in _sections(file).items()}
    for name, value in flags.items():
        section, _, field = name.partition(".")
        _check_known(section, field, name)
        settings[section][field] = value
    for section in SECTIONS:
        _check_texts(section, settings[section])
    return ServerConfig(**settings["server"]), EngineConfig(**settings["engine"])


def parse_set(pairs: Sequence[str]) -> dict[str, Any]:
    """``--set server.streams_max=100``: the value is read as TOML reads it, or else is plain text."""
    given: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InvalidArgument(f"--set {pair}: write SECTION.NAME=VALUE, such as server.streams_max=100")
        try:
            given[name.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            given[name.strip()] = text
    return given


def parse_listen(text: str) -> dict[str, Any]:
    """``HOST:PORT``, ``HOST`` or ``:PORT``; an IPv6 address stands in brackets."""
    host, port = text, ""
    if not text.endswith("]") and ":" in text:
        host, _, port = text.rpartition(":")
    if text.isascii() and text.isdigit():  # to the system it is an address, 0.0.35.163, but nobody means that
        raise InvalidArgument(f"--listen {text}: write HOST:PORT, such as 127.0.0.1:{text}")
    if (port and not (port.isascii() and port.isdigit())) or (":" in host and not host.startswith("[")):
        raise InvalidArgument(f"--listen {text}: write HOST:PORT, such as 127.0.0.1:9123 or [::1]:9123")
    given: dict[str, Any] = {"server.host": host.strip("[]")} if host else {}
    return given | ({"server.port": int(port)} if port else {})


def _sections(file: Path | None) -> Settings:
    empty: Settings = {name: {} for name in SECTIONS}
    if file is None:
        return empty
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgument(f"{file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{file} is not TOML: {error}") from error
    for section, names in found.items():
        if section not in SECTIONS or not isinstance(names, dict):
            raise InvalidArgument(f"{file}: {section!r} is not a section; they are [server] and [engine]")
        for field in names:
            _check_known(section, field, f"{file}: [{section}] {field}")
    return {**empty, **found}


def _check_known(section: str, field: str, shown: str) -> None:
    if section not in SECTIONS:
        raise InvalidArgument(f"{shown}: a setting starts with server. or engine.")
    known = [one.name for one in fields(SECTIONS[section])]
    if field not in known:
        near = difflib.get_close_matches(field, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the settings are {', '.join(known)}"
        raise InvalidArgument(f"{shown}: there is no such setting; {hint}")


def _check_texts(section: str, settings: Mapping[str, Any]) -> None:
    """Numbers are checked by the settings themselves; what is left is text."""
    for one in fields(SECTIONS[section]):
        value = settings.get(one.name, "")
        if (one.default is None or isinstance(one.default, str)) and not isinstance(value, str):
            raise InvalidArgument(f"{section}.{one.name} is text, not {value!r}; write it in quotes")
