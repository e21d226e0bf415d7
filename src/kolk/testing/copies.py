"""Copies of a database folder in use, as ``kill -9`` would leave it."""

import shutil
from contextlib import suppress
from pathlib import Path


def copy_of_one_moment(source: Path, target: Path) -> None:
    """RocksDB compacts in the background: a copy that it changed files under is no state that a kill could leave."""

    def files() -> list[tuple[Path, int, int]]:
        found = [(path, path.stat()) for path in sorted(source.rglob("*")) if path.is_file()]
        return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in found]

    while True:
        with suppress(OSError):  # a file went between two looks
            before = files()
            shutil.copytree(source, target)
            if files() == before:
                return
        shutil.rmtree(target, ignore_errors=True)
