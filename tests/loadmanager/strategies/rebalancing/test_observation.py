"""The model that a leader's strategy gets: moves in flight count as done, and what planned moves left behind."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import msgspec
import pytest

from loadmanager.model.cluster import NOWHERE, UNLIMITED, ClusterModel
from loadmanager.model.host import BundleLoad
from loadmanager.model.load import BrokerLoadData, LoadedBundle, TopBundlesLoadData, total_of
from loadmanager.model.observation import MoveHistory, Observed, cluster_model
from loadmanager.model.policies.model import NO_POLICIES, BrokerPolicy, Policies
from loadmanager.model.registration import Peer, Registration
from loadmanager.settings import Settings
from loadmanager.strategies.registry import STRATEGIES
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.record import NEVER, Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change

A, B, LEADER = BrokerId("a:6650", 3), BrokerId("b:6650", 1), BrokerId("leader:6650", 1)
BUNDLES = tile("public/default", even_boundaries(4))
HOT, WARM = BUNDLES[0], BUNDLES[1]
WINDOW_MS = 30_000
"""For so long the mean load of a bundle that has moved may still tell of the time when its clients came back."""


class Row(NamedTuple):
    """What a model says of a bundle; the load in cores, of which each broker has one."""

    owner: BrokerId | None
    load: float
    in_flight: bool
    moved_s: float
    changed: bool
    left: set[str]


class Cluster:
    """A table, the history of its moves, and the reports of A and B; `now_ms` is set by the test."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.settings = Settings()
        self.policies = NO_POLICIES
        self.table = OwnershipTable(1)
        self.history = MoveHistory(self.table, memory_s=3600)
        self.loads: dict[str, BrokerLoadData] = {}
        self.tops: dict[str, TopBundlesLoadData] = {}
        self.peers = [Peer(A, Registration()), Peer(B, Registration())]
        self._offset = 0
        self.write(LEADER, Action.LEAD, role=Role.LEADER, epoch=1)
        self.write(
            LEADER,
            Action.CREATE_NAMESPACE,
            role=Role.ADMIN,
            namespace="public/default",
            seen_namespace=NEVER,
            boundaries=even_boundaries(4),
        )
        for bundle in BUNDLES:
            self.step(A, Action.OWN, bundle, to=A)
            self.step(A, Action.RETURN, bundle)

    def write(self, actor: BrokerId, action: Action, **more: object) -> None:
        record = Record(f"r{self._offset}", action, actor, at_ms=self.now_ms, **more)  # type: ignore[arg-type]
        verdict = self.table.replay(0, self._offset, record)
        assert isinstance(verdict, Change), verdict
        self._offset += 1

    def step(self, actor: BrokerId, action: Action, bundle: Bundle, **more: object) -> None:
        entry = self.table.get(bundle)
        assert entry is not None
        self.write(actor, action, subjects=(Subject(bundle, entry.revision),), **more)

    def lead(self, action: Action, bundle: Bundle, **more: object) -> None:
        self.step(LEADER, action, bundle, role=Role.LEADER, epoch=1, **more)

    def transfer(self, bundle: Bundle) -> None:
        self.lead(Action.TRANSFER, bundle, to=B)
        self.finish(bundle)

    def finish(self, bundle: Bundle) -> None:
        self.step(B, Action.READY, bundle)
        self.step(A, Action.RELEASE, bundle)
        self.step(B, Action.RETURN, bundle)

    def report(self, broker: BrokerId, cpu: float, **rates: float) -> None:
        """`rates`: messages of the bundles `hot` and `warm`, as far as the broker holds them."""
        loads = {{"hot": HOT, "warm": WARM}[name]: BundleLoad(in_rate_msg_s=rate) for name, rate in rates.items()}
        top = tuple(LoadedBundle(bundle, load) for bundle, load in loads.items())
        self.loads[broker.name] = BrokerLoadData(broker, self.now_ms, cpu_percent=cpu, bundles=len(loads))
        self.tops[broker.name] = TopBundlesLoadData(broker, self.now_ms, top, total_of(loads.values()), len(loads))

    def model(self) -> ClusterModel:
        return cluster_model(
            Observed(
                *(tuple(self.peers), self.loads, self.tops, self.table, self.history, self.now_ms),
                self.settings,
                self.policies,
            )
        )

    def peaks(self) -> list[float | None]:
        brokers = self.model().brokers
        return [
            round(float(used[0]), 6) if known else None for used, known in zip(brokers.used, brokers.known, strict=True)
        ]

    def bundle(self, bundle: Bundle) -> Row:
        model = self.model()
        row = list(model.bundles.ids).index(bundle)
        ids, owner = model.brokers.ids, int(model.bundles.owner[row])
        return Row(
            None if owner == NOWHERE else ids[owner],
            round(float(model.bundles.load[row, 0]), 6),
            bool(model.bundles.in_flight[row]),
            float(model.bundles.moved_s[row]),
            bool(model.bundles.changed[row]),
            {ids[each].name for each in model.bundles.left.get(row, ())},
        )


