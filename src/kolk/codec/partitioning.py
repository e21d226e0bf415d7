"""Which partition a row belongs to, for a whole batch at once.

The values of the partition columns become names as ``model.partition`` has them. Only distinct values are turned into
text, so the cost is that of a dictionary encoding. Whether a value may stand in a name is not asked here: one that may
not makes a name that no partition has.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kolk.model.schema import Column


def part(batch: pa.RecordBatch, columns: Sequence[Column]) -> tuple[list[str], NDArray[np.int64]]:
    """The names of the partitions that these rows belong to, and for each row the place of its own among them."""
    names: list[str] = [""]
    places = np.zeros(batch.num_rows, np.int64)
    for column in columns:
        encoded = batch.column(column.name).dictionary_encode()
        texts: list[str] = encoded.dictionary.cast(pa.string()).to_pylist()
        of_rows = encoded.indices.to_numpy()
        if len(texts) == 1:
            names = [f"{name}/{column.name}={texts[0]}" for name in names]
            continue
        found, places = np.unique(places * len(texts) + of_rows, return_inverse=True)
        pairs = zip((found // len(texts)).tolist(), (found % len(texts)).tolist(), strict=True)
        names = [f"{names[before]}/{column.name}={texts[text]}" for before, text in pairs]
    return [name[1:] for name in names], places
