"""A broker dies, or leaves: until every bundle has a live, serving owner again. Default settings.

And whether any request of a load fails when one leaves: with the counters, on the demo's stage.
Pulsar 4.0.7: SIGKILL 30-65 s (session 30 s) and 7 s (session 6 s), of the leader 49-97 s, SIGTERM 1.0 s.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from pathlib import Path

from bench.backends import carrier
from bench.cluster import (
    BrokerProcess,
    await_true,
    cluster,
    create_namespace,
    records_read,
    topics_of_bundles,
)
from bench.figures import emit, median
from bench.stage import staged
from loadmanager.demo.stage import Stage

BUNDLES = 256
MANY = 30_000
BROKERS = 3
BATCH = 1_000
"""Topics that one lookup may ask for."""
TIMES = 3
RATE_S = 300.0
REQUESTS = 300
"""How many are answered before the first broker leaves, and after each one has left."""


def run(kind: str) -> None:
    """All figures of this bench."""
    for what, how, whom, target_s in (
        ("SIGKILL of an owner", signal.SIGKILL, "follower", 1.5),
        ("SIGKILL of the leader", signal.SIGKILL, "leader", 1.5),
        ("SIGTERM of an owner", signal.SIGTERM, "follower", 0.5),
    ):
        _deaths(what, kind, how, whom, target_s, BUNDLES)
    for what, whom in (("an owner", "follower"), ("the leader", "leader")):
        _deaths(f"SIGKILL of {what} of a third of {MANY:,} bundles", kind, signal.SIGKILL, whom, 1.5, MANY)
    with tempfile.TemporaryDirectory(prefix="bench-failover-") as directory:
        asyncio.run(_under_load(kind, Path(directory)))


def _deaths(what: str, kind: str, how: signal.Signals, whom: str, target_s: float, bundles: int) -> None:
    outages, held, records = zip(*(_once(kind, how, whom, bundles) for _ in range(TIMES)), strict=True)
    emit(
        "failover", f"{what}, {kind}", median(outages), "s", target=f"≤ {target_s:g}", met=max(outages) <= target_s,
        worst=round(max(outages), 3), bundles=held, of=bundles, records=records,
    )  # fmt: skip


def _once(kind: str, how: signal.Signals, whom: str, bundles: int) -> tuple[float, int, int]:
    """Seconds until all that it held is served again, how many bundles these are, and the channel's records for it."""
    with carrier(kind) as where, cluster(where, BROKERS) as brokers:
        create_namespace(brokers[0], "bench/failover", bundles)
        boundaries = brokers[0].ask("GET", "/admin/v2/namespaces/bench/failover/bundles")[1]["boundaries"]
        topics = [f"persistent://{t}" for t in topics_of_bundles("bench/failover", boundaries)]
        names = {broker.name for broker in brokers}
        await_true(lambda: _all_owned(brokers[0], topics, names), 120, "every bundle has its first owner")
        leader = brokers[0].ask("GET", "/admin/v2/brokers/leaderBroker")[1]["brokerId"]
        victim = next(b for b in brokers if (b.name == leader) == (whom == "leader"))
        witness = next(b for b in brokers if b is not victim)
        held = [t for t, owner in zip(topics, _owners(witness, topics), strict=True) if owner == victim.name]
        before, begin = records_read(witness), time.monotonic()
        victim.process.send_signal(how)
        _await_owners(witness, held, names - {victim.name})
        took_s = time.monotonic() - begin
        return took_s, len(held), records_read(witness) - before


def _await_owners(broker: BrokerProcess, topics: list[str], by: set[str]) -> None:
    """Until each has one of these owners. A topic that has one is not asked for again: that would cost the brokers."""
    left = topics

    def all_have() -> bool:
        nonlocal left
        some = left[:BATCH]
        owners = _owners(broker, some)
        left = [topic for topic, owner in zip(some, owners, strict=True) if owner not in by] + left[BATCH:]
        return not left

    await_true(all_have, 60, "every bundle has another owner")


def _all_owned(broker: BrokerProcess, topics: list[str], by: set[str]) -> bool:
    return set(_owners(broker, topics)) <= by


def _owners(broker: BrokerProcess, topics: list[str]) -> list[str | None]:
    """The owner that a lookup names, by topic; None where it names none yet."""
    owners: list[str | None] = []
    for begin in range(0, len(topics), BATCH):
        status, answer = broker.ask("POST", "/v1/lookup", {"topics": topics[begin : begin + BATCH]})
        assert status == 200, (status, answer)
        owners += [row.get("broker") for row in answer["answers"]]
    return owners


async def _under_load(kind: str, directory: Path) -> None:
    """Brokers that own bundles leave one after another, on SIGTERM, and come back, while requests go on."""
    with carrier(kind) as where:
        async with staged(where, directory, brokers=BROKERS, rate_s=RATE_S) as stage:
            await stage.start_load()
            took_s = [await _retire(stage) for _ in range(TIMES)]
            await _some_requests(stage)
            await stage.finish_load()
            load = stage.load
            emit(
                "failover", f"failed requests over {TIMES} SIGTERMs of owners, {kind}", load.failed, "requests",
                target="0", met=load.failed == 0 and load.ok > 0 and not load.lost and not load.doubled, ok=load.ok,
                late=load.late, lost=load.lost, doubled=load.doubled, worst_ms=round(load.worst_ms, 1),
                leaving_s=round(median(took_s), 3), problems=list(stage.problems), examples=list(load.examples),
            )  # fmt: skip


async def _retire(stage: Stage) -> float:
    """Seconds from the signal to the end of the process; then it is started again, and owns bundles again."""
    await _some_requests(stage)
    victim = max(stage.up(), key=lambda member: len(stage.observer.held_by_name(member.name)))
    held = stage.observer.held_by_name(victim.name)
    assert held, "every broker owns nothing"
    begin = time.monotonic()
    await stage.retire(victim)
    took_s = time.monotonic() - begin
    back = await stage.start_broker(victim)
    for bundle in list(held)[: len(held) // 2]:
        await stage.transfer(bundle, back)
    return took_s


async def _some_requests(stage: Stage) -> None:
    enough = stage.load.ok + REQUESTS
    async with asyncio.timeout(60):
        while stage.load.ok < enough:  # noqa: ASYNC110 - the figures come from another process
            await asyncio.sleep(0.05)
