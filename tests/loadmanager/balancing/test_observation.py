"""The model that a leader's strategy gets: moves in flight count as done, and what planned moves left behind."""

from __future__ import annotations

import pytest

from loadmanager.balancing.difference import Difference
from loadmanager.balancing.history import MoveHistory
from loadmanager.balancing.model import BundleState, ClusterModel
from loadmanager.balancing.observation import Observed, cluster_model
from loadmanager.host import BundleLoad
from loadmanager.load.model import BrokerLoadData, LoadedBundle, TopBundlesLoadData, total_of
from loadmanager.registration import Peer, Registration
from loadmanager.settings import Settings
from statechannel.bundle import Bundle, even_boundaries, tile
from statechannel.record import NEVER, Action, Broker, Record, Role, Subject
from statechannel.table import OwnershipTable
from statechannel.verdict import Change

A, B, LEADER = Broker("a:6650", 3), Broker("b:6650", 1), Broker("leader:6650", 1)
BUNDLES = tile("public/default", even_boundaries(4))
HOT, WARM = BUNDLES[0], BUNDLES[1]


class Cluster:
    """A table, a history fed with its changes, and the reports of A and B; `now_ms` is set by the test."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.table, self.history = OwnershipTable(1), MoveHistory(memory_s=3600)
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

    def write(self, actor: Broker, action: Action, **more: object) -> None:
        record = Record(f"r{self._offset}", action, actor, **more)  # type: ignore[arg-type]
        verdict = self.table.replay(0, self._offset, record)
        assert isinstance(verdict, Change), verdict
        self.history.observe(verdict, self.now_ms)
        self._offset += 1

    def step(self, actor: Broker, action: Action, bundle: Bundle, **more: object) -> None:
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

    def report(self, broker: Broker, cpu: float, **rates: float) -> None:
        """`rates`: messages of the bundles `hot` and `warm`, as far as the broker holds them."""
        loads = {{"hot": HOT, "warm": WARM}[name]: BundleLoad(in_rate_msg_s=rate) for name, rate in rates.items()}
        top = tuple(LoadedBundle(bundle, load) for bundle, load in loads.items())
        self.loads[broker.name] = BrokerLoadData(broker, self.now_ms, cpu_percent=cpu, bundles=len(loads))
        self.tops[broker.name] = TopBundlesLoadData(broker, self.now_ms, top, total_of(loads.values()), len(loads))

    def model(self) -> ClusterModel:
        return cluster_model(Observed(tuple(self.peers), self.loads, self.tops, self.table, self.history, self.now_ms))

    def peaks(self) -> list[float | None]:
        return [None if each.usage is None else round(each.usage.peak, 6) for each in self.model().brokers]

    def bundle(self, bundle: Bundle) -> BundleState:
        return next(each for each in self.model().bundles if each.bundle == bundle)


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
    assert [each.broker for each in model.brokers] == [A, B]
    assert cluster.peaks() == [0.8, 0.05]
    assert {each.bundle: round(each.usage.peak, 6) for each in model.bundles} == {HOT: 0.6, WARM: 0.2}
    assert not any(each.in_flight or each.moved_s is not None for each in model.bundles)


def test_a_move_in_flight_counts_as_done_from_its_first_record_on(cluster: Cluster) -> None:
    cluster.lead(Action.TRANSFER, HOT, to=B)
    assert cluster.peaks() == [0.2, 0.65]
    assert cluster.bundle(HOT).in_flight
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


def test_a_new_owner_that_lists_the_bundle_is_believed_whatever_its_clock_says(cluster: Cluster) -> None:
    cluster.now_ms = 9_000
    cluster.transfer(HOT)
    cluster.now_ms = 3_000
    cluster.report(B, 62, hot=30)
    assert cluster.peaks() == [0.2, 0.62]


def test_a_new_owner_that_reported_since_but_does_not_list_the_bundle_is_believed(cluster: Cluster) -> None:
    cluster.now_ms = 2_000
    cluster.transfer(HOT)
    cluster.now_ms = 3_000
    cluster.report(B, 40)
    assert cluster.peaks() == [0.2, 0.4]


def test_a_cancelled_move_counts_for_nothing(cluster: Cluster) -> None:
    cluster.lead(Action.TRANSFER, HOT, to=B)
    cluster.lead(Action.CANCEL, HOT)
    assert cluster.peaks() == [0.8, 0.05]
    assert not cluster.bundle(HOT).in_flight


def test_what_is_unloaded_to_nobody_leaves_its_owner_only(cluster: Cluster) -> None:
    cluster.lead(Action.UNLOAD, HOT)
    assert cluster.peaks() == [0.2, 0.05]


def test_data_of_another_start_or_none_means_no_part_in_it(cluster: Cluster) -> None:
    cluster.peers[1] = Peer(Broker(B.name, 2), Registration(draining=True))
    assert cluster.peaks() == [0.8, None]
    assert cluster.model().brokers[1].draining
    del cluster.loads[A.name]
    assert cluster.peaks() == [None, None]
    assert cluster.model().bundles == ()


def test_a_planned_move_is_remembered_with_its_time_and_source(cluster: Cluster) -> None:
    cluster.now_ms = 5_000
    cluster.transfer(HOT)
    cluster.report(B, 62, hot=30)
    cluster.now_ms = 65_000
    moved = cluster.bundle(HOT)
    assert (moved.owner, moved.moved_s, moved.left) == (B, 60.0, frozenset({A.name}))


def test_a_move_is_forgotten_in_time(cluster: Cluster) -> None:
    cluster.transfer(HOT)
    cluster.report(B, 62, hot=30)
    cluster.now_ms += 3_600_001
    assert cluster.bundle(HOT).moved_s is None
    assert cluster.history.arrivals(cluster.now_ms) == {}


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
    assert [cluster.bundle(each).moved_s for each in (HOT, WARM)] == [None, None]


def test_a_planned_move_that_ended_in_a_failure_does_not_rest(cluster: Cluster) -> None:
    cluster.lead(Action.TRANSFER, HOT, to=B)
    cluster.lead(Action.REVOKE, HOT)
    cluster.lead(Action.RELEASE, HOT, to=B)
    cluster.step(B, Action.RETURN, HOT)
    assert cluster.history.arrival(HOT, cluster.now_ms) is None


def test_a_bundle_that_is_gone_is_forgotten(cluster: Cluster) -> None:
    cluster.transfer(HOT)
    middle = (HOT.lo + HOT.hi) // 2
    cluster.step(B, Action.CREATE, HOT, boundaries=(middle,))
    assert cluster.history.arrivals(cluster.now_ms) == {}


def test_a_second_round_before_any_new_report_does_not_repeat_the_first(cluster: Cluster) -> None:
    settings = Settings(balancing_tolerance=0.3)
    first = Difference().decide(cluster.model(), settings)
    assert [move.bundle for move in first.moves] == [WARM]
    cluster.lead(Action.TRANSFER, WARM, to=B)
    second = Difference().decide(cluster.model(), settings)
    assert WARM not in [move.bundle for move in second.moves]
    assert second.spread_before == pytest.approx(first.spread_after)
