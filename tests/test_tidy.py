"""The house rules that no linter knows, each a test named as a sentence.

A failure lists every offence as file:line and what to do about it.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES_MAX = 600
FILE_LINES_USUAL = 400  # 19 files in 20 stay below
FUNCTION_LINES_MAX = 60


class Source:
    """One Python file, parsed once."""

    def __init__(self, path: Path) -> None:
        self.name = path.relative_to(ROOT).as_posix()
        self.lines = path.read_text(encoding="utf-8").splitlines()
        self.tree = ast.parse("\n".join(self.lines), filename=self.name)
        self.nodes = list(ast.walk(self.tree))

    def each(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        return (node for node in self.nodes if isinstance(node, kinds))

    def imports(self) -> Iterator[tuple[int, str]]:
        """Every imported name in full: `from time import sleep` gives time and time.sleep."""
        for node in self.each(ast.Import, ast.ImportFrom):
            module = getattr(node, "module", None)
            if module:
                yield node.lineno, module
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}" if module else alias.name


@cache
def source(path: Path) -> Source:
    return Source(path)


def sources(*folders: str) -> list[Source]:
    return [source(path) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def in_src() -> list[Source]:
    return sources("src")


def in_all() -> list[Source]:
    return sources("src", "tests", "bench", "examples")


def tracked_files() -> list[Path]:
    """What git tracks or would add; in an unpacked archive, everything but hidden folders."""
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split("\0")
    except (OSError, subprocess.CalledProcessError):
        paths = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        names = [p.as_posix() for p in paths if not any(part[0] in "._" for part in p.parts[:-1])]
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def fail_with(faults: list[str]) -> None:
    if faults:
        pytest.fail("\n".join(faults), pytrace=False)


def check(files: list[Source], rule: Callable[[Source], Iterator[tuple[int, str]]]) -> None:
    faults = [f"{file.name}:{line}: {advice}" for file in files for line, advice in rule(file)]
    fail_with(faults)


def test_no_file_is_too_long_to_read_in_one_sitting():
    def rule(file: Source):
        if len(file.lines) > FILE_LINES_MAX:
            yield FILE_LINES_MAX, f"{len(file.lines)} lines; split the file (at most {FILE_LINES_MAX})"

    check(in_all(), rule)


def test_nineteen_files_in_twenty_are_short():
    long = [file for file in in_all() if len(file.lines) > FILE_LINES_USUAL]
    allowed = max(1, len(in_all()) // 20)

    if len(long) > allowed:
        advice = f"over {FILE_LINES_USUAL} lines, which only {allowed} of {len(in_all())} files may be; split it"
        fail_with([f"{file.name}:{len(file.lines)}: {advice}" for file in long])


def test_every_function_fits_on_a_screen():
    def rule(file: Source):
        for node in file.each(ast.FunctionDef, ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name} has {length} lines; split it (at most {FUNCTION_LINES_MAX})"

    check(in_all(), rule)


def test_every_module_says_why_it_exists():
    def rule(file: Source):
        words = (ast.get_docstring(file.tree) or "").split()
        ends = [n for n, word in enumerate(words, 1) if word.rstrip("`)\"'").endswith((".", "!", "?"))]
        if not ends or max(ends) < 3:
            yield 1, "write a module docstring of at least one full sentence: why it exists, what it refuses"

    check(in_src(), rule)


def test_every_function_in_src_is_annotated():
    def rule(file: Source):
        for node in file.each(ast.FunctionDef, ast.AsyncFunctionDef):
            spec = node.args
            positional = [*spec.posonlyargs, *spec.args]
            if positional and positional[0].arg in {"self", "cls"}:
                positional = positional[1:]
            given = [*positional, *spec.kwonlyargs, *filter(None, [spec.vararg, spec.kwarg])]
            bare = [arg.arg for arg in given if arg.annotation is None]
            if bare:
                yield node.lineno, f"annotate {', '.join(bare)} of {node.name}"
            if node.returns is None:
                yield node.lineno, f"annotate what {node.name} returns"

    check(in_src(), rule)


def test_no_class_is_named_for_having_no_job_of_its_own():
    def rule(file: Source):
        for node in file.each(ast.ClassDef):
            if re.search(r"(Manager|Handler|Context|Helper|Utils?|Impl)$", node.name):
                yield node.lineno, f"rename {node.name} to a word of the glossary, or a plural noun"

    check(in_all(), rule)


def test_every_promise_of_later_work_has_an_issue_number():
    def rule(file: Source):
        for number, line in enumerate(file.lines, 1):
            if re.search(r"\b(TOD[O]|FIXM[E])\b", line) and not re.search(r"#\d+", line):
                yield number, "open an issue and write its #number on this line, or do it now"

    check(in_all(), rule)


def test_only_the_cli_prints():
    def rule(file: Source):
        for node in file.each(ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id == "print":
                yield node.lineno, "return it or log it; only kolk/cli prints"

    check([file for file in in_src() if not file.name.startswith("src/kolk/cli/")], rule)


def test_no_test_sleeps():
    def rule(file: Source):
        called = ((node.lineno, ast.unparse(node.func)) for node in file.each(ast.Call))
        for line, name in [*file.imports(), *called]:
            if name == "time.sleep":
                yield line, "advance the clock, or wait for the event itself"

    check(sources("tests"), rule)


def test_no_test_patches_what_it_tests():
    def rule(file: Source):
        for line, name in file.imports():
            if name in {"mock", "unittest.mock"}:
                yield line, "use a memory twin from kolk.testing instead of a mock"

    check(sources("tests"), rule)


def test_no_broad_except_swallows_in_silence():
    def rule(file: Source):
        for node in file.each(ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "BaseException"
            if not re.search(r"\b(Base)?Exception\b", caught):
                continue
            reraises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
            excused = re.search(r"# noqa: BLE001\W+\w+", file.lines[node.lineno - 1])
            if not (reraises or excused):
                yield node.lineno, "catch the named error, re-raise, or write `# noqa: BLE001 - <the reason>`"

    check(in_all(), rule)


def test_flight_is_imported_where_the_network_is_and_nowhere_else():
    allowed = {"src/kolk/server/transport.py", "src/kolk/client/connection.py", "src/kolk/client/streams.py"}

    def rule(file: Source):
        for line, name in file.imports():
            if name == "pyarrow.flight":
                yield line, f"use Flight through {' or '.join(sorted(allowed))}"

    check([file for file in in_src() if file.name not in allowed], rule)


def test_nothing_tracked_names_a_package_index_or_a_path_of_one_machine():
    index = re.compile(r"py[p]i\.org|python[h]osted|--(extra-)?index[-]url|--find[-]links|://\S*/simp[l]e\b")
    machine = re.compile(r"(?<![\w.~*}-])/(work|root)(?![\w-])")
    faults = []
    for path in tracked_files():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), 1):
            where = f"{path.relative_to(ROOT)}:{number}"
            if found := index.search(line):
                faults.append(f"{where}: remove {found[0]}; where packages come from is the user's setting")
            if found := machine.search(line):
                faults.append(f"{where}: replace {found[0]} by a relative path")

    fail_with(faults)


def test_the_locks_name_everything_that_their_packages_need():
    """They are installed without a resolver, which would otherwise have found what is missing."""
    done = subprocess.run([sys.executable, "-m", "pip", "check"], check=False, capture_output=True, text=True)

    assert done.returncode == 0, f"{done.stdout}{done.stderr}Next: scripts/lock, then scripts/lock --extra spark"
