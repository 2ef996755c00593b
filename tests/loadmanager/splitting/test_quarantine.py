"""Which bundles are taken for deadly: on the records of real tables, with brokers that die and come back."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.leader.core import ORPHAN, STUCK
from loadmanager.splitting.quarantine import LONGEST_PAUSE_S, Quarantine
from statechannel.bundle import Bundle, even_boundaries
from statechannel.record import Action, Broker, Record, Role, Subject
from statechannel.table import OwnershipTable
from statechannel.transitions import State
from statechannel.verdict import Change

NS = "t/n"
DEATHS = 3
WINDOW_S = 600.0
LEADER = Broker("leader:1", 1)


def least(_: Bundle) -> int:
    return DEATHS


class Cluster:
    """A table, a clock, and brokers that do what they owe; `seen` are who watch."""

    def __init__(self, brokers: int, bundles: int) -> None:
        self.table = OwnershipTable(1)
        self.now_s = 1000.0
        self.offset = 0
        self.live = [Broker(f"b{i}:1", 1) for i in range(brokers)]
        self.seen = [Quarantine()]
        self.write(Action.LEAD, LEADER, Role.LEADER)
        self.write(
            Action.CREATE_NAMESPACE, LEADER, Role.ADMIN, namespace=NS, boundaries=tuple(even_boundaries(bundles))
        )

    @property
    def bundles(self) -> tuple[Bundle, ...]:
        known = self.table.namespace(NS)
        assert known is not None
        return known.bundles

    def write(self, action: Action, by: Broker, role: Role, *bundles: Bundle, **more: Any) -> None:
        subjects = tuple(Subject(bundle, self.revision(bundle)) for bundle in bundles)
        record = Record(
            str(self.offset), action, by, role, 1 if role is Role.LEADER else 0, subjects, at_ms=int(self.now_s * 1000),
            **more,
        )  # fmt: skip
        change = self.table.replay(0, self.offset, record)
        assert isinstance(change, Change), change
        self.offset += 1
        for each in self.seen:
            each.observe(change, WINDOW_S)

    def revision(self, bundle: Bundle) -> int:
        entry = self.table.get(bundle)
        assert entry is not None
        return entry.revision

    def state(self, bundle: Bundle) -> State:
        entry = self.table.get(bundle)
        assert entry is not None
        return entry.state

    def take(self, bundle: Bundle, to: Broker) -> None:
        """It is assigned, and acquired."""
        self.write(Action.OWN, LEADER, Role.BROKER, bundle, to=to)
        self.write(Action.RETURN, to, Role.BROKER, bundle)

    def die(self, broker: Broker) -> list[Bundle]:
        """Its bundles are left without an owner, and it starts again."""
        held = list(self.table.held_by(broker))
        if held:
            self.write(Action.REVOKE, LEADER, Role.LEADER, *held, reason=f"{ORPHAN}{broker} is silent")
            self.now_s += 1
            self.write(Action.RELEASE, LEADER, Role.LEADER, *held)
        self.live.remove(broker)
        self.live.append(Broker(broker.name, broker.incarnation + 1))
        return held

    def kill_with(self, bundle: Bundle, to: Broker, *, after_s: float = 1.0, taking: bool = False) -> None:
        """It takes the bundle and dies, while or after it acquired it."""
        self.write(Action.OWN, LEADER, Role.BROKER, bundle, to=to)
        if not taking:
            self.write(Action.RETURN, to, Role.BROKER, bundle)
        self.now_s += after_s
        self.die(to)

    def condemned(self) -> list[Bundle]:
        return [suspect.bundle for suspect in self.seen[0].condemned(least)]


def three_deaths(cluster: Cluster, bundle: Bundle, **how: Any) -> None:
    for broker in list(cluster.live)[:3]:
        cluster.kill_with(bundle, broker, **how)


def test_a_bundle_of_which_three_brokers_die_in_succession_is_condemned():
    cluster = Cluster(3, 4)
    poison = cluster.bundles[1]
    three_deaths(cluster, poison)
    (suspect,) = cluster.seen[0].condemned(least)
    assert suspect.bundle == poison
    assert "3 brokers in succession died with it: b0:1#1, b1:1#1, b2:1#1" in str(suspect)


def test_two_deaths_are_not_enough_and_nought_is_never():
    cluster = Cluster(3, 4)
    for broker in list(cluster.live)[:2]:
        cluster.kill_with(cluster.bundles[0], broker)
    assert not cluster.condemned()
    cluster.kill_with(cluster.bundles[0], cluster.live[0])
    assert cluster.condemned()
    assert not cluster.seen[0].condemned(lambda _: 0)
    assert not cluster.seen[0].held_back(cluster.bundles[0], 0, int(cluster.now_s * 1000)), "nor is it held back"


def test_a_broker_that_lived_with_it_for_the_window_absolves_it():
    cluster = Cluster(3, 4)
    three_deaths(cluster, cluster.bundles[0], after_s=601)
    assert not cluster.condemned()
    assert cluster.seen[0].suspect(cluster.bundles[0]) is None


def test_a_broker_that_gave_it_away_alive_absolves_it():
    cluster = Cluster(3, 4)
    bundle, (a, b, c) = cluster.bundles[0], cluster.live
    cluster.kill_with(bundle, a)
    cluster.kill_with(bundle, b)
    cluster.take(bundle, c)
    cluster.write(Action.UNLOAD, c, Role.BROKER, bundle)
    cluster.write(Action.RELEASE, c, Role.BROKER, bundle)
    assert cluster.seen[0].suspect(bundle) is None


def test_a_broker_that_declined_it_says_nothing():
    cluster = Cluster(3, 4)
    bundle, (a, b, c) = cluster.bundles[0], cluster.live
    cluster.kill_with(bundle, a)
    cluster.write(Action.OWN, LEADER, Role.BROKER, bundle, to=b)
    cluster.write(Action.RELEASE, b, Role.BROKER, bundle)
    suspect = cluster.seen[0].suspect(bundle)
    assert suspect is not None
    assert [death.broker for death in suspect.deaths] == [a]
    del c


def test_a_broker_that_was_taken_for_dead_and_was_not_counts_for_nothing():
    cluster = Cluster(3, 4)
    bundle, (a, b, _) = cluster.bundles[0], cluster.live
    cluster.kill_with(bundle, a)
    cluster.take(bundle, b)
    cluster.write(Action.REVOKE, LEADER, Role.LEADER, bundle, reason=f"{ORPHAN}silent")
    cluster.write(Action.RELEASE, b, Role.BROKER, bundle)
    suspect = cluster.seen[0].suspect(bundle)
    assert suspect is not None
    assert [death.broker for death in suspect.deaths] == [a]


def test_a_bundle_that_is_stuck_and_revoked_for_it_killed_nobody():
    cluster = Cluster(3, 4)
    for broker in cluster.live:
        cluster.write(Action.OWN, LEADER, Role.BROKER, cluster.bundles[0], to=broker)
        cluster.write(Action.REVOKE, LEADER, Role.LEADER, cluster.bundles[0], reason="stuck in assigning for 30 s")
        cluster.write(Action.RELEASE, LEADER, Role.LEADER, cluster.bundles[0])
    assert cluster.seen[0].suspect(cluster.bundles[0]) is None


def test_brokers_that_die_while_they_prepare_for_it_count_too():
    cluster = Cluster(5, 4)
    bundle, (home, *others) = cluster.bundles[0], cluster.live
    cluster.take(bundle, home)
    cluster.now_s += 10_000
    for to in others[:3]:
        cluster.write(Action.TRANSFER, LEADER, Role.LEADER, bundle, to=to)
        cluster.write(Action.CANCEL, LEADER, Role.LEADER, bundle, reason=f"{to} is not registered and silent")
    assert cluster.condemned() == [bundle]


def test_a_transfer_that_is_stuck_killed_nobody():
    cluster = Cluster(5, 4)
    bundle, (home, *others) = cluster.bundles[0], cluster.live
    cluster.take(bundle, home)
    for to in others[:3]:
        cluster.write(Action.TRANSFER, LEADER, Role.LEADER, bundle, to=to)
        cluster.write(Action.CANCEL, LEADER, Role.LEADER, bundle, reason=STUCK)
    assert cluster.seen[0].suspect(bundle) is None


def test_the_parts_of_a_suspect_are_suspects_and_so_is_what_they_become():
    cluster = Cluster(4, 4)
    bundle, (a, b, c, d) = cluster.bundles[0], cluster.live
    cluster.kill_with(bundle, a)
    cluster.kill_with(bundle, b)
    cluster.take(bundle, c)
    cluster.write(Action.CREATE, c, Role.BROKER, bundle, boundaries=(bundle.lo + 5,))
    low, high = cluster.bundles[:2]
    cluster.now_s += 1
    cluster.die(c)
    for part in (low, high):
        suspect = cluster.seen[0].suspect(part)
        assert suspect is not None
        assert [death.broker for death in suspect.deaths] == [a, b, c]
    cluster.take(low, d)
    cluster.take(high, d)
    cluster.write(Action.MERGE, d, Role.BROKER, low, high)
    whole = cluster.seen[0].suspect(bundle)
    assert whole is not None
    assert len(whole.deaths) == 3


# --- many others on the same way


def test_of_many_that_a_broker_held_only_the_one_that_went_the_whole_way_is_condemned():
    cluster = Cluster(4, 12)
    poison, *others = cluster.bundles
    a, b, c, d = cluster.live
    for i, bundle in enumerate(others):
        cluster.take(bundle, (a, b, c)[i % 3])
    for broker in (a, b, c):
        cluster.take(poison, broker)
        cluster.now_s += 1
        for bundle in cluster.die(broker):
            if bundle != poison:
                cluster.take(bundle, d)  # it lives
    assert cluster.condemned() == [poison]


def test_an_innocent_that_went_the_same_way_is_told_by_what_killed_while_it_was_acquired():
    cluster = Cluster(3, 4)
    poison, innocent = cluster.bundles[:2]
    for broker in list(cluster.live):
        cluster.take(innocent, broker)
        cluster.write(Action.OWN, LEADER, Role.BROKER, poison, to=broker)
        cluster.now_s += 1
        cluster.die(broker)
    assert cluster.condemned() == [poison]


def test_who_cannot_be_told_apart_are_given_out_one_by_one_until_they_can():
    cluster = Cluster(8, 4)
    poison, innocent = cluster.bundles[:2]
    for broker in cluster.live[:3]:
        for bundle in (innocent, poison):
            cluster.take(bundle, broker)
        cluster.now_s += 3
        cluster.die(broker)
    assert not cluster.condemned()
    now_ms = int(cluster.now_s * 1000)
    waits = {b for b in (poison, innocent) if cluster.seen[0].held_back(b, DEATHS, now_ms + 4_000)}
    assert len(waits) == 1, "one of them may go before the other"
    cluster.take(innocent, cluster.live[-1])
    cluster.kill_with(poison, cluster.live[0])
    assert cluster.condemned() == [poison]


def test_after_twice_as_many_deaths_one_is_condemned_in_any_case():
    cluster = Cluster(8, 4)
    for broker in cluster.live[:6]:
        for bundle in cluster.bundles[:2]:
            cluster.take(bundle, broker)
        cluster.now_s += 20
        cluster.die(broker)
    assert len(cluster.condemned()) == 1


# --- pauses, pardon, other watchers


def test_from_the_second_death_on_a_bundle_is_held_back_twice_as_long_each_time():
    cluster = Cluster(12, 4)
    bundle, lasts = cluster.bundles[0], []
    for broker in list(cluster.live):
        cluster.kill_with(bundle, broker)
        now_ms = int(cluster.now_s * 1000) - 1000  # of the death
        seen = cluster.seen[0]
        steps = range(0, 200_000, 500)
        lasts.append(next(ms for ms in steps if not seen.held_back(bundle, 99, now_ms + ms)) / 1000)
    assert lasts[:5] == [0, 2, 4, 8, 16]
    assert max(lasts) == LONGEST_PAUSE_S
    assert "held back for" in cluster.seen[0].held_back(bundle, 99, int(cluster.now_s * 1000))


def test_a_condemned_bundle_is_held_back_until_it_is_locked_up():
    cluster = Cluster(3, 4)
    three_deaths(cluster, cluster.bundles[0])
    assert "being quarantined" in cluster.seen[0].held_back(cluster.bundles[0], DEATHS, 10**15)


def test_a_clock_that_is_far_off_holds_nothing_back_for_ever():
    cluster = Cluster(3, 4)
    for broker in cluster.live[:2]:
        cluster.kill_with(cluster.bundles[0], broker)
    assert cluster.seen[0].held_back(cluster.bundles[0], DEATHS, 0) == ""


def test_a_pardon_ends_it_and_later_deaths_count_again():
    cluster = Cluster(4, 4)
    bundle = cluster.bundles[0]
    three_deaths(cluster, bundle)
    cluster.seen[0].pardon(bundle, int(cluster.now_s * 1000))
    assert not cluster.condemned()
    assert not cluster.seen[0].held_back(bundle, DEATHS, int(cluster.now_s * 1000))
    cluster.now_s += 1
    cluster.kill_with(bundle, cluster.live[0])
    suspect = cluster.seen[0].suspect(bundle)
    assert suspect is not None
    assert len(suspect.deaths) == 1


def test_who_reads_a_pardon_before_the_deaths_that_it_is_for_does_not_count_them_either():
    cluster = Cluster(4, 4)
    early = Quarantine()
    cluster.seen.append(early)
    early.pardon(cluster.bundles[0], int(cluster.now_s * 1000) + 60_000)
    three_deaths(cluster, cluster.bundles[0])
    assert cluster.condemned()
    assert not early.condemned(least)
    early.pardon(cluster.bundles[1], 10**15)
    cluster.now_s += 60
    for broker in cluster.live[:3]:
        cluster.kill_with(cluster.bundles[0], broker)
    assert early.condemned(least)


def test_each_bundle_may_have_a_limit_of_its_own():
    cluster = Cluster(3, 4)
    three_deaths(cluster, cluster.bundles[0])
    assert not cluster.seen[0].condemned(lambda bundle: 4)
    assert not cluster.seen[0].condemned(lambda bundle: 4 if bundle == cluster.bundles[0] else 3)
    assert cluster.seen[0].condemned(lambda bundle: 1)


def test_who_replays_the_same_records_comes_to_the_same_result():
    cluster = Cluster(3, 4)
    changes: list[Change] = []
    recording = Quarantine()
    recording.observe = lambda change, window_s: changes.append(change)  # type: ignore[method-assign, misc]
    cluster.seen.append(recording)
    three_deaths(cluster, cluster.bundles[0], taking=True)
    later = Quarantine()
    for change in changes:
        later.observe(change, WINDOW_S)
    assert later.condemned(least) == cluster.seen[0].condemned(least)


# --- a whole cluster, at random


def least_loaded(cluster: Cluster, dice: random.Random) -> Broker:
    return min(cluster.live, key=lambda broker: (cluster.table.count_held_by(broker), dice.random()))


@pytest.mark.parametrize("taking", [True, False])
@given(seed=st.integers(0, 10**6), brokers=st.integers(2, 8), bundles=st.integers(2, 40))
def test_the_deadly_one_is_found_and_no_other_whatever_the_cluster(taking: bool, seed: int, brokers: int, bundles: int):
    dice = random.Random(seed)
    cluster = Cluster(brokers, bundles)
    poison = dice.choice(cluster.bundles)
    for bundle in cluster.bundles:
        if bundle != poison:
            cluster.take(bundle, least_loaded(cluster, dice))
    deaths = place_until_condemned(cluster, poison, dice, taking)
    assert cluster.condemned() == [poison]
    assert deaths <= 2 * DEATHS


def place_until_condemned(cluster: Cluster, poison: Bundle, dice: random.Random, taking: bool) -> int:
    """Lookups place what has no owner, as soon as it is not held back; whoever gets the poison dies within a second."""
    deaths = 0
    for _ in range(2_000):
        if cluster.condemned():
            break
        cluster.now_s += 0.5
        free = [bundle for bundle in cluster.bundles if cluster.state(bundle) is State.UNASSIGNED]
        dice.shuffle(free)
        dying: list[Broker] = []
        for bundle in free:
            if cluster.seen[0].held_back(bundle, DEATHS, int(cluster.now_s * 1000)):
                continue
            to = least_loaded(cluster, dice)
            if bundle == poison and taking:
                cluster.write(Action.OWN, LEADER, Role.BROKER, bundle, to=to)
            else:
                cluster.take(bundle, to)
            dying += [to] if bundle == poison else []
        cluster.now_s += dice.random()
        for broker in dying:
            cluster.die(broker)
            deaths += 1
    return deaths
