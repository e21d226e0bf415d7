"""A reader that is killed between a batch and its commit: the batch comes again, and no change is missed."""

import subprocess
import sys

import kolk

BUCKETS, ROWS = 12, 600
READER = """
import sys
import kolk

with kolk.connect(sys.argv[1]) as db:
    with db.table("t").changelog(follower="job", commit_interval=0) as changes:
        for count, batch in enumerate(changes, 1):
            for row in batch.to_pylist():
                print(row["_bucket"], row["_log_offset"], flush=True)
            if count == int(sys.argv[2]):
                sys.stdin.read()  # killed here, with the batch in hand
"""


def read_and_kill(folder, batches: int) -> list[tuple[str, int]]:
    """What a reader is handed that is killed within its n-th batch, or comes to its end before."""
    command = [sys.executable, "-c", READER, str(folder), str(batches)]
    seen: list[tuple[str, int]] = []
    buckets: set[str] = set()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        for line in reader.stdout:
            if not line.endswith("\n"):
                break  # killed in the middle of it
            bucket, offset = line.split()
            seen.append((bucket, int(offset)))
            buckets.add(bucket)
            if len(buckets) == batches:
                reader.kill()
    return seen


def test_no_change_is_missed_by_a_reader_that_is_killed_again_and_again(tmp_path):
    with kolk.connect(tmp_path / "data") as db:
        table = db.create_table("t", kolk.Schema([kolk.Column("n", "int")]), buckets=BUCKETS, bucket_key=["n"])
        ends = table.put([{"n": n} for n in range(ROWS)]).offsets
    expected = {(bucket, offset) for bucket, end in ends.items() for offset in range(end)}

    runs = [read_and_kill(tmp_path / "data", batches) for batches in (1, 3, 4, 2, BUCKETS + 1)]

    assert set().union(*runs) == expected
    twice = sum(map(len, runs)) - len(expected)
    assert 0 < twice < len(expected) / 2  # those in hand came again, and those before them did not
    with kolk.connect(tmp_path / "data") as db:
        assert [(follower.offsets, follower.lag) for follower in db.followers()] == [(ends, 0)]
