"""The examples of Spark run, and find that they are right; so does the page about Spark.

They run in this process, with its session: another JVM for each would cost more than the examples do. The demo has its
own, since it kills it.
"""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENDS = {
    "clickstream": "Both tables are what Spark counts in one batch.",
    "cdc_bootstrap": "The copy is the table.",
    "wide_table": "Every row is right.",
    "incremental_read": "The reports add up to the table.",
}


@pytest.mark.parametrize("example", ENDS)
def test_an_example_finds_that_it_is_right(spark, example, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))

    code = importlib.import_module(example).main()

    spark.sparkContext.setLogLevel("ERROR")  # one of them wants silence
    told = capsys.readouterr().out
    assert code == 0, told
    assert ENDS[example] in told


def test_the_code_of_the_page_runs_as_it_stands_wherever_it_is(spark, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/spark.md").read_text(), flags=re.DOTALL)
    assert blocks
    monkeypatch.chdir(tmp_path)  # which is this process alone: of Spark's, the files are named in full
    code = re.sub(r'"(checkpoints/\w+)"|(?<=parquet\()"(\w+)"', rf'"{tmp_path}/\1\2"', "\n".join(blocks))

    exec(compile(code, "docs/spark.md", "exec"), {"__name__": "page"})


def test_the_table_of_options_is_current():
    check = [sys.executable, str(ROOT / "scripts/spark_options.py"), "--check"]

    done = subprocess.run(check, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(600)  # two JVMs, one after the other, beside that of these tests: a busy machine takes its time
def test_the_demo_kills_its_driver_and_finds_everything_right():
    demo = [sys.executable, str(ROOT / "examples/demo.py"), "--clicks", "24000", "--seconds", "10"]

    done = subprocess.run(demo, capture_output=True, text=True, timeout=560)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" in done.stdout
    assert "24,000 clicks, counted once each. All of it is right." in done.stdout
