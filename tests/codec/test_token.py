"""Resume tokens: what was written is read, and nothing else is."""

import base64
import hmac

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kolk.codec.key import KEY_BYTES_MAX
from kolk.codec.token import KEY_BYTES, Token, Tokens
from kolk.errors import InvalidArgument
from kolk.model.scan import Place

KEY = bytes(range(KEY_BYTES))
NUMBERS = st.integers(0, 2**63 - 1)
TOKENS = st.builds(
    Token,
    scan=st.binary(min_size=16, max_size=16).map(bytes.hex),
    query=st.binary(min_size=16, max_size=16),
    place=st.builds(Place, partition=NUMBERS, bucket=NUMBERS, after=st.binary(max_size=100), delivered=NUMBERS),
)


@given(token=TOKENS)
def test_a_token_that_is_read_is_the_one_that_was_written(token):
    assert Tokens(KEY).decode(Tokens(KEY).encode(token)) == token


@given(token=TOKENS)
def test_a_token_may_stand_in_a_url(token):
    assert set(Tokens(KEY).encode(token)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=")


def test_the_longest_key_fits_into_a_token():
    token = Token("00" * 16, b"q" * 16, Place(2**63 - 1, 2**63 - 1, b"\xff" * KEY_BYTES_MAX, 2**63 - 1))

    assert Tokens(KEY).decode(Tokens(KEY).encode(token)) == token


@given(token=TOKENS, data=st.data())
def test_a_token_with_any_bit_flipped_is_refused(token, data):
    """In the text, where a bit may make any other character, or one that base64 would overlook."""
    text = Tokens(KEY).encode(token).encode()
    place, bit = data.draw(st.integers(0, len(text) - 1)), data.draw(st.integers(0, 7))
    flipped = text[:place] + bytes([text[place] ^ 1 << bit]) + text[place + 1 :]

    with pytest.raises(InvalidArgument, match="no resume token"):
        Tokens(KEY).decode(flipped.decode("latin-1"))


@pytest.mark.parametrize("length", range(4))
def test_every_bit_of_a_token_counts(length):
    """Of tokens of every length that base64 pads in its own way."""
    text = Tokens(KEY).encode(Token("ab" * 16, b"q" * 16, Place(1, 2, b"k" * length, 3))).encode()

    for place in range(len(text)):
        for bit in range(8):
            flipped = text[:place] + bytes([text[place] ^ 1 << bit]) + text[place + 1 :]
            with pytest.raises(InvalidArgument):
                Tokens(KEY).decode(flipped.decode("latin-1"))


@given(token=TOKENS, data=st.data())
def test_a_token_that_is_cut_is_refused(token, data):
    text = Tokens(KEY).encode(token)
    start, end = sorted([data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))])

    if (start, end) != (0, len(text)):
        with pytest.raises(InvalidArgument, match="no resume token"):
            Tokens(KEY).decode(text[start:end])


@given(token=TOKENS, place=st.integers(0, 60), junk=st.sampled_from(["!", " ", "\n", "=", "é", "\0", "A"]))
def test_a_token_with_something_put_in_is_refused(token, place, junk):
    text = Tokens(KEY).encode(token)

    with pytest.raises(InvalidArgument, match="no resume token"):
        Tokens(KEY).decode(text[:place] + junk + text[place:])


@given(token=TOKENS, key=st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES).filter(lambda key: key != KEY))
def test_a_token_of_another_database_is_refused(token, key):
    with pytest.raises(InvalidArgument, match="no resume token"):
        Tokens(KEY).decode(Tokens(key).encode(token))


@given(version=st.integers(0, 2**31).filter(lambda version: version != 1), rest=st.lists(NUMBERS, max_size=9))
@example(version=2, rest=[])
def test_a_token_of_another_version_is_refused_by_its_version(version, rest):
    """Whatever it holds besides: the version comes first for ever."""
    payload = msgspec.msgpack.encode([version, *rest])
    code = hmac.digest(KEY, payload, "sha256")[:16]
    text = base64.urlsafe_b64encode(payload + code).decode()

    with pytest.raises(InvalidArgument, match=f"version {version}"):
        Tokens(KEY).decode(text)


@given(text=st.text(max_size=200) | st.text("abcdefABCDEF0123-_=", max_size=200))
def test_garbage_is_refused_as_invalid_and_nothing_else(text):
    with pytest.raises(InvalidArgument):
        Tokens(KEY).decode(text)


@pytest.mark.parametrize("given_", [None, b"AAAA", 7, ["AAAA"], "A" * (2 * KEY_BYTES_MAX + 4)])
def test_what_is_no_text_or_too_long_is_refused(given_):
    with pytest.raises(InvalidArgument):
        Tokens(KEY).decode(given_)
