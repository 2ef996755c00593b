"""Runs the `go` tool, which builds programs from their modules."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from stack.programs import StackError, program

TIMEOUT_S = 1_200.0


def go(
    *arguments: str, folder: Path, environment: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
) -> None:
    """Run it in a folder, which is made if need be. Raises StackError, with what it printed last."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [program("go"), *arguments]
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
