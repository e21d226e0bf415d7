"""Connections of Spark's processes, and what is done once for each of them."""

import gc

from kolk.spark import connections
from kolk.spark.options import Options


def test_a_worker_that_has_connected_no_longer_collects_what_it_has_imported(spark, server):
    url = server.url

    def frozen(batches):
        import gc

        import pyarrow as pa

        from kolk.spark import connections
        from kolk.spark.options import Options

        for _ in batches:
            connections.database(Options({"url": url}))
            yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})

    found = spark.range(1, numPartitions=1).mapInArrow(frozen, "frozen long").collect()

    assert [row.frozen > 10_000 for row in found] == [True]


def test_a_driver_that_has_connected_collects_as_ever(server):
    before = gc.get_freeze_count()

    connections.database(Options({"url": server.url, "timeout": "29s"}))

    assert gc.get_freeze_count() == before


def test_a_process_connects_once_for_each_address_and_identity(server):
    first = connections.database(Options({"url": server.url, "timeout": "28s"}))

    assert connections.database(Options({"url": server.url, "timeout": "28s"})) is first
    assert connections.database(Options({"url": server.url, "timeout": "27s"})) is not first
