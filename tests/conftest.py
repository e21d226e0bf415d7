"""How hard Hypothesis tries: 50 examples by default, 1000 when KOLK_FULL=1; the same ones each time in CI. And which
tests run in one worker, and which without being traced.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

FULL = os.environ.get("KOLK_FULL") == "1"
TOGETHER = {"tests/spark/": "spark", "tests/faults/test_spark_chaos.py": "chaos", "tests/test_tidy.py": "tidy"}
"""What runs in one worker, one after the other: a second JVM, or a second look at all sources, costs more than it
saves."""
REPEATING = ("_model.py", "_law.py", "_laws.py", "_power.py", "test_hostile.py", "test_scan_isolation.py")
"""Files of tests that go through the same code very many times, which other tests cover: traced they take half as long
again."""

# A loaded machine is not a fault of the code under test: no deadline, no "too slow".
settings.register_profile(
    "ci",
    max_examples=50,
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("full", settings.get_profile("ci"), max_examples=1000)
settings.load_profile("full" if FULL else "ci")


def pytest_collection_modifyitems(items):
    """The long forms outlast the usual limit on a busy machine; stopped in the middle, Hypothesis calls them flaky."""
    for item in items:
        if FULL:
            item.add_marker(pytest.mark.timeout(3600), append=False)  # before a mark of its own, which would win
        if item.path.name.endswith(REPEATING):
            item.add_marker(pytest.mark.no_cover)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """By the places of tests: the marks that xdist has for it are not seen under this pytest."""
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return next((scope for place, scope in TOGETHER.items() if nodeid.startswith(place)), nodeid)

    return Together(config, log)
