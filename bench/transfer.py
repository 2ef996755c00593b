"""Planned moves: what the REST call takes, how long no broker serves, and whether any request under load fails.

First with a service that does nothing (`bench.host`), so that the figures are the protocol's; then with the counters,
which make each hand-over durable, under load, on the demo's stage. A gap runs from the old owner's end of service to
the new one's beginning, on the one monotonic clock of the machine. Pulsar 4.0.7: REST call p50 32 ms.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
import time
from pathlib import Path

from bench.backends import Carrier, carrier
from bench.channel import plain_round_trips
from bench.cluster import BrokerProcess, cluster, create_namespace, topics_of_bundles
from bench.figures import emit, median, percentile
from bench.stage import staged
from loadmanager.broker import wiring
from loadmanager.demo.options import NAMESPACE
from loadmanager.demo.report import gaps_ms
from loadmanager.demo.stage import Member, Stage
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle, tile

MEASURED = 300
TRANSFERS = 10_000
AT_ONCE = 8
CALM = 1_000
"""Of the moves under load, so many come one after another."""
RATE_S = 150.0
ONLOOKER_S = 30.0


def run(kind: str) -> None:
    """All figures of this bench."""
    with tempfile.TemporaryDirectory(prefix="bench-transfer-") as directory:
        with carrier(kind) as where:
            _quiet(kind, where, Path(directory) / "served")
        with carrier(kind) as where:
            asyncio.run(_staged(kind, where, Path(directory)))


def _quiet(kind: str, where: Carrier, served: Path) -> None:
    """One move after another, of a service that does nothing."""
    os.environ["BENCH_SERVED"] = str(served)
    floor_ms = median(asyncio.run(_plain(where))) * 1e3
    with cluster(where, 3, host="bench.host:make") as brokers:
        create_namespace(brokers[0], "bench/moves", 16)
        boundaries = brokers[0].ask("GET", "/admin/v2/namespaces/bench/moves/bundles")[1]["boundaries"]
        topics = topics_of_bundles("bench/moves", boundaries)
        brokers[0].ask("POST", "/v1/lookup", {"topics": [f"persistent://{topic}" for topic in topics]})
        bundles = tile("bench/moves", [int(boundary, 16) for boundary in boundaries])
        took = [_move_by_rest(brokers, bundles[step % len(bundles)], step) for step in range(MEASURED)]
    p50_ms = percentile(took, 50) * 1e3
    emit(
        "transfer", f"REST call p50, {kind}", p50_ms, "ms", target="≤ 5", met=p50_ms <= 5,
        p99_ms=round(percentile(took, 99) * 1e3, 2),
    )  # fmt: skip
    gap_ms = median(_gaps_ms(served))
    emit(
        "transfer", f"gap p50, {kind}", gap_ms, "ms", floor=floor_ms, target="≤ 2 round trips of the log",
        met=gap_ms <= 2 * floor_ms,
    )  # fmt: skip


def _move_by_rest(brokers: list[BrokerProcess], bundle: Bundle, step: int) -> float:
    """Seconds of the call; the destination is the next broker that does not have it."""
    path = f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range}/unload?destinationBroker="
    for broker in (brokers[(step + turn) % 3] for turn in range(3)):
        begin = time.perf_counter()
        status, answer = brokers[0].ask("PUT", path + broker.name)
        took = time.perf_counter() - begin
        if status == 204:
            return took
    raise RuntimeError(f"{bundle} was not moved: {answer}")


def _gaps_ms(served: Path) -> list[float]:
    ended: dict[str, int] = {}
    gaps: list[float] = []
    for line in sorted(served.read_text().splitlines(), key=lambda line: int(line.split()[0])):
        at_ns, sign, bundle = line.split()
        if sign == "-":
            ended[bundle] = int(at_ns)
        elif bundle in ended:
            gaps.append((int(at_ns) - ended.pop(bundle)) / 1e6)
    return gaps


async def _plain(where: Carrier) -> list[float]:
    """Round trips of the same log with nothing of ours on the way."""
    log = wiring.open_log(Settings(log=where.log, development=True))
    await log.start(30)
    try:
        return await plain_round_trips(log)
    finally:
        await log.close()


async def _staged(kind: str, where: Carrier, directory: Path) -> None:
    async with staged(where, directory, brokers=3, rate_s=RATE_S) as stage:
        await _loaded(kind, stage)


async def _loaded(kind: str, stage: Stage) -> None:
    """Ten thousand moves under the counters' load: some one after another, then several at once, which take all CPU."""
    await stage.start_load()
    before = stage.observer.transfers
    await _measured(kind, stage, 1, CALM)
    begin_s = time.monotonic()
    await _measured(kind, stage, AT_ONCE, TRANSFERS - CALM)
    took_s = time.monotonic() - begin_s
    await stage.finish_load()
    load = stage.load
    emit(
        "transfer", f"failed requests over {stage.observer.transfers - before} moves, {kind}", load.failed, "requests",
        target="0", met=load.failed == 0, ok=load.ok, late=load.late, lost=load.lost, doubled=load.doubled,
        moves_s=round((TRANSFERS - CALM) / took_s, 1), problems=list(stage.problems),
    )  # fmt: skip


async def _measured(kind: str, stage: Stage, lanes: int, moves: int) -> None:
    stage.served.clear()
    many = len(_bundles(stage))
    await asyncio.gather(*(_moves(stage, range(lane, many, lanes), moves // lanes) for lane in range(lanes)))
    gaps = gaps_ms(stage.served)
    p99_ms = percentile(gaps, 99)
    emit(
        "transfer", f"gap p99 under load, {lanes} at once, {kind}", p99_ms, "ms", target="< 10",
        met=p99_ms < 10, p50_ms=round(median(gaps), 2), moves=len(gaps),
    )  # fmt: skip


async def _moves(stage: Stage, bundles: range, count: int) -> None:
    for step in range(count):
        await _move(stage, bundles[step % len(bundles)])


async def _move(stage: Stage, index: int) -> None:
    """Move one bundle to another broker, and return when the onlooker has read of it: the next move starts there."""
    bundle = _bundles(stage)[index]
    others: list[Member] = [m for m in stage.up() if m.name != _holder(stage, bundle)]
    to = random.choice(others)
    assert await stage.transfer(bundle, to), f"{bundle} was not moved: {stage.events[-1].text}"
    await stage.observer.wait_for(lambda: _holder(stage, bundle) == to.name, ONLOOKER_S)


def _holder(stage: Stage, bundle: Bundle) -> str:
    entry = stage.observer.table.get(bundle)
    assert entry is not None
    assert entry.holder is not None
    return entry.holder.name


def _bundles(stage: Stage) -> list[Bundle]:
    return list(stage.observer.bundles(NAMESPACE))
