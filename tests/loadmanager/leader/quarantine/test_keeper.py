"""The leader's part of the quarantine: what became of lost brokers, locks and trials, in clusters of real brokers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from loadmanager import Bundle, BundleLoad, Destination, Token
from loadmanager.documents.fold import Version
from loadmanager.errors import Unavailable
from loadmanager.leader.quarantine.evidence import End, Quarantine
from loadmanager.leader.quarantine.keeper import LOCKED, TOLD_AFTER_MS, Processes, lock_of
from loadmanager.model.policies.model import BundlePolicy, Kind, Policy
from loadmanager.model.registration import Peer, Registration
from loadmanager.testing.cluster import EmbeddedCluster, embedded_cluster
from statechannel.law.bundle import Key
from statechannel.law.record import BrokerId

GONE_S = 60.0
LOST, RETURNED = BrokerId("b:1", 1), BrokerId("b:1", 2)


def registered(broker: BrokerId, started_ms: int, *, draining: bool = False) -> dict[str, Peer]:
    return {broker.name: Peer(broker, Registration(started_ms=started_ms, draining=draining))}


@pytest.mark.parametrize(
    ("draining", "peers", "after_s", "end"),
    [
        (False, {}, 1, End.OPEN),
        (False, {}, GONE_S + 1, End.CRASHED),
        (False, registered(RETURNED, 7), 1, End.LIVES),
        (False, registered(RETURNED, 8), 1, End.CRASHED),
        (True, {}, 1, End.LIVES),
        (True, registered(RETURNED, 8), 1, End.LIVES),
    ],
)
def test_the_end_of_a_lost_broker_follows_from_the_registrations_of_its_name(
    draining: bool, peers: dict[str, Peer], after_s: float, end: End
):
    processes, quarantine = Processes(), Quarantine(lambda bundle, broker: True)
    processes.saw(registered(LOST, 7, draining=draining), 0)
    processes.saw(peers, 1_000)
    quarantine.lose(LOST, 1_000, 60.0)
    now_ms = 1_000 + int(after_s * 1000)
    assert processes.vanished(quarantine, now_ms, GONE_S) == [LOST]
    assert processes.end_of(LOST, now_ms, GONE_S)[0] is end
    quarantine.tell(LOST, end)
    assert processes.vanished(quarantine, now_ms, GONE_S) == ([LOST] if end is End.OPEN else [])


def test_a_broker_that_held_nothing_is_told_of_and_one_that_returned_or_drained_is_not():
    processes, quarantine = Processes(), Quarantine(lambda bundle, broker: True)
    processes.saw(registered(LOST, 7), 0)
    processes.saw({}, 1_000)
    assert processes.vanished(quarantine, 1_500, GONE_S) == []
    assert processes.vanished(quarantine, 1_000 + TOLD_AFTER_MS, GONE_S) == [LOST]
    processes.saw(registered(LOST, 7), 4_000)
    assert processes.vanished(quarantine, 9_000, GONE_S) == []
    processes.saw(registered(LOST, 7, draining=True), 10_000)
    processes.saw({}, 11_000)
    assert processes.vanished(quarantine, 20_000, GONE_S) == []


def test_lock_belongs_to_the_leader_by_its_reason_and_counts_its_trials():
    def version(text: str, reason: str, number: int) -> Version[Policy]:
        return Version[Policy](
            "bundle/x", number, BundlePolicy(quarantined=text), "b:1#1", 1_000 * number, reason, number
        )

    bundle = Bundle.of("t/n", "0x00000000_0x80000000")
    first, second = version("a", LOCKED, 1), version("b", LOCKED, 2)
    found = lock_of(bundle, [first])
    assert found is not None
    assert (found.since_ms, found.tries, found.due_ms(60.0)) == (1_000, 0, 61_000)
    again = lock_of(bundle, [first, second])
    assert again is not None
    assert (again.since_ms, again.tries, again.due_ms(60.0)) == (2_000, 1, 122_000)
    assert lock_of(bundle, [first, version("mine", "I say so", 2)]) is None
    assert lock_of(bundle, [first, version("", "released", 2)]) is None
    later = lock_of(bundle, [first, version("", "released", 2), version("c", LOCKED, 3)])
    assert later is not None
    assert later.tries == 0


# --- clusters

KEY = "test/service/poison"
POSITION = Key.parse(KEY).position
QUICK: dict[str, Any] = {
    "proof_validity_s": 0.4,
    "session_timeout_s": 1.0,
    "monitor_interval_s": 0.2,
    "quarantine_window_s": 8.0,
    "quarantine_retry_s": 1.0,
}
WITHIN_A_SECOND: dict[str, Any] = QUICK | {"quarantine_window_s": 0.5}


class Dying:
    """A service whose process ends when it acquires the poison, while that is `armed`."""

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
    """Have the poison assigned, if any broker may take it; returns why not."""
    try:
        broker = next(b for b in cluster.brokers if not cluster.host(b).dying)
        await broker.ask(lambda node: node.current.lookup.locate(Key.parse(KEY), timeout_s))
    except Unavailable as error:
        return str(error)
    return ""


async def let_die(cluster: EmbeddedCluster[Dying]) -> int:
    """Kill each broker that acquired it, and start it again, as a supervisor would; returns how many."""
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
async def test_a_bundle_that_kills_is_locked_tried_again_and_served_once_harmless():
    Dying.armed = asyncio.Event()
    async with embedded_cluster(Dying, brokers=6, bundles=6, **QUICK) as cluster:
        poison = cluster.bundle(KEY)
        Dying.armed.set()
        await cluster.unload(poison)
        deaths = 0
        async with asyncio.timeout(200):
            while (locked := policy(cluster, poison)) is None:
                await look_up(cluster)
                deaths += await let_die(cluster)
                await asyncio.sleep(0.01)
        assert deaths >= 3
        assert "brokers were lost one after the other" in locked.quarantined
        assert "next trial at" in locked.quarantined
        async with asyncio.timeout(60):
            while f"loadmanager bundles release-quarantine {poison}" not in await look_up(cluster):
                await let_die(cluster)
            while (locked := policy(cluster, poison)) is None or "tried again" not in locked.quarantined:
                await let_die(cluster)
                await asyncio.sleep(0.01)
        assert "tried again 1 times, the last time it crashed" in locked.quarantined
        Dying.armed.clear()
        await cluster.until(lambda: policy(cluster, poison) is None, timeout_s=60)
        assert cluster.owner(poison) is not None, "it is served, and no person did anything"
        await cluster.until(lambda: any("let go" in text and "lives with it" in text for text in _notes(cluster)))
        await cluster.until(lambda: not any(b.node.quarantine.is_drawn(poison) for b in cluster.brokers))


def _notes(cluster: EmbeddedCluster[Dying]) -> list[str]:
    return [note.text for broker in cluster.brokers for note in broker.node.notes]


async def test_what_a_person_has_locked_stays_locked():
    Dying.armed = asyncio.Event()
    async with embedded_cluster(Dying, brokers=2, bundles=4, **WITHIN_A_SECOND) as cluster:
        bundle, other = cluster.bundles()[:2]
        await lay_down(cluster, bundle, "I say so", "mine")
        await lay_down(cluster, other, "brokers were lost with it", LOCKED)
        await cluster.until(lambda: policy(cluster, other) is None, timeout_s=30)
        assert policy(cluster, bundle) == BundlePolicy(quarantined="I say so")


async def test_the_channel_tells_the_end_of_a_broker_to_those_who_start_later():
    Dying.armed = asyncio.Event()
    async with embedded_cluster(Dying, brokers=3, bundles=4, **QUICK) as cluster:
        poison = cluster.bundle(KEY)
        Dying.armed.set()
        await cluster.unload(poison)
        async with asyncio.timeout(30):
            while not await let_die(cluster):
                await look_up(cluster)
        Dying.armed.clear()

        def crashed(quarantine: Quarantine) -> bool:
            deaths = quarantine.evidence(poison).deaths
            return len(deaths) == 1 and quarantine.end_of(deaths[0].broker) is End.CRASHED

        await cluster.until(lambda: crashed(cluster.brokers[0].node.quarantine))
        [fresh] = await cluster.add()
        assert crashed(fresh.node.quarantine)
