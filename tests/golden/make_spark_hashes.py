"""Writes spark_xxhash64.json: what Spark itself hashes, so that kolk.codec.bucketing can be held to it.

Run it by hand, with nothing but PySpark and Java (17 or later) installed; no test runs it:

    pip install pyspark==4.3.0
    python tests/golden/make_spark_hashes.py

The output is checked in. A run with another Spark must leave it as it is, but for the version in its head: if
a hash differs, Spark has changed its mind, and it can no longer compute the buckets of the tables that exist.

Values are written so that JSON keeps them exactly: numbers, dates, times and timestamps as the integer that
Arrow holds (decimals unscaled, times in the unit of their type), texts as text, binary and bytes as hex.
"""

import json
import re
import string
from pathlib import Path

from pyspark.sql import SparkSession

BUCKETS = [1, 3, 4, 16, 4096]
OUTPUT = Path(__file__).with_name("spark_xxhash64.json")
NANOSECONDS = {0: 10**9, 3: 10**6, 6: 10**3, 9: 1}  # in one unit of a time with so many digits
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timeType.enabled": "true",  # a preview in 4.3, off by default
    # Otherwise the optimiser computes the hashes itself, and not the code it generates for real data.
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
}


def whole_numbers(bits):
    edge = 2 ** (bits - 1)
    return [0, 1, -1, 2, -2, 127, -128, edge - 1, -edge, edge // 3, None]


def decimals(precision):
    edge = 10**precision - 1
    powers = [sign * 2**bits + step for bits in range(7, 126, 8) for sign in (1, -1) for step in (-1, 0, 1)]
    small = [0, 1, -1, 5, -5, 500, -500, edge, -edge, edge // 3, -edge // 3]
    return [value for value in [*small, *powers] if abs(value) <= edge] + [None]


def texts():
    letters = string.ascii_letters + string.digits
    ascii_only = [(letters * 3)[:length] for length in [*range(41), 63, 64, 65, 100]]
    others = ["é", "ß∂", "日本語", "🦆", "a\0b", "\0", "\0\0", " ", "ab ", "naïve café " * 9, "😀" * 25]
    return [*ascii_only, *others, None]


def octets():
    ramp = bytes(range(256)) * 2
    runs = [ramp[length : 2 * length] for length in [*range(41), 63, 64, 65, 100, 255]]
    others = [b"\0", b"\0\0\0", b"\0a\0", b"\xff" * 33, bytes(32), bytes(100)]
    return [*(value.hex() for value in [*runs, *others]), None]


def timestamps(digits):
    per_second = 10**digits
    first, last = -62_135_596_800 * per_second, 253_402_300_800 * per_second - 1
    recent = 1_700_000_000 * per_second + 7 % per_second
    return [0, 1, -1, 999, -999, recent, -per_second - 1, first, last, None]


def times(digits):
    noon = 45_296 * 10**digits
    return [0, 1, 59, noon, noon + 10**digits // 7, 86_400 * 10**digits - 1, None]


def single_columns():
    yield "boolean", [True, False, None]
    yield from (
        (name, whole_numbers(bits)) for name, bits in (("tinyint", 8), ("smallint", 16), ("int", 32), ("bigint", 64))
    )
    for arguments in (
        "1, 0",
        "9, 2",
        "10, 0",
        "18, 0",
        "18, 6",
        "19, 0",
        "19, 19",
        "20, 2",
        "38, 0",
        "38, 10",
    ):
        yield f"decimal({arguments})", decimals(int(arguments.partition(",")[0]))
    yield "char(120)", texts()
    yield "string", texts()
    yield from ((f"binary({width})", binaries(width)) for width in (1, 3, 4, 8, 16, 20, 33))
    yield "bytes", octets()
    yield "date", [0, 1, -1, 19_000, -719_162, 2_932_896, -141_428, None]
    yield from ((f"time({digits})", times(digits)) for digits in (0, 3, 6, 9))
    for kind in ("timestamp", "timestamp_ltz"):
        yield from ((f"{kind}({digits})", timestamps(digits)) for digits in (0, 3, 6))


def binaries(width):
    return [
        value.hex() for value in (bytes(width), b"\xff" * width, bytes(range(width)), b"\0" * (width - 1) + b"a")
    ] + [None]


def chains():
    yield ["int", "int"], [[1, 2], [2, 1], [None, 1], [1, None], [None, None], [0, 0]]
    yield ["string", "bigint"], [["a", 1], ["", 1], [None, 1], ["a", None], ["x" * 40, -1], [None, None]]
    yield (
        ["bytes", "string"],
        [["", ""], ["00", ""], ["", "\0"], ["ff" * 32, "é" * 20], [None, "b"], ["61", None]],
    )
    yield ["decimal(38, 2)", "decimal(10, 2)"], [[10**37, -5], [-1, 0], [None, 7], [-(10**30), None], [0, 0]]
    yield (
        ["boolean", "date", "timestamp(6)", "timestamp_ltz(3)", "time(6)", "binary(4)", "char(5)"],
        [
            [True, -1, -1, -1, 1, "00ff00ff", "abc"],
            [False, 0, 0, 0, 0, "00000000", ""],
            [None, None, None, None, None, None, None],
            [True, None, 5, None, 7, None, "z"],
            [None, 3, None, 4, None, "01020304", None],
        ],
    )


def digits_of(type):
    return int(re.search(r"\((\d+)", type)[1])


def expression(type, value):
    """A value of the file as a Spark SQL expression of the type that Spark has for it."""
    kind = type.partition("(")[0]
    if value is None:
        return f"CAST(NULL AS {spark_type(type)})"
    if kind in ("char", "string"):
        return f"CAST(X'{value.encode().hex()}' AS STRING)"
    if kind in ("binary", "bytes"):
        return f"X'{value}'"
    if kind == "date":
        return f"date_from_unix_date({value})"
    if kind in ("timestamp", "timestamp_ltz"):
        return f"CAST(timestamp_micros({value * 10 ** (6 - digits_of(type))}) AS {spark_type(type)})"
    if kind == "time":
        seconds, nanoseconds = divmod(value * NANOSECONDS[digits_of(type)], 10**9)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{nanoseconds:09}"
        return f"CAST('{clock}' AS {spark_type(type)})"
    if kind == "decimal":
        scale = int(type.rstrip(")").split(",")[1])
        digits = f"{abs(value):0{scale + 1}}"
        point = len(digits) - scale
        value = f"{'-' if value < 0 else ''}{digits[:point]}.{digits[point:]}"
    return f"CAST('{value}' AS {spark_type(type)})"


def spark_type(type):
    kind = type.partition("(")[0]
    same = {
        "char": "string",
        "binary": "binary",
        "bytes": "binary",
        "timestamp": "timestamp_ntz",
        "timestamp_ltz": "timestamp_ltz",
    }
    return same.get(kind, type)


def hashed(spark, types, rows):
    names = [f"c{place}" for place in range(len(types))]
    values = ", ".join(f"({', '.join(map(expression, types, row))})" for row in rows)
    key = f"xxhash64({', '.join(names)})"
    buckets = ", ".join(f"pmod({key}, {count})" for count in BUCKETS)
    # One partition, so the rows come back in the order in which they were written.
    query = f"SELECT /*+ COALESCE(1) */ {key}, {buckets} FROM VALUES {values} AS t({', '.join(names)})"
    found = spark.sql(query).collect()
    assert len(found) == len(rows)
    return {
        "types": types,
        "rows": [
            {"values": row, "hash": result[0], "buckets": list(result[1:])}
            for row, result in zip(rows, found, strict=True)
        ],
    }


def text_of(version, cases):
    """JSON with one row a line, so that a change can be read."""
    lines = [f'{{"spark": "{version}",', f' "buckets": {BUCKETS},', ' "cases": [']
    for place, case in enumerate(cases):
        rows = ",\n   ".join(json.dumps(row) for row in case["rows"])
        comma = "," if place < len(cases) - 1 else ""
        lines.append(f'  {{"types": {json.dumps(case["types"])}, "rows": [\n   {rows}]}}{comma}')
    return "\n".join([*lines, " ]}", ""])


def main():
    builder = SparkSession.builder.master("local[1]")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    wanted = [([type], [[value] for value in values]) for type, values in single_columns()]
    cases = [hashed(spark, types, rows) for types, rows in [*wanted, *chains()]]
    OUTPUT.write_text(text_of(spark.version, cases), encoding="utf-8")


if __name__ == "__main__":
    main()