@pytest.fixture
def cluster() -> Cluster:
    """A uses 80 %: 60 points by HOT, 20 by WARM. B is idle."""
    cluster = Cluster()
    cluster.now_ms = 1_000
    cluster.report(A, 80, hot=30, warm=10)
    cluster.report(B, 5)
    return cluster


def test_it_knows_each_broker_and_what_each_hot_bundle_makes_of_it(cluster: Cluster) -> None:
    model = cluster.model()
    assert model.brokers.ids == (A, B)
    assert cluster.peaks() == [0.8, 0.05]
    assert list(model.brokers.bundles) == [4, 0]
    assert cluster.bundle(HOT) == (A, 0.6, False, inf, False, set())
    assert cluster.bundle(WARM) == (A, 0.2, False, inf, False, set())


def test_a_move_in_flight_counts_as_done_from_its_first_record_on(cluster: Cluster) -> None:
    cluster.lead(Action.TRANSFER, HOT, to=B)
    assert cluster.peaks() == [0.2, 0.65]
    assert cluster.bundle(HOT) == (B, 0.6, True, inf, False, set())
    assert list(cluster.model().brokers.bundles) == [3, 1]
    cluster.step(B, Action.READY, HOT)
    assert cluster.peaks() == [0.2, 0.65]
    cluster.step(A, Action.RELEASE, HOT)
    assert cluster.peaks() == [0.2, 0.65]
    cluster.now_ms = 2_000
    cluster.step(B, Action.RETURN, HOT)
    assert cluster.peaks() == [0.2, 0.65]


def test_once_both_have_reported_nothing_is_counted_twice(cluster: Cluster) -> None:
    cluster.now_ms = 2_000
    cluster.transfer(HOT)
    cluster.now_ms = 3_000
    cluster.report(B, 62, hot=30)
    assert cluster.peaks() == [0.2, 0.62]
    cluster.report(A, 21, warm=10)
    assert cluster.peaks() == [0.21, 0.62]


def test_new_owner_that_lists_a_bundle_is_believed_whatever_its_clock_says(cluster: Cluster) -> None:
    cluster.now_ms = 9_000
    cluster.transfer(HOT)
    cluster.now_ms = 3_000
    cluster.report(B, 62, hot=30)
    assert cluster.peaks() == [0.2, 0.62]


def test_new_owner_that_reports_without_the_bundle_is_believed(cluster: Cluster) -> None:
    cluster.now_ms = 2_000
    cluster.transfer(HOT)
    cluster.now_ms = 3_000
    cluster.report(B, 40)
    assert cluster.peaks() == [0.2, 0.4]
    assert HOT not in cluster.model().bundles.ids


def test_a_cancelled_move_counts_for_nothing(cluster: Cluster) -> None:
    cluster.lead(Action.TRANSFER, HOT, to=B)
    cluster.lead(Action.CANCEL, HOT)
    assert cluster.peaks() == [0.8, 0.05]
    assert not cluster.bundle(HOT).in_flight


def test_what_is_unloaded_to_nobody_leaves_its_owner_only(cluster: Cluster) -> None:
    cluster.lead(Action.UNLOAD, HOT)
    assert cluster.peaks() == [0.2, 0.05]
    assert (cluster.bundle(HOT).owner, cluster.bundle(HOT).in_flight) == (None, True)


