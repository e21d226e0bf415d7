"""Tables whose columns are bitmaps and sketches, end to end."""

import datasketches
import pyarrow as pa
import pytest

import kolk
from kolk import functions as f
from kolk.errors import InvalidRows

FUNCTIONS = {
    "bits": "rbm32(input = int)",
    "wide": "rbm64(input = bigint)",
    "users": "hll(input = string)",
    "sets": "theta(input = string, lg_k = 10)",
    "small": "cpc(input = bigint)",
    "times": "kll(input = double)",
}
STATES = ("rbm32", "rbm64", "hll", "theta", "cpc", "kll")


def columns(functions: dict[str, str]) -> list[kolk.Column]:
    return [kolk.Column("k", "int"), *(kolk.Column(name, "bytes", agg=agg) for name, agg in functions.items())]


@pytest.fixture
def measured(db):
    return db.create_table("measured", kolk.Schema(columns(FUNCTIONS), ["k"]), merge_engine="aggregation")


@pytest.fixture
def states(db):
    schema = kolk.Schema(columns({name: name for name in STATES}), ["k"])
    return db.create_table("states", schema, merge_engine="aggregation")


def rows(start: int, stop: int, keys: int = 3) -> list[dict]:
    return [
        {"k": i % keys, "bits": i, "wide": i << 30, "users": f"u{i}", "sets": f"u{i}", "small": i, "times": i / 2}
        for i in range(start, stop)
    ]


def exact(table) -> list[dict]:
    """Everything but the quantiles, which are drawn by lot once they are many."""
    found = table.scan().to_arrow().drop_columns(["times"]).to_pylist()
    return sorted(found, key=lambda row: row["k"])


def test_values_are_counted_where_they_are_put(measured):
    for start in range(0, 900, 300):
        measured.put(rows(start, start + 300))

    found = measured.scan().to_arrow().sort_by("k")

    assert f.rb_to_array(found["bits"]).to_pylist()[0] == list(range(0, 900, 3))
    assert f.rb64_cardinality(found["wide"]).to_pylist() == [300] * 3
    for estimate, name in ((f.hll_estimate, "users"), (f.theta_estimate, "sets"), (f.cpc_estimate, "small")):
        assert estimate(found[name]).to_pylist() == pytest.approx([300] * 3, rel=0.1)
    assert f.kll_quantile(found["times"], 0.5).to_pylist() == pytest.approx([225] * 3, rel=0.1)


def test_it_does_not_matter_how_rows_are_cut_into_puts(db, measured):
    other = db.create_table("other", measured.schema, merge_engine="aggregation")

    measured.put(rows(0, 1000))
    for start in (990, 500, 0, 600, 300):
        other.put(rows(start, min(start + 400, 1000)))

    assert exact(measured) == exact(other)


def test_states_that_were_made_before_do_what_the_rows_do(db, measured):
    other = db.create_table("other", measured.schema, merge_engine="aggregation")

    for start in (0, 200):
        measured.put(rows(start, start + 200))
        other.put(other.preaggregate(rows(start, start + 200)), mode="merge_state")

    assert exact(measured) == exact(other)
    assert f.kll_rank(other.scan().to_arrow()["times"], 1e9).to_pylist() == [1.0] * 3


def test_the_same_values_again_change_nothing(measured):
    measured.put(rows(0, 500))
    before = exact(measured)

    measured.put(rows(100, 400))

    assert exact(measured) == before


def test_what_clients_build_is_united(states):
    lists = pa.array([[1, 2, 3], [3, 4]])
    numbers = pa.array([[1.0, 2.0], [3.0]])
    built = [f.rb_build(lists), f.rb64_build(lists), f.hll_build(lists), f.theta_build(lists), f.cpc_build(lists)]

    for row in range(2):
        made = [pa.array([1], pa.int32()), *(column[row : row + 1] for column in (*built, f.kll_build(numbers)))]
        states.put(pa.table(made, names=["k", *STATES]))

    found = states.scan().to_arrow()
    assert f.rb_to_array(found["rbm32"]).to_pylist() == [[1, 2, 3, 4]]
    assert f.rb64_to_array(found["rbm64"]).to_pylist() == [[1, 2, 3, 4]]
    for estimate, name in ((f.hll_estimate, "hll"), (f.theta_estimate, "theta"), (f.cpc_estimate, "cpc")):
        assert round(estimate(found[name])[0].as_py()) == 4
    assert f.kll_quantile(found["kll"], [0, 1]).to_pylist() == [[1, 3]]


@pytest.mark.parametrize("mode", ["accumulate", "merge_state", "overwrite"])
@pytest.mark.parametrize("name", STATES)
def test_bytes_that_are_no_state_are_refused_at_the_first_write_and_nothing_is_written(states, name, mode):
    good = dict.fromkeys(STATES)

    for wrong in (b"", b"nonsense", b"\x02\x01\x07\x0c\x03\x08\x07\x08", b"\xff" * 100):
        with pytest.raises(InvalidRows, match=f"the column '{name}'"):
            states.put([{"k": 1, **good}, {"k": 2, **good, name: wrong}], mode=mode)

    assert states.scan().to_arrow().num_rows == 0


def test_a_sketch_that_spark_would_send_is_taken(states):
    # Spark's hll_sketch_agg writes the updatable form of HLL_8.
    sketch = datasketches.hll_sketch(12, datasketches.HLL_8)
    for value in range(2000):
        sketch.update(value)

    states.put([{"k": 1, "hll": sketch.serialize_updatable()}], columns=["k", "hll"])
    states.put([{"k": 1, "hll": f.hll_build(pa.array([[1, 2]]))[0].as_py()}], columns=["k", "hll"])

    expected = f.hll_build(pa.array([list(range(2000))]))
    assert states.get_one(k=1)["hll"] == expected[0].as_py()


@pytest.mark.parametrize(("column", "value", "says"), [("bits", -1, "not -1"), ("wide", -5, "not -5")])
def test_an_integer_that_no_bitmap_holds_is_refused(measured, column, value, says):
    with pytest.raises(InvalidRows, match=says):
        measured.put([{**rows(0, 1)[0], column: value}])

    assert measured.scan().to_arrow().num_rows == 0
