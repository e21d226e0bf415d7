"""kill -9, at random moments and at every step of a put: nothing acknowledged is lost, nothing is done twice."""

import json
import random
from pathlib import Path

import pytest
from tests.faults.campaign import IS_FULL, Campaign, campaign_figures, write_figures
from tests.faults.puts import create_tables, perform, put_of
from tests.faults.witness import Account, Witness
from tests.faults.worker import open_database

import kolk
from kolk.testing.faults import OF_A_PUT, KillSwitch, Step

RANDOM_KILLS = 200 if IS_FULL else 30
OCCURRENCES = (1, 2, 5, 9, 17, 40, 90) if IS_FULL else (1, 11, 40)
RARE_OCCURRENCES = (1, 2, 4, 6) if IS_FULL else (1, 4)
RARE = {Step.BEFORE_INDEX, Step.BEFORE_ROLL, Step.AFTER_ROLL, Step.BEFORE_FLUSH, Step.AFTER_FLUSH}
SEED = 20_261_115


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """One folder for all steps, so that every death finds what the ones before it left."""
    folder = tmp_path_factory.mktemp("steps")
    campaign = Campaign(folder / "data", folder / "account")
    yield campaign
    campaign.close()


@pytest.mark.timeout(1_800)
def test_nothing_is_lost_or_doubled_when_the_process_is_killed_at_random_moments(tmp_path):
    campaign = Campaign(tmp_path / "data", tmp_path / "account")
    rng = random.Random(SEED)
    try:
        for death in range(RANDOM_KILLS):
            campaign.die_at_random(rng)
            assert not campaign.check(), f"after kill {death} of seed {SEED}: {campaign.findings}"

        assert campaign.finish() == 0
        assert not campaign.check()
        assert not campaign.check_from_the_start()
    finally:
        write_figures("kill -9 at a random moment", **campaign_figures(campaign))
        campaign.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("step", OF_A_PUT, ids=lambda step: step.name.lower())
def test_nothing_is_lost_or_doubled_when_the_process_dies_at_a_step_of_a_put(campaign, tmp_path, step):
    at_close = step in (Step.BEFORE_FLUSH, Step.AFTER_FLUSH)
    rows, puts = campaign.account.rows, campaign.account.puts
    occurrences = RARE_OCCURRENCES if step in RARE else OCCURRENCES

    for occurrence in occurrences:
        changes = {"puts": 5} if at_close else {}
        reached = campaign.die_at(step.value, occurrence, tmp_path / "report", **changes)

        assert reached == step.value
        assert not campaign.check(), f"at {step.value}, the {occurrence}th: {campaign.findings}"

    if at_close:  # the last of the steps
        assert not campaign.check_from_the_start()
    write_figures(
        "kill -9 at a step of a put",
        detail=step.value,
        times=len(occurrences),
        puts=campaign.account.puts - puts,
        rows=campaign.account.rows - rows,
        lost=0,
        duplicated=0,
    )


def test_the_witness_finds_nothing_wrong_where_nothing_is(tmp_path):
    with _written(tmp_path) as db:
        findings = Witness(Account(tmp_path / "account")).check(create_tables(db))

    assert not findings, findings


def test_the_witness_notices_a_put_that_is_missing(tmp_path):
    with _written(tmp_path) as db:
        tables = create_tables(db)
        account = (tmp_path / "account").read_text()
        (tmp_path / "account").write_text(account + _line(0, 2, {"0": 10_000}))

        findings = Witness(Account(tmp_path / "account")).check(tables)

    assert findings.lost


def test_the_witness_notices_a_put_that_was_done_twice(tmp_path):
    with _written(tmp_path) as db:
        tables = create_tables(db)
        for table, seq in ((tables["faults.rows"], 0), (tables["faults.events"], 2)):
            rows = list(put_of(0, seq).rows)
            table.put(rows)
            if table.schema.primary_key:
                table.delete([row["key"] for row in rows])
            table.put(rows)

        findings = Witness(Account(tmp_path / "account")).check(tables)

    assert findings.duplicated


def _written(tmp_path: Path) -> kolk.Database:
    """A database, its kill switch never due, with the first two puts of a writer and the account of them."""
    db = open_database(tmp_path / "data", "machine", KillSwitch())
    tables = create_tables(db)
    lines = [_line(0, seq, perform(tables, put_of(0, seq))) for seq in range(2)]
    (tmp_path / "account").write_text("".join(lines))
    return db


def _line(writer: int, seq: int, offsets: dict[str, int]) -> str:
    return json.dumps({"writer": writer, "seq": seq, "offsets": offsets, "again": False}) + "\n"
