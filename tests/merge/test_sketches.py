"""Sketches, against the library they are for, and against bytes that nobody should have written."""

import json
import struct
from pathlib import Path

import datasketches
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.merge.damage import mutations

from kolk.errors import AggregateOverflow, InvalidRows
from kolk.merge.aggregates import cpc, hll, kll, theta
from kolk.merge.aggregates.states import States
from kolk.merge.groups import Groups

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "sketches.json").read_text())["sketches"]
CODECS = {"hll": hll.Hll, "theta": theta.Theta, "cpc": cpc.Cpc, "kll": kll.Kll}
MODULES = {"hll": hll, "theta": theta, "cpc": cpc, "kll": kll}
DISTINCT = [("hll", 4), ("hll", 8), ("hll", 12), ("theta", 5), ("theta", 12), ("cpc", 4), ("cpc", 11)]
SIZES = [0, 1, 2, 7, 8, 9, 24, 25, 30, 100, 200, 1000, 5000]

distinct = pytest.mark.parametrize(("name", "lg_k"), DISTINCT)


def built(name: str, parameter: int, values) -> bytes:
    return CODECS[name](parameter).build(values)


def estimate(name: str, state: bytes) -> float:
    return MODULES[name].sketch_of(state).get_estimate()


def library(name: str, lg_k: int, values):
    kinds = {
        "hll": datasketches.hll_sketch,
        "theta": datasketches.update_theta_sketch,
        "cpc": datasketches.cpc_sketch,
    }
    sketch = kinds[name](lg_k)
    for value in values:
        sketch.update(value)
    return sketch


@pytest.mark.parametrize("name", GOLDEN)
def test_sketches_stay_readable_and_say_what_they_said(name):
    golden = GOLDEN[name]
    function, parameter, values = golden["function"], golden["parameter"], golden["values"]
    state = bytes.fromhex(golden["bytes"])

    CODECS[function](parameter).check(state)

    assert CODECS[function](parameter).merged([state]) == state
    if function == "kll":
        found = kll.sketch_of(state)
        assert found.n == values
        assert golden["estimate"] is None or found.get_quantile(0.5, True) == golden["estimate"]
    else:
        assert estimate(function, state) == pytest.approx(golden["estimate"], rel=1e-12)
        assert built(function, parameter, list(range(values))) == state


@distinct
@given(data=st.data())
def test_the_union_of_parts_is_the_sketch_of_the_whole_whatever_the_parts(name, lg_k, data):
    codec, count = CODECS[name](lg_k), data.draw(st.sampled_from(SIZES))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    values = rng.integers(0, 2**62, count).tolist()
    cuts = sorted(data.draw(st.lists(st.integers(0, count), max_size=3)))

    states = [codec.build(part.tolist()) for part in np.split(np.array(values, np.int64), cuts)]
    whole = codec.merged(states)

    assert whole == codec.build(values) == codec.build(values[::-1] + values)
    assert whole == codec.merged(states[::-1]) == codec.merged([whole, *states]) == codec.merged([whole])
    codec.check(whole)


@pytest.mark.parametrize(("name", "lg_k", "error"), [("hll", 12, 0.0163), ("theta", 12, 0.0157), ("cpc", 11, 0.0154)])
@pytest.mark.parametrize("count", [10, 1000, 20_000])
def test_an_estimate_is_within_its_error(name, lg_k, error, count):
    for seed in range(5):
        found = estimate(name, built(name, lg_k, list(range(seed << 32, (seed << 32) + count))))

        assert abs(found - count) <= max(4 * error * count, 0.01)


@pytest.mark.parametrize("kind", ["HLL_4", "HLL_6", "HLL_8"])
@pytest.mark.parametrize("lg_k", [4, 8, 12])
@pytest.mark.parametrize("count", SIZES)
def test_every_form_of_an_hll_sketch_is_read_as_what_it_is(kind, lg_k, count):
    sketch = datasketches.hll_sketch(lg_k, getattr(datasketches, kind))
    for value in range(count):
        sketch.update(value)
    codec, expected = hll.Hll(lg_k), built("hll", lg_k, list(range(count)))

    for state in (sketch.serialize_compact(), sketch.serialize_updatable()):
        codec.check(state)
        assert codec.merged([state]) == expected


def test_hll_registers_are_what_the_library_would_have_written_but_for_hip():
    values = list(range(5000))
    sketch = datasketches.hll_sketch(12, datasketches.HLL_8)
    for value in values:
        sketch.update(value)

    assert built("hll", 12, values)[16:] == sketch.serialize_compact()[16:]


@pytest.mark.parametrize("count", SIZES)
def test_a_theta_sketch_is_what_the_unions_of_the_library_write(count):
    union = datasketches.theta_union(8)
    union.update(library("theta", 8, range(count)))

    assert built("theta", 8, list(range(count))) == union.get_result().serialize()


