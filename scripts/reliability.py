"""Write RELIABILITY.md: which faults Kolk was put through, how often, and what it lost.

    python scripts/reliability.py              run the fault tests in their long form, then write the report
    python scripts/reliability.py --short      the same in the form that CI runs
    python scripts/reliability.py --of FOLDER  run nothing: a long run has left its figures and results there

The tests append their figures, as JSON lines, to the file that KOLK_FIGURES names, and pytest writes what became of
each. The report holds no date and no name of a machine. What did not run, or failed, is in it too; then this script
ends with status 1.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
RUN_SECONDS_MAX = 9_000
FIGURES, RESULTS = "figures.jsonl", "results.xml"

KILL_ANY = "kill -9 at a random moment"
KILL_STEP = "kill -9 at a step of a put"
KILL_KEPT = "kill -9 among snapshots and leases"
KILL_KEPT_STEP = "kill -9 at a step of a snapshot or a lease"
KILL_COMMITS = "kill -9 among transactions"
KILL_COMMIT_STEP = "kill -9 at a step of a transaction"
KILL_OWNER_STEP = "kill -9 at a step of an owner"
CUT_MODEL = "power cut, modelled: log on a lossy disk, KV set back"
CUT_REAL = "power cut, real: ext4 image copied without a sync"
CUT_CONTROL = "power cut, real, durability `process` (the control: it should lose)"
CALLS = "a failed disk call"
FULL = "a full disk (tmpfs)"
HISTORY = "8 clients at once: reads that went back"
FAULTS = {
    KILL_ANY: "8 writers on 4 buckets and a log table, killed from outside, while opening or at work",
    KILL_STEP: "the process kills itself before, within or after appending, syncing, applying, rolling, flushing",
    KILL_KEPT: "puts, snapshots, leases, trimming and drops, killed from outside; what is leased must be shown exactly,"
    " each snapshot lead to the present with its changelog, and no other file be there",
    KILL_KEPT_STEP: "the process kills itself before, within or after checkpointing, copying, sharing, publishing,"
    " removing, restoring and every record",
    KILL_COMMITS: "applications over several tables and buckets, killed from outside; each version counts once, as a"
    " whole",
    KILL_COMMIT_STEP: "the process kills itself at every step of staging, committing and rolling forward; the retry"
    " leaves what one clean run does",
    KILL_OWNER_STEP: "of beginning, taking back, writing, committing, leaving, being evicted, and of tasks; two owners"
    " on different columns; the table and its changelog are those of one clean run",
    CUT_MODEL: "at every step, also during recovery; what was not synced is dropped, kept, cut or torn by sectors",
    CUT_REAL: "mounted with commit=300, the writer killed, the image copied and recovered from",
    CUT_CONTROL: "the same without syncs, to show that the test has teeth",
    CALLS: "EIO from write, sync, create and folder sync in one bucket of four",
    FULL: "puts until the disk is full, then more space and on, without a restart",
    HISTORY: "times are operations; each read is compared with all writes and reads that ended before it",
}

SERVER_KILL = "kill -9 of a server under load"
SERVER_RESTART = "restart of a server under load"
SERVER_DAMAGED = "damaged messages to a server"
SERVER_BOMBS = "bombs to a server"
SERVER_CONNECTIONS = "bad connections to a server"
COMMITS_KILL = "kill -9 of a server under transactions"
COMMIT_SERVER_KILL = "kill -9 of a server at a step of a transaction"
COMMIT_CLIENT_KILL = "kill -9 of a client at a step of a transaction"
OWNER_SERVER_KILL = "kill -9 of a server at a step of an owner"
OWNER_WRITER_KILL = "kill -9 of a writer at a step of an owner"
OWNER_ZOMBIE = "kill -9 of a writer that owns columns"
OWNER_ENDS = "ends of a server under owners"
SCAN_KILL = "kill -9 of a server in the middle of a scan"
SCAN_CUT = "a cut of the wire in the middle of a scan"
SCAN_LEFT = "scans that are left open"
SCAN_OFTEN = "dashboards that scan every second"
SPARK_DRIVER = "kill -9 of a Spark driver and its JVM"
SPARK_TASKS = "failures of Spark's tasks and commits"
SPARK_SERVER = "kill -9 of a server under Spark"
SPARK_CONTROL = "failures of Spark, a sink that puts in its tasks (the control: it should count twice)"
SERVER = {
    SERVER_KILL: "8 writers, 2 followers and a reader, which go on by the client's own retries; puts one by one and in"
    " streams; a follower must see every change exactly once, a reader nothing older than acknowledged",
    SERVER_RESTART: "the same with SIGTERM; no client may see an error",
    SERVER_DAMAGED: "puts, lookups, actions and tickets with flipped bits, cuts, splices and extreme numbers, half of"
    " them over the network; each must be served or refused by name in time",
    SERVER_BOMBS: "compressed, deep, wide, endless, or of 5,000 digits; each refused",
    SERVER_CONNECTIONS: "silent, a byte at a time, garbage, scans that nobody reads, clients killed in the middle",
    COMMITS_KILL: "clients that commit go on by their own retries; each version counts once, as a whole",
    COMMIT_SERVER_KILL: "of staging, sealing, committing and rolling forward; the client goes on by its own retries",
    COMMIT_CLIENT_KILL: "the server stays, and the client is started again with the same version",
    OWNER_SERVER_KILL: "the writer's process goes on by its own retries",
    OWNER_WRITER_KILL: "the server stays, and the writer is started again",
    OWNER_ZOMBIE: "beside others that are stopped and woken when somebody has taken over: nothing of theirs is written",
    OWNER_ENDS: "killed and stopped in turns, while owners write and commit",
    SCAN_KILL: "in its first page, in the middle, near its end, while it is mended, and several times in one; rows and"
    " partitions change before and behind the reader; a result that is mended, and a bootstrap, must be exact",
    SCAN_CUT: "it goes on in the same scan at the last batch, whether streamed or page by page",
    SCAN_LEFT: "closed, read to the end, stopped in the middle, stalled, shared, dropped with their connection or their"
    " process; after their time nothing may be open or pinned",
    SCAN_OFTEN: "three of them, who close nothing that they have read; none is refused",
    SPARK_DRIVER: "at random, in a task, before, within and after a commit, while some of its processes live on; sums,"
    " counts, maxima and lists by transactions and by owners, and a copy that follows them, are those of a batch job",
    SPARK_TASKS: "raised, or the process ends: before, between and after the rows, in the sink, before and after its"
    " commit, and in its abort; each batch is cut anew when it comes again",
    SPARK_SERVER: "in a task, before, within and after a commit; the queries go on, or are started again",
    SPARK_CONTROL: "two failures and the deaths of its driver, to show that they hurt who does not take care",
}
CONTROLS = (CUT_CONTROL, SPARK_CONTROL)

Figures = dict[str, list[dict]]


def main() -> int:
    words = sys.argv[1:]
    is_full = "--short" not in words
    if words[:1] == ["--of"]:
        figures, failures = outcome(Path(words[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder), is_full=is_full)
            figures, failures = outcome(Path(folder))
    form = "in their long form" if is_full else "in their short form"
    (ROOT / "RELIABILITY.md").write_text(report(figures, failures, form), encoding="utf-8")
    missing = [fault for fault in (*FAULTS, *SERVER) if fault not in figures]
    for line in [*failures, *(f"no figures: {fault}" for fault in missing)]:
        print(line)
    return 1 if failures or missing or is_losing(figures) else 0


def run(folder: Path, *, is_full: bool) -> None:
    """Run the fault tests; their figures and results are in the folder then."""
    environment = {**os.environ, "KOLK_FIGURES": str(folder / FIGURES), "KOLK_FULL": "1" if is_full else "0"}
    command = [sys.executable, "-m", "pytest", "tests/faults", "-m", "", "-q", "-rs", "-p", "no:cacheprovider"]
    command += ["-n", "2", "--dist", "load", f"--junitxml={folder / RESULTS}"]
    subprocess.run(command, cwd=ROOT, env=environment, timeout=RUN_SECONDS_MAX, check=False)


def outcome(folder: Path) -> tuple[Figures, list[str]]:
    """The figures that a run has left, and which of the fault tests failed."""
    figures, results = folder / FIGURES, folder / RESULTS
    failures = failed_tests(results) if results.exists() else ["the tests did not run to their end"]
    return read_figures(figures) if figures.exists() else {}, failures


def failed_tests(results: Path) -> list[str]:
    """The names of the fault tests that failed, from pytest's XML."""
    cases = ElementTree.parse(results).getroot().iter("testcase")
    places = ((case, *case.get("classname", "").rpartition(".")) for case in cases)
    return [
        f"{module}: {case.get('name')}"
        for case, package, _, module in places
        if package == "tests.faults" and (case.find("failure") is not None or case.find("error") is not None)
    ]


