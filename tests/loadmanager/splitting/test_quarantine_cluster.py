"""A bundle of which brokers die, in clusters of real brokers: it is locked up, told of, and the others go on."""

from __future__ import annotations

import asyncio
from typing import Any

from loadmanager import Broker, Bundle, BundleLoad, Destination, Token
from loadmanager.errors import Unavailable
from loadmanager.policies.model import BundlePolicy, Kind
from loadmanager.splitting.journal import What
from loadmanager.testing.cluster import EmbeddedCluster, embedded_cluster
from statechannel.bundle import Topic
from statechannel.transitions import State

KEY = "test/service/poison"
QUICK: dict[str, Any] = {"proof_validity_s": 0.5, "session_timeout_s": 1.0, "monitor_interval_s": 0.2}
POSITION = Topic.parse(KEY).position


class Dying:
    """A service whose process ends when it loads the poison, once that is `armed`."""

    armed: asyncio.Event

    def __init__(self) -> None:
        self.dying = False
        self.taken = 0

    async def prepare(self, bundle: Bundle) -> None: ...

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        if POSITION in bundle and self.armed.is_set():
            self.taken += 1
            self.dying = True
            await asyncio.Event().wait()  # until it is killed

    async def release(self, bundle: Bundle, to: Destination | None) -> None: ...

    async def abandon(self, bundle: Bundle) -> None: ...

    async def load(self) -> dict[Bundle, BundleLoad]:
        return {}


def table(broker: Broker) -> Any:
    return broker.node.channel.table


async def look_up(cluster: EmbeddedCluster[Dying], timeout_s: float = 0.3) -> str:
    """Have the poison assigned, if anybody may; why not."""
    try:
        broker = next(b for b in cluster.brokers if not cluster.host(b).dying)
        await broker.ask(lambda node: node.current.lookup.locate(Topic.parse(KEY), timeout_s))
    except Unavailable as error:
        return str(error)
    return ""


async def let_die(cluster: EmbeddedCluster[Dying]) -> int:
    """Kill whoever loaded it; how many."""
    dying = [broker for broker in cluster.brokers if cluster.host(broker).dying]
    for broker in dying:
        await cluster.kill(broker)
    return len(dying)


def policy(cluster: EmbeddedCluster[Dying], bundle: Bundle) -> BundlePolicy | None:
    return cluster.brokers[-1].node.policies.current().bundles.get(bundle)


async def test_a_bundle_that_kills_three_brokers_is_quarantined_and_the_others_are_served():
    Dying.armed = asyncio.Event()
    async with embedded_cluster(Dying, brokers=5, bundles=6, quarantine_deaths=3, **QUICK) as cluster:
        poison = cluster.bundle(KEY)
        others = [bundle for bundle in cluster.bundles() if bundle != poison]
        Dying.armed.set()
        await cluster.unload(poison)
        deaths, last, refusals = 0, "", list[str]()
        async with asyncio.timeout(60):
            while "quarantined" not in last:
                last = await look_up(cluster)
                refusals.append(last)
                deaths += await let_die(cluster)
                assert deaths <= 3, "a fourth one was given it"
        assert deaths == 3
        assert any("held back for" in text for text in refusals), "not at once to the next one"
        locked = policy(cluster, poison)
        assert locked is not None
        assert "3 brokers in succession died with it" in locked.quarantined
        assert "while they acquired it" in locked.quarantined
        told = [note.text for broker in cluster.brokers for note in broker.node.notes]
        assert any("quarantined: 3 brokers" in text for text in told)
        counts = [broker.node.current.splitting.journal.counts[What.QUARANTINED] for broker in cluster.brokers]
        assert sum(counts) == 1
        await cluster.until(
            lambda: all(cluster.owner(bundle) is not None or _free(cluster, bundle) for bundle in others)
        )
        [fresh] = await cluster.add()
        assert "quarantined" in await look_up(cluster)
        assert cluster.host(fresh).taken == 0


def _free(cluster: EmbeddedCluster[Dying], bundle: Bundle) -> bool:
    return table(cluster.brokers[0]).get(bundle).state is State.UNASSIGNED


async def test_who_starts_after_the_deaths_has_counted_them_and_a_release_by_an_administrator_ends_it():
    Dying.armed = asyncio.Event()
    async with embedded_cluster(Dying, brokers=4, bundles=4, quarantine_deaths=3, **QUICK) as cluster:
        poison = cluster.bundle(KEY)
        Dying.armed.set()
        await cluster.unload(poison)
        deaths = 0
        async with asyncio.timeout(60):
            while policy(cluster, poison) is None:
                await look_up(cluster)
                deaths += await let_die(cluster)
        [fresh] = await cluster.add()
        suspect = fresh.node.quarantine.suspect(poison)
        assert suspect is not None, "it has read of them"
        assert len(suspect.deaths) == 3
        Dying.armed.clear()
        await fresh.ask(
            lambda node: node.policies.change(Kind.BUNDLE, str(poison), lambda _: BundlePolicy(), author="me")
        )
        async with asyncio.timeout(60):
            while await look_up(cluster):
                await asyncio.sleep(0.01)
        nobody = [broker.node.quarantine.suspect(poison) for broker in cluster.brokers]
        assert nobody == [None] * len(nobody), "nor do the same deaths ever count again"
