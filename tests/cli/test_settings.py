"""A file and flags become the settings of a server; what nobody knows is refused."""

from dataclasses import fields

import pytest

from kolk.cli.settings import SECTIONS, parse_listen, parse_set, read_settings
from kolk.config import Durability, EngineConfig, ServerConfig
from kolk.errors import InvalidArgument


@pytest.fixture
def file(tmp_path):
    return tmp_path / "kolk.toml"


def test_without_a_file_and_flags_everything_is_the_default():
    assert read_settings(None, {}) == (ServerConfig(), EngineConfig())


def test_a_file_sets_both_sections(file):
    file.write_text(
        '[server]\nport = 1\ndrain_seconds = 0.5\nallow_plaintext = true\n[engine]\ndurability = "process"\n'
    )

    server, engine = read_settings(file, {})

    assert (server.port, server.drain_seconds, server.allow_plaintext) == (1, 0.5, True)
    assert engine.durability is Durability.PROCESS


def test_flags_beat_the_file(file):
    file.write_text("[server]\nport = 1\nstreams_max = 2\n")

    server, _ = read_settings(file, {"server.port": 3})

    assert (server.port, server.streams_max) == (3, 2)


def test_every_setting_can_be_set():
    for section, config in SECTIONS.items():
        for field in fields(config):
            name, value = f"{section}.{field.name}", field.default
            text = value.value if isinstance(value, Durability) else "[]" if value == () else str(value).lower()
            if value is not None:
                assert read_settings(None, parse_set([f"{name}={text}"])) == (ServerConfig(), EngineConfig())
    assert read_settings(None, parse_set(["server.backup_folder=/b"]))[0] == ServerConfig(backup_folder="/b")
    for text in ('server.load=["a.b", "c"]', "server.load=['a.b', 'c']"):
        assert read_settings(None, parse_set([text]))[0] == ServerConfig(load=("a.b", "c"))
    assert read_settings(None, parse_set(["server.load=a.b"]))[0].load == ("a.b",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[server]\nprot = 1\n", "did you mean port?"),
        ("[serve]\nport = 1\n", "is not a section"),
        ("port = 1\n", "is not a section"),
        ("[server]\nport = 'x'\n", "port is a number"),
        ("[server]\nhost = 5\n", "server.host is text"),
        ("[server]\ntls_cert = 'a'\n", "go together"),
        ("[engine]\nput_rows_max = 0\n", "positive whole number"),
        ("[engine]\ndurability = 'none'\n", "machine"),
        ("[server\n", "is not TOML"),
    ],
)
def test_what_makes_no_sense_is_refused(file, text, reason):
    file.write_text(text)

    with pytest.raises(InvalidArgument, match=r".") as caught:
        read_settings(file, {})

    assert reason in str(caught.value)


def test_a_file_that_is_not_there_is_refused(file):
    with pytest.raises(InvalidArgument, match="No such file"):
        read_settings(file, {})


@pytest.mark.parametrize("name", ["port", "server.prot", "console.port", "server"])
def test_a_flag_that_nobody_knows_is_refused(name):
    with pytest.raises(InvalidArgument):
        read_settings(None, parse_set([f"{name}=1"]))


def test_values_are_read_as_toml_or_else_as_text():
    assert parse_set(["a=5", "b=0.5", "c=true", "d=127.0.0.1", 'e="x=y"']) == {
        "a": 5,
        "b": 0.5,
        "c": True,
        "d": "127.0.0.1",
        "e": "x=y",
    }


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("0.0.0.0:80", "0.0.0.0", 80),
        ("localhost", "localhost", None),
        (":80", None, 80),
        ("[::1]:80", "::1", 80),
        ("[::1]", "::1", None),
    ],
)
def test_an_address_to_listen_on_is_split(text, host, port):
    expected = {"server.host": host, "server.port": port}

    assert parse_listen(text) == {name: value for name, value in expected.items() if value is not None}


@pytest.mark.parametrize("text", ["localhost:http", "::1", "::1:80", "9123"])
def test_an_address_that_cannot_be_split_is_refused(text):
    with pytest.raises(InvalidArgument, match="--listen"):
        parse_listen(text)
