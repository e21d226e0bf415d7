"""What people are told of each aggregate function: in one line what it does, what a null is to it, how large it gets.

Only what cannot be derived from ``kolk.model.functions`` stands here; ``kolk functions`` and docs/aggregation.md show
both. Where nothing is said of nulls they are passed over, and where nothing is said of the size it is one value.
"""

_GROWS = "grows with every value, up to the 4 MiB of a row"
_ENTRIES = "one entry for each key that was given"

TEXTS: dict[str, dict[str, str]] = {
    "sum": {"summary": "The sum of all numbers, exact for integers and decimals."},
    "product": {"summary": "The product of all numbers; decimals are rounded to their scale, half away from zero."},
    "max": {"summary": "The greatest value; texts by their UTF-8 bytes, NaN above every number."},
    "min": {"summary": "The least value; texts by their UTF-8 bytes, NaN above every number."},
    "last_value": {
        "summary": "The value that was put last, also if that is null.",
        "nulls": "a value like any other",
    },
    "last_value_ignore_nulls": {"summary": "The value that was put last and is not null."},
    "first_value": {
        "summary": "The value that was put first; a null cannot be told from nothing, so it is the first that is none.",
    },
    "first_value_ignore_nulls": {"summary": "The value that was put first and is not null."},
    "listagg": {
        "summary": "All texts in the order of their puts, with a delimiter between them.",
        "nulls": "passed over; an empty text is a text",
        "size": _GROWS,
    },
    "bool_and": {"summary": "Whether all values are true."},
    "bool_or": {"summary": "Whether any value is true."},
    "rbm32": {
        "summary": "A Roaring bitmap of 32-bit numbers: the union of bitmaps, or of the numbers given.",
        "size": "grows with the distinct numbers, by 8 KiB at most for each 65,536 that stand together",
    },
    "rbm64": {
        "summary": "A Roaring bitmap of 64-bit numbers in the portable format: the union of bitmaps, or of numbers.",
        "size": "grows with the distinct numbers, by 8 KiB at most for each 65,536 that stand together",
    },
    "count": {"summary": "How many values are not null.", "nulls": "not counted; the count begins with 0"},
    "count_rows": {
        "summary": "How many rows were put; the column may be left out of them.",
        "nulls": "counted like any other value",
    },
    "avg": {"summary": "Sum and count, of which an average is made when it is read.", "size": "two numbers"},
    "array_agg": {
        "summary": "All values as an array, in the order of their puts.",
        "nulls": "passed over; kept with nulls = keep",
        "size": f"{_GROWS}, or to max_size items",
    },
    "collect": {
        "summary": "The items of all arrays as one array, in the order of their puts.",
        "nulls": "null arrays are passed over; null items are kept, unless nulls = skip",
        "size": f"{_GROWS}, or to max_size items",
    },
    "max_by": {
        "summary": "The value of the row in which another column is greatest; of equal ones the last.",
        "nulls": "a value like any other; a row in which the other column is null is passed over",
    },
    "min_by": {
        "summary": "The value of the row in which another column is least; of equal ones the last.",
        "nulls": "a value like any other; a row in which the other column is null is passed over",
    },
    "bit_and": {"summary": "The bits that all values have."},
    "bit_or": {"summary": "The bits that any value has."},
    "bit_xor": {"summary": "The bits that an odd number of values have."},
    "merge_map": {
        "summary": "The entries of all maps; of one key the value that was put last.",
        "nulls": "null maps are passed over; a null value in a map is a value",
        "size": _ENTRIES,
    },
    "sum_map": {"summary": "The entries of all maps; the values of one key are added.", "size": _ENTRIES},
    "min_map": {"summary": "The entries of all maps; of one key the least value.", "size": _ENTRIES},
    "max_map": {"summary": "The entries of all maps; of one key the greatest value.", "size": _ENTRIES},
    "histogram": {
        "summary": "How many numbers fall between the bounds, one count for each range.",
        "size": "one number more than there are bounds",
    },
    "top_n": {"summary": "The n greatest values, the greatest first.", "size": "n values at most"},
    "bottom_n": {"summary": "The n least values, the least first.", "size": "n values at most"},
    "hll": {
        "summary": "A HyperLogLog sketch: about how many distinct values there were.",
        "size": "bounded by lg_k: about 2^lg_k bytes at most",
    },
    "theta": {
        "summary": "A theta sketch: about how many distinct values there were, also of unions and intersections.",
        "size": "bounded by lg_k: about 16 x 2^lg_k bytes at most",
    },
    "cpc": {
        "summary": "A CPC sketch: about how many distinct values there were, in fewer bytes than a HyperLogLog.",
        "size": "bounded by lg_k: about 2^lg_k bytes at most",
    },
    "kll": {
        "summary": "A KLL sketch: about the quantiles of all numbers.",
        "size": "bounded by k, and the logarithm of how many numbers there were",
    },
}  # fmt: skip
