"""Numbers in few bytes: they come back, in one form only, and nothing else is read for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kolk.codec.varint import VarintReader, put_bytes, put_signed, put_varint
from kolk.errors import Corrupted

UNSIGNED = st.integers(0, 2**64 - 1) | st.integers(0, 200)
SIGNED = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)


def read(data, how):
    reader = VarintReader(bytes(data), "it")
    value = getattr(reader, how)()
    reader.end()
    return value


@pytest.mark.parametrize(("value", "data"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02")])
def test_a_number_takes_as_many_bytes_as_it_needs(value, data):
    out = bytearray()
    put_varint(out, value)

    assert out.hex() == data


@pytest.mark.parametrize(("value", "data"), [(0, "00"), (-1, "01"), (1, "02"), (-2, "03"), (-64, "7f"), (64, "8001")])
def test_a_negative_number_takes_no_more_than_its_opposite(value, data):
    out = bytearray()
    put_signed(out, value)

    assert out.hex() == data


@given(UNSIGNED)
def test_a_number_comes_back(value):
    out = bytearray()
    put_varint(out, value)

    assert read(out, "varint") == value
    assert len(out) <= 10


@given(SIGNED)
def test_a_signed_number_comes_back(value):
    out = bytearray()
    put_signed(out, value)

    assert read(out, "signed") == value


@given(st.binary(max_size=300), st.text(max_size=100))
def test_bytes_and_texts_come_back(value, text):
    out = bytearray()
    put_bytes(out, value)
    put_bytes(out, text.encode())
    reader = VarintReader(bytes(out), "it")

    assert (reader.counted(), reader.text()) == (value, text)
    reader.end()


@given(st.binary(max_size=12))
def test_whatever_is_read_as_a_number_is_its_only_form(data):
    reader = VarintReader(data, "it")
    try:
        value = reader.varint()
    except Corrupted:
        return
    out = bytearray()
    put_varint(out, value)

    assert data.startswith(out)


@pytest.mark.parametrize("data", ["", "80", "8000", "ffffffffffffffffff02", "ffffffffffffffffffff01"])
def test_what_is_no_number_is_refused(data):
    """Cut off, longer than it need be, more than 64 bits."""
    with pytest.raises(Corrupted, match="it cannot be read"):
        read(bytes.fromhex(data), "varint")


@pytest.mark.parametrize(("data", "how"), [("02ff", "counted"), ("01ff", "text"), ("0000", "varint")])
def test_what_is_cut_off_or_no_text_or_goes_on_is_refused(data, how):
    with pytest.raises(Corrupted):
        read(bytes.fromhex(data), how)
