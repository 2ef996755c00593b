"""Who counts as live, who is suspected by whose word, and when nothing may be concluded from absence."""

from __future__ import annotations

import pytest

from loadmanager.cluster.membership import Membership, suspected_by
from loadmanager.model.registration import Peer, Registration, read_peer
from statechannel.law.record import Action, BrokerId, Record
from statechannel.law.verdict import Change
from statechannel.ports import Connection, Member
from tests.loadmanager.small_world import A, B, C, membership_of, see

A2, D = BrokerId("a:1", 2), BrokerId("d:1", 1)
GRACE_S = 150.0


def lose_contact(membership: Membership, now_s: float = 0.0) -> None:
    membership.saw_members({}, Connection.SUSPENDED, now_s)


def hear(membership: Membership, broker: BrokerId, now_s: float) -> None:
    membership.saw_change(Change(0, 0, Record("n", Action.NOOP, broker)), now_s)


# --- live


def test_registered_is_live_and_unknown_is_not():
    membership = membership_of(A)
    assert membership.is_live(A, 0)
    assert not membership.is_live(B, 0)


def test_an_incarnation_is_live_not_a_name():
    membership = membership_of(A2)
    assert membership.is_live(A2, 0)
    assert not membership.is_live(A, 0)
    assert membership.peer(A) is None


def test_replaced_incarnation_is_not_live_even_if_heard_or_contact_is_lost():
    membership = membership_of(A2)
    hear(membership, A, 0)
    assert not membership.is_live(A, 0)
    lose_contact(membership)
    assert not membership.is_live(A, 0)


def test_who_is_heard_on_the_channel_is_live_for_two_validities():
    membership = membership_of(B)
    hear(membership, A, 10)
    assert membership.is_live(A, 14)
    assert not membership.is_live(A, 14.01)


def test_only_a_no_op_is_a_sign_of_life():
    membership = membership_of(B)
    membership.saw_change(Change(0, 0, Record("r", Action.LEAD, A)), 0)
    assert not membership.is_live(A, 0)


def test_without_contact_everybody_is_live_but_the_condemned():
    membership = membership_of(A, B)
    membership.suspected = {B: "refuses"}
    lose_contact(membership)
    assert membership.is_live(A, 1_000)
    assert not membership.is_live(B, 1_000)


def test_bundles_go_to_registered_brokers_not_to_draining_or_suspected():
    membership = membership_of(D, C, B, A, draining=(B,))
    membership.suspected = {C: "refuses"}
    assert [p.broker for p in membership.eligible()] == [A, D]


def test_a_registration_that_cannot_be_read_takes_nothing():
    peer = read_peer(Member(A, b"\xff no json"))
    assert peer.registration.draining


def test_a_registration_without_a_format_reads_the_first_format_only():
    """What a release leaves out stands for its own default, which a later release must not take for its own."""
    assert read_peer(Member(A, b"{}")).registration.codec == 1


# --- safe mode


def test_safe_mode_lasts_while_the_service_is_out_of_reach_however_long():
    membership = membership_of(A)
    lose_contact(membership)
    assert membership.safe_mode(10_000) == "the coordination service is out of reach"


def test_after_an_outage_the_known_are_waited_for_until_they_are_back():
    membership = membership_of(A, B)
    lose_contact(membership)
    see(membership, A, now_s=100)
    assert membership.safe_mode(100) == "waiting for b:1 to come back"
    see(membership, A, B, now_s=101)
    assert membership.safe_mode(101) is None


def test_after_an_outage_the_wait_ends_with_the_grace():
    membership = membership_of(A, B)
    lose_contact(membership)
    see(membership, A, now_s=100)
    assert membership.safe_mode(100 + GRACE_S - 0.01) is not None
    assert membership.safe_mode(100 + GRACE_S) is None


def test_broker_away_at_the_first_return_is_awaited_at_the_second():
    """A service that flaps: what one moment of contact did not show is not dead."""
    membership = membership_of(A, B)
    lose_contact(membership, 10)
    see(membership, A, now_s=20)
    lose_contact(membership, 21)
    see(membership, A, now_s=22)
    assert membership.safe_mode(22) == "waiting for b:1 to come back"


def test_who_left_between_two_outages_is_not_waited_for():
    membership = membership_of(A, B)
    lose_contact(membership, 10)
    see(membership, A, B, now_s=20)
    see(membership, A, now_s=5_000)
    lose_contact(membership, 6_000)
    see(membership, A, now_s=6_001)
    assert membership.safe_mode(6_001) is None


def test_broker_that_returned_and_left_is_not_awaited_after_the_next_outage():
    membership = membership_of(A, B)
    lose_contact(membership, 10)
    see(membership, A, B, now_s=20)
    see(membership, A, now_s=30)
    lose_contact(membership, 40)
    see(membership, A, now_s=41)
    assert membership.safe_mode(41) is None


def test_who_never_came_back_from_an_earlier_outage_is_not_waited_for_again():
    membership = membership_of(A, B)
    lose_contact(membership, 10)
    see(membership, A, now_s=20)
    lose_contact(membership, 20 + GRACE_S)
    see(membership, A, now_s=21 + GRACE_S)
    assert membership.safe_mode(21 + GRACE_S) is None


