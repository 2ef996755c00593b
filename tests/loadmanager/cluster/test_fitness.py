"""Brokers that cannot acquire bundles: which failures count, how long they get none, and what makes them fit again."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from loadmanager import Bundle, BundleLoad, Destination, Token
from loadmanager.cluster import fitness
from loadmanager.cluster.fitness import DECLINED, FIRST_REST_S, LAST_REST_S, SEVERAL, STUCK_ACQUIRING, TRIAL_S, Fitness
from loadmanager.testing.cluster import EmbeddedCluster, embedded_cluster
from statechannel.law.bundle import even_boundaries, tile
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Transition

BUNDLES = tile("t/n", even_boundaries(16))
A, B, C = (BrokerId(f"{name}:1", 1) for name in "abc")


class Clock:
    now_s = 100.0


def changed(action: Action, by: BrokerId, role: Role, holder: BrokerId, *bundles: Bundle, reason: str = "") -> Change:
    transitions = [
        Transition(
            Ownership(bundle, State.ASSIGNING, holder, None, 1, 1, Action.OWN, holder),
            Ownership(bundle, State.UNASSIGNED, None, None, 2, 1, action, by),
        )
        for bundle in bundles
    ]
    return Change(0, 2, Record("r", action, by, role, reason=reason), transitions)


class Watched(Fitness):
    """One with a clock of its own, and words for what brokers do."""

    def __init__(self) -> None:
        self.clock = Clock()
        super().__init__(lambda: self.clock.now_s)

    def declines(self, broker: BrokerId, *bundles: Bundle) -> None:
        self.observe(changed(Action.RELEASE, broker, Role.BROKER, broker, *bundles, reason=DECLINED))

    def acquires(self, broker: BrokerId, bundle: Bundle) -> None:
        self.observe(changed(Action.RETURN, broker, Role.BROKER, broker, bundle))


def unfit() -> Watched:
    watched = Watched()
    watched.declines(A, *BUNDLES[:SEVERAL])
    assert watched.closed() == {A}
    return watched


def test_several_different_bundles_make_a_broker_unfit():
    watched = Watched()
    for _ in range(10):
        watched.declines(A, BUNDLES[0], BUNDLES[1])
    assert watched.closed() == frozenset()
    assert watched.why(A) == ""
    watched.declines(A, BUNDLES[2])
    assert watched.closed() == {A}
    assert f"the last one {BUNDLES[2]}: {DECLINED}" in watched.why(A)
    assert f"in {FIRST_REST_S:.0f} s; to try now: loadmanager topics unload TOPIC --dest a:1" in watched.why(A)


def test_bundles_that_are_stuck_while_it_acquires_them_count_and_other_releases_do_not():
    watched = Watched()
    for bundle in BUNDLES[:SEVERAL]:
        watched.observe(changed(Action.RELEASE, A, Role.BROKER, A, bundle, reason="stopped: revoked"))
        watched.observe(changed(Action.REVOKE, C, Role.LEADER, A, bundle, reason="orphan: its session ended"))
    assert watched.unfit() == {}
    for bundle in BUNDLES[:SEVERAL]:
        watched.observe(changed(Action.REVOKE, C, Role.LEADER, A, bundle, reason=f"{STUCK_ACQUIRING} for 10 s"))
    assert watched.closed() == {A}


def test_a_bundle_that_it_acquires_makes_it_fit():
    watched = unfit()
    watched.acquires(A, BUNDLES[9])
    assert watched.closed() == frozenset()
    assert watched.why(A) == ""
    watched.declines(A, *BUNDLES[3:5])
    assert watched.closed() == frozenset(), "it begins from nothing"


def test_bundles_that_fail_at_two_brokers_count_against_neither():
    watched = Watched()
    for broker in (A, B, C):
        watched.declines(broker, *BUNDLES[:8])
    assert watched.unfit() == {}
    watched.acquires(B, BUNDLES[0])
    watched.declines(A, BUNDLES[0])
    assert watched.unfit() == {}, "one bundle"


def test_it_rests_twice_as_long_after_each_failed_trial():
    watched, rests = unfit(), list[float]()
    for number in range(9):
        closed_since_s = watched.clock.now_s
        while A in watched.closed():
            watched.clock.now_s += 0.5
        rests.append(watched.clock.now_s - closed_since_s)
        assert watched.begins_trial(A)
        watched.declines(A, BUNDLES[number])
    assert rests[:4] == [FIRST_REST_S * factor for factor in (1, 2, 4, 8)]
    assert rests[-1] == LAST_REST_S


def test_a_burst_that_fails_is_one_failure():
    watched = Watched()
    watched.declines(A, *BUNDLES)
    watched.clock.now_s += FIRST_REST_S
    assert watched.closed() == frozenset(), "it does not rest longer for what it had been given before"


def test_of_several_unfit_brokers_one_at_a_time_has_a_trial():
    watched = Watched()
    for number, broker in enumerate((A, B, C)):
        watched.declines(broker, *BUNDLES[SEVERAL * number : SEVERAL * (number + 1)])
    watched.clock.now_s += FIRST_REST_S
    assert watched.closed() == {B, C}
    assert not watched.begins_trial(B)
    assert watched.begins_trial(A)
    assert watched.closed() == {A, C}


def test_one_bundle_at_a_time_is_its_trial():
    watched = unfit()
    assert not watched.begins_trial(A), "it rests"
    assert not watched.begins_trial(B), "it is fit"
    watched.clock.now_s += FIRST_REST_S
    assert watched.closed() == frozenset()
    assert watched.begins_trial(A)
    assert watched.closed() == {A}
    assert not watched.begins_trial(A)
    watched.clock.now_s += TRIAL_S
    assert watched.begins_trial(A), "the former had no outcome"


def test_random_failures_of_bundles_alone_close_no_broker_for_long():
    """Some bundles cannot be acquired anywhere: each goes from broker to broker, among those that are fit."""
    for seed in range(50):
        dice, watched = random.Random(seed), Watched()
        bad = dice.sample(BUNDLES, dice.randint(1, 8))
        closed_s, last = Counter[BrokerId](), dict[Bundle, BrokerId]()
        for _ in range(400):
            watched.clock.now_s += 0.5
            bundle = dice.choice(BUNDLES)
            fit = [broker for broker in (A, B, C) if broker not in watched.closed()] or [A, B, C]
            broker = dice.choice([each for each in fit if each != last.get(bundle)] or fit)
            last[bundle] = broker
            if bundle in bad:
                watched.declines(broker, bundle)
            else:
                watched.acquires(broker, bundle)
            closed_s.update(dict.fromkeys(watched.closed(), 0.5))
        assert max(closed_s.values(), default=0) <= 2 * FIRST_REST_S, seed


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fitness, "BUNDLES_KEPT", 10)
    monkeypatch.setattr(fitness, "BROKERS_KEPT", 10)
    watched = Watched()
    for number in range(100):
        watched.declines(BrokerId(f"b{number}:1", 1), *BUNDLES)
    assert max(len(each) for each in vars(watched).values() if hasattr(each, "__len__")) <= 10


# --- a cluster


class Service:
    def __init__(self) -> None:
        self.sick = False
        self.tries = Counter[Bundle]()

    async def prepare(self, bundle: Bundle) -> None: ...

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        self.tries[bundle] += 1
        if self.sick:
            raise OSError(30, "Read-only file system")

    async def release(self, bundle: Bundle, to: Destination | None) -> None: ...

    async def abandon(self, bundle: Bundle) -> None: ...

    async def load(self) -> dict[Bundle, BundleLoad]:
        return {}


async def unload_all(cluster: EmbeddedCluster[Service]) -> None:
    """Unload every bundle; lookups assign each of them."""
    topics = dict[Bundle, str]()
    number = 0
    while len(topics) < len(cluster.bundles()):
        topics.setdefault(cluster.bundle(topic := f"{cluster.namespace}/{number}"), topic)
        number += 1
    for bundle, topic in topics.items():
        await cluster.unload(bundle)
        await cluster.brokers[0].locate(topic)


@pytest.mark.slow
async def test_an_unfit_broker_gets_no_bundles_until_it_acquires_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fitness, "FIRST_REST_S", 300.0)
    async with embedded_cluster(Service, brokers=3, bundles=24, balancing=False) as cluster:
        sick = cluster.brokers[2]
        service = cluster.host(sick)
        service.sick = True
        service.tries.clear()
        await unload_all(cluster)
        assert len(service.tries) == SEVERAL
        assert all(broker.node.fitness.unfit() for broker in cluster.brokers)
        service.tries.clear()
        await unload_all(cluster)
        assert not service.tries, "the others have them all"
        service.sick = False
        await cluster.transfer(cluster.bundles()[0], sick)
        await unload_all(cluster)
        assert not any(broker.node.fitness.unfit() for broker in cluster.brokers)
        assert service.tries
