"""Helm and helm-docs, built from their Go modules and kept below `.stack/`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from stack.jars import StackError

BUILT = Path(__file__).parents[1] / ".stack" / "go"
MODULES = {
    "helm": "helm.sh/helm/v3/cmd/helm@v3.22.0",
    "helm-docs": "github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2",
}
BUILD_TIMEOUT_S = 1_200.0


def built(name: str) -> Path:
    """The program; the first call builds it, which takes minutes. Raises StackError."""
    module = MODULES[name]
    folder = BUILT / module.rpartition("@")[2]
    program = folder / name
    if program.exists():
        return program
    if shutil.which("go") is None:
        raise StackError(f"go is missing, with which {name} is built: install Go 1.24 or newer")
    environment = {**os.environ, "GOBIN": str(folder), "CGO_ENABLED": "0"}
    command = ["go", "install", module]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S)
    if run.returncode != 0:
        raise StackError(f"{' '.join(command)}:\n{(run.stdout + run.stderr)[-4000:]}")
    return program
