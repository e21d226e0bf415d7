"""Engines that are closed at the end of a test, whatever it did."""

import pytest
from tests.engine.scan_bench import ScanBench


@pytest.fixture
def scan_bench(tmp_path):
    """Make a table whose scans are driven by hand, with settings of its own."""
    made = []

    def make(**settings):
        made.append(ScanBench(tmp_path / "data", **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def scanned(scan_bench):
    return scan_bench()
