"""Runs the `go` tool, which builds programs from their modules."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from stack.jars import StackError

TIMEOUT_S = 1_200.0


def go(
    *arguments: str, folder: Path, environment: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
) -> None:
    """Run it in a folder, which is made if need be. Raises StackError, with what it printed last."""
    if shutil.which("go") is None:
        raise StackError("go is missing, with which programs are built from their modules: install Go 1.24 or newer")
    folder.mkdir(parents=True, exist_ok=True)
    command = ["go", *arguments]
    run = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    if run.returncode != 0:
        raise StackError(f"{' '.join(command)}:\n{(run.stdout + run.stderr)[-4000:]}")
