"""How hard Hypothesis tries: 50 examples by default, 1000 when KOLK_FULL=1; the same ones each time in CI."""

import os

import pytest
from hypothesis import HealthCheck, settings

FULL = os.environ.get("KOLK_FULL") == "1"

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
    if FULL:
        for item in items:
            item.add_marker(pytest.mark.timeout(3600), append=False)  # before a mark of its own, which would win
