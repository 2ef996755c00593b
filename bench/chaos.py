"""Consumer groups under faults, and while they rebalance: ours beside others, on one real Kafka.

*Faults*: a group of four members in processes of their own reads eight partitions, under 400 records/s, while members
are cut off, killed and suspended, by a seed that is printed; `chaos_faults` says when, `group_reads` what is counted.
*Besides*: the same, one member at a time, while offsets are reset and the coordinator moves, while the members divide
the partitions, and while one partition has no news for longer than Kafka keeps offsets.
*Table*: a million records that are there already are read while a member leaves, or leaves and comes back.
The process ends with status 1 if ours lost a record, read one again without need, let two members read at once, let an
offset go back without a reset, or undid a reset.

`python -m bench.chaos --seed 7 --messages 100000 --only faults|besides|table` chooses.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from bench.chaos_besides import BESIDES, RETENTION_S, Besides
from bench.chaos_faults import FAULTS, KILL, MODES
from bench.chaos_play import MEMBERS, SESSION_S, Place, Setting, play
from bench.chaos_table import MESSAGES, table
from bench.chaos_ways import Ways
from bench.figures import emit
from bench.groups import EqualKafka, coordinators
from stack.servers import free_port
from tests.faults import TcpProxy

PEERS = ("classic", "consumer")
PEERS_MODES = ("minor",)
"""In these the protocols of Kafka are played, too."""
PARTS = ("faults", "besides", "table")


def run(kind: str) -> None:
    """All figures of this bench; it needs Kafka, whatever `kind` is."""
    del kind
    _run(random.randrange(1_000_000), MESSAGES, PARTS)


def _run(seed: int, messages: int, parts: tuple[str, ...]) -> None:
    emit("chaos", "seed", seed, "number")
    ports = {f"PLACE{place}": free_port() for place in range(MEMBERS)}
    met = True
    with _kafka(ports) as kafka:
        for part, cells in (("faults", _cells), ("besides", _besides)):
            if part in parts:
                met &= asyncio.run(_faults(kafka, ports, partial(cells, seed=seed)))
        if "table" in parts:
            met &= asyncio.run(table(kafka.address, messages))
    if not met:
        sys.exit(1)


@contextmanager
def _kafka(ports: dict[str, int]) -> Generator[EqualKafka]:
    directory = Path(tempfile.mkdtemp(prefix="bench-chaos-"))
    kafka = EqualKafka(directory / "kafka", SESSION_S, proxied_at=ports, retention_min=int(RETENTION_S / 60))
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.stop()
        shutil.rmtree(directory, ignore_errors=True)


async def _faults(kafka: EqualKafka, ports: dict[str, int], cells: Callable[[Setting], Awaitable[bool]]) -> bool:
    async with coordinators(kafka.address) as admin_urls:
        brokers = [urlsplit(url).netloc for url in admin_urls]
        proxies = {
            place: [TcpProxy(f"127.0.0.1:{kafka.listener_port(name)}", port), *map(TcpProxy, brokers)]
            for place, (name, port) in enumerate(ports.items())
        }
        with Ways(proxies) as ways:
            places = [
                Place(
                    its[0].address,
                    {
                        urlsplit(url).netloc.rpartition(":")[2]: proxy.port
                        for url, proxy in zip(admin_urls, its[1:], strict=True)
                    },
                )
                for its in proxies.values()
            ]
            setting = Setting(kafka.address, admin_urls, places, ways)
            return await cells(setting)


async def _cells(setting: Setting, seed: int) -> bool:
    met = True
    for fault in FAULTS:
        for mode in MODES:
            nothing = Besides(random.Random(seed))
            met &= await play("ours", fault, mode, setting, seed, nothing)
            for protocol in PEERS if mode in PEERS_MODES else ():
                await play(protocol, fault, mode, setting, seed, nothing)
    return met


async def _besides(setting: Setting, seed: int) -> bool:
    met = True
    for kind in BESIDES.values():
        for fault in FAULTS if not kind.longer_s else (KILL,):
            besides = kind(random.Random(f"{seed} {fault}"))
            met &= await play("ours", fault, "minor", setting, seed, besides)
    return met


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="of the faults")
    parser.add_argument("--messages", type=int, default=MESSAGES, help="of the table")
    parser.add_argument("--only", choices=PARTS, help="one part")
    told = parser.parse_args()
    _run(told.seed, told.messages, (told.only,) if told.only else PARTS)


if __name__ == "__main__":
    main()
