"""A bundle of which brokers die, in clusters of real brokers: it is locked up, told of, tried again, and let go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loadmanager import Broker, Bundle, BundleLoad, Destination, Token
from loadmanager.errors import Unavailable
from loadmanager.leader.quarantine.losses import Fate
from loadmanager.leader.quarantine.trials import LOCKED
from loadmanager.model.policies.model import BundlePolicy, Kind
from loadmanager.testing.cluster import EmbeddedCluster, embedded_cluster
from statechannel.law.bundle import Key

KEY = "test/service/poison"
QUICK: dict[str, Any] = {
    "proof_validity_s": 0.4,
    "session_timeout_s": 1.0,
    "monitor_interval_s": 0.2,
    "quarantine_deaths": 2,
    "quarantine_window_s": 8.0,
    "quarantine_retry_s": 1.0,
}
WITHIN_A_SECOND: dict[str, Any] = QUICK | {"quarantine_window_s": 0.5}
POSITION = Key.parse(KEY).position


class Dying:
    """A service whose process ends when it loads the poison, while that is `armed`."""

    armed: asyncio.Event

    def __init__(self) -> None:
        self.dying = False

    async def prepare(self, bundle: Bundle) -> None: ...

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        if POSITION in bundle and self.armed.is_set():
            self.dying = True
            await asyncio.Event().wait()  # until it is killed

    async def release(self, bundle: Bundle, to: Destination | None) -> None: ...

    async def abandon(self, bundle: Bundle) -> None: ...

    async def load(self) -> dict[Bundle, BundleLoad]:
        return {}


async def look_up(cluster: EmbeddedCluster[Dying], timeout_s: float = 0.1) -> str:
    """Have the poison assigned, if anybody may; why not."""
    try:
        broker = next(b for b in cluster.brokers if not cluster.host(b).dying)
        await broker.ask(lambda node: node.current.lookup.locate(Key.parse(KEY), timeout_s))
    except Unavailable as error:
        return str(error)
    return ""


async def let_die(cluster: EmbeddedCluster[Dying]) -> int:
    """Kill whoever loaded it, and start it again, as a supervisor would; how many."""
    dying = [broker for broker in cluster.brokers if cluster.host(broker).dying]
    for broker in dying:
        await cluster.kill(broker)
        await cluster.restart(broker)
    return len(dying)


def policy(cluster: EmbeddedCluster[Dying], bundle: Bundle) -> BundlePolicy | None:
    return cluster.brokers[-1].node.policies.current().bundles.get(bundle)


async def lay_down(cluster: EmbeddedCluster[Dying], bundle: Bundle, text: str, reason: str) -> None:
    await cluster.brokers[0].ask(
        lambda node: node.policies.change(
            Kind.BUNDLE, str(bundle), lambda _: BundlePolicy(quarantined=text), author="b:1#1", reason=reason
        )
    )


@pytest.mark.slow
async def test_locked_bundle_is_retried_by_itself_and_served_once_harmless():
    Dying.armed = asyncio.Event()
    async with embedded_cluster(Dying, brokers=3, bundles=4, **QUICK) as cluster:
        poison = cluster.bundle(KEY)
        await lay_down(cluster, poison, "2 brokers were lost with it", LOCKED)
        Dying.armed.set()
        await cluster.unload(poison)
        assert "quarantined" in await look_up(cluster)
        deaths = 0
        async with asyncio.timeout(60):
            while (locked := policy(cluster, poison)) is None or "tried again" not in locked.quarantined:
                deaths += await let_die(cluster)
                await asyncio.sleep(0.01)
        assert deaths == 1, "a trial costs one broker"
        assert "tried again 1 times, the last time" in locked.quarantined
        Dying.armed.clear()
        await cluster.until(lambda: policy(cluster, poison) is None, timeout_s=60)
        assert cluster.owner(poison) is not None, "it is served, and no person did anything"
        await cluster.until(lambda: any("let go" in text and "lives with it" in text for text in _notes(cluster)))
        await cluster.until(lambda: all(poison not in broker.node.quarantine for broker in cluster.brokers))


def _notes(cluster: EmbeddedCluster[Dying]) -> list[str]:
    return [note.text for broker in cluster.brokers for note in broker.node.notes]


async def test_what_a_person_has_locked_up_stays_locked():
    Dying.armed = asyncio.Event()
    async with embedded_cluster(Dying, brokers=2, bundles=4, **WITHIN_A_SECOND) as cluster:
        bundle, other = cluster.bundles()[:2]
        await lay_down(cluster, bundle, "I say so", "mine")
        await lay_down(cluster, other, "2 brokers were lost with it", LOCKED)
        await cluster.until(lambda: policy(cluster, other) is None, timeout_s=30)
        assert policy(cluster, bundle) == BundlePolicy(quarantined="I say so")


async def test_channel_tells_the_fate_of_a_broker_to_those_who_start_later():
    Dying.armed = asyncio.Event()
    async with embedded_cluster(Dying, brokers=3, bundles=4, **QUICK) as cluster:
        poison = cluster.bundle(KEY)
        Dying.armed.set()
        await cluster.unload(poison)
        async with asyncio.timeout(30):
            while not await let_die(cluster):
                await look_up(cluster)
        Dying.armed.clear()
        await cluster.until(lambda: _crashes(cluster.brokers[0], poison) == 1)
        [fresh] = await cluster.add()
        assert _crashes(fresh, poison) == 1


def _crashes(broker: Broker, bundle: Bundle) -> int:
    return sum(step.fate is Fate.CRASHED for step in broker.node.quarantine.evidence(bundle).steps)
