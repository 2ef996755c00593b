"""One broker as a process of its own, which ends itself in the middle of `acquire` while a file is there: `python -m
tests.integration.poisoned DIRECTORY NAME KEY`."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from loadmanager import Broker, Bundle, BundleLoad, Destination, Token
from loadmanager.settings import Settings
from loadmanager.testing.cluster import QUICK
from statechannel.law.bundle import Key

SETTINGS: dict[str, Any] = {
    **QUICK,
    "quarantine_window_s": 30.0,
    "quarantine_retry_s": 4.0,
}


class Poisoned:
    """Of its bundles one kills."""

    def __init__(self, poison: Path, key: str) -> None:
        self._poison = poison
        self._position = Key.parse(key).position

    async def prepare(self, bundle: Bundle) -> None: ...

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        if self._position in bundle and self._poison.exists():
            os._exit(1)

    async def release(self, bundle: Bundle, to: Destination | None) -> None: ...

    async def abandon(self, bundle: Bundle) -> None: ...

    async def load(self) -> dict[Bundle, BundleLoad]:
        return {}


async def main(directory: Path, name: str, key: str) -> None:
    """Serve until standard input ends."""
    broker = Broker(
        Poisoned(directory / "poison", key),
        Settings(advertised=name, log=f"sqlite:{directory / 'cluster.db'}", **SETTINGS),
    )
    await broker.start()
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
