"""The `loadmanager` command, as operators run it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 60.0
AUDITS = 20
EXIT_UNCHECKED = 3


class Ended(msgspec.Struct, frozen=True):
    """What a command printed, and its exit code."""

    code: int | None
    told: str
    complained: str


async def run(*arguments: str) -> Ended:
    """Run it to its end. Raises AssertionError if that does not come in time."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOADMANAGER_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from loadmanager_api.cli.main import main; main()", *arguments),
        cwd=ROOT, env=environment, stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LIMIT_S):
            told, complained = await process.communicate()
    except TimeoutError:
        raise AssertionError(f"loadmanager {' '.join(arguments)} did not end within {LIMIT_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return Ended(process.returncode, told.decode(), complained.decode())


async def loadmanager(*arguments: str) -> str:
    """What the command printed. Raises AssertionError if it does not end with 0, and in time."""
    ended = await run(*arguments)
    assert ended.code == 0, f"loadmanager {' '.join(arguments)} ended with {ended}"
    return ended.told


async def verify(settings: dict[str, object], brokers: Collection[str]) -> None:
    """`channel verify` agrees, with each of these brokers in each partition, and with the log itself.

    Where the log was trimmed under the auditor's feet it says so, and is to be run again.
    """
    arguments = ("channel", "verify", *as_options(settings), "-o", "json")
    ended = await run(*arguments)
    for _ in range(AUDITS - 1):
        if ended.code == EXIT_UNCHECKED:
            ended = await run(*arguments)
    assert ended.code == 0, f"channel verify ended with {ended}"
    agreeing = Counter(found["who"].partition("#")[0] for found in json.loads(ended.told))
    partitions = agreeing["log"]
    assert partitions
    assert {name: agreeing[name] for name in brokers} == dict.fromkeys(brokers, partitions)


def as_options(settings: dict[str, object]) -> list[str]:
    """A broker's settings, as the command takes them."""
    options: list[str] = []
    for name, value in settings.items():
        if name in ("cluster", "log", "coordination"):
            options += [f"--{name}", str(value)]
        elif name == "development":
            options += ["--development"]
        else:
            options += ["--set", f"{name}={value}"]
    return options