def read_figures(path: Path) -> Figures:
    """The lines of a figures file, by fault."""
    found: Figures = defaultdict(list)
    for line in path.read_text().splitlines():
        figure = json.loads(line)
        found[figure["fault"]].append(figure)
    return found


def total(lines: list[dict], name: str) -> int:
    return sum(line.get(name, 0) for line in lines)


def is_losing(figures: Figures) -> bool:
    return any(
        total(lines, name)
        for fault, lines in figures.items()
        if fault not in CONTROLS
        for name in ("lost", "duplicated", "wrong")
    )


def report(figures: Figures, failures: list[str], form: str) -> str:
    """The text of RELIABILITY.md."""
    rows, idle = counted(FAULTS, figures, ("times", "puts", "rows", "lost", "duplicated"))
    server_rows, server_idle = counted(SERVER, figures, ("times", "puts", "rows", "lost", "duplicated", "wrong"))
    steps = sorted({line["detail"] for line in figures.get(KILL_STEP, []) if "detail" in line})
    return TEXT.format(
        form=form,
        machine=machine(),
        rows="\n".join(rows),
        details="\n".join(f"- **{fault}**: {text}." for fault, text in FAULTS.items()),
        server_rows="\n".join(server_rows),
        server_details="\n".join(f"- **{fault}**: {text}." for fault, text in SERVER.items()),
        p99=most(figures, "p99_ms"),
        growth=most(figures, "growth_mb"),
        again=most(figures, "second_round_mb"),
        steps=", ".join(steps) or "none",
        idle="\n".join(idle + server_idle) or "Everything above ran.",
        failures="\n".join(f"- `{failure}`" for failure in failures) or "None.",
    )


