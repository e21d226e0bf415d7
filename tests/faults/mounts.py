"""File systems of a test's own, for those who may mount: an image on a loop device, a small one in memory.

Everything that is mounted is taken down again, by force if need be; a loop device that ``mount`` made goes with
its mount.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

_SECONDS = 60
_TOOLS = ("unshare", "mount", "umount", "truncate", "mkfs.ext4")
# Root's tools are often not on the path, though they are there.
_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command, for so long at most."""
    environment = {**os.environ, "PATH": _PATH}
    words = [shutil.which(str(command[0]), path=_PATH) or str(command[0]), *map(str, command[1:])]
    return subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False, env=environment)


def why_not() -> str | None:
    """Why nothing can be mounted here; None if it can be."""
    if os.geteuid() != 0:
        return "mounting needs root"
    return _tried()


@cache
def _tried() -> str | None:
    """Mounts are often forbidden in containers, root or not: try once."""
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]
    if missing:
        return f"there is no {', '.join(missing)} here"
    probe = run("unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=1m", "none", "/mnt")
    return None if probe.returncode == 0 else f"mounting is not allowed here: {probe.stderr.strip()}"


@contextmanager
def mounted(target: Path, *arguments: str | Path) -> Iterator[Path]:
    """``mount arguments target``, and the opposite at the end."""
    target.mkdir(parents=True, exist_ok=True)
    done = run("mount", *arguments, target)
    if done.returncode != 0:
        pytest.skip(f"mount failed: {done.stderr.strip()}")
    try:
        yield target
    finally:
        if run("umount", target).returncode != 0:
            run("umount", "--lazy", target)


def make_image(path: Path, size: str) -> None:
    """An empty ext4 file system in a file."""
    assert run("truncate", "-s", size, path).returncode == 0
    done = run("mkfs.ext4", "-q", "-F", path)
    if done.returncode != 0:
        pytest.skip(f"mkfs.ext4 failed: {done.stderr.strip()}")
