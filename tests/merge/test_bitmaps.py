"""Bitmaps, against Python's sets."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64
from tests.merge.damage import mutations

from kolk.errors import InvalidRows
from kolk.merge.aggregates.bitmaps import Bitmaps32, Bitmaps64
from kolk.merge.aggregates.states import States
from kolk.merge.groups import Groups

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "sketches.json").read_text())["bitmaps"]
CODECS = {32: Bitmaps32(), 64: Bitmaps64()}
CONTAINERS = [0, 1 << 16, 5 << 16, (1 << 32) - (1 << 16)]


@st.composite
def sets(draw, bits: int = 32) -> set[int]:
    """Sets whose containers are arrays, runs and bitsets, and which are about to become others."""
    found: set[int] = set()
    for _ in range(draw(st.integers(0, 4))):
        base = draw(st.sampled_from(CONTAINERS)) + (draw(st.sampled_from([0, 1, 2**31 - 1])) << 32 if bits == 64 else 0)
        start = draw(st.integers(0, 60_000))
        count, step = draw(st.sampled_from([1, 2, 3, 5, 100, 2049, 4096, 4097, 5000])), draw(st.integers(1, 14))
        found |= {base + (start + step * place) % 65_536 for place in range(count)}
    return found


def built(bits: int, values) -> bytes:
    return CODECS[bits].build(np.array(sorted(values), np.uint32 if bits == 32 else np.uint64))


both = pytest.mark.parametrize("bits", [32, 64])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], "3a30000000000000"),
        ([1, 2, 3], "3a300000010000000000020010000000010002000300"),
        ([1, 5, 70_000], "3a300000020000000000010001000000180000001c000000010005007011"),
    ],
)
def test_a_bitmap_of_32_bits_is_the_bytes_that_fluss_writes(values, expected):
    assert built(32, values).hex() == expected


@pytest.mark.parametrize("name", GOLDEN)
def test_bitmaps_of_every_kind_of_container_stay_the_bytes_that_they_were(name):
    golden = GOLDEN[name]
    expected = bytes.fromhex(golden["head"]) + bytes.fromhex(golden["fill"]) * golden["times"]
    values = {value for start, stop, step in golden["ranges"] for value in range(start, stop, step)}

    assert built(golden["bits"], values) == expected
    assert set(CODECS[golden["bits"]].read(expected)) == values


@both
@given(data=st.data())
def test_the_union_of_parts_is_the_bitmap_of_the_whole_whatever_the_parts(bits, data):
    values = sorted(data.draw(sets(bits)))
    parts = data.draw(st.integers(1, 4))
    owner = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, parts, len(values))

    states = [built(bits, [v for v, o in zip(values, owner, strict=True) if o == part]) for part in range(parts)]

    whole = CODECS[bits].merged(states)
    assert whole == built(bits, values) == CODECS[bits].merged(states[::-1])
    assert whole == CODECS[bits].merged([whole, *states])
    assert set(CODECS[bits].read(whole)) == set(values)
    CODECS[bits].check(whole)


@both
def test_equal_sets_are_equal_bytes_even_where_runs_and_arrays_are_equally_small(bits):
    # Made as a run, {1, 2, 3} stays one in the library: it is as small as the array.
    kind = BitMap if bits == 32 else BitMap64
    run = kind()
    run.add_range(1, 4)
    run.add_range(1 << 20, (1 << 20) + 3)
    run.add_range(1 << 24, 1 << 25)

    array = kind([1, 2, 3]) | kind([(1 << 20) + each for each in range(3)]) | kind(range(1 << 24, 1 << 25))

    assert CODECS[bits].canonical(run) == CODECS[bits].canonical(array)


@both
@given(data=st.data())
def test_wrong_bytes_are_refused_or_are_another_set(bits, data):
    state = built(bits, data.draw(sets(bits)))

    for mutation in mutations(state, data.draw(st.integers(0, 2**32))):
        try:
            found = CODECS[bits].read(mutation)
        except InvalidRows:
            continue
        values = np.array(found.to_array(), np.uint64)
        assert (values[1:] > values[:-1]).all()
        assert CODECS[bits].merged([mutation]) == built(bits, values)


@both
def test_every_bitmap_that_is_cut_off_is_refused(bits):
    state = built(bits, {1, 2, 3, *range(70_000, 80_000), *range(200_000, 260_000, 3)})

    for length in range(len(state)):
        if length < 200 or length % 97 == 0 or length > len(state) - 50:
            with pytest.raises(InvalidRows):
                CODECS[bits].check(state[:length])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("3a3000000100000000000200100000000100030002 00", "not in order"),
        ("3a3000000100000000000200100000000100010003 00", "not in order"),
        ("3a30000002000000010000000000000018000000 1a00000001000100", "keys are not in order"),
        ("3b3000000100000400 0200 0000 0200 0100 0100", "not in order"),  # overlap
        ("3b3000000100000500 0200 0000 0200 0300 0200", "not in order"),  # touch
        ("3b3000000100000200 0100 feff 0200", "not in order"),  # over the end
        ("3b3000000100000300 0100 0100 0200", "other values than it says"),
        ("3b3000000300000200 0100 0100 0200", "more containers than it has"),
        ("3a30000001000000000002001100000001000200 0300", "offsets are wrong"),
        ("3a300000ffffffff", "fewer containers"),
        ("3c30000000000000", "does not begin"),
        ("3a3000000000000000", "bytes behind it"),
        ("", "cut off"),
    ],
)
def test_bytes_that_are_no_bitmap_are_refused_with_the_reason(data, reason):
    with pytest.raises(InvalidRows, match=reason):
        CODECS[32].check(bytes.fromhex(data))


def test_a_bitset_that_has_other_bits_than_it_says_is_refused():
    state = bytearray(built(32, range(0, 65_536, 2)))
    state[-1] ^= 1

    with pytest.raises(InvalidRows, match="other values than it says"):
        CODECS[32].check(bytes(state))


@pytest.mark.parametrize(
    "data",
    [
        "00",
        "0101000000000000000400000000000000000000000000000000000100 0000fe010000000102030000000a0014001e00"
        "01000000000000000000000000000000",
        "0100000000000000 05000000 3a30000000000000",
        "ffffffffffffffff",
    ],
)
def test_what_java_alone_writes_for_64_bits_is_refused_as_no_bitmap(data):
    with pytest.raises(InvalidRows, match="portable"):
        CODECS[64].check(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("bits", "type", "value", "says"),
    [
        (32, pa.int32(), -1, "not -1"),
        (32, pa.int64(), 2**32, "not 4,294,967,296"),
        (64, pa.int64(), -(2**63), "not -9,223,372,036,854,775,808"),
        (32, pa.int8(), -128, "not -128"),
    ],
)
def test_an_integer_that_no_bitmap_holds_is_refused(bits, type, value, says):
    function = States(CODECS[bits], takes_values=True)

    with pytest.raises(InvalidRows, match=says):
        function.accumulate(pa.array([1, None, value], type), Groups(np.array([0]), 3))


@both
def test_groups_of_nulls_have_no_state_and_nulls_add_nothing(bits):
    groups = Groups(np.array([0, 2, 3]), 5)
    values = States(CODECS[bits], takes_values=True)

    states = values.accumulate(pa.array([7, None, None, 9, 8], pa.int16()), groups)

    assert states.to_pylist() == [built(bits, {7}), None, built(bits, {8, 9})]
    assert values.merge(pa.concat_arrays([states, pa.nulls(2, pa.binary())]), groups).to_pylist() == [
        built(bits, {7}),
        built(bits, {8, 9}),
        None,
    ]
    values.check(states)