def test_data_of_another_start_or_none_means_no_part_in_it(cluster: Cluster) -> None:
    cluster.peers[1] = Peer(BrokerId(B.name, 2), Registration(draining=True))
    assert cluster.peaks() == [0.8, None]
    assert list(cluster.model().brokers.draining) == [False, True]
    del cluster.loads[A.name]
    assert cluster.peaks() == [None, None]
    assert len(cluster.model().bundles) == 0


def test_a_planned_move_is_remembered_with_its_time_and_source(cluster: Cluster) -> None:
    cluster.now_ms = 5_000
    cluster.transfer(HOT)
    cluster.report(B, 62, hot=30)
    cluster.now_ms = 65_000
    moved = cluster.bundle(HOT)
    assert (moved.owner, moved.moved_s, moved.left) == (B, 60.0, {A.name})


def test_a_move_is_forgotten_in_time(cluster: Cluster) -> None:
    cluster.transfer(HOT)
    cluster.report(B, 62, hot=30)
    cluster.now_ms += 3_600_001
    assert cluster.bundle(HOT).moved_s == inf
    assert cluster.history.arrival(HOT, cluster.now_ms) is None


def test_an_unloaded_bundle_rests_where_a_lookup_took_it(cluster: Cluster) -> None:
    cluster.step(LEADER, Action.UNLOAD, HOT, role=Role.ADMIN)
    cluster.step(A, Action.RELEASE, HOT)
    cluster.step(B, Action.OWN, HOT, to=B)
    cluster.step(B, Action.RETURN, HOT)
    cluster.report(B, 62, hot=30)
    assert cluster.bundle(HOT).left == {A.name}


def test_what_was_drained_or_fled_a_dead_broker_does_not_rest(cluster: Cluster) -> None:
    cluster.step(A, Action.TRANSFER, HOT, to=B)
    cluster.finish(HOT)
    cluster.lead(Action.REVOKE, WARM)
    cluster.lead(Action.RELEASE, WARM, to=B)
    cluster.step(B, Action.RETURN, WARM)
    cluster.report(B, 80, hot=30, warm=10)
    assert [cluster.bundle(each).moved_s for each in (HOT, WARM)] == [inf, inf]


def test_a_planned_move_that_ended_in_a_failure_does_not_rest(cluster: Cluster) -> None:
    cluster.lead(Action.TRANSFER, HOT, to=B)
    cluster.lead(Action.REVOKE, HOT)
    cluster.lead(Action.RELEASE, HOT, to=B)
    cluster.step(B, Action.RETURN, HOT)
    assert cluster.history.arrival(HOT, cluster.now_ms) is None


def test_bundle_of_a_failed_move_rests_and_does_not_try_the_same_target_again(cluster: Cluster) -> None:
    cluster.lead(Action.TRANSFER, HOT, to=B)
    cluster.step(B, Action.CANCEL, HOT)
    cluster.now_ms = 4_000
    row = cluster.bundle(HOT)
    assert (row.owner, row.load, row.moved_s, row.changed, row.left) == (A, 0.6, 3.0, False, {B.name})


def test_a_bundle_that_is_gone_is_forgotten(cluster: Cluster) -> None:
    cluster.transfer(HOT)
    middle = (HOT.lo + HOT.hi) // 2
    cluster.step(B, Action.CREATE, HOT, boundaries=(middle,))
    assert cluster.history.arrival(HOT, cluster.now_ms) is None


def test_a_former_owner_is_forgotten_when_the_rest_is_over(cluster: Cluster) -> None:
    cluster.now_ms = 5_000
    cluster.transfer(HOT)
    cluster.report(B, 62, hot=30)
    cluster.now_ms += 1_799_000
    assert cluster.bundle(HOT).left == {A.name}
    cluster.now_ms += 1_000
    assert cluster.bundle(HOT).left == set()


def test_moved_bundle_shows_at_its_new_owner_before_that_one_reports(cluster: Cluster) -> None:
    cluster.now_ms = 5_000
    cluster.transfer(HOT)
    assert cluster.bundle(HOT) == (B, 0.6, False, 0.0, False, {A.name})