def test_a_condemned_broker_is_not_waited_for():
    membership = membership_of(A, B)
    lose_contact(membership)
    see(membership, A, now_s=100)
    membership.suspected = {B: "refuses"}
    assert membership.safe_mode(100) is None


def test_absence_without_an_outage_is_no_safe_mode():
    membership = membership_of(A, B)
    see(membership, A, now_s=10)
    assert membership.safe_mode(10) is None


# --- suspected


def peers(*brokers: BrokerId) -> dict[str, Peer]:
    return {b.name: Peer(b, Registration()) for b in brokers}


@pytest.mark.parametrize(
    ("suspicions", "registered", "suspected"),
    [
        ([(A, C), (B, C)], (A, B, C), {C}),
        ([(A, C)], (A, B, C), set()),
        ([(A, B)], (A, B), {B}),
        ([(A, C), (A, C)], (A, B, C), set()),
        ([(A2, C), (B, C)], (A, B, C), set()),
        ([(A, C), (B, C)], (A, B), {C}),
        ([(C, C), (A, C)], (A, B, C), set()),
        ([(A, A2)], (A, B), set()),
        ([(A, C), (D, C)], (A, B, C), set()),
        ([], (A,), set()),
    ],
    ids=[
        "two agree",
        "one of two others is not enough",
        "the only other one is enough",
        "twice the same is one",
        "an observer's other incarnation does not count",
        "also when its registration has ended",
        "its own word does not count",
        "nobody suspects its own name",
        "who is not registered does not count",
        "nobody suspects",
    ],
)
def test_who_is_condemned(
    suspicions: list[tuple[BrokerId, BrokerId]], registered: tuple[BrokerId, ...], suspected: set[BrokerId]
):
    assert set(suspected_by(suspicions, peers(*registered))) == suspected


def test_of_brokers_that_suspect_each_other_none_is_suspected():
    everybody = [A, B, C, D]
    mutual = [(one, other) for one in everybody for other in everybody if one != other]
    assert suspected_by([(A, B), (B, A)], peers(A, B)) == {}
    assert suspected_by(mutual, peers(*everybody)) == {}


def test_a_broker_that_suspected_a_dead_one_and_died_too_is_suspected():
    suspicions = [(A, B), (C, B), (D, B), (B, C), (A, C)]
    for order in (suspicions, suspicions[::-1]):
        assert set(suspected_by(order, peers(A, B, C, D))) == set(), "B and C suspect each other"
    suspicions = [(A, B), (D, B), (B, C), (A, C), (D, C)]
    for order in (suspicions, suspicions[::-1]):
        assert set(suspected_by(order, peers(A, B, C, D))) == {B, C}


class Cluster:
    """Brokers a:1, b:1, ... as one of them sees them; `refused` are the names of those whose ports refuse."""

    def __init__(self, size: int) -> None:
        self.membership = membership_of()
        self.names = [f"{'abcdefghijklmnopqrstuvwxyz'[at]}:1" for at in range(size)]
        self.up: dict[str, tuple[int, int]] = dict.fromkeys(self.names, (1, 7))
        self.refused: set[str] = set()
        self.now_s = 0.0
        self.register()

    def register(self, **up: tuple[int, int] | None) -> None:
        """Broker `a` has this incarnation and start, or is gone."""
        for name, of in up.items():
            self.up.pop(f"{name}:1", None)
            if of is not None:
                self.up[f"{name}:1"] = of
        members = {
            name: Member(BrokerId(name, incarnation), Registration(started_ms=started_ms).encode())
            for name, (incarnation, started_ms) in self.up.items()
        }
        self.membership.saw_members(members, Connection.CONNECTED, self.now_s)

    def suspected(self, *refused: str, after_s: float = 0.0) -> set[str]:
        """Who is suspected if these brokers refuse connections from all others from `after_s` on."""
        self.now_s += after_s
        self.refused = {f"{name}:1" for name in refused}
        observers = [peer.broker for name, peer in self.membership.peers.items() if name not in self.refused]
        targets = [peer.broker for name, peer in self.membership.peers.items() if name in self.refused]
        self.membership.judge([(one, other) for other in targets for one in observers], self.now_s)
        return {str(broker) for broker in self.membership.suspected}


def test_a_process_that_was_suspected_and_lived_is_not_suspected_again():
    cluster = Cluster(3)
    assert cluster.suspected("a") == {"a:1#1"}
    cluster.register(a=None)
    cluster.register(a=(2, 7))
    assert cluster.suspected("a", after_s=1_000) == set()
    assert cluster.membership.spared == ()
    cluster.register(a=(3, 8))
    assert cluster.suspected("a") == {"a:1#3"}, "another process"


@pytest.mark.parametrize(("size", "most"), [(3, 1), (4, 1), (5, 2), (6, 2), (20, 7)])
def test_a_third_of_the_brokers_at_most_is_suspected(size: int, most: int):
    cluster, refuse = Cluster(size), size - 2
    assert len(cluster.suspected(*"abcdefghijklmnopqr"[:refuse])) == min(most, refuse)
    assert len(cluster.membership.spared) == max(0, refuse - most)
    assert bool(cluster.membership.why_spared()) == (refuse > most)


