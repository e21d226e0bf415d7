"""What clients ask of bitmaps and sketches, over columns."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kolk
from kolk import functions as f
from kolk.errors import InvalidArgument, InvalidRows, TooLarge

INTEGERS = st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 300), max_size=60)
PREFIXES = ["rb", "rb64"]


def call(prefix: str, name: str, *arguments) -> pa.Array:
    return getattr(f, f"{prefix}_{name}")(*arguments)


@pytest.mark.parametrize("prefix", PREFIXES)
@given(one=INTEGERS, other=INTEGERS)
def test_bitmaps_are_sets(prefix, one, other):
    left, right = (call(prefix, "build", pa.array([values], pa.list_(pa.int64()))) for values in (one, other))
    a, b = set(one), set(other)

    assert call(prefix, "to_array", left).to_pylist() == [sorted(a)]
    assert call(prefix, "cardinality", left).to_pylist() == [len(a)]
    for name, expected in (("or", a | b), ("and", a & b), ("xor", a ^ b), ("andnot", a - b)):
        found = call(prefix, name, left, right)
        assert call(prefix, "to_array", found).to_pylist() == [sorted(expected)]
        assert found == call(prefix, "build", pa.array([sorted(expected)], pa.list_(pa.int64())))
    for value in (*one[:3], *other[:3]):
        assert call(prefix, "contains", left, value).to_pylist() == [value in a]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_null_in_null_out(prefix):
    column = call(prefix, "build", pa.array([[1, None], None, []], pa.list_(pa.int32())))

    assert call(prefix, "to_array", column).to_pylist() == [[1], None, []]
    assert call(prefix, "cardinality", column).to_pylist() == [1, None, 0]
    assert call(prefix, "contains", column, 1).to_pylist() == [True, None, False]
    assert call(prefix, "and", column, column).null_count == 1
    assert call(prefix, "cardinality", call(prefix, "and", column, column[2])).to_pylist() == [0, None, 0]
    assert call(prefix, "or", column, pa.nulls(3, pa.binary())).null_count == 3


def test_a_chunked_column_and_a_single_value_do_as_well():
    chunks = pa.chunked_array([f.rb_build(pa.array([[1], [2]])), f.rb_build(pa.array([[3]]))])
    single = f.rb_build(pa.array([[1, 3]]))[0].as_py()

    assert f.rb_cardinality(f.rb_and(chunks, single)).to_pylist() == [1, 0, 1]
    assert f.rb_cardinality(single).to_pylist() == [2]


def test_integers_of_64_bits_come_out_as_they_went_in():
    column = f.rb64_build(pa.array([[0, 2**63 - 1, 2**64 - 1]], pa.list_(pa.uint64())))

    assert f.rb64_to_array(column).to_pylist() == [[0, 2**63 - 1, 2**64 - 1]]
    assert f.rb64_to_array(column).type == pa.list_(pa.uint64())


def test_more_integers_than_there_is_room_for_are_not_taken_out():
    everything = bytes.fromhex("3b30ffff") + b"\xff" * 8192
    everything += b"".join(key.to_bytes(2, "little") + b"\xff\xff" for key in range(65_536))
    first = len(everything) + 4 * 65_536
    everything += b"".join((first + 6 * key).to_bytes(4, "little") for key in range(65_536))
    everything += bytes.fromhex("01000000ffff") * 65_536

    assert f.rb_cardinality(everything).to_pylist() == [2**32]
    with pytest.raises(TooLarge, match="4,294,967,296 integers"):
        f.rb_to_array(everything)


def test_distinct_values_are_estimated():
    lists = pa.array([[f"user {i}" for i in range(1000)], ["a", "b", "a"], [], None])

    for build, estimate in (
        (f.hll_build, f.hll_estimate),
        (f.theta_build, f.theta_estimate),
        (f.cpc_build, f.cpc_estimate),
    ):
        *found, nothing = estimate(build(lists)).to_pylist()
        assert found == pytest.approx([1000, 2, 0], rel=0.06)
        assert nothing is None


def test_bounds_enclose_the_estimate_and_widen_with_the_deviations():
    sketch = f.hll_build(pa.array([list(range(5000)), None]))

    one, three = f.hll_bounds(sketch, 1).to_pylist(), f.hll_bounds(sketch, 3).to_pylist()

    assert one[1] is None
    assert three[0]["lower"] < one[0]["lower"] < f.hll_estimate(sketch)[0].as_py() < one[0]["upper"] < three[0]["upper"]
    with pytest.raises(InvalidArgument, match="std_devs is a number from 1 to 3"):
        f.hll_bounds(sketch, 4)


@pytest.mark.parametrize(("count", "error"), [(1000, 0.001), (100_000, 0.1)])
def test_theta_sketches_are_united_intersected_and_subtracted(count, error):
    columns = f.theta_build(pa.array([list(range(count)), list(range(count // 2, 2 * count))]))
    one, other = columns[:1], columns[1:]

    for function, expected in (
        (f.theta_union, 2 * count),
        (f.theta_intersect, count / 2),
        (f.theta_anotb, count / 2),
    ):
        assert f.theta_estimate(function(one, other)).to_pylist() == pytest.approx([expected], rel=error)
    assert f.theta_estimate(f.theta_anotb(one, one)).to_pylist() == [0]


def test_quantiles_and_ranks_of_numbers():
    sketches = f.kll_build(pa.array([[1, 2, 3, 4], [], None], pa.list_(pa.int32())))

    assert f.kll_quantile(sketches, 0.5).to_pylist() == [2, None, None]
    assert f.kll_quantile(sketches, [0, 0.75, 1]).to_pylist() == [[1, 3, 4], None, None]
    assert f.kll_rank(sketches, 3).to_pylist() == [0.75, None, None]
    with pytest.raises(InvalidArgument, match="a share from 0 to 1"):
        f.kll_quantile(sketches, 50)


def test_numbers_of_numpy_are_numbers():
    sketches = f.kll_build(pa.array([[1, 2, 3, 4]]), np.int32(200))
    counts = pa.array([[1, 1, 0]])

    assert f.kll_quantile(sketches, np.float32(0.5)).to_pylist() == [2]
    assert f.kll_quantile(sketches, np.array([0.5, 1.0])).to_pylist() == [[2, 4]]
    assert f.kll_rank(sketches, np.int8(3)).to_pylist() == [0.75]
    assert f.rb_contains(f.rb_build(pa.array([[7]])), np.int64(7)).to_pylist() == [True]
    assert f.histogram_quantile(counts, np.array([10, 20]), np.float32(0.5)).to_pylist() == [10]


@pytest.mark.parametrize(
    "wrong",
    [None, "x", b"x", [None], ["a"], [[0.5]], [0.5, "a"], 1j, {"a": 1}, pytest.param(-(10**400), id="a huge number")],
)
def test_what_is_no_number_or_no_list_of_them_is_refused(wrong):
    sketches, counts = f.kll_build(pa.array([[1.0]])), pa.array([[1, 2]])

    for call in (
        lambda: f.kll_quantile(sketches, wrong),
        lambda: f.kll_rank(sketches, wrong),
        lambda: f.kll_build(pa.array([[1.0]]), wrong),
        lambda: f.rb_contains(f.rb_build(pa.array([[7]])), wrong),
        lambda: f.histogram_quantile(counts, [1], wrong),
        lambda: f.histogram_quantile(counts, wrong, 0.5),
        lambda: f.finished(wrong, kolk.Schema([kolk.Column("k", "int")])),
        lambda: f.finished(pa.table({"k": [1]}), wrong),
    ):
        with pytest.raises(InvalidArgument):
            call()


@pytest.mark.parametrize(
    "name", ["rb_cardinality", "rb64_cardinality", "hll_estimate", "theta_estimate", "cpc_estimate"]
)
def test_bytes_that_are_something_else_are_refused(name):
    for wrong in (b"", b"hello, I am a text", b"\0" * 64, b"\xff" * 64):
        with pytest.raises(InvalidRows, match="these bytes are not"):
            getattr(f, name)(pa.array([wrong]))


def test_what_is_no_column_of_bytes_or_of_lists_is_refused():
    with pytest.raises(InvalidArgument, match="bytes, not of int64"):
        f.rb_cardinality(pa.array([1]))
    with pytest.raises(InvalidArgument, match="Arrow array, not a list"):
        f.hll_estimate([b""])
    with pytest.raises(InvalidArgument, match="array of lists"):
        f.rb_build(pa.array([1]))
    with pytest.raises(InvalidArgument, match="1 and 2 rows"):
        f.rb_or(pa.array([None], pa.binary()), pa.array([None, None], pa.binary()))
    with pytest.raises(InvalidRows, match="integers, not values of string"):
        f.rb_build(pa.array([["a"]]))


WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[2:]:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
import pyarrow as pa, kolk
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", WITHOUT + script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout


def test_they_work_where_rocksdict_is_not_installed():
    script = "print(kolk.functions.rb_cardinality(kolk.functions.rb_build(pa.array([[1, 2]]))).to_pylist())"

    assert run(script, "", "rocksdict", "pyspark").strip() == "[2]"


def test_without_the_libraries_the_error_says_how_to_get_them_and_nothing_is_made(tmp_path):
    script = """
with kolk.connect(sys.argv[1]) as db:
    for function in ("rbm32", "hll(input = string)"):
        schema = kolk.Schema([kolk.Column("k", "int"), kolk.Column("s", "bytes", agg=function)], primary_key=["k"])
        try:
            db.create_table("t", schema, merge_engine="aggregation")
        except kolk.errors.UnknownAggregate as error:
            print(error)
    print(db.tables())
print(kolk.functions.avg_of(pa.array([{"sum": 3.0, "count": 2}])).to_pylist())
try:
    kolk.functions.rb_build
except kolk.errors.UnknownAggregate as error:
    print(error)
"""
    lines = run(script, str(tmp_path / "data"), "pyroaring", "datasketches").splitlines()

    assert lines[2] == "[]"
    assert lines[3] == "[1.5]"
    assert len(lines) == 5
    assert all("pip install 'kolk[sketches]'" in line for line in (*lines[:2], lines[4]))


def test_the_module_is_reachable_from_kolk_and_lists_what_it_has():
    assert kolk.functions is f
    assert "functions" in dir(kolk)
    assert all(callable(getattr(f, name)) for name in f.__all__)
