"""Who should own which partition of the channel, and what one broker does about it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.channel.owner.election import (
    Claim,
    Election,
    ElectionSettings,
    Seen,
    Vacate,
    lease_of,
    partition_of_lease,
    ranking,
)
from statechannel.law.record import BrokerId

A, B, C = BrokerId("a:1", 1), BrokerId("b:1", 1), BrokerId("c:1", 1)
NAMES = ("a:1", "b:1", "c:1")
SETTINGS = ElectionSettings(stand_in_s=2.0, settle_s=30.0)

names = st.lists(st.from_regex(r"[a-z]{1,5}:[0-9]{1,4}", fullmatch=True), min_size=1, max_size=12, unique=True)


def first_of(partition: int, able: tuple[str, ...] = NAMES, partitions: int = 4) -> str:
    return ranking(able, partitions)[partition][0]


def rank_of(me: BrokerId, partition: int, partitions: int = 4) -> int:
    return ranking(NAMES, partitions)[partition].index(me.name)


def partition_where(me: BrokerId, rank: int, partitions: int = 4) -> int:
    return next(p for p in range(partitions) if rank_of(me, p, partitions) == rank)


# --- ranks


@pytest.mark.slow
@given(names, st.integers(1, 64))
def test_each_partition_ranks_all_brokers_and_firsts_are_spread_evenly(able: list[str], partitions: int):
    ranks = ranking(able, partitions)
    assert all(sorted(ranked) == sorted(able) for ranked in ranks)
    firsts = Counter(dict.fromkeys(able, 0)) + Counter(ranked[0] for ranked in ranks)
    counts = [firsts[name] for name in able]
    assert max(counts) - min(counts) <= 1


@pytest.mark.slow
@given(names, st.integers(1, 64), st.randoms(use_true_random=False))
def test_all_brokers_agree_in_whichever_order_they_see_the_members(able: list[str], partitions: int, dice):
    shuffled = list(able)
    dice.shuffle(shuffled)
    assert ranking(sorted(shuffled), partitions) == ranking(sorted(able), partitions)


def test_the_ranking_is_the_same_in_every_release():
    assert [ranked[0] for ranked in ranking(NAMES, 8)] == EXPECTED_FIRSTS


def test_without_anybody_there_is_no_rank():
    assert ranking((), 2) == [[], []]


def test_who_leaves_moves_little_more_than_what_was_his():
    able = [f"b{i}:1" for i in range(10)]
    before, after = ranking(able, 100), ranking(able[:-1], 100)
    moved = sum(b[0] != a[0] for b, a in zip(before, after, strict=True))
    assert moved <= 30


def test_an_office_is_named_after_its_partition():
    assert [partition_of_lease(lease_of(p)) for p in (0, 7, 1023)] == [0, 7, 1023]
    assert partition_of_lease("leader") is None
    assert partition_of_lease("channel-owner-") is None
    assert partition_of_lease("channel-owner-x") is None


# --- one broker's steps


def test_preferred_broker_claims_a_vacant_lease_first_and_others_wait():
    mine = partition_where(B, 0)
    for me in (A, B, C):
        election, rank = Election(me, 4, SETTINGS), rank_of(me, mine)
        claims_s = next(
            now
            for now in range(10)
            if Claim(mine) in election.due(Seen(now, NAMES, {p: A for p in range(4) if p != mine}))
        )
        assert claims_s == 2 * rank


def test_an_office_that_was_held_meanwhile_has_to_stay_vacant_anew():
    partition = partition_where(A, 1)
    others = {p: B for p in range(4) if p != partition}
    election = Election(A, 4, SETTINGS)
    assert election.due(Seen(0, NAMES, others)) == []
    assert election.due(Seen(1.9, NAMES, others | {partition: C})) == []
    assert election.due(Seen(2.1, NAMES, others)) == []
    assert election.due(Seen(4.2, NAMES, others)) == [Claim(partition)]


def test_a_lone_broker_owns_everything():
    assert Election(A, 3, SETTINGS).due(Seen(0, ["a:1"], {})) == [Claim(0), Claim(1), Claim(2)]


def test_who_is_not_able_claims_nothing():
    assert Election(A, 3, SETTINGS).due(Seen(100, ["b:1"], {})) == []
    assert Election(A, 3, SETTINGS).due(Seen(100, ["a:1"], {}, leaving=True)) == []


def test_owner_yields_to_the_preferred_once_membership_is_stable():
    election, all_mine = Election(A, 4, SETTINGS), dict.fromkeys(range(4), A)
    assert election.due(Seen(0, ["a:1"], all_mine)) == []
    assert election.due(Seen(100, NAMES, all_mine)) == []
    assert election.due(Seen(129, NAMES, all_mine)) == []
    given_up = {step.partition for step in election.due(Seen(130, NAMES, all_mine)) if isinstance(step, Vacate)}
    assert given_up == {p for p in range(4) if first_of(p) != "a:1"}
    assert given_up


def test_stand_in_for_a_missing_preferred_broker_stays_for_a_while():
    partition = partition_where(A, 1)
    election, others = Election(A, 4, SETTINGS), {p: B for p in range(4) if p != partition}
    assert election.due(Seen(0, NAMES, others)) == []
    assert election.due(Seen(1_000, NAMES, others)) == [Claim(partition)]
    assert election.due(Seen(1_001, NAMES, others | {partition: A})) == []
    assert election.due(Seen(1_030, NAMES, others | {partition: A})) == []
    [step] = election.due(Seen(1_031, NAMES, others | {partition: A}))
    assert isinstance(step, Vacate)


def test_members_that_come_and_go_make_nobody_vacate():
    election, all_mine = Election(A, 4, SETTINGS), dict.fromkeys(range(4), A)
    for round_ in range(100):
        assert election.due(Seen(20 * round_, NAMES[: 1 + round_ % 3], all_mine)) == []


def test_who_leaves_vacates_at_once_and_only_what_is_his():
    steps = Election(A, 3, SETTINGS).due(Seen(0, ["b:1"], {0: A, 1: B}, leaving=True))
    assert [(type(step), step.partition) for step in steps] == [(Vacate, 0)]


def test_an_owner_keeps_its_offices_while_nobody_else_is_able():
    election = Election(A, 2, SETTINGS)
    assert election.due(Seen(0, [], {0: A, 1: A})) == []
    assert election.due(Seen(1000, [], {0: A, 1: A})) == []


def test_what_an_earlier_incarnation_of_ours_holds_in_our_session_is_vacated():
    again = BrokerId("a:1", 2)
    assert Election(again, 2, SETTINGS).due(Seen(0, ["a:1"], {0: A, 1: B})) == [Vacate(0, A, "a:1#1 has ended")]


@pytest.mark.parametrize("seed", range(20))
def test_from_any_state_the_members_come_to_one_preferred_owner_each(seed: int):
    from random import Random

    dice, partitions = Random(seed), 8
    brokers = (A, B, C)
    elections = {me: Election(me, partitions, SETTINGS) for me in brokers}
    leases = {p: dice.choice(brokers) for p in range(partitions) if dice.random() < 0.7}
    for now in range(100):
        for me in dice.sample(brokers, 3):
            for step in elections[me].due(Seen(now, NAMES, dict(leases))):
                if isinstance(step, Claim):
                    leases.setdefault(step.partition, me)
                elif leases.get(step.partition) == step.holder:
                    del leases[step.partition]
    assert {p: holder.name for p, holder in leases.items()} == {
        p: first_of(p, NAMES, partitions) for p in range(partitions)
    }


EXPECTED_FIRSTS = ["a:1", "b:1", "a:1", "a:1", "b:1", "b:1", "c:1", "c:1"]
