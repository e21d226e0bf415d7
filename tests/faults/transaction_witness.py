"""What must be so of two tables when somebody was killed in a transaction of both: what a clean run leaves."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.killing import opened
from tests.faults.transaction_worker import CONFIG, TOTALS, VISITS, create_tables, staged_beside, transact
from tests.spec.kept import present
from tests.spec.replica import replayed

from kolk.client.database import Database
from kolk.model.transaction import CommitRequest, Verdict


@dataclass(frozen=True, slots=True)
class Made:
    """A database with version 1, what another application is about to commit to it, and the rows to be expected: now,
    with version 2, loaded anew with version 2, and each of these after the other application's commit."""

    folder: Path
    other: CommitRequest
    first: list[Any]
    second: list[Any]
    anew: list[Any]
    second_and_other: list[Any]
    anew_and_other: list[Any]


def state(db: Database) -> list[Any]:
    """The rows of both tables, which the replay of each changelog makes, too."""
    found = []
    for table in (db.table(TOTALS), db.table(VISITS)):
        found.append(present(table))
        assert replayed(table) == found[-1]
    return found


def run(folder: Path, other: CommitRequest, *, truncates: bool = False) -> list[list[Any]]:
    """Commit version 2 undisturbed, and then what is staged beside it; what is there after each."""
    engine, db = opened(folder, CONFIG)
    with db:
        assert transact(db, 2, truncates=truncates) == "committed"
        found = [state(db)]
        assert engine.commit_transaction(other).verdict is Verdict.COMMITTED
        return [*found, state(db)]


def make(place: Path) -> Made:
    """The database, and what clean runs of it leave."""
    _, db = opened(place / "data", CONFIG)
    with db:
        create_tables(db)
        assert transact(db, 1) == "committed"
        other, first = staged_beside(db), state(db)
    for name in ("clean", "anew"):
        shutil.copytree(place / "data", place / name)
    second, second_and_other = run(place / "clean", other)
    anew, anew_and_other = run(place / "anew", other, truncates=True)
    assert len(first[0]) == len(second[0]) == len(anew[0]) == 20
    return Made(place / "data", other, first, second, anew, second_and_other, anew_and_other)
