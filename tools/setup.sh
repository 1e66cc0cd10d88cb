#!/usr/bin/env bash
# Make .venv at the root of the repository and install raysim into it, once.
#
# Called by tools/demo and tools/test. Safe to run again at any time: when nothing it depends on has
# changed it returns at once, and what an interrupted call left behind is made anew.
# RAYSIM_PYTHON names the Python to use; by default the first one that is new enough.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/.venv"
python="$venv/bin/python"
log="$venv/setup.log"
stamp="$venv/.raysim-installed"
running="$venv/.raysim-installing"
extras=dev,lite0,report,pandas,parquet,tensorboard,mlflow
not_fit=3

say() { echo "setup: $*"; }

is_new_enough() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
  local name names=(python3 python3.13 python3.12 python3.11 python) seen=""
  if [[ -n "${RAYSIM_PYTHON:-}" ]]; then names=("$RAYSIM_PYTHON"); fi
  for name in "${names[@]}"; do
    if ! command -v "$name" >/dev/null; then continue; fi
    if is_new_enough "$name"; then
      command -v "$name"
      return
    fi
    seen+="$name is $("$name" --version 2>&1 | head -n 1); "
  done
  say "raysim needs Python 3.11 or newer, but ${seen:-${names[*]} are not on PATH; }install it," \
    "or name it with RAYSIM_PYTHON=/path/to/python3.11" >&2
  return "$not_fit"
}

# What the installed environment depends on; the folder counts because the install is editable.
fingerprint() {
  "$python" - "$root" <<'PYTHON'
import hashlib, pathlib, sys

root = pathlib.Path(sys.argv[1])
digest = hashlib.sha256(f"{sys.version}|{root}|".encode())
for name in ("pyproject.toml", "tools/constraints.txt"):
    digest.update((root / name).read_bytes())
print(digest.hexdigest())
PYTHON
}

is_installed() {
  [[ -f "$stamp" && ! -e "$running" && -x "$python" ]] &&
    [[ "$(fingerprint 2>/dev/null)" == "$(<"$stamp")" ]]
}

# pip takes a half-copied package for an installed one, so an interrupted install cannot be trusted.
make_venv() {
  local base
  base="$(find_python)"
  say "making .venv with $("$base" --version)"
  rm -rf "$venv"
  mkdir "$venv"
  touch "$running"
  if ! "$base" -m venv "$venv" >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    say "cannot make a virtual environment with $base (log above); on Debian and Ubuntu:" \
      "apt install python3-venv" >&2
    return "$not_fit"
  fi
}

install() {
  touch "$running"
  rm -f "$stamp"
  say "installing raysim and what it needs, log in .venv/setup.log" \
    "(first time: about 6 GB, most of it PyTorch, a few minutes)"
  if ! "$python" -m pip install -e "$root[$extras]" -c "$root/tools/constraints.txt" \
    >>"$log" 2>&1; then
    tail -n 15 "$log" >&2
    say "the install failed (end of .venv/setup.log above); mend the cause and run this again" >&2
    return "$not_fit"
  fi
  say "checking that the packages load"
  if ! "$python" -c 'import ray, skimage, sklearn, torch, torchvision, raysim' >>"$log" 2>&1; then
    tail -n 15 "$log" >&2
    say "a package was installed but does not load (end of .venv/setup.log above)" >&2
    return "$not_fit"
  fi
  fingerprint >"$stamp"
  rm -f "$running"
}

set_up() {
  if is_installed; then
    say "ready (.venv is up to date)"
    return
  fi
  if [[ -e "$running" ]]; then
    say "the last set-up did not finish; starting it again"
    make_venv
  elif ! { [[ -x "$python" ]] && is_new_enough "$python" && "$python" -m pip --version; } \
    >/dev/null 2>&1; then
    make_venv
  fi
  install
  say "ready"
}

# One set-up at a time: a second call waits for the first. The lock ends with this process.
exec 9<"${BASH_SOURCE[0]}"
if command -v flock >/dev/null; then
  flock -n 9 || { say "waiting for another set-up of this folder" && flock 9; }
fi
set_up
