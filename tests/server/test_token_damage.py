"""Damage to the file of tokens: whatever happened to it, nobody is let in, and nothing is repaired by guessing."""

import errno
import json
import os

import pytest

from kolk.errors import Corrupted, Unauthenticated, UnknownFormat
from kolk.model.grant import Grant
from kolk.runtime.disk import OsDisk
from kolk.runtime.rng import Rng
from kolk.server.tokens import Tokens, _encoded, _Stored

READ_WEB = (Grant.parse("web.*=read"),)


class BrokenDisk(OsDisk):
    """Fails to open a file when told so."""

    failure: OSError | None = None

    def open_reader(self, path):
        if self.failure is not None:
            raise self.failure
        return super().open_reader(path)


@pytest.fixture
def disk():
    return BrokenDisk()


def damaged(text: str) -> list[bytes]:
    """Ways in which the file may be no longer what was written."""
    content = json.loads(text)
    more = json.loads(text)
    more["tokens"][0]["grants"] = ["*=all"]
    flipped = text.replace('"expires_ms": null', '"expires_ms": 1')
    twice = dict(content, tokens=content["tokens"] * 2)
    assert flipped != text
    return [
        b"",
        b"\0" * len(text),
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"format": "1"}',
        b'{"format": 1, "check": "", "tokens": 7}',
        text.encode()[:-10],
        text.encode() + b"{}",
        flipped.encode(),
        json.dumps(more).encode(),
        json.dumps(twice).encode(),
        json.dumps(dict(content, check="")).encode(),
        json.dumps(dict(content, check="é")).encode(),
    ]


@pytest.mark.parametrize("case", range(16))
def test_a_damaged_file_lets_nobody_in_and_is_left_as_it_is(tokens, path, clock, case):
    _, secret = tokens.create("etl", READ_WEB)
    principal = tokens.authenticate(secret)
    good = path.read_bytes()
    bad = damaged(good.decode())[case]
    path.write_bytes(bad)
    clock.advance(seconds=1)
    calls = [
        lambda: tokens.authenticate(secret),
        lambda: tokens.authenticate("nonsense"),
        lambda: tokens.is_valid(principal),
        lambda: tokens.any,
        lambda: tokens.exist,
        lambda: tokens.create("other", READ_WEB),
        lambda: tokens.revoke(principal.token_id),
        tokens.list,
    ]

    for call in calls:
        with pytest.raises(Corrupted, match=r"^tokens\.json cannot be used .* nobody is let in"):
            call()
    assert path.read_bytes() == bad

    path.write_bytes(good)
    clock.advance(seconds=1)
    assert tokens.is_valid(principal)
    assert tokens.authenticate(secret) == principal


def test_a_file_with_a_fitting_check_but_a_salt_that_is_none_is_refused(tokens, path):
    token, _ = tokens.create("etl", READ_WEB)
    path.write_bytes(_encoded([_Stored(token, "salt", "digest")]))

    with pytest.raises(Corrupted):
        tokens.list()


def test_a_file_of_a_newer_version_lets_nobody_in(tokens, path):
    path.write_text('{"format": 2, "tokens": {"other": "shape"}}')

    with pytest.raises(UnknownFormat, match="upgrade Kolk"):
        tokens.authenticate(f"kolk_{'0' * 16}_{'0' * 64}")


def test_a_huge_file_is_not_read(tokens, path):
    with path.open("wb") as file:
        os.truncate(file.fileno(), 2**40)

    with pytest.raises(Corrupted, match="more than it can have"):
        tokens.list()


def test_a_file_that_cannot_be_read_lets_nobody_in_until_it_can(tokens, path, clock, disk):
    _, secret = tokens.create("etl", READ_WEB)
    principal = tokens.authenticate(secret)
    disk.failure = OSError(errno.EMFILE, "Too many open files", "the/path/of/it")
    Tokens(path, clock, Rng(seed=2)).create("other", READ_WEB)
    clock.advance(seconds=1)

    with pytest.raises(Corrupted, match="Too many open files") as caught:
        tokens.authenticate(secret)
    assert "the/path" not in str(caught.value)
    with pytest.raises(Corrupted):
        tokens.is_valid(principal)

    disk.failure = None
    clock.advance(seconds=1)
    assert tokens.is_valid(principal)


def test_a_file_that_was_removed_lets_nobody_in(tokens, path, clock):
    _, secret = tokens.create("etl", READ_WEB)
    principal = tokens.authenticate(secret)

    path.unlink()
    clock.advance(seconds=1)

    assert not tokens.is_valid(principal)
    with pytest.raises(Unauthenticated, match="not known"):
        tokens.authenticate(secret)