def counted(faults: dict[str, str], figures: Figures, names: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The rows of a table of faults, and a line for each that did not run."""
    rows, idle = [], []
    for fault in faults:
        ran = [line for line in figures.get(fault, []) if "skipped" not in line]
        reasons = sorted({line["skipped"] for line in figures.get(fault, []) if "skipped" in line})
        if ran:
            counts = [f"{total(ran, name):,}" if any(name in line for line in ran) else "" for name in names]
            rows.append(f"| {fault} | {' | '.join(counts)} |")
        else:
            idle.append(f"- {fault}: {'; '.join(reasons) or 'its test did not run, or failed before it counted'}")
    return rows, idle


def most(figures: Figures, name: str) -> str:
    """The largest of a figure of the server's tests."""
    found = [line[name] for fault in SERVER for line in figures.get(fault, []) if name in line]
    return f"{max(found):,}" if found else "unknown"


def machine() -> str:
    """What is worth knowing of where this ran, and nothing that names it."""
    return f"{platform.system()} on {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


TEXT = """# Reliability

Made by `./scripts/test --full` from `tests/faults`, {form}; do not edit. All of it happened to
real processes on a real disk, but for the row that says *modelled*. A row is *acknowledged* when the put returned,
and *lost* when it is not in the reopened table and its changelog. *Duplicated* counts rows that are in the changelog
twice although every retry carried its tag. After each fault the table is also compared with its changelog, row by
row, and offsets must have no hole. In the modelled power cuts one history is cut many times, and its rows counted
each time.

Ran on: {machine}. Durability is `machine` (synced before the answer) where nothing else
is said; the clients at once run with `process`.

| fault | times | acknowledged puts | acknowledged rows | lost | duplicated |
|---|---:|---:|---:|---:|---:|
{rows}

{details}

Steps at which a process was killed: {steps}.

## Server

Against a server in a process of its own. *Wrong* counts answers that are no typed error or came too late, reads that
went back, and offsets with a hole. Beside the damaged messages and the bombs a good client puts and looks up all the
time: none of its calls failed, 99 in 100 of them took at most {p99} ms, and the server grew by at most {growth} MB. A
second round of two hundred scans that are left open took {again} MB more than the first.

| fault | times | acknowledged puts | acknowledged rows | lost | duplicated | wrong |
|---|---:|---:|---:|---:|---:|---:|
{server_rows}

{server_details}

## What did not run

{idle}

## Fault tests that fail

{failures}
"""


if __name__ == "__main__":
    sys.exit(main())
