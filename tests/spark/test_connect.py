"""Spark Connect: the same source, sink and functions, in a process that has no Spark of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