def test_a_load_that_really_changed_since_the_move_is_told(cluster: Cluster) -> None:
    cluster.now_ms = 5_000
    cluster.history.remember([(HOT, A, B, (0.6, 0.0, 0.0, 0.0, 30.0))])
    cluster.transfer(HOT)
    cluster.now_ms += WINDOW_MS
    for rate, changed in ((30.0, False), (44.0, False), (46.0, True), (16.0, False), (14.0, True)):
        cluster.report(B, 62, hot=rate)
        assert cluster.bundle(HOT).changed is changed, rate


def test_the_same_work_on_a_slower_machine_is_no_other_load(cluster: Cluster) -> None:
    cluster.now_ms = 5_000
    cluster.history.remember([(HOT, A, B, (0.1, 0.0, 0.0, 0.0, 30.0))])
    cluster.transfer(HOT)
    cluster.report(B, 90, hot=30)
    assert cluster.bundle(HOT).load == 0.9
    assert not cluster.bundle(HOT).changed


def test_where_no_rates_are_told_cpu_is_what_changes(cluster: Cluster) -> None:
    cluster.now_ms = 5_000
    cluster.history.remember([(HOT, A, B, (0.3, 0.0, 0.0, 0.0, 0.0))])
    cluster.transfer(HOT)
    for cpu, changed in ((40.0, False), (50.0, True)):
        load = BundleLoad(cpu_percent=cpu)
        cluster.loads[B.name] = BrokerLoadData(B, cluster.now_ms, cpu_percent=cpu, bundles=1)
        cluster.tops[B.name] = TopBundlesLoadData(B, cluster.now_ms, (LoadedBundle(HOT, load),), load, 1)
        assert cluster.bundle(HOT).changed is changed, cpu


def test_where_nobody_remembers_the_load_of_then_it_has_not_changed(cluster: Cluster) -> None:
    cluster.now_ms = 5_000
    cluster.history.remember([(HOT, B, A, (0.1, 0.0, 0.0, 0.0, 3.0))])
    cluster.transfer(HOT)
    cluster.report(B, 62, hot=30)
    assert not cluster.bundle(HOT).changed


def test_the_age_of_each_report_is_told(cluster: Cluster) -> None:
    cluster.now_ms = 31_000
    del cluster.loads[B.name]
    ages_s = cluster.model().brokers.report_age_s
    assert ages_s is not None
    assert list(ages_s) == [30.0, inf]


def test_a_declared_limit_of_bundles_counts(cluster: Cluster) -> None:
    cluster.loads[A.name] = msgspec.structs.replace(cluster.loads[A.name], capacity={"bundles": 7})
    assert list(cluster.model().brokers.max_bundles) == [7, UNLIMITED]


def test_a_drained_broker_by_policy_drains(cluster: Cluster) -> None:
    cluster.policies = Policies(brokers={A.name: BrokerPolicy(drain=True)})
    assert list(cluster.model().brokers.draining) == [True, False]


def test_a_second_round_before_any_new_report_does_not_repeat_the_first(cluster: Cluster) -> None:
    settings, plan = Settings(), STRATEGIES.make("plan")
    first = plan.decide(cluster.model(), settings)
    assert [move.bundle for move in first.moves] == [WARM]
    cluster.lead(Action.TRANSFER, WARM, to=B)
    second = plan.decide(cluster.model(), settings)
    assert WARM not in [move.bundle for move in second.moves]
    assert second.spread_before == pytest.approx(first.spread_after)


# --- each load counts once


def test_bundle_that_just_arrived_has_the_load_it_was_moved_with(cluster: Cluster) -> None:
    cluster.now_ms = 5_000
    cluster.history.remember([(HOT, A, B, (0.5, 0.0, 0.0, 0.0, 30.0))])
    cluster.transfer(HOT)
    cluster.now_ms += 1_000
    cluster.report(A, 10)
    cluster.report(B, 2, hot=0)  # its clients are not back yet
    assert cluster.bundle(HOT) == (B, 0.5, False, 1.0, False, {A.name})
    assert cluster.peaks() == [0.1, 0.52]
    cluster.now_ms += WINDOW_MS
    cluster.report(B, 2, hot=0)  # they will not come
    assert cluster.bundle(HOT).changed
    assert cluster.peaks() == [0.1, 0.02]