def test_finer_hll_sketches_are_made_coarser_and_coarser_ones_refused():
    values = list(range(5000))

    assert hll.Hll(8).merged([built("hll", 12, values)]) == built("hll", 8, values)
    with pytest.raises(InvalidRows, match="lg_k is 8, the column's is 12"):
        hll.Hll(12).check(built("hll", 8, values))


@pytest.mark.parametrize("lg_k", [10, 12])
def test_a_cpc_sketch_of_another_lg_k_is_refused(lg_k):
    with pytest.raises(InvalidRows, match=f"lg_k is {lg_k}, the column's is 11"):
        cpc.Cpc(11).check(built("cpc", lg_k, [1, 2, 3]))


def test_a_kll_sketch_of_a_smaller_k_is_refused_and_of_a_larger_one_made_smaller():
    large = built("kll", 400, np.arange(5000.0))

    assert kll.sketch_of(kll.Kll(200).merged([large])).k == 200
    with pytest.raises(InvalidRows, match="k is 200, the column's is 400"):
        kll.Kll(400).check(built("kll", 200, np.arange(5000.0)))


@pytest.mark.parametrize(("name", "at"), [("theta", 6), ("cpc", 6)])
def test_a_sketch_of_another_seed_is_refused(name, at):
    state = bytearray(built(name, 11, [1, 2, 3]))
    state[at] ^= 1

    with pytest.raises(InvalidRows, match="another seed"):
        CODECS[name](11).check(bytes(state))


@pytest.mark.parametrize("name", ["hll", "theta", "cpc"])
def test_values_are_hashed_as_the_library_hashes_them(name):
    columns = [
        (pa.array([1, -1, 1], pa.int8()), [1, -1]),
        (pa.array([True, False]), [1, 0]),
        (pa.array([0.5, -0.0, float("nan")], pa.float32()), [0.5, 0.0, float("nan")]),
        (pa.array(["é", "a\0b", ""]), ["é", "a\0b"]),
        (pa.array([b"\xc3\xa9", b"a"], pa.binary()), ["é", "a"]),
        (pa.array([b"ab"], pa.binary(2)), ["ab"]),
    ]

    for given_, expected in columns:
        state = States(CODECS[name](11), takes_values=True).accumulate(given_, Groups(np.array([0]), len(given_)))

        assert state[0].as_py() == built(name, 11, expected)


def test_bytes_that_are_no_text_count_each_for_itself():
    values = [b"\xff", b"\xfe", b"\xff", b"\xc3\xbf"]  # the last one is the text ÿ

    assert round(estimate("theta", built("theta", 12, theta.Theta(12).values(pa.array(values))))) == 3


def test_dates_and_lists_are_not_hashed():
    with pytest.raises(InvalidRows, match="not values of date32"):
        hll.Hll(12).values(pa.array([0], pa.date32()))


def test_nan_is_no_number_to_a_kll_sketch_and_infinity_is_one():
    state = built("kll", 200, np.array([np.nan, 1.0, np.inf, -np.inf, np.nan]))

    kll.Kll(200).check(state)
    assert kll.sketch_of(state).n == 3
    assert kll.sketch_of(built("kll", 200, np.array([np.nan]))).is_empty()


@pytest.mark.parametrize("count", [10, 1000, 100_000])
def test_quantiles_are_within_their_error(count):
    values = np.random.default_rng(count).permutation(count).astype(float)

    sketch = kll.sketch_of(kll.Kll(200).merged([built("kll", 200, part) for part in np.array_split(values, 7)]))

    assert sketch.n == count
    for share in (0.01, 0.25, 0.5, 0.99):
        assert abs(sketch.get_quantile(share, True) / count - share) <= 0.03 + 1 / count


def test_what_adds_nothing_to_a_kll_sketch_leaves_its_bytes_as_they_are():
    codec, empty = kll.Kll(200), built("kll", 200, np.array([]))
    state = codec.build(np.arange(5000.0))

    assert codec.merged([state]) == codec.merged([empty, state, empty]) == state
    assert codec.merged([empty, empty]) == empty


def test_a_kll_sketch_of_more_values_than_can_be_counted_is_refused():
    levels = 60
    room = kll._capacity(8, levels)
    bounds = struct.pack(f"<{levels}I", *([room - 2] * (levels - 1)), room - 1)
    counts = struct.pack("<QHBB", 2**58 + 2**59, 8, levels, 0)
    state = bytes([5, 1, 15, 0, 8, 0, 8, 0]) + counts + bounds + struct.pack("<4d", 1, 2, 1, 2)

    kll.Kll(8).check(state)
    with pytest.raises(AggregateOverflow):
        kll.Kll(8).merged([state, state])


