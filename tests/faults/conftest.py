"""What the tests against a server share, and those of owners and of transactions. Each module says in ``serving`` which
server that is."""

import shutil

import pytest
from tests.faults.owner_worker import prepared
from tests.faults.transaction_witness import Made, make


@pytest.fixture
def server(serving):
    """The server; another process of it if the test before has killed the last one."""
    if not serving.is_alive:
        serving.start()
    return serving


@pytest.fixture(scope="session")
def owners(tmp_path_factory):
    """A folder with a table that two owners have written to, and what they have in their hands."""
    folder = tmp_path_factory.mktemp("owners") / "data"
    return folder, prepared(folder)


@pytest.fixture
def owned(owners, tmp_path):
    """A copy of the folder."""
    shutil.copytree(owners[0], tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Made:
    """A folder with two tables that a transaction was committed to, and what the next one is to leave."""
    return make(tmp_path_factory.mktemp("made"))
