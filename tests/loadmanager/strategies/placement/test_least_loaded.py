"""Where the least-loaded placement puts a bundle, whom it refuses, and how even it is when askers know old things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given as property_test
from hypothesis import settings
from hypothesis import strategies as st

from loadmanager.strategies.placement.least_loaded import LeastLoaded, rendezvous
from loadmanager.strategies.placement.placement import Candidate, Given, NoPlace, Placed
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.record import BrokerId

PLACEMENT = LeastLoaded()
BUNDLES = tile("public/default", even_boundaries(1024))
A, B, C = (BrokerId(f"{name}:6650", 1) for name in "abc")
NOTHING_GIVEN = Given()


def choose(bundle: Bundle, candidates: Sequence[Candidate], given: Given = NOTHING_GIVEN) -> BrokerId:
    answer = PLACEMENT.choose(bundle, candidates, given)
    assert isinstance(answer, Placed)
    return answer.broker


def test_the_least_loaded_broker_gets_the_bundle_however_many_it_has() -> None:
    assert choose(BUNDLES[0], [Candidate(A, 1, 0.5), Candidate(B, 90, 0.2, 90), Candidate(C, 1, 0.6)]) == B


def test_within_ten_points_the_fewest_bundles_decide() -> None:
    assert choose(BUNDLES[0], [Candidate(A, 5, 0.29, 5), Candidate(B, 9, 0.2, 9)]) == A
    assert choose(BUNDLES[0], [Candidate(A, 5, 0.31, 5), Candidate(B, 9, 0.2, 9)]) == B


def test_what_came_since_the_report_counts_as_a_mean_bundle_of_that_broker() -> None:
    """A: 30 % with 2 bundles, 10 % each and 10 % for the process. One more came, then another was given."""
    a, b = Candidate(A, 3, 0.3, 2), Candidate(B, 6, 0.38, 6)
    assert choose(BUNDLES[0], [a, b]) == A
    assert choose(BUNDLES[0], [a, b], Given({A: 1})) == B


def test_a_broker_without_bundles_expects_the_mean_bundle_of_the_cluster() -> None:
    """Bundles cost 5 % each (what A uses beyond 10 %): 9 make B 45 % to A's 70 %, 13 make it 65 %: as full as A."""
    a, b = Candidate(A, 12, 0.60, 10), Candidate(B, 0, 0.0, 0)
    assert choose(BUNDLES[0], [a, b], Given({B: 9})) == B
    assert choose(BUNDLES[0], [a, b], Given({B: 13})) == A


def test_a_broker_without_load_data_takes_part_with_its_bundle_count_only() -> None:
    unknown, idle, busy = Candidate(A, 3), Candidate(B, 5, 0.1, 5), Candidate(C, 0, 0.9)
    assert choose(BUNDLES[0], [unknown, idle, busy]) == A
    assert choose(BUNDLES[0], [Candidate(A, 6), idle, busy]) == B


def test_who_declined_is_asked_again_only_if_there_is_nobody_else() -> None:
    a, b = Candidate(A, 0, 0.0), Candidate(B, 50, 0.9, 50)
    assert choose(BUNDLES[0], [a, b], Given(declined_by=A)) == B
    answer = PLACEMENT.choose(BUNDLES[0], [a], Given(declined_by=A))
    assert isinstance(answer, Placed)
    assert answer.broker == A
    assert "no other broker" in answer.reason


def test_who_had_it_before_gets_it_back_unless_it_is_busier_than_others() -> None:
    given = Given(preferred=A.name)
    assert choose(BUNDLES[0], [Candidate(A, 50, 0.25, 50), Candidate(B, 1, 0.2, 1)], given) == A
    assert choose(BUNDLES[0], [Candidate(A, 50, 0.45, 50), Candidate(B, 1, 0.2, 1)], given) == B


def test_draining_and_full_brokers_are_refused_and_named() -> None:
    answer = PLACEMENT.choose(
        BUNDLES[0],
        [Candidate(A, draining=True), Candidate(B, 7, 0.0, 7, max_bundles=8), Candidate(C, 9, 0.9, 9)],
        Given({B: 1}),
    )
    assert isinstance(answer, Placed)
    assert answer.broker == C
    assert [(each.broker, each.rule) for each in answer.refused] == [(A, "draining"), (B, "full")]


def test_without_an_eligible_broker_each_refusal_is_told() -> None:
    answer = PLACEMENT.choose(BUNDLES[0], [Candidate(A, draining=True), Candidate(B, 8, max_bundles=8)], NOTHING_GIVEN)
    assert isinstance(answer, NoPlace)
    assert "a:6650: draining" in answer.reason
    assert "b:6650: full, 8 bundles of at most 8" in answer.reason
    assert PLACEMENT.choose(BUNDLES[0], [], NOTHING_GIVEN) == NoPlace("no broker is registered")


