"""One broker of the demo, as a process: the counter service, which reports events as JSON lines on standard output.

When a bundle begins or stops being served here, the time (CLOCK_MONOTONIC, which all processes of a machine share) is
taken on the control thread, at the change itself. The process ends with its parent: when standard input ends.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from loadmanager.broker.node import Node
from loadmanager.broker.serving import Claim
from loadmanager.broker.wiring import dependencies
from loadmanager.cluster.dependencies import Dependencies
from loadmanager.demo.counter.__main__ import running
from loadmanager.embedding import control
from loadmanager.embedding.broker import Broker
from loadmanager.settings import Settings
from statechannel.errors import StateChannelError
from statechannel.law.bundle import Bundle

LINGER_S = 0.3


class Orders(msgspec.Struct, frozen=True):
    """How to run; the only argument, as JSON."""

    settings: dict[str, Any]
    store: str
    namespace: str
    bundles: int
    reads: int | None = None
    """The newest format of records that this broker knows, as one of an earlier release would; None: all."""


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of standard output. `kind` is `ready`, `served` (`on` says whether from or until `at_ns`) or `left`."""

    kind: str
    at_ns: int
    name: str = ""
    bundle: str = ""
    on: bool = False
    took_ms: float = 0.0


def tell(told: Told) -> None:
    """Write the line."""
    sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
    sys.stdout.flush()


def _die_with_parent() -> None:
    while os.read(0, 4096):  # not through sys.stdin, whose lock would block an ordinary exit
        pass
    os._exit(0)


async def _tell_what_is_served(broker: Broker) -> None:
    service = asyncio.get_running_loop()

    def changed(bundle: Bundle, claim: Claim | None) -> None:
        told = Told("served", time.monotonic_ns(), bundle=str(bundle), on=claim is not None)
        service.call_soon_threadsafe(tell, told)

    async def listen(node: Node) -> None:
        assert node.serving is not None
        node.serving.listen(changed)
        for claim in node.serving.claims():
            changed(claim.bundle, claim)

    await broker.ask(listen)


def _know_formats_up_to(version: int) -> None:
    def older(settings: Settings) -> Dependencies:
        return msgspec.structs.replace(dependencies(settings), newest_version=version)

    control.dependencies = older


async def main(orders: Orders) -> None:
    """Until SIGTERM; then move everything away and leave."""
    begun_ns = time.monotonic_ns()
    logging.getLogger(control.__name__).setLevel(logging.ERROR)  # its name is random on purpose
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if orders.reads is not None:
        _know_formats_up_to(orders.reads)
    async with running(Settings(**orders.settings), Path(orders.store), LINGER_S) as broker:
        await broker.ensure_namespace(orders.namespace, orders.bundles)
        await _tell_what_is_served(broker)
        now_ns = time.monotonic_ns()
        tell(Told("ready", now_ns, name=broker.name, took_ms=(now_ns - begun_ns) / 1e6))
        await stop.wait()
        await broker.stop()
        tell(Told("left", time.monotonic_ns(), name=broker.name))


if __name__ == "__main__":
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        asyncio.run(main(msgspec.json.decode(sys.argv[1].encode(), type=Orders)))
    except StateChannelError as error:  # an operator's matter
        sys.exit(str(error))
