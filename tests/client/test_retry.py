"""How long a call may take: ordinary ones as long as the connection says, long ones as long as they need."""

import pytest

from kolk.client.retry import Retry
from kolk.runtime.rng import Rng
from kolk.testing.clock import ManualClock


@pytest.mark.parametrize(("patience", "asked", "short", "long"), [(30.0, 600.0, 30.0, 600.0), (900.0, 5.0, 5.0, 900.0)])
def test_a_short_deadline_is_never_longer_than_the_connections_and_a_long_one_never_shorter(
    patience, asked, short, long
):
    retry = Retry(ManualClock(), Rng(), patience, lambda seconds: None)

    assert retry.deadline().seconds_left == patience
    assert retry.deadline(asked).seconds_left == short
    assert retry.long_deadline(asked).seconds_left == long