def test_evicted_brokers_that_live_count_against_the_share_within_the_window():
    cluster = Cluster(4)
    assert cluster.suspected("a") == {"a:1#1"}
    cluster.register(a=None)
    assert cluster.suspected("b", after_s=1) == set()
    cluster.register(a=(2, 7))
    assert cluster.suspected("a", "b", after_s=60) == set()
    assert cluster.membership.why_spared().startswith("connections to b:1 are refused")
    assert cluster.suspected("a", "b", after_s=300) == {"b:1#1"}


def test_brokers_that_did_die_do_not_count_against_the_share():
    cluster = Cluster(4)
    assert cluster.suspected("a") == {"a:1#1"}
    cluster.register(a=(2, 8))
    assert cluster.suspected("b", after_s=1) == {"b:1#1"}, "another process of that name has started"
    cluster.register(b=None)
    assert cluster.suspected("c", after_s=5) == set()
    assert cluster.suspected("c", after_s=10) == {"c:1#1"}, "b did not come back"


def test_a_suspected_broker_stays_so_whoever_is_suspected_later():
    cluster = Cluster(4)
    assert cluster.suspected("b") == {"b:1#1"}
    assert cluster.suspected("a", "b", after_s=1) == {"b:1#1"}
    assert cluster.suspected("a") == set()
    assert cluster.suspected("a", "b", after_s=1) == {"b:1#1"}


def test_a_suspicion_does_not_count_against_a_broker_that_wrote_to_the_channel_later():
    cluster = Cluster(3)
    assert cluster.suspected("a") == {"a:1#1"}
    record = Record("r", Action.RELEASE, A)
    cluster.membership.saw_change(Change(0, 0, record), cluster.now_s + 0.4)
    assert cluster.suspected("a") == {"a:1#1"}, "it may have been on its way when it died"
    cluster.membership.saw_change(Change(0, 1, record), cluster.now_s + 0.6)
    assert cluster.suspected("a") == set()
    assert cluster.suspected() == set()
    assert cluster.suspected("a", after_s=1) == {"a:1#1"}, "a new refusal, after its last record"


def test_a_refuted_report_of_one_observer_does_not_weaken_the_others():
    cluster = Cluster(5)
    a, b, c, d, _ = [peer.broker for peer in cluster.membership.peers.values()]
    gone = BrokerId("e:1", 99)  # an incarnation that ended without taking its report back
    cluster.membership.judge([(b, a), (gone, a)], 1.0)
    cluster.membership.saw_change(Change(0, 0, Record("r", Action.NOOP, a)), 10.0)
    cluster.membership.judge([(b, a), (gone, a), (c, a)], 1_000.0)
    assert cluster.membership.suspected == {}, "c alone"
    cluster.membership.judge([(b, a), (gone, a), (c, a), (d, a)], 1_000.0)
    assert cluster.membership.suspected == {a: "a:1#1 refuses connections from c:1, d:1"}


def test_a_suspicion_whose_window_is_over_counts_again():
    cluster = Cluster(9)
    assert len(cluster.suspected("a", "b", "c")) == 3
    assert cluster.suspected() == set()
    assert len(cluster.suspected("d", "e", "f", after_s=301)) == 3
    assert cluster.suspected() == set()
    assert len(cluster.suspected("a", "b", "c", "d", "e", "f", after_s=700)) == 3


def test_nor_against_one_that_wrote_its_liveness_node_later():
    cluster = Cluster(3)
    assert cluster.suspected("a") == {"a:1#1"}
    cluster.now_s += 1
    cluster.register(a=(1, 7), b=(1, 8))
    assert cluster.suspected("a") == {"a:1#1"}
    cluster.register(a=(1, 9))
    assert cluster.suspected("a") == set()


def test_all_but_one_can_fall():
    suspicions = [(A, B), (A, C), (B, C)]
    assert set(suspected_by(suspicions, peers(A, B, C))) == {B, C}


# --- the dead


def test_a_broker_that_ends_without_a_drain_is_dead_for_an_hour_or_while_a_policy_names_it():
    membership = membership_of(A, B)
    see(membership, A, now_s=10)
    assert [(each.peer.broker, each.at_s) for each in membership.dead(3_610)] == [(B, 10)]
    assert membership.dead(3_611) == []
    assert [each.peer.broker for each in membership.dead(3_611, {B.name})] == [B]


def test_a_broker_that_came_back_or_drained_is_not_dead():
    membership = membership_of(A, B)
    see(membership, A, now_s=1)
    see(membership, A, B, now_s=2)
    assert membership.dead(2) == []
    see(membership, A, B, draining=(B,), now_s=3)
    see(membership, A, now_s=4)
    assert membership.dead(4) == []


def test_brokers_are_not_dead_while_contact_is_lost():
    membership = membership_of(A, B)
    lose_contact(membership)
    assert membership.dead(1) == []
