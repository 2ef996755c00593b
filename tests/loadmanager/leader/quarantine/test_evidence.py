"""Evidence against bundles: which losses count, and that chance alone locks nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from loadmanager.leader.core import ORPHAN, STUCK
from loadmanager.leader.quarantine import evidence
from loadmanager.leader.quarantine.evidence import LEAST, LOCKED_ABOVE, End, Quarantine, drawn, loss_record
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change
from tests.loadmanager.leader.quarantine import world
from tests.loadmanager.leader.quarantine.world import FAULTS, World, history

WINDOW_S = 60.0
SECOND = 1_000
BUNDLE, OTHER, THIRD, *_ = BUNDLES = tile("t/n", even_boundaries(8))
A, B, C, D = (BrokerId(f"{name}:1", 1) for name in "abcd")
LEADER = BrokerId("leader:1", 1)


class Log:
    """A real table, whose accepted records the evidence reads."""

    def __init__(self) -> None:
        self.table = OwnershipTable(1)
        self.quarantine = Quarantine(self._holds)
        self.changes: list[Change] = []
        self.write(Action.LEAD, LEADER, Role.LEADER)
        self.write(Action.CREATE_NAMESPACE, LEADER, Role.ADMIN, namespace="t/n", boundaries=even_boundaries(8))

    def _holds(self, bundle: Bundle, broker: BrokerId) -> bool:
        entry = self.table.get(bundle)
        return entry is not None and broker in (entry.holder, entry.target)

    def write(self, action: Action, actor: BrokerId, role: Role, *bundles: Bundle, at_s: float = 0.0, **fields: Any):
        entries = [self.table.get(bundle) for bundle in bundles]
        subjects = tuple(Subject(entry.bundle, entry.revision) for entry in entries if entry is not None)
        record = Record(
            "r", action, actor, role, epoch=1 if role is Role.LEADER else 0, subjects=subjects,
            at_ms=int(at_s * SECOND), seen_namespace=-1, **fields,
        )  # fmt: skip
        self.take(record)

    def take(self, record: Record) -> None:
        change = self.table.replay(0, len(self.changes) + 1, record)
        assert isinstance(change, Change), change
        self.changes.append(change)
        self.quarantine.observe(change, WINDOW_S)

    def give(self, to: BrokerId, *bundles: Bundle, at_s: float, cause: str = "") -> None:
        self.write(Action.OWN, LEADER, Role.BROKER, *bundles, at_s=at_s, to=to, cause=cause)

    def lose(self, broker: BrokerId, *bundles: Bundle, at_s: float, reason: str = f"{ORPHAN}its session ended") -> None:
        self.write(Action.REVOKE, LEADER, Role.LEADER, *bundles, at_s=at_s, reason=reason)
        self.write(Action.RELEASE, LEADER, Role.LEADER, *bundles, at_s=at_s)

    def tell(self, broker: BrokerId, end: End) -> None:
        self.take(loss_record(LEADER, 1, broker, end, "why"))

    def lost_with(self, bundle: Bundle = BUNDLE) -> list[BrokerId]:
        return [death.broker for death in self.quarantine.evidence(bundle).deaths]


def two_losses() -> Log:
    """A and B were lost one after the other, soon after each got the bundle."""
    log = Log()
    for at_s, broker in ((10, A), (20, B)):
        log.give(broker, BUNDLE, at_s=at_s)
        log.lose(broker, BUNDLE, at_s=at_s + 1)
    assert log.lost_with() == [A, B]
    return log


def test_two_losses_in_a_row_have_the_next_broker_drawn():
    log = Log()
    log.give(A, BUNDLE, at_s=10)
    log.lose(A, BUNDLE, at_s=11)
    assert not log.quarantine.is_drawn(BUNDLE)
    log.give(B, BUNDLE, at_s=20)
    log.lose(B, BUNDLE, at_s=21)
    assert log.quarantine.is_drawn(BUNDLE)
    assert [found.bundle for found in log.quarantine.rows()] == [BUNDLE]


@pytest.mark.parametrize("bundles", [(OTHER,), (OTHER, THIRD)])
def test_the_loss_of_a_broker_without_the_bundle_ends_its_row(bundles: tuple[Bundle, ...]):
    log = two_losses()
    log.give(C, *bundles, at_s=25)
    log.lose(C, *bundles, at_s=26)
    assert log.lost_with() == []
    assert log.lost_with(OTHER) == [C]


def test_the_loss_of_a_broker_without_any_bundle_ends_every_row():
    log = two_losses()
    log.tell(C, End.OPEN)
    assert log.lost_with() == []


def test_a_loss_long_after_the_bundle_was_acquired_ends_the_row():
    log = two_losses()
    log.give(C, BUNDLE, at_s=30)
    log.lose(C, BUNDLE, at_s=30 + WINDOW_S + 1)
    assert log.lost_with() == []


def test_a_holder_that_gives_the_bundle_away_ends_the_row():
    log = two_losses()
    log.give(C, BUNDLE, at_s=30)
    log.write(Action.RETURN, C, Role.BROKER, BUNDLE, at_s=30)
    log.write(Action.UNLOAD, LEADER, Role.ADMIN, BUNDLE, at_s=31)
    log.write(Action.RELEASE, C, Role.BROKER, BUNDLE, at_s=31)
    assert log.lost_with() == []


@pytest.mark.parametrize(("cause", "lost"), [("", [A]), ("1.7", [])])
def test_a_transfer_that_a_decision_calls_off_did_not_lose_its_target(cause: str, lost: list[BrokerId]):
    log = Log()
    log.give(B, BUNDLE, at_s=10)
    log.write(Action.RETURN, B, Role.BROKER, BUNDLE, at_s=10)
    log.write(Action.TRANSFER, LEADER, Role.LEADER, BUNDLE, at_s=20, to=A)
    log.write(Action.CANCEL, LEADER, Role.LEADER, BUNDLE, at_s=21, reason="another does not move", cause=cause)
    assert log.lost_with() == lost


def test_a_broker_that_could_not_acquire_it_changes_nothing():
    log = two_losses()
    log.give(C, BUNDLE, at_s=30)
    log.write(Action.RELEASE, C, Role.BROKER, BUNDLE, at_s=31)
    assert log.lost_with() == [A, B]


def test_a_lost_broker_that_lives_ends_the_row():
    log = two_losses()
    log.tell(A, End.LIVES)
    assert log.lost_with() == []


def test_one_incarnation_is_lost_once():
    log = Log()
    log.give(A, BUNDLE, OTHER, at_s=10)
    log.lose(A, BUNDLE, at_s=11)
    log.lose(A, OTHER, at_s=12)
    assert log.lost_with() == [A]
    assert log.lost_with(OTHER) == [A]


def test_the_target_of_a_transfer_that_is_lost_counts_and_one_that_is_stuck_does_not():
    log = Log()
    log.give(A, BUNDLE, OTHER, at_s=0)
    log.write(Action.RETURN, A, Role.BROKER, BUNDLE, OTHER, at_s=0)
    log.write(Action.TRANSFER, LEADER, Role.LEADER, BUNDLE, at_s=80, to=B)
    log.write(Action.CANCEL, LEADER, Role.LEADER, BUNDLE, at_s=81, reason="its session ended")
    log.write(Action.TRANSFER, LEADER, Role.LEADER, OTHER, at_s=82, to=C)
    log.write(Action.CANCEL, LEADER, Role.LEADER, OTHER, at_s=90, reason=STUCK)
    assert log.lost_with() == [B]
    assert log.lost_with(OTHER) == []


def test_a_bundle_that_is_revoked_because_it_is_stuck_killed_nobody():
    log = two_losses()
    log.give(C, BUNDLE, at_s=30)
    log.lose(C, BUNDLE, at_s=40, reason="stuck in assigning for 10 s")
    assert log.lost_with() == [A, B]


def test_odds_multiply_the_candidates_of_each_draw_and_count_the_bundles_in_question():
    log = Log()
    both = (BUNDLE, OTHER)
    for at_s, broker in ((10, A), (20, B)):
        log.give(broker, *both, at_s=at_s)
        log.lose(broker, *both, at_s=at_s + 1)
    log.give(C, BUNDLE, at_s=30, cause=drawn(12))
    log.lose(C, BUNDLE, at_s=31)
    log.give(D, BUNDLE, at_s=40, cause=drawn(11))
    log.lose(D, BUNDLE, at_s=41)
    found = log.quarantine.evidence(BUNDLE)
    assert found.odds == pytest.approx(0.001 * 12 * 11 / 2)
    assert f" {D} " in str(found), "the last one, by which a lock tells what it knows"
    assert f"{D} 1.0 s after it got the bundle, drawn from 11" in map(str, found.deaths)


@pytest.mark.parametrize("cause", ["drawn:", "drawn:x", "drawn:-3", "drawn:٣", "drawn:9999999", "rebalance"])
def test_a_cause_that_names_no_candidates_proves_nothing(cause: str):
    log = two_losses()
    log.give(C, BUNDLE, at_s=30, cause=cause)
    log.lose(C, BUNDLE, at_s=31)
    assert log.quarantine.evidence(BUNDLE).odds == pytest.approx(0.001)


@pytest.mark.parametrize(("least", "suspected"), [(0, False), (1, True), (3, True), (4, False)])
def test_three_different_brokers_at_least_make_a_suspect(least: int, suspected: bool):
    log = two_losses()
    log.give(again := BrokerId(A.name, 2), BUNDLE, at_s=30)
    log.lose(again, BUNDLE, at_s=31)
    assert not log.quarantine.evidence(BUNDLE).is_suspected(1), "A twice and B are two"
    log.give(C, BUNDLE, at_s=40)
    log.lose(C, BUNDLE, at_s=41)
    assert log.quarantine.evidence(BUNDLE).is_suspected(least) is suspected


@pytest.mark.parametrize("clock_s", [-1_000, 25, 1_000])
def test_a_pardon_ends_what_is_known_whatever_the_clocks_say(clock_s: int):
    log = two_losses()
    log.quarantine.pardon(BUNDLE, clock_s * SECOND)
    assert log.lost_with() == []


def test_a_pardon_counts_also_for_those_who_read_the_losses_later():
    log = two_losses()
    late = Quarantine(lambda bundle, broker: True)
    late.pardon(BUNDLE, 15 * SECOND)
    for change in log.changes:
        late.observe(change, WINDOW_S)
    assert [death.broker for death in late.evidence(BUNDLE).deaths] == [B]
    assert not late.is_drawn(BUNDLE)


def test_splits_and_deletions_begin_without_evidence():
    log = two_losses()
    log.give(C, BUNDLE, at_s=30)
    log.write(Action.RETURN, C, Role.BROKER, BUNDLE, at_s=30)
    middle = (BUNDLE.lo + BUNDLE.hi) // 2
    log.write(Action.SPLIT, LEADER, Role.ADMIN, BUNDLE, at_s=31, boundaries=(middle,))
    log.write(Action.CREATE, C, Role.BROKER, BUNDLE, at_s=31, boundaries=(middle,))
    assert list(log.quarantine.rows()) == []


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evidence, "GIVEN_KEPT", 100)
    monkeypatch.setattr(evidence, "ROWS_KEPT", 10)
    monkeypatch.setattr(evidence, "LOST_KEPT", 5)
    bundles, quarantine = tile("big/one", even_boundaries(64)), Quarantine(lambda bundle, broker: True)
    for number in range(100):
        broker = BrokerId(f"b{number}:1", 1)
        for bundle in bundles[: 1 + number % 64]:
            quarantine.give(bundle, broker, number)
        quarantine.lose(broker, number, WINDOW_S)
    sizes = [len(each) for each in vars(quarantine).values() if hasattr(each, "__len__")]
    assert max(sizes) <= 100
    assert len(list(quarantine.rows())) <= 10


# --- chance, and bundles that kill


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_no_fault_locks_an_innocent_bundle(fault: Callable[[World], None]):
    for seed in range(20):
        made = World(seed, brokers=3 + seed % 3, bundles=12)
        for _ in range(3):
            fault(made)
        made.run(100)
        assert not made.locked, seed
        assert not made.unserved, seed


def test_random_histories_lock_no_innocent_bundle_and_leave_none_unserved():
    suspects = 0
    for seed in range(100):
        made = history(seed)
        assert not made.locked, seed
        assert not made.unserved, seed
        suspects += made.suspects > 0
    assert suspects >= 2, "histories that come near to a lock"


@pytest.mark.release
def test_a_hundred_thousand_random_histories_lock_no_innocent_bundle():
    for seed in range(100_000):
        made = history(seed)
        assert not made.locked, seed
        assert not made.unserved, seed


def test_the_histories_would_find_a_draw_that_counts_for_too_much(monkeypatch: pytest.MonkeyPatch):
    class Credulous(Quarantine):
        def give(self, bundle: Bundle, to: BrokerId, at_ms: int, drawn_from: int = 1) -> None:
            super().give(bundle, to, at_ms, 1 if drawn_from == 1 else 1_000 * drawn_from)

    monkeypatch.setattr(world, "Quarantine", Credulous)
    assert any(history(seed).locked for seed in range(150))


@pytest.mark.parametrize(("brokers", "most"), [(3, 32), (4, 20), (6, 14), (10, 10), (20, 9)])
def test_a_bundle_that_kills_is_locked_within_its_bound_and_no_other(brokers: int, most: int):
    for seed in range(10):
        made = World(seed, brokers, bundles=12)
        deadly = made.bundles[seed % 12]
        made.makes_deadly(deadly, 0.1, 5.0)
        while not made.locked:
            made.run(1)
            assert made.crashes_of.get(deadly, 0) <= most, seed
        made.run(60)
        assert set(made.locked) == {deadly}
        assert made.unserved <= {deadly}


def test_with_fewer_than_three_brokers_nothing_is_locked():
    made = World(1, brokers=2, bundles=4)
    made.makes_deadly(made.bundles[0], 0.1, 1.0)
    made.run(300)
    assert made.crashes_of[made.bundles[0]] > 30
    assert not made.locked


def test_a_suspect_is_locked_above_the_odds_only():
    made = evidence.Evidence(BUNDLE)
    for number in range(8):
        death = evidence.Death(BrokerId(f"b{number}:1", 1), number, 1, 10 if number >= 2 else 1, 1)
        made = msgspec.structs.replace(made, deaths=(*made.deaths, death))
    assert made.is_suspected(LEAST)
    assert made.odds == pytest.approx(LOCKED_ABOVE)