candidate_lists = st.lists(
    st.builds(
        Candidate,
        broker=st.builds(BrokerId, st.sampled_from([f"b{i}:1" for i in range(6)]), st.just(1)),
        bundles=st.integers(0, 30),
        usage=st.none() | st.floats(0, 1.5),
        reported_bundles=st.integers(0, 30),
        draining=st.booleans(),
        max_bundles=st.none() | st.integers(0, 30),
    ),
    max_size=6,
    unique_by=lambda each: each.broker,
)


@settings(deadline=None)
@property_test(candidate_lists, st.sampled_from(BUNDLES), st.randoms(use_true_random=False))
def test_the_answer_is_eligible_and_the_same_for_every_asker(
    cs: list[Candidate], bundle: Bundle, random: object
) -> None:
    answer = PLACEMENT.choose(bundle, cs, NOTHING_GIVEN)
    shuffled = sorted(cs, key=lambda _: random.random())  # type: ignore[attr-defined]
    again = PLACEMENT.choose(bundle, shuffled, NOTHING_GIVEN)
    eligible = {c.broker for c in cs if not c.draining and (c.max_bundles is None or c.bundles < c.max_bundles)}
    if isinstance(answer, Placed):
        assert isinstance(again, Placed)
        assert answer.broker == again.broker
        assert answer.broker in eligible
    else:
        assert isinstance(again, NoPlace)
        assert not eligible
    assert {each.broker for each in answer.refused} == {c.broker for c in cs} - eligible


@settings(deadline=None)
@property_test(candidate_lists, st.sampled_from(BUNDLES))
def test_nobody_is_given_a_bundle_while_another_is_ten_points_less_loaded(cs: list[Candidate], bundle: Bundle) -> None:
    settled = [Candidate(c.broker, c.bundles, c.usage, c.bundles) for c in cs if c.usage is not None]
    answer = PLACEMENT.choose(bundle, settled, NOTHING_GIVEN)
    if isinstance(answer, Placed):
        usages = {c.broker: c.usage or 0.0 for c in settled}
        assert usages[answer.broker] <= min(usages.values()) + 0.1


def test_a_restart_does_not_change_a_brokers_rank() -> None:
    assert rendezvous(BUNDLES[0], A) == rendezvous(BUNDLES[0], BrokerId(A.name, 99))


# --- evenness


def shares(placed: Counter[BrokerId]) -> list[float]:
    """Each broker's deviation from an even share, in percent."""
    even = placed.total() / 3
    return [100 * (placed[broker] - even) / even for broker in (A, B, C)]


IDLE = {A: 0.02, B: 0.07, C: 0.04}


def test_1024_bundles_one_after_another_come_out_even() -> None:
    placed: Counter[BrokerId] = Counter()
    for bundle in BUNDLES:
        placed[choose(bundle, [Candidate(each, placed[each], IDLE[each]) for each in IDLE])] += 1
    assert max(map(abs, shares(placed))) <= 2


@pytest.mark.parametrize("lag", [0, 1, 5, 20, 30])
@pytest.mark.parametrize("report", [0, 2, 50])
def test_three_askers_with_old_views_come_out_even(lag: int, report: int) -> None:
    """Each asker sees the table as it was `lag` records ago, load reports from when each broker held `report` bundles,
    and knows what it gave away itself meanwhile."""
    log: list[BrokerId] = []
    own: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for turn, bundle in enumerate(BUNDLES):
        asker = turn % 3
        seen = max(0, len(log) - lag)
        table = Counter(log[:seen])
        unseen = Counter(log[offset] for offset in own[asker] if offset >= seen)
        view = [Candidate(each, table[each], IDLE[each], min(report, table[each])) for each in IDLE]
        own[asker].append(len(log))
        log.append(choose(bundle, view, Given(unseen)))
    assert max(map(abs, shares(Counter(log)))) <= 2


def test_first_reports_that_blame_one_bundle_each_do_not_skew_the_rest() -> None:
    """A is at 15 % with its first bundle, B at 12 % with its own, C is empty; no newer report comes for 1,022 more.

    An estimate from one bundle is worth little: once it says that all are full, the counts decide."""
    placed: Counter[BrokerId] = Counter({A: 1, B: 1})
    for bundle in BUNDLES[2:]:
        view = [Candidate(A, placed[A], 0.15, 1), Candidate(B, placed[B], 0.12, 1), Candidate(C, placed[C], 0.02)]
        placed[choose(bundle, view)] += 1
    assert max(map(abs, shares(placed))) <= 2


def test_usage_without_traffic_does_not_count_until_the_broker_is_busy() -> None:
    idle = Candidate(B, 5, 0.02, 5, traffic=False)
    assert choose(BUNDLES[0], [Candidate(A, usage=0.6, traffic=False), idle]) == A
    assert choose(BUNDLES[0], [Candidate(A, usage=0.8, traffic=False), idle]) == B
    assert choose(BUNDLES[0], [Candidate(A, usage=0.6), idle]) == B
