#!/usr/bin/env bash
# Writes the lock files anew from pyproject.toml: exact versions with hashes, no addresses of package indices. What is
# locked stays as it is where it may; tools/lock.sh --upgrade takes the newest. lowest.lock has the oldest that may be.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PIP_FIND_LINKS PIP_INDEX_URL PIP_EXTRA_INDEX_URL
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
python3 -m venv "$tool"
"$tool/bin/pip" install -q uv==0.13.9
compile() {
  "$tool/bin/uv" pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
    --no-emit-package loadmanager "$@" pyproject.toml
}
echo "uv==0.13.9" | "$tool/bin/uv" pip compile -q --universal --python-version 3.11 --generate-hashes --no-header \
  --no-annotate -o requirements/uv.lock - # installs the others in a third of the time that pip takes
compile --extra all "$@" -o requirements/runtime.lock
compile --extra dev -c requirements/runtime.lock "$@" -o requirements/dev.lock
compile --extra test --extra style -c requirements/dev.lock "$@" -o requirements/light.lock
compile --extra history --extra kafka -c requirements/dev.lock "$@" -o requirements/history.lock # the jobs' image
compile --extra test --resolution lowest-direct -o requirements/lowest.lock
