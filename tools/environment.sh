#!/usr/bin/env bash
# Makes a virtual environment from a lock file: tools/environment.sh runtime|dev|lowest [DIRECTORY [PYTHON]], by default
# .venv. Uses uv if it is there, else pip. Does nothing if current.
set -euo pipefail
cd "$(dirname "$0")/.."
kind=$1
venv=${2:-.venv}
python=${3:-}
lock=requirements/$kind.lock

find_python() {
  for candidate in ${python:-python3.13 python3.12 python3.11 python3}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "Python 3.11 or newer is needed${python:+, and $python is not one}; install it and try again." >&2
  exit 1
}

want=$(cat "$lock" pyproject.toml | sha256sum | cut -d' ' -f1)
stamp=$venv/.$kind.stamp
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
  exit 0
fi

echo "Setting up $venv ($kind) …" >&2
if command -v uv >/dev/null 2>&1; then
  [ -x "$venv/bin/python" ] || uv venv -q --python "$(find_python)" "$venv"
  uv pip install -q --python "$venv/bin/python" --require-hashes -r "$lock"
  uv pip install -q --python "$venv/bin/python" --no-deps -e .
else
  if [ ! -x "$venv/bin/python" ]; then
    if ! "$(find_python)" -m venv "$venv"; then
      rm -rf "$venv" # half made: it has a Python without pip, which the next run would take for a whole one
      echo "The venv module is missing; on Debian: apt-get install python3-venv" >&2
      exit 1
    fi
  fi
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r "$lock"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps -e .
fi
echo "$want" >"$stamp"
