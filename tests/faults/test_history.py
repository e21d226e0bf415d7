"""What many clients see of one table at the same time: nobody reads back in time, everybody reads his own writes.

Acknowledgements carry log offsets, so the order of all writes of a key is known and nothing has to be guessed:
one pass over the history checks it.
"""

import itertools
import random
import threading
from collections import defaultdict
from dataclasses import dataclass

from tests.faults.campaign import IS_FULL, write_figures

import kolk
from kolk.config import EngineConfig

THREADS = 8
OPERATIONS = 2_500 if IS_FULL else 400
KEYS = 50
NOTHING = -1
SCHEMA = kolk.Schema([kolk.Column("key", "int"), kolk.Column("value", "bigint")], primary_key=["key"])


@dataclass(frozen=True, slots=True)
class Operation:
    """One key of a put or a get, and the ticks between which it took place."""

    client: int
    key: int
    value: int
    began: int
    ended: int
    is_put: bool


class Client(threading.Thread):
    """Puts and gets at random, and writes down what it did and saw."""

    def __init__(self, table: kolk.Table, number: int, ticks: "itertools.count[int]") -> None:
        super().__init__()
        self.history: list[Operation] = []
        self._table = table
        self._number = number
        self._ticks = ticks
        self._rng = random.Random(number)

    def run(self) -> None:
        for count in range(OPERATIONS):
            keys = self._rng.sample(range(KEYS), self._rng.choice((1, 1, 3)))
            is_put = self._rng.random() < 0.5
            began = next(self._ticks)
            values = self._put(keys, count) if is_put else self._get(keys)
            ended = next(self._ticks)
            self.history += [
                Operation(self._number, key, values.get(key, NOTHING), began, ended, is_put) for key in keys
            ]

    def _put(self, keys: list[int], count: int) -> dict[int, int]:
        values = {key: self._number * 10**9 + count * 10 + place for place, key in enumerate(keys)}
        self._table.put([{"key": key, "value": value} for key, value in values.items()])
        return values

    def _get(self, keys: list[int]) -> dict[int, int]:
        return {row["key"]: row["value"] for row in self._table.get(keys).to_pylist()}


def backward_reads(history: list[Operation], offsets: dict[int, int]) -> list[str]:
    """Reads of a state that was over before they began, or had not begun when they ended."""
    begun = {operation.value: operation.began for operation in history if operation.is_put}
    faults: list[str] = []
    by_key: dict[int, list[Operation]] = defaultdict(list)
    for operation in history:
        by_key[operation.key].append(operation)
    for operations in by_key.values():
        finished = sorted(operations, key=lambda operation: operation.ended)
        newest, done = NOTHING, 0
        for operation in sorted(operations, key=lambda operation: operation.began):
            while finished[done].ended < operation.began:
                newest = max(newest, offsets.get(finished[done].value, NOTHING))
                done += 1
            if offsets.get(operation.value, NOTHING) < newest:
                faults.append(f"{operation} though offset {newest} was known")
            if not operation.is_put and begun.get(operation.value, NOTHING) > operation.ended:
                faults.append(f"{operation} before it was put")
    return faults


def test_reads_never_go_back_and_everybody_reads_his_own_writes(tmp_path):
    with kolk.connect(tmp_path / "data", config=EngineConfig(durability="process")) as db:
        table = db.create_table("t", SCHEMA, buckets=4)
        clients = [Client(table, number, ticks) for ticks in [itertools.count()] for number in range(THREADS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        offsets = _offsets(table)

    history = [operation for client in clients for operation in client.history]
    assert len({operation.client for operation in history}) == THREADS
    assert backward_reads(history, offsets) == []
    puts = [operation for operation in history if operation.is_put]
    assert offsets.keys() == {operation.value for operation in puts}
    write_figures(
        "8 clients at once: reads that went back",
        times=THREADS * OPERATIONS,
        puts=len(puts),
        rows=len(puts),
        lost=0,
        duplicated=0,
    )


def test_the_check_notices_a_read_that_went_back():
    put_1, put_2 = Operation(0, 1, 100, 0, 1, True), Operation(0, 1, 200, 2, 3, True)
    offsets = {100: 0, 200: 1}

    assert backward_reads([put_1, put_2, Operation(1, 1, 100, 4, 5, False)], offsets)
    assert not backward_reads([put_1, put_2, Operation(1, 1, 200, 4, 5, False)], offsets)
    assert not backward_reads([put_1, put_2, Operation(1, 1, 100, 2, 5, False)], offsets)


def _offsets(table: kolk.Table) -> dict[int, int]:
    """Where each value is in the log. All values of a key are in one bucket, so these can be compared."""
    found: dict[int, int] = {}
    for batch in table.changelog():
        for change, offset, value in zip(
            *(batch.column(name).to_pylist() for name in ("_change_type", "_log_offset", "value")), strict=True
        ):
            if change in ("+I", "+U"):
                assert value not in found, "a put was applied twice"
                found[value] = offset
    return found
