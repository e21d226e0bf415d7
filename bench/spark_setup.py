"""What the benches of Spark share: a session on two cores, a server in a process of its own, and what they need.

Spark is an extra, and Delta is there only to be compared with. Without them the other benches run as ever, and these
say what is missing.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from bench.measure import Figure

CORES = 2
_NEEDED = {"pyspark": "'kolk[spark]'", "deltalake": "deltalake"}


def missing(bench: str, *modules: str) -> Figure | None:
    """A line that says what to install; None if all of it is there."""
    lacking = [_NEEDED[module] for module in modules if find_spec(module) is None]
    if not lacking:
        return None
    return Figure(bench=bench, case="left out", rate=0, note=f"it needs pip install {' '.join(lacking)}")


@contextmanager
def spark_session(conf: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A session that ends with the block."""
    import kolk.spark

    session = kolk.spark.session("bench", cores=CORES, conf={"spark.driver.memory": "2g", **(conf or {})})
    try:
        yield session
    finally:
        session.stop()
