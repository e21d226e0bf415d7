"""What must be so of a table with two owners when somebody was killed: who is left goes on, and it is that of a clean
run."""

from contextlib import suppress
from dataclasses import replace

from tests.faults.owner_worker import OWNED, PARTS, Job, Row, Served, begin, clean_run
from tests.spec.kept import present
from tests.spec.replica import replayed

from kolk.client.database import Database
from kolk.errors import OwnershipError, PartialPut


def contents(db: Database) -> dict[int, Row]:
    """The rows without what is null, by key; the replay of the changelog makes the same."""
    table = db.table("t")
    found = present(table)
    assert replayed(table) == found
    return {
        key: {name: value for name, value in row.items() if value is not None and name != "k"}
        for (key,), row in found.items()
    }


def go_on(survivor: Job, service: Served) -> None:
    """Who was not at work when the others died puts its last put again, whose answer could have been lost: that adds
    nothing. Then it commits."""
    job = replace(survivor, service=service, seq=survivor.seq - 1)
    job.write(max(job.seqs), [PARTS - 1])
    job.commit(1)


def haunt(zombie: Job, service: Served) -> None:
    """Who was begun again elsewhere, or evicted, does not know it and does the same. Unless nothing has happened to it,
    it is refused, and nothing is written."""
    with suppress(OwnershipError, PartialPut):
        go_on(zombie, service)


def check_recovery(db: Database, service: Served, *owners: str) -> list[Job]:
    """These owners begin again: each finds what it has committed, and nothing else. It writes the rest. The answer is
    what they had in their hands."""
    jobs = [begin(service, owner) for owner in owners]
    epochs = {job.name: (0, 1) if job.record.committed == 1 else (0,) for job in jobs}
    assert contents(db) == clean_run(**epochs)
    for job in jobs:
        if job.record.committed < 1:
            job.write(1)
            job.commit(1)
    check_clean(db, service)
    return jobs


def check_clean(db: Database, service: Served) -> None:
    """The table is that of one clean run, and stays so when its owners begin once more."""
    assert contents(db) == clean_run()
    assert [begin(service, owner).record.committed for owner in OWNED] == [1, 1]
    assert contents(db) == clean_run()
