"""Which of the decided moves may begin now: never more than the limits allow, groups whole, pauses kept."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.leader.rebalancing.limits import Admission, Limits, Rule, UnderWay, allow, paused_by
from loadmanager.model.policies.model import BrokerPolicy, ClusterPolicy, NamespacePolicy, Policies
from loadmanager.strategies.rebalancing.decision import Move
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

A, B, C, D = (BrokerId(f"{name}:1", 1) for name in "abcd")
PLENTY = Limits(100, 100, 100)
NO_POLICIES = Policies()


def move(number: int, source: BrokerId = A, to: BrokerId | None = B, *, group: int = 0, namespace: str = "t/n") -> Move:
    return Move(Bundle(namespace, number, number + 1), source, to, "because", group=group)


def entry(
    state: State, holder: BrokerId | None, target: BrokerId | None = None, action: Action = Action.OWN
) -> Ownership:
    return Ownership(Bundle("t/n", 0, 1), state, holder, target, 5, 5, action, B)


def ids(allowed: Admission) -> list[int]:
    return [each.bundle.lo for each in allowed.moves]


def test_without_anything_under_way_all_begin_in_their_order():
    allowed = allow([move(2), move(1), move(3, B, C)], UnderWay(), PLENTY, NO_POLICIES)
    assert ids(allowed) == [2, 1, 3]
    assert not allowed.held


def test_what_is_held_back_says_by_which_rule_and_with_which_numbers():
    allowed = allow([move(1), move(2)], UnderWay(), Limits(1, 9, 9), NO_POLICIES)
    assert ids(allowed) == [1]
    assert [(held.rule, held.detail) for held in allowed.held] == [
        (Rule.TOTAL, "2 moves would be under way in all, at most 1 may be")
    ]


@pytest.mark.parametrize(
    ("limits", "rule"),
    [(Limits(9, 1, 9), Rule.BROKER), (Limits(9, 9, 1), Rule.NAMESPACE), (Limits(1, 9, 9), Rule.TOTAL)],
)
def test_a_move_that_is_under_way_counts_whoever_sent_it(limits: Limits, rule: Rule):
    under_way = UnderWay([entry(State.TRANSFERRING, C, B, Action.TRANSFER)])
    [held] = allow([move(1)], under_way, limits, NO_POLICIES).held
    assert held.rule is rule


def test_a_later_move_passes_one_that_has_no_room_at_its_brokers():
    allowed = allow([move(1), move(2), move(3, C, D)], UnderWay(), Limits(9, 1, 9), NO_POLICIES)
    assert ids(allowed) == [1, 3]


@pytest.mark.parametrize(
    ("state", "holder", "target", "action", "counts"),
    [
        (State.TRANSFERRING, A, B, Action.TRANSFER, {"a:1": 1, "b:1": 1}),
        (State.RELEASING, A, B, Action.READY, {"a:1": 1, "b:1": 1}),
        (State.RELEASING, A, None, Action.UNLOAD, {"a:1": 1}),
        (State.ASSIGNING, B, None, Action.RELEASE, {"b:1": 1}),
        (State.ASSIGNING, B, None, Action.OWN, {}),
        (State.ASSIGNED, A, None, Action.RETURN, {}),
        (State.SPLITTING, A, None, Action.SPLIT, {}),
        (State.REVOKING, A, None, Action.REVOKE, {}),
        (State.UNASSIGNED, None, None, Action.RELEASE, {}),
    ],
)
def test_which_states_are_a_move_under_way(
    state: State, holder: BrokerId | None, target: BrokerId | None, action: Action, counts: dict[str, int]
):
    under_way = UnderWay([entry(state, holder, target, action)])
    assert dict(under_way.brokers) == counts
    assert under_way.total == (1 if counts else 0)


def test_a_group_begins_whole_or_not_at_all():
    swap = [move(1, A, B, group=7), move(2, B, A, group=7)]
    assert ids(allow(swap, UnderWay(), Limits(2, 2, 2), NO_POLICIES)) == [1, 2]
    held = allow(swap, UnderWay([entry(State.TRANSFERRING, C, B)]), Limits(9, 2, 9), NO_POLICIES).held
    assert [each.move.bundle.lo for each in held] == [1, 2]


def test_the_others_of_a_group_say_with_whom_they_wait():
    held = allow(
        [move(1, A, B, group=7), move(2, C, D, group=7)],
        UnderWay(),
        Limits(9, 9, 9),
        Policies(brokers={"d:1": BrokerPolicy(paused=True)}),
    ).held
    assert [each.rule for each in held] == [Rule.GROUP, Rule.BROKER_PAUSED]
    assert "t/n/0x00000002_0x00000003" in held[0].detail


def test_a_group_that_was_held_back_takes_no_room_from_the_next():
    moves = [move(1, A, B, group=7), move(2, A, B, group=7), move(3, A, B)]
    assert ids(allow(moves, UnderWay(), Limits(1, 1, 1), NO_POLICIES)) == [3]


@pytest.mark.parametrize(
    ("policies", "rule"),
    [
        (Policies(cluster=ClusterPolicy(paused=True, reason="upgrade")), Rule.CLUSTER_PAUSED),
        (Policies(namespaces={"t/n": NamespacePolicy(paused=True)}), Rule.NAMESPACE_PAUSED),
        (Policies(brokers={"a:1": BrokerPolicy(paused=True)}), Rule.BROKER_PAUSED),
        (Policies(brokers={"b:1": BrokerPolicy(paused=True)}), Rule.BROKER_PAUSED),
    ],
)
def test_a_pause_holds_back_what_it_is_about(policies: Policies, rule: Rule):
    found = paused_by(move(1), policies)
    assert found is not None
    assert found.rule is rule
    assert not allow([move(1)], UnderWay(), PLENTY, policies).moves


def test_a_pause_of_others_does_not_matter():
    others = Policies(namespaces={"t/other": NamespacePolicy(paused=True)}, brokers={"c:1": BrokerPolicy(paused=True)})
    assert paused_by(move(1), others) is None


def test_the_reason_of_the_clusters_pause_is_told():
    found = paused_by(move(1), Policies(cluster=ClusterPolicy(paused=True, reason="upgrade")))
    assert found is not None
    assert found.detail == "the cluster is paused: upgrade"


brokers = st.sampled_from([A, B, C, D])
moves_decided = st.lists(
    st.builds(
        Move,
        st.builds(lambda ns, lo: Bundle(ns, lo, lo + 1), st.sampled_from(["t/n", "t/m"]), st.integers(0, 10_000)),
        brokers,
        st.one_of(st.none(), brokers),
        st.just(""),
        group=st.integers(0, 4),
    ),
    max_size=30,
    unique_by=lambda each: each.bundle,
)
limits_set = st.builds(Limits, st.integers(1, 12), st.integers(1, 6), st.integers(1, 8))
before = st.lists(st.tuples(st.sampled_from([State.TRANSFERRING, State.RELEASING]), brokers, brokers), max_size=6).map(
    lambda found: [entry(state, holder, target) for state, holder, target in found]
)
paused = st.builds(
    Policies,
    brokers=st.dictionaries(st.sampled_from(["a:1", "b:1"]), st.builds(BrokerPolicy, paused=st.booleans()), max_size=1),
)


def ends(each: Move) -> list[str]:
    return [broker.name for broker in (each.source, each.destination) if broker is not None]


@given(moves_decided, before, limits_set, paused)
def test_whatever_is_decided_no_limit_is_passed_and_nothing_gets_lost(
    moves: list[Move], already: list[Ownership], limits: Limits, policies: Policies
):
    allowed = allow(moves, UnderWay(already), limits, policies)
    total = UnderWay(already).total + len(allowed.moves)
    at = UnderWay(already).brokers + Counter(name for each in allowed.moves for name in ends(each))
    of = UnderWay(already).namespaces + Counter(each.bundle.namespace for each in allowed.moves)
    touched = {name for each in allowed.moves for name in ends(each)}
    assert not allowed.moves or total <= limits.total
    assert all(at[name] <= limits.per_broker for name in touched)
    assert all(of[each.bundle.namespace] <= limits.per_namespace for each in allowed.moves)
    assert all(paused_by(each, policies) is None for each in allowed.moves)
    assert {*allowed.moves, *(held.move for held in allowed.held)} == set(moves)
    assert len(allowed.moves) + len(allowed.held) == len(moves)
    begun = {each.group for each in allowed.moves if each.group}
    assert begun.isdisjoint(held.move.group for held in allowed.held if held.move.group)


@given(moves_decided, before, limits_set)
def test_a_single_move_is_only_held_back_where_there_is_no_room(
    moves: list[Move], already: list[Ownership], limits: Limits
):
    single = [each for each in moves if not each.group]
    allowed = allow(single, UnderWay(already), limits, NO_POLICIES)
    now = UnderWay(already)
    now.add_moves(allowed.moves)
    for held in allowed.held:
        full = (
            now.total >= limits.total
            or any(now.brokers[name] + ends(held.move).count(name) > limits.per_broker for name in ends(held.move))
            or now.namespaces[held.move.bundle.namespace] >= limits.per_namespace
        )
        assert full, held