def states_of(name: str, parameter: int) -> list[bytes]:
    numbers = [np.random.default_rng(size).normal(size=size) for size in SIZES]
    ours = [built(name, parameter, values if name == "kll" else values.tolist()) for values in numbers]
    if name == "cpc":  # with HIP too
        ours += [library(name, parameter, values.tolist()).serialize() for values in numbers]
    if name == "hll":
        for values in numbers:
            for kind in (datasketches.HLL_4, datasketches.HLL_6):
                sketch = datasketches.hll_sketch(parameter, kind)
                for value in values.tolist():
                    sketch.update(value)
                ours += [sketch.serialize_compact(), sketch.serialize_updatable()]
    return ours


HONEST = {
    (name, parameter): states_of(name, parameter)
    for name, parameter in [("hll", 8), ("theta", 5), ("cpc", 4), ("cpc", 8), ("kll", 8), ("kll", 200)]
}


@pytest.mark.parametrize(("name", "parameter"), HONEST)
@given(data=st.data())
def test_wrong_bytes_are_refused_or_are_another_sketch(name, parameter, data):
    codec, honest = CODECS[name](parameter), data.draw(st.sampled_from(HONEST[name, parameter]))

    for mutation in mutations(honest, data.draw(st.integers(0, 2**32))):
        try:
            codec.check(mutation)
        except InvalidRows:
            continue
        merged = codec.merged([mutation, honest])
        codec.check(merged)
        if name == "kll":
            found = kll.sketch_of(merged)
            assert found.is_empty() or found.get_rank(np.inf, True) == pytest.approx(1)
        else:
            assert codec.merged([merged, mutation]) == merged
            assert estimate(name, merged) >= 0


@pytest.mark.parametrize(("name", "parameter"), HONEST)
def test_every_sketch_that_is_cut_off_is_refused(name, parameter):
    for honest in HONEST[name, parameter][:12]:
        for length in range(min(len(honest), 300)):
            with pytest.raises(InvalidRows):
                CODECS[name](parameter).check(honest[:length])


@given(data=st.data())
def test_levels_of_a_kll_sketch_may_be_as_strange_as_their_numbers_allow(data):
    # The library makes room for as many levels as the values call for: with an empty one on top it wrote past it.
    k, levels = data.draw(st.sampled_from([8, 20, 200])), data.draw(st.integers(1, 50))
    room = kll._capacity(k, levels)
    sizes = [data.draw(st.integers(0, min(room // levels, 30))) for _ in range(levels)]
    count = sum(size << height for height, size in enumerate(sizes))
    values = np.concatenate([np.sort(np.random.default_rng(height).normal(size=s)) for height, s in enumerate(sizes)])
    bounds = np.cumsum([0, *sizes])[:-1] + room - sum(sizes)
    state = bytes([5, 1, 15, 0]) + struct.pack("<HBB", k, 8, 0) + struct.pack("<QHBB", count, k, levels, 0)
    state += bounds.astype("<u4").tobytes() + struct.pack("<2d", -100, 100) + values.astype("<f8").tobytes()
    codec = kll.Kll(k)

    if count < 2 or not sizes[-1]:
        with pytest.raises(InvalidRows):
            codec.check(state)
        return
    codec.check(state)

    merged = codec.merged([state, codec.build(np.arange(100.0)), state])

    codec.check(merged)
    assert kll.sketch_of(merged).n == 2 * count + 100


@pytest.mark.parametrize(("entries", "reason"), [(400, "too short"), (600, "too long|too short")])
def test_tables_of_a_cpc_sketch_that_nobody_hashed_are_refused(entries, reason):
    state = bytearray(built("cpc", 8, list(range(5000))))
    assert state[5] == 2 | 8 | 16, "it has a table beside its window"
    struct.pack_into("<I", state, 12, entries)

    with pytest.raises(InvalidRows, match=reason):
        cpc.Cpc(8).check(bytes(state))


def test_many_cpc_sketches_at_once_are_united_as_they_are_one_by_one():
    codec, rng = cpc.Cpc(4), np.random.default_rng(7)
    states = [codec.build(rng.integers(0, 2**62, 200).tolist()) for _ in range(100)]

    together, one_by_one = codec.merged(states), states[0]
    for state in states[1:]:
        one_by_one = codec.merged([one_by_one, state])

    assert together == one_by_one


@distinct
def test_groups_of_nulls_have_no_state_and_nulls_add_nothing(name, lg_k):
    groups, function = Groups(np.array([0, 2, 3]), 5), States(CODECS[name](lg_k), takes_values=True)

    states = function.accumulate(pa.array(["x", None, None, "y", "z"]), groups)

    assert states.to_pylist() == [built(name, lg_k, ["x"]), None, built(name, lg_k, ["y", "z"])]
    function.check(states)
