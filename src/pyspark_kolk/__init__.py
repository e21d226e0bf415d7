"""So that Spark finds the source ``kolk`` by its name: it looks for ``DefaultSource`` in packages called ``pyspark_*``.

Nothing else belongs here: one package of that kind that cannot be imported makes Spark lose all of them.
"""

from kolk.spark.data_source import KolkSource as DefaultSource

__all__ = ["DefaultSource"]
