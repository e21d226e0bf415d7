"""A process that writes as an owner until somebody ends it, or it is refused.

Run as ``python -m tests.faults.owner_client url ttl``. Each epoch adds 1 to ``pv`` of every key, in as many puts as
there are parts, and is committed. It says on standard output what it was told is done, one word a line: ``put`` or
``commit``; when it is refused, the name of the error. Then it tries everything once more, and says what was done all
the same.
"""

import sys
from contextlib import suppress

from tests.faults.servers import PATIENCE_SECONDS

import kolk
from kolk.client.writer import Writer
from kolk.errors import KolkError, LockExpired

KEYS = range(60)
PARTS = 3
SCHEMA = kolk.Schema(
    [
        kolk.Column("k", "int"),
        kolk.Column("pv", "bigint", agg="sum"),
        kolk.Column("other", "bigint", agg="sum"),
    ],
    "k",
)


def write(w: Writer, part: int) -> None:
    """A part of an epoch."""
    w.put([{"k": key, "pv": 1} for key in KEYS if key % PARTS == part])


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def try_again(w: Writer, error: KolkError) -> None:
    """Everything once more, as one would who does not listen; but a lapsed lock may commit what has arrived."""
    w._lost = None
    calls = {"put": lambda: write(w, 0), "delete": lambda: w.delete([1]), "commit": w.commit}
    for word, call in calls.items():
        with suppress(KolkError):
            if word != "commit" or not isinstance(error, LockExpired):
                call()
                say(f"{word} all the same")


def main() -> None:
    url, ttl = sys.argv[1:]
    with kolk.connect(url, timeout=PATIENCE_SECONDS) as db:
        w = db.table("t").writer("job", ["pv"], ttl=float(ttl))
        try:
            while True:
                for part in range(PARTS):
                    write(w, part)
                    say("put")
                w.commit()
                say("commit")
        except KolkError as error:
            say(type(error).__name__)
            try_again(w, error)
        w.close()


if __name__ == "__main__":
    main()
