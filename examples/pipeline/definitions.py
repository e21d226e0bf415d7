"""A declarative pipeline: orders, as they come to one table of Kolk, into what each customer has spent, in another.

``spark-pipelines`` runs this file. ``new-query`` is for ``--full-refresh``, which begins again with the first order:
its first batch then takes the place of all rows, instead of being added to them.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
URL = os.environ["KOLK_URL"]

dp.create_sink("customers", "kolk", {"url": URL, "table": "shop.customers", "new-query": "replace"})


@dp.append_flow(target="customers")
def spent() -> DataFrame:
    """Every order once; the table adds them up."""
    orders = spark.readStream.format("kolk").option("url", URL).option("table", "shop.orders").load()
    return orders.selectExpr("customer", "cents AS spent", "cents AS largest")
