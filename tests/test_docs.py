"""The code that people read first is run: the README's and the guide's, top to bottom."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "docs/guide.md", "docs/aggregation.md", "docs/exactly-once.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs_as_it_stands(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))

    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr


def test_who_follows_the_readme_in_python_and_in_a_shell_beside_it_meets_no_error(tmp_path):
    """Twice, as one runs cells again; but for Spark, which is in the test above."""
    text = (ROOT / "README.md").read_text().partition("In PySpark")[0]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]  # instead of that which somebody may have in use
    text = text.replace("9123", str(port)).replace(
        "serve ./data &", f"serve ./data --listen 127.0.0.1:{port} --http-port -1 &"
    )
    blocks = re.findall(r"```(python|bash)\n(.*?)```", text, flags=re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "python", "bash", "python"]
    lines = [
        block if language == "python" else f"subprocess.run(['bash', '-emc', {block + 'wait'!r}], check=True)"
        for language, block in blocks
    ]
    script = tmp_path / "readme.py"
    script.write_text("\n".join(["import subprocess", *lines, *lines]))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("'_change_type': '+I'") == 1
    assert done.stdout.count('"user":"ada"') >= 2


@pytest.mark.parametrize("page", sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")))
def test_links_between_pages_lead_somewhere(page):
    text = (ROOT / page).read_text()
    targets = [target for target in re.findall(r"\]\(([^)#]+)", text) if "://" not in target]

    missing = [target for target in targets if not (ROOT / page).parent.joinpath(target).exists()]

    assert not missing


def test_the_tour_runs_and_finds_everything_right():
    tour = [sys.executable, str(ROOT / "examples" / "tour.py"), "--rows", "20000"]

    done = subprocess.run(tour, capture_output=True, text=True, timeout=240)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "All of it is right." in done.stdout


def test_the_replica_of_the_retention_example_is_the_table():
    example = [sys.executable, str(ROOT / "examples" / "retention.py")]

    done = subprocess.run(example, capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "The replica is the table." in done.stdout
    assert "were never read" in done.stdout


def test_the_copies_of_the_bootstrap_example_are_the_table():
    example = [sys.executable, str(ROOT / "examples" / "bootstrap.py")]

    done = subprocess.run(example, capture_output=True, text=True, timeout=240)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("kill -9 the server") == 2
    assert "Both copies are the table." in done.stdout


def test_the_slow_reader_of_the_lease_example_has_the_table_of_then_and_of_now():
    example = [sys.executable, str(ROOT / "examples" / "lease.py")]

    done = subprocess.run(example, capture_output=True, text=True, timeout=240)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "The report is right, then and now." in done.stdout
    assert "leases left: 0" in done.stdout


def test_the_counters_of_the_aggregation_example_are_what_one_job_would_have_made():
    example = [sys.executable, str(ROOT / "examples" / "aggregate.py")]

    done = subprocess.run(example, capture_output=True, text=True, timeout=240)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9 the server" in done.stdout
    assert "Every row is right." in done.stdout


def test_the_jobs_of_the_owners_example_leave_what_one_run_without_accidents_would_have_made():
    example = [sys.executable, str(ROOT / "examples" / "owners.py")]

    done = subprocess.run(example, capture_output=True, text=True, timeout=240)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9 the process" in done.stdout
    assert "rows taken back on the way: 0" not in done.stdout
    assert "Every row is right." in done.stdout


def test_the_tables_of_aggregate_functions_are_current():
    check = [sys.executable, str(ROOT / "scripts" / "functions.py"), "--check"]

    done = subprocess.run(check, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr
