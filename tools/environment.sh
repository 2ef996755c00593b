#!/usr/bin/env bash
# Makes a virtual environment from a lock file: tools/environment.sh runtime|light|dev|lowest [DIRECTORY [PYTHON]], by
# default .venv. Does nothing if it is current. Uses uv, which takes a third of the time of pip: the one on the PATH, or
# else one that pip installs into the environment. Where uv can't be installed or fails, pip does it.
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
if [ ! -x "$venv/bin/python" ]; then
  if ! "$(find_python)" -m venv "$venv"; then
    rm -rf "$venv" # half made: it has a Python without pip, which the next run would take for a whole one
    echo "The venv module is missing; on Debian: apt-get install python3-venv" >&2
    exit 1
  fi
fi
"$venv/bin/python" -c "import pip" 2>/dev/null || "$venv/bin/python" -m ensurepip >/dev/null # uv makes some without it

install_by_pip() {
  "$venv/bin/python" -m pip install -q --disable-pip-version-check "$@"
}

find_uv() {
  command -v uv && return
  [ -x "$venv/bin/uv" ] || install_by_pip --require-hashes -r requirements/uv.lock >&2 || return
  echo "$venv/bin/uv"
}

install() {
  local uv index
  index=${PIP_INDEX_URL:-$("$venv/bin/python" -m pip config get global.index-url 2>/dev/null)} || true
  if uv=$(find_uv) && env ${index:+"UV_DEFAULT_INDEX=$index"} "$uv" pip install -q --python "$venv/bin/python" "$@"; then
    return
  fi
  install_by_pip "$@"
}

install --require-hashes -r "$lock"
install --no-deps -e .
echo "$want" >"$stamp"
