"""Arrow data that lies about itself. Arrow reads where it points and the process is gone: each use is in a child."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import numpy as np
import pyarrow as pa
import kolk

use = sys.argv[2]
TEXTS = ["a text that is stored outside of its view", "+I", "+I"]
OFFSETS = [0, 41, 43, 45]
FORMS = {
    "string": (pa.string(), "i4", OFFSETS, [0, 41, 43, 2**30]),
    "string within": (pa.string(), "i4", OFFSETS, [0, 2**30, -(2**30), 45]),
    "large_string": (pa.large_string(), "i8", OFFSETS, [0, 41, 43, 2**30]),
    "large_string within": (pa.large_string(), "i8", OFFSETS, [0, 2**30, -(2**30), 45]),
    "string_view": (pa.string_view(), "i4", [0, 0, 2], [0, 2**30, 2]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), "i4", [0, 1, 1], [0, 2**28, 1]),
}

def rows(form, name):
    kind, width, right, wrong = FORMS[form]
    texts = pa.array(TEXTS)
    texts = texts.dictionary_encode() if form == "dictionary" else texts.cast(kind)
    good = pa.table({"k": [1, 2, 3], "s": TEXTS} | {name: texts})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, good.schema) as writer:
        writer.write_table(good)
    head, found, tail = sink.getvalue().to_pybytes().rpartition(np.array(right, width).tobytes())
    assert found
    bad = pa.ipc.open_stream(head + np.array(wrong, width).tobytes() + tail).read_all()
    return pa.concat_tables([good, bad]) if use == "put of chunks" else bad

columns = [kolk.Column("k", "bigint"), kolk.Column("s", "string", agg="max")]
with kolk.connect(sys.argv[1]) as db:
    table = db.create_table("t", kolk.Schema(columns, primary_key=["k"]))
    keys = db.create_table("keys", kolk.Schema([kolk.Column("s", "string")], primary_key=["s"]))
    for form in FORMS:
        try:
            match use:
                case "put" | "put of chunks":
                    table.put(rows(form, "s"))
                case "put of changes":
                    table.put(rows(form, "_change_type"))
                case "preaggregate":
                    table.preaggregate(rows(form, "s"))
                case "get":
                    keys.get(rows(form, "s").column("s"))
                case "delete":
                    keys.delete(rows(form, "s").select(["s"]))
            print(form, "was taken")
        except kolk.errors.InvalidRows as error:
            assert "not valid Arrow data" in str(error) or "cannot be read as rows" in str(error), error
print("alive")
"""


@pytest.mark.parametrize("use", ["put", "put of chunks", "put of changes", "preaggregate", "get", "delete"])
def test_arrow_data_that_points_outside_itself_is_refused_and_the_process_lives(tmp_path, use):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "data"), use],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("alive\n", "")
