"""What can be asked of states: functions over columns, as a scan or a lookup returns them.

``kolk.functions.hll_estimate(table.scan().to_arrow()["visitors"])`` is how many visitors each row counts. Each function
takes an Arrow array or chunked array (or one value, which stands for as many rows as the other argument has) and
returns an Arrow array; null in, null out. ``*_build`` makes what a put with ``mode="merge_state"`` or a column without
``input`` takes, of a column of lists. ``finished`` applies what users' own functions say of their states.

Those of bitmaps and sketches need ``pip install 'kolk[sketches]'``, and are imported when they are asked for. Nothing
here needs a server or RocksDB.
"""

import importlib
from typing import TYPE_CHECKING, Any

from kolk.merge.finishing import avg_of, histogram_quantile
from kolk.merge.finishing_custom import finished

if TYPE_CHECKING:
    from kolk.merge.reading import (
        cpc_build,
        cpc_estimate,
        hll_bounds,
        hll_build,
        hll_estimate,
        kll_build,
        kll_quantile,
        kll_rank,
        rb64_and,
        rb64_andnot,
        rb64_build,
        rb64_cardinality,
        rb64_contains,
        rb64_or,
        rb64_to_array,
        rb64_xor,
        rb_and,
        rb_andnot,
        rb_build,
        rb_cardinality,
        rb_contains,
        rb_or,
        rb_to_array,
        rb_xor,
        theta_anotb,
        theta_build,
        theta_estimate,
        theta_intersect,
        theta_union,
    )

__all__ = [
    "avg_of",
    "cpc_build",
    "cpc_estimate",
    "finished",
    "histogram_quantile",
    "hll_bounds",
    "hll_build",
    "hll_estimate",
    "kll_build",
    "kll_quantile",
    "kll_rank",
    "rb64_and",
    "rb64_andnot",
    "rb64_build",
    "rb64_cardinality",
    "rb64_contains",
    "rb64_or",
    "rb64_to_array",
    "rb64_xor",
    "rb_and",
    "rb_andnot",
    "rb_build",
    "rb_cardinality",
    "rb_contains",
    "rb_or",
    "rb_to_array",
    "rb_xor",
    "theta_anotb",
    "theta_build",
    "theta_estimate",
    "theta_intersect",
    "theta_union",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kolk.functions' has no attribute {name!r}")
    return getattr(importlib.import_module("kolk.merge.reading"), name)
