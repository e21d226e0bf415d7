"""What the tests against a server share; each module says in ``serving`` which server that is."""

import pytest


@pytest.fixture
def server(serving):
    """The server; another process of it if the test before has killed the last one."""
    if not serving.is_alive:
        serving.start()
    return serving
