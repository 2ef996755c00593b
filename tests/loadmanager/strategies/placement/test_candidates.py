"""Candidates as they follow from the ownership table, the load view and the registrations; strategies by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadmanager.model.load import BrokerLoadData, usage
from loadmanager.model.registration import Peer, Registration
from loadmanager.strategies.placement.least_loaded import LeastLoaded
from loadmanager.strategies.placement.placement import Candidate, Roster, declined_by
from loadmanager.strategies.registry import PLACEMENTS
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.record import NEVER, Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change, Ownership
from tests.installed import install

A, B, LEADER = BrokerId("a:6650", 3), BrokerId("b:6650", 1), BrokerId("leader:6650", 1)
BUNDLES = tile("public/default", even_boundaries(4))


class History:
    """An ownership table of one partition, and a short way to write its records."""

    def __init__(self) -> None:
        self.table = OwnershipTable(1)
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

    def write(self, actor: BrokerId, action: Action, **more: object) -> None:
        record = Record(f"r{self._offset}", action, actor, **more)  # type: ignore[arg-type]
        verdict = self.table.replay(0, self._offset, record)
        assert isinstance(verdict, Change), verdict
        self._offset += 1

    def step(self, actor: BrokerId, action: Action, bundle: Bundle, **more: object) -> None:
        self.write(actor, action, subjects=(Subject(bundle, self.entry(bundle).revision),), **more)

    def entry(self, bundle: Bundle) -> Ownership:
        entry = self.table.get(bundle)
        assert entry is not None
        return entry

    def assign(self, broker: BrokerId, *bundles: Bundle) -> None:
        for bundle in bundles:
            self.step(broker, Action.OWN, bundle, to=broker)
            self.step(broker, Action.RETURN, bundle)


@pytest.fixture
def history() -> History:
    return History()


def test_what_is_on_its_way_counts_for_where_it_goes(history: History) -> None:
    history.assign(A, *BUNDLES)
    history.step(LEADER, Action.TRANSFER, BUNDLES[0], role=Role.LEADER, epoch=1, to=B)
    history.step(LEADER, Action.TRANSFER, BUNDLES[1], role=Role.LEADER, epoch=1, to=B)
    history.step(B, Action.READY, BUNDLES[1])
    history.step(LEADER, Action.UNLOAD, BUNDLES[2], role=Role.LEADER, epoch=1)
    found = Roster().candidates([Peer(A, Registration()), Peer(B, Registration())], {}, history.table, usage)
    assert found == (Candidate(A, bundles=1), Candidate(B, bundles=2))


def test_load_limits_and_draining_come_from_load_view_and_registration(history: History) -> None:
    history.assign(A, BUNDLES[0])
    loads = {
        A.name: BrokerLoadData(A, 0, cpu_percent=40, in_rate_msg_s=9, bundles=7),
        B.name: BrokerLoadData(B, 0, cpu_percent=9),
    }
    peers = [Peer(A, Registration(capacity={"bundles": 10})), Peer(B, Registration(draining=True))]
    assert Roster().candidates(peers, loads, history.table, usage) == (
        Candidate(A, bundles=1, usage=0.4, reported_bundles=7, max_bundles=10),
        Candidate(B, usage=0.09, traffic=False, draining=True),
    )


def test_load_data_of_an_earlier_start_do_not_count(history: History) -> None:
    loads = {A.name: BrokerLoadData(BrokerId(A.name, A.incarnation - 1), 0, cpu_percent=99, bundles=50)}
    assert Roster().candidates([Peer(A, Registration())], loads, history.table, usage) == (Candidate(A),)


def test_a_bundle_that_was_declined_names_who_did(history: History) -> None:
    assert declined_by(history.entry(BUNDLES[0])) is None
    history.step(B, Action.OWN, BUNDLES[0], to=A)
    assert declined_by(history.entry(BUNDLES[0])) is None
    history.step(A, Action.RELEASE, BUNDLES[0])
    assert declined_by(history.entry(BUNDLES[0])) == A


def test_the_built_in_strategy_goes_by_its_name() -> None:
    assert isinstance(PLACEMENTS.make("least-loaded"), LeastLoaded)
    assert "least-loaded" in PLACEMENTS.names()


def test_an_unknown_strategy_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"'best' is not a known placement.*least-loaded"):
        PLACEMENTS.make("best")


def test_a_package_brings_its_own_strategy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, {"ours": LeastLoaded}, group="loadmanager.placements")
    assert isinstance(PLACEMENTS.make("ours"), LeastLoaded)
    assert PLACEMENTS.names() == ["least-loaded", "least-resource-usage", "ours", "power-of-two", "rendezvous"]
