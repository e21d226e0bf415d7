"""A Spark session for one machine: with a Java, with this Python, and with the settings that help.

For whoever has no session yet: a notebook, a test, a small job. On a cluster, or where a session is there already, Kolk
needs none of it; the source is found by its name. A process that works with Spark Connect has its Spark elsewhere, and
keeps the session that it has, or that ``SPARK_REMOTE`` names.
"""

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from kolk.spark.java import java_home

_TRIES = 3
_SETTINGS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(
    app: str = "kolk", *, cores: int | None = None, conf: Mapping[str, str] | None = None, log_level: str = "ERROR"
) -> SparkSession:
    """A session on this machine, or the one that there is: ``spark = kolk.spark.session()``.

    A task that fails is tried again, as on a cluster: Spark's own ``local[2]`` never does. ``conf`` are settings of
    Spark, which win over those made here.
    """
    remote = os.environ.get("SPARK_REMOTE", "")
    if is_remote() or remote.startswith("sc://"):
        return _elsewhere(conf or {})
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if remote:
        return _elsewhere(conf or {})
    slots = cores or os.cpu_count() or 1
    settings = {
        "spark.master": f"local[{slots},{_TRIES}]",
        "spark.sql.shuffle.partitions": str(slots),
        **_SETTINGS,
        **(conf or {}),
    }
    builder = SparkSession.builder.appName(app)
    for name, value in settings.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel(log_level)
    return found


def _elsewhere(conf: Mapping[str, str]) -> SparkSession:
    """The session of Spark Connect that there is, else the one that the environment names. Its Spark was set up by
    somebody else: nothing is set but what is asked for."""
    found = (SparkSession.getActiveSession() if is_remote() else None) or SparkSession.builder.getOrCreate()
    for name, value in conf.items():
        found.conf.set(name, value)
    return found
