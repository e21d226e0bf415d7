"""Which run of a query a task belongs to, so that all tasks of a run look at one moment and no two runs share one.

Spark caches what a source planned for ever, so nothing that is planned can name a moment. What is new with every run is
the number of its execution, which Spark hands to every task together with a name of the session that is unique in the
world. From these and from what is read a name is made that all tasks of a run make alike, on whatever machine, in their
first attempt or a later one: the first that opens a scan by it opens it for all.

What runs outside of an execution of Spark SQL (``df.rdd``, ``df.foreachPartition``) has only the number of its stage.
Those are unique within an application, and nothing names that; so the name of the plan, a random one, is added.
"""

import hashlib
import re
from collections.abc import Callable

_EXECUTION = "spark.sql.execution.id"
_TAGS = "spark.job.tags"
_APPLICATION = ("spark.app.id", "spark.app.startTime")
_SESSION = re.compile(r"(?:^|,)spark-session-([0-9a-fA-F-]{36})(?=,|$)")


def this_run(plan: str) -> str:
    """The run that the task of this process belongs to; without a task, as in a test, each plan is a run."""
    from pyspark import TaskContext

    task = TaskContext.get()
    return plan if task is None else run_of(task.getLocalProperty, task.stageId(), plan)


def run_of(property_of: Callable[[str], str | None], stage: int, plan: str) -> str:
    """The run that a task belongs to which has these properties."""
    execution = property_of(_EXECUTION)
    # A task may have the tags of several sessions, in no particular order: all tasks take the same one.
    session = min(_SESSION.findall(property_of(_TAGS) or ""), default=None)
    application = "/".join(property_of(name) or "" for name in _APPLICATION)
    if execution is None or (session is None and application == "/"):
        return f"plan {plan} stage {stage}"
    return f"session {session or application} execution {execution}"


def nonce_of(run: str, *asked: object) -> str:
    """The name of what a run reads: the same for the same rows, so that both sides of a self-join have one moment."""
    return "spark-" + hashlib.blake2b(repr((run, *asked)).encode(), digest_size=20).hexdigest()