def test_bundle_that_just_arrived_counts_although_others_are_hotter(cluster: Cluster) -> None:
    cluster.now_ms = 5_000
    cluster.history.remember([(HOT, A, B, (0.5, 0.0, 0.0, 0.0, 30.0))])
    cluster.transfer(HOT)
    cluster.now_ms += 1_000
    cluster.report(A, 10)
    cluster.report(B, 20)  # the bundle is not among those that it lists
    assert cluster.bundle(HOT) == (B, 0.5, False, 1.0, False, {A.name})
    assert cluster.peaks() == [0.1, 0.7]
    cluster.now_ms += WINDOW_MS
    cluster.report(B, 70)
    assert HOT not in cluster.model().bundles.ids
    assert cluster.peaks() == [0.1, 0.7]


def test_what_a_bundle_has_more_than_when_it_was_moved_counts_at_once(cluster: Cluster) -> None:
    cluster.now_ms = 5_000
    cluster.history.remember([(HOT, A, B, (0.3, 0.0, 0.0, 0.0, 30.0))])
    cluster.transfer(HOT)
    cluster.now_ms += 1_000
    cluster.report(B, 60, hot=90)
    assert cluster.bundle(HOT) == (B, 0.6, False, 1.0, True, {A.name})
    assert cluster.peaks()[1] == 0.6


def test_split_bundle_loads_its_broker_until_the_children_are_reported(cluster: Cluster) -> None:
    middle = (HOT.lo + HOT.hi) // 2
    cluster.report(A, 80, hot=30)
    cluster.report(B, 10)
    cluster.step(A, Action.SPLIT, HOT, boundaries=(middle,))
    assert cluster.peaks() == [0.8, 0.1]
    cluster.step(A, Action.CREATE, HOT, boundaries=(middle,))
    assert cluster.peaks() == [0.8, 0.1]
    child = Bundle(HOT.namespace, HOT.lo, middle)
    cluster.lead(Action.TRANSFER, child, to=B)
    assert cluster.peaks()[0] == 0.4


def test_bundles_that_were_merged_still_load_their_broker(cluster: Cluster) -> None:
    cluster.report(A, 80, hot=30, warm=10)
    parts = tuple(Subject(bundle, entry.revision) for bundle in (HOT, WARM) if (entry := cluster.table.get(bundle)))
    cluster.write(A, Action.MERGE, subjects=parts)
    assert cluster.table.get(HOT) is None
    assert cluster.peaks()[0] == 0.8


def test_bundle_reported_by_two_former_owners_counts_once(cluster: Cluster) -> None:
    third = BrokerId("c:6650", 1)
    cluster.peers.append(Peer(third, Registration()))
    cluster.report(third, 10)
    cluster.report(A, 60, hot=30)
    cluster.now_ms = 5_000
    cluster.transfer(HOT)
    cluster.now_ms = 6_000
    cluster.report(B, 50, hot=30)
    cluster.lead(Action.TRANSFER, HOT, to=third)
    for _ in range(3):
        assert [bundle for bundle in cluster.model().bundles.ids if bundle == HOT] == [HOT]
        assert cluster.peaks() == [0.0, 0.0, 0.6]
        entry = cluster.table.get(HOT)
        assert entry is not None
        if entry.action is Action.TRANSFER:
            cluster.step(third, Action.READY, HOT)
        elif entry.action is Action.READY:
            cluster.step(B, Action.RELEASE, HOT)


def test_load_reported_after_the_bundle_left_is_not_reduced_again(cluster: Cluster) -> None:
    cluster.report(A, 60, hot=30)
    cluster.report(B, 10)
    hottest = cluster.tops[A.name]
    cluster.now_ms = 5_000
    cluster.transfer(HOT)
    cluster.now_ms = 6_000
    cluster.report(A, 20)
    cluster.tops[A.name] = hottest  # of the two values of a report only one is written yet
    assert cluster.peaks()[0] == 0.2


def test_nobody_can_change_what_was_observed(cluster: Cluster) -> None:
    cluster.report(A, 60, hot=30)
    model = cluster.model()
    for column in (model.brokers.used, model.bundles.load, model.bundles.owner, model.constraints.forbidden):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0
