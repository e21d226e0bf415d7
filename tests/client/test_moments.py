"""Points in time as Python has them: each is kept as the instant that it is, or refused."""

import datetime
import os
import subprocess
import sys
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest

from kolk.client.rows import rows_batch
from kolk.errors import InvalidRows
from kolk.model.schema import Column, Schema

SCRIPT = """
import datetime, sys
from zoneinfo import ZoneInfo
import pandas as pd
import kolk

noon = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)
zones = [datetime.timezone(datetime.timedelta(hours=-5)), ZoneInfo("Asia/Kolkata"), datetime.UTC]
forms = [noon.astimezone(zone) for zone in zones] + [pd.Timestamp(noon).tz_convert("America/New_York")]
columns = [kolk.Column("at", "timestamp_ltz"), kolk.Column("seen", "array<timestamp_ltz>"), kolk.Column("n", "int")]
with kolk.connect(sys.argv[1]) as db:
    table = db.create_table("t", kolk.Schema(columns, primary_key=["at"]))
    for n, form in enumerate(forms):
        table.put([{"at": form, "seen": [form], "n": n}])
        assert table.get_one(at=form) == {"at": noon, "seen": [noon], "n": n}, form
        assert table.scan(where={"at": form}).to_arrow().num_rows == 1, form
        assert table.get([form]).num_rows == 1, form
    table.put(pd.DataFrame({"at": pd.Series(forms, dtype=object), "seen": [forms] * 4, "n": 4}))
    assert table.scan().to_arrow().to_pylist() == [{"at": noon, "seen": [noon] * 4, "n": 4}]
print("kept")
"""


@pytest.mark.parametrize("ignored", ["", "1"])
def test_an_instant_is_the_same_in_every_zone_whatever_arrow_is_told_to_ignore(tmp_path, ignored):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "data")],
        env=os.environ | ({"PYARROW_IGNORE_TIMEZONE": ignored} if ignored else {}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "kept\n", "")


class Nowhere(datetime.tzinfo):
    """A zone that does not know its own offset."""

    def utcoffset(self, _moment):
        return None


@pytest.mark.parametrize(
    ("type", "value", "says"),
    [
        ("timestamp", pd.Timestamp(np.datetime64("20000-01-01", "s")), "years"),
        ("timestamp_ltz", pd.Timestamp(np.datetime64("-0044-03-15", "s")).tz_localize("UTC"), "years"),
        ("timestamp_ltz", datetime.datetime(2026, 7, 1, tzinfo=Nowhere()), "zone"),
        ("timestamp_ltz", datetime.datetime.max.replace(tzinfo=ZoneInfo("America/New_York")), "out of range"),
        ("time", datetime.time(12, tzinfo=datetime.UTC), "zone"),
    ],
)
def test_what_pyarrow_would_take_for_another_moment_is_refused(type, value, says):
    schema = Schema([Column("c", type)])

    with pytest.raises(InvalidRows, match=f"'c'.*{says}"):
        rows_batch([{"c": value}], schema, schema.columns, ignorable=False)
