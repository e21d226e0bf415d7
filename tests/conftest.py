"""How hard Hypothesis tries: 50 examples by default, 1000 when KOLK_FULL=1; the same ones each time in CI."""

import os

from hypothesis import HealthCheck, settings

# A loaded machine is not a fault of the code under test: no deadline, no "too slow".
settings.register_profile(
    "ci",
    max_examples=50,
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("full", settings.get_profile("ci"), max_examples=1000)
settings.load_profile("full" if os.environ.get("KOLK_FULL") == "1" else "ci")
