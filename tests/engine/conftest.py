"""Engines that are closed at the end of a test, whatever it did."""

import pytest
from tests.engine.lease_bench import D0, D3, E0, P0, P1, P5, LeaseBench
from tests.engine.scan_bench import ScanBench
from tests.engine.snapshot_bench import SnapshotBench
from tests.engine.transaction_bench import TransactionBench


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


@pytest.fixture
def lease_bench(tmp_path):
    """Make leases that are driven by hand, with settings of their own; a few snapshots exist."""
    made = []

    def make(**settings):
        bench = LeaseBench(tmp_path / f"meta-{len(made)}.sqlite", **settings)
        bench.take(P0, P1, P5, D0, D3, E0)
        made.append(bench)
        return bench

    yield make
    for each in made:
        each.close()


@pytest.fixture
def leased(lease_bench):
    return lease_bench()


@pytest.fixture
def snapshot_bench(tmp_path):
    """Make an engine whose disk fails when told to, with settings of its own."""
    made = []

    def make(**settings):
        made.append(SnapshotBench(tmp_path / "data", **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def taken(snapshot_bench):
    return snapshot_bench()


@pytest.fixture
def transaction_bench(tmp_path):
    """Make an engine whose disk and catalog fail when told to, with settings of its own."""
    made = []

    def make(**settings):
        made.append(TransactionBench(tmp_path / f"data{len(made)}", **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def tx(transaction_bench):
    return transaction_bench()
