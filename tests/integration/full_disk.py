"""Runs with a small disk of its own: two brokers on it, the disk is filled, and space is made again.

    python full_disk.py DIRECTORY

Prints one JSON object with what was seen. See `test_full_disk.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from loadmanager import Broker, Settings
from loadmanager.errors import LoadManagerError
from statechannel.law.bundle import Bundle, even_boundaries, tile

NAMESPACE = "full/disk"
BUNDLES = tile(NAMESPACE, even_boundaries(16))
V_S = 2.0


async def until(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.02)


def owner(brokers: tuple[Broker, ...], bundle: Bundle) -> Broker | None:
    return next((broker for broker in brokers if broker.serving(bundle)), None)


def fill(directory: Path) -> Path:
    """Take all the space that is left."""
    path = directory / "filling"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return path


async def move(brokers: tuple[Broker, ...]) -> str:
    source = owner(brokers, BUNDLES[0])
    target = next(broker for broker in brokers if broker is not source)
    try:
        await target.transfer(BUNDLES[0], target.name)
    except LoadManagerError as error:
        return f"{type(error).__name__}: {error}"
    return "moved"


async def main(directory: Path) -> dict[str, object]:
    settings = Settings(
        log=f"sqlite:{directory}/log.db", advertised="127.0.0.1:0", proof_validity_s=V_S, publish_timeout_s=2.0
    )
    async with Broker(settings=settings) as a, Broker(settings=settings) as b:
        brokers = (a, b)
        await a.ensure_namespace(NAMESPACE, len(BUNDLES))
        for number in range(200):
            await a.locate(f"{NAMESPACE}/topic-{number}")
        await until(lambda: all(owner(brokers, bundle) for bundle in BUNDLES))
        filling = fill(directory)
        unserved = 0
        for _ in range(int(4 * V_S / 0.02)):  # for four times the life of a proof
            unserved += any(owner(brokers, bundle) is None for bundle in BUNDLES)
            await asyncio.sleep(0.02)
        located = (await b.locate(f"{NAMESPACE}/topic-1")).owner.name in (a.name, b.name)
        refused = await move(brokers)
        filling.unlink()
        async with asyncio.timeout(30):
            while (after := await move(brokers)) != "moved":
                await asyncio.sleep(0.1)
    return {"unserved": unserved, "located": located, "full": refused, "after": after}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
