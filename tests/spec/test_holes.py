"""The 39 holes of exactly-once: each rule that closes one has a test of its name."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
HOLES = 39


def test_every_hole_has_a_test_of_its_name():
    """``test_h7_...`` is a test of H7; one may be of several."""
    named = re.compile(r"^def test_((?:h\d+_)+)", re.MULTILINE)
    found = {
        int(number)
        for path in TESTS.rglob("test_*.py")
        for prefix in named.findall(path.read_text(encoding="utf-8"))
        for number in re.findall(r"\d+", prefix)
    }

    assert found == set(range(1, HOLES + 1))
