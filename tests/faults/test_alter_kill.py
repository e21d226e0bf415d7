"""A process that puts and alters is killed again and again: what it was told is so, in whatever version."""

import shutil
import subprocess
import sys

import pytest

import kolk

WORKER = """
import sys, threading
import kolk

with kolk.connect(sys.argv[1]) as db:
    def put(start):
        handle, number = db.table("t"), start
        while True:
            handle.put([{handle.schema.primary_key[0]: number, "a": number}], columns=["a"])
            sys.stdout.write(f"put {number}\\n")
            sys.stdout.flush()
            number += 2

    for start in (int(sys.argv[2]), int(sys.argv[2]) + 1):
        threading.Thread(target=put, args=(start,), daemon=True).start()
    table = db.table("t")
    while True:
        fresh = f"c{table.schema.id}"
        table.alter([kolk.AddColumn(kolk.Column(fresh, "int", default=table.schema.id), first=True),
                     kolk.RenameColumn(table.schema.primary_key[0], f"k{table.schema.id}")])
        sys.stdout.write(f"altered {table.schema.id}\\n")
        sys.stdout.flush()
"""


def work_and_kill(folder, start: int, alters: int) -> tuple[set[int], int]:
    """What a worker was acknowledged until it was killed: the keys that it put, and the last version that it made."""
    command = [sys.executable, "-c", WORKER, str(folder), str(start)]
    puts, version, seen = set(), 0, 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        for line in worker.stdout:
            if not line.endswith("\n"):
                break  # killed in the middle of it
            what, number = line.split()
            if what == "put":
                puts.add(int(number))
            else:
                version, seen = int(number), seen + 1
                if seen == alters:
                    worker.kill()
    return puts, version


@pytest.mark.parametrize("loses_kv", [False, True])
def test_what_was_acknowledged_between_alters_survives_a_kill(tmp_path, loses_kv):
    folder = tmp_path / "data"
    with kolk.connect(folder) as db:
        db.create_table("t", kolk.Schema([kolk.Column("k", "int"), kolk.Column("a", "int")], "k"), buckets=2)
    expected: set[int] = set()

    for round, alters in enumerate((2, 5, 3)):
        puts, version = work_and_kill(folder, 1_000_000 * round, alters)
        expected |= puts
        if loses_kv:
            for kv in folder.glob("tables/*/*/*/kv"):
                shutil.rmtree(kv)

        with kolk.connect(folder) as db:
            table = db.table("t")
            rows = table.scan().to_arrow().to_pylist()
            log = [row for batch in table.changelog(schema="latest") for row in batch.to_pylist()]
            key = table.schema.primary_key[0]

            assert table.schema.id >= version
            assert {row[key] for row in rows} >= expected
            assert all(row["a"] == row[key] and row["c1"] == 1 for row in rows)
            assert sorted(row[key] for row in log) == sorted(row[key] for row in rows)
