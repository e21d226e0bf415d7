#!/usr/bin/env bash
# Makes .venv from the lock, once; the other scripts call it first. A second run only compares a stamp.
#   scripts/bootstrap.sh             runtime and dev tools (requirements.lock)
#   scripts/bootstrap.sh spark       the same, then requirements-spark.lock (any extra with such a file)
#
# A stamp is written after its step and removed before it, so an interrupted step is simply redone.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv python=$root/.venv/bin/python
# The caller's interpreter settings and active virtualenv must not leak into ours; index settings must.
unset PYTHONHOME PYTHONPATH VIRTUAL_ENV
export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1

say() { echo "bootstrap: $*" >&2; }
die() { say "$1"; say "Next: $2"; exit 1; }

find_python() { # prints the first interpreter that really runs, is new enough, and can make a venv
  local name version found='' no_venv=''
  for name in python3 python3.13 python3.12 python3.11; do
    # A pyenv shim may exist and yet refuse to run, so ask each candidate instead of trusting its name.
    version=$("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null) || continue
    found+="${found:+, }$name is $version"
    "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || continue
    "$name" -c 'import ensurepip, venv' 2>/dev/null || { no_venv=${no_venv:-$version}; continue; }
    command -v "$name"
    return
  done
  [[ -z $no_venv ]] || die "Python $no_venv is here, but without its venv module." \
    "install it (Debian, Ubuntu: apt-get install python3-venv or python$no_venv-venv), then run this again."
  die "Kolk needs Python 3.11 or newer, as python3 or python3.11 to python3.13 on PATH; ${found:-none runs}." \
    "install one (Debian, Ubuntu: apt-get install python3 python3-venv; pyenv: pyenv shell 3.12), then run this again."
}

digest() { # of the interpreter, the place (a venv cannot be moved) and the given files; fails with a broken venv
  "$python" -I -c 'import hashlib, sys
print(hashlib.sha256(b"\0".join([sys.version.encode(), *(open(f, "rb").read() for f in sys.argv[2:]),
                                 sys.argv[1].encode()])).hexdigest())' "$venv" "$@" 2>/dev/null
}

fresh() { # fresh STAMP FILE...: was this step finished with these very files?
  local stamp=$venv/.kolk-$1 now
  shift
  [[ -f $stamp ]] && now=$(digest "$@") && [[ $now == "$(<"$stamp")" ]]
}

finish() { local stamp=$venv/.kolk-$1; shift; digest "$@" >"$stamp.new" && mv "$stamp.new" "$stamp"; }

pip_install() { "$python" -m pip install --quiet "$@" || die "pip could not install ${*: -1}." "see the lines above."; }
# A lock names everything, so nothing is resolved: pip takes a package[extra] for another one than the package, tries its
# newest version first, and gives up as that has no hash here. So a release of somebody else's would break ours.
install_locked() { pip_install --no-deps --require-hashes -r "$1"; }

make_environment() { # from nothing, so that what the lock no longer names is gone
  local base site started=$SECONDS
  base=$(find_python)
  say "making .venv with $("$base" -V) and the locked packages (a minute or two, once)"
  rm -f "$venv"/.kolk-*
  "$base" -m venv --clear "$venv" || die "$base could not make $venv." "see the lines above; rm -rf the folder if it is broken."
  install_locked "$root/requirements.lock"
  # pyarrow.compute makes its functions at import time, where a type checker cannot see them.
  site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  mkdir -p "$site/pyarrow-stubs"
  echo partial >"$site/pyarrow-stubs/py.typed"
  printf 'from typing import Any\n\ndef __getattr__(name: str) -> Any: ...\n' >"$site/pyarrow-stubs/compute.pyi"
  finish lock "$root/requirements.lock" "${BASH_SOURCE[0]}"
  say "packages installed in $((SECONDS - started)) s"
}

install_project() { # editable: only the metadata in pyproject.toml can make it stale
  rm -f "$venv/.kolk-project"
  pip_install --no-deps --no-build-isolation --editable "$root"
  finish project "$root/pyproject.toml"
}

install_extra() {
  local lock=$root/requirements-$1.lock
  say "adding the $1 extra"
  rm -f "$venv/.kolk-extra-$1"
  install_locked "$lock"
  finish "extra-$1" "$lock"
}

all_fresh() {
  fresh lock "$root/requirements.lock" "${BASH_SOURCE[0]}" && fresh project "$root/pyproject.toml" || return 1
  local extra
  for extra in "$@"; do fresh "extra-$extra" "$root/requirements-$extra.lock" || return 1; done
}

for extra in "$@"; do
  [[ -f $root/requirements-$extra.lock ]] || die "no lock for the extra '$extra'." "scripts/lock --extra $extra"
done
all_fresh "$@" && exit

# Two at once: the second waits, then finds everything fresh. Locking this file leaves no lock file behind.
exec 9<"${BASH_SOURCE[0]}"
if command -v flock >/dev/null && ! flock -n 9; then
  say "waiting for another bootstrap of this folder"
  flock 9 || true
fi
fresh lock "$root/requirements.lock" "${BASH_SOURCE[0]}" || make_environment
fresh project "$root/pyproject.toml" || install_project
for extra in "$@"; do fresh "extra-$extra" "$root/requirements-$extra.lock" || install_extra "$extra"; done
say "ready"
