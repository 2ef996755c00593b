#!/usr/bin/env bash
# Writes the lock files anew from pyproject.toml: exact versions with hashes, no addresses of package indices.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PIP_FIND_LINKS PIP_INDEX_URL PIP_EXTRA_INDEX_URL
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
python3 -m venv "$tool"
"$tool/bin/pip" install -q pip-tools==7.6.2
compile() {
  CUSTOM_COMPILE_COMMAND=tools/lock.sh "$tool/bin/pip-compile" -q --generate-hashes --strip-extras --allow-unsafe \
    --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-annotate "$@" pyproject.toml
}
compile --extra kafka --extra zookeeper -o requirements/runtime.lock
compile --extra dev -c requirements/runtime.lock -o requirements/dev.lock
