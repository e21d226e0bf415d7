"""The report on faults is made of what a long run has left, also of one in which something failed."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "reliability.py"
FIGURE = '{"fault": "kill -9 at a random moment", "times": 3, "puts": 40, "rows": 1200, "lost": 0, "duplicated": 0}\n'
RESULTS = """<testsuites><testsuite>
  <testcase classname="tests.faults.test_kill" name="test_kept"/>
  <testcase classname="tests.faults.test_power" name="test_torn"><failure message="it tore"/></testcase>
  <testcase classname="tests.faults.test_damage" name="test_begun"><error message="no disk"/></testcase>
  <testcase classname="tests.codec.test_key" name="test_order"><failure message="not of a fault"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def reliability():
    spec = importlib.util.spec_from_file_location("reliability", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_run_in_which_a_fault_test_failed_keeps_its_figures_and_names_the_test(reliability, tmp_path):
    (tmp_path / "figures.jsonl").write_text(FIGURE * 2)
    (tmp_path / "results.xml").write_text(RESULTS)

    figures, failures = reliability.outcome(tmp_path)
    text = reliability.report(figures, failures, "in their long form")

    assert failures == ["test_power: test_torn", "test_damage: test_begun"]
    assert "| kill -9 at a random moment | 6 | 80 | 2,400 | 0 | 0 |" in text
    assert "- a full disk (tmpfs): its test did not run, or failed before it counted" in text
    assert text.endswith("- `test_power: test_torn`\n- `test_damage: test_begun`\n")


def test_a_run_that_was_stopped_is_not_taken_for_a_good_one(reliability, tmp_path):
    (tmp_path / "figures.jsonl").write_text(FIGURE)

    assert reliability.outcome(tmp_path)[1] == ["the tests did not run to their end"]


def test_what_is_lost_counts_but_for_the_controls_that_should_lose(reliability):
    assert reliability.is_losing({reliability.KILL_ANY: [{"lost": 1}]})
    assert not reliability.is_losing({reliability.CUT_CONTROL: [{"lost": 1}], reliability.KILL_ANY: [{"lost": 0}]})
