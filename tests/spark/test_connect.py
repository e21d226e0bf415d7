"""Spark Connect, and pipelines, which need it: the same source, sink and functions, in a process that has no Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("connect_job.py")


@pytest.fixture
def client():
    """The environment of a process that works with Spark Connect, and has neither Java nor settings of Spark."""
    ours = ("SPARK_", "PYSPARK_", "PYTHONPATH", "JAVA_HOME")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@pytest.mark.timeout(600)
def test_everything_works_with_spark_connect(spark, remote, server, tmp_path, client):
    job = [sys.executable, "-W", "ignore", str(JOB), remote, server.url, str(tmp_path)]

    done = subprocess.run(job, env=client, capture_output=True, text=True, timeout=500, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "by_owners" in done.stdout


@pytest.mark.timeout(600)
@pytest.mark.parametrize("where", ["there", pytest.param("local[2]", marks=pytest.mark.long)])
def test_a_pipeline_counts_every_order_once_also_after_a_full_refresh(request, where, client):
    if where == "there":
        request.getfixturevalue("spark")  # which serves it: another Spark for each run would take a minute more
        where = request.getfixturevalue("remote")
    example = [sys.executable, str(ROOT / "examples" / "pipeline.py"), "--remote", where]

    done = subprocess.run(example, env=client, capture_output=True, text=True, timeout=500, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "full refresh: 15,000 orders of 15,000, right" in done.stdout
    assert "Every order counts once." in done.stdout
