"""What the leader owes the cluster, and when: the wait before it releases in a dead holder's place to the ms."""

from __future__ import annotations

import pytest

from loadmanager.leader.core import (
    WORK_A_TURN,
    Cancel,
    Duty,
    Evacuate,
    LeaderCore,
    LeaderSettings,
    Place,
    Raise,
    Revoke,
    View,
)
from loadmanager.model.registration import Peer, Registration
from statechannel.law.bundle import Bundle, even_boundaries
from statechannel.law.record import NEVER, Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Change

NAMESPACE = "shop/orders"
A, A2, B, LEADER = BrokerId("a:1", 1), BrokerId("a:1", 2), BrokerId("b:1", 1), BrokerId("l:1", 1)
V, MARGIN, IN_FLIGHT, GRACE, RETRY = 2.0, 0.1, 30.0, 150.0, 1.0
SETTINGS = LeaderSettings(V, MARGIN, IN_FLIGHT, GRACE, RETRY)
SOON = 0.001


class Term:
    """A leader core in its term, a table, and what the leader knows of the brokers."""

    def __init__(self, bundles: int = 1) -> None:
        self.table = OwnershipTable(1)
        self.core = LeaderCore(SETTINGS)
        self.registered = {b.name: b for b in (A, B, LEADER)}
        self.suspected: dict[BrokerId, str] = {}
        self.heard_s: dict[BrokerId, float] = {}
        self.listening_since_s = -100.0
        self.eager: tuple[str, ...] = ()
        self.now_s = 0.0
        self._written = 0
        self.replay(Record("l", Action.LEAD, LEADER, Role.LEADER, epoch=1))
        self.replay(
            Record(
                "n", Action.CREATE_NAMESPACE, LEADER, Role.ADMIN,
                namespace=NAMESPACE, seen_namespace=NEVER, boundaries=even_boundaries(bundles),
            )
        )  # fmt: skip
        known = self.table.namespace(NAMESPACE)
        assert known is not None
        self.bundles = known.bundles

    def replay(self, record: Record) -> None:
        change = self.table.replay(0, self.table.next_offset(0), record)
        assert isinstance(change, Change), change
        self.core.observe(change, self.now_s)

    def write(self, action: Action, bundle: Bundle, by: BrokerId, to: BrokerId | None = None, *, leads: bool = False):
        self._written += 1
        role = Role.LEADER if leads else Role.BROKER
        subject = Subject(bundle, self.revision(bundle))
        self.replay(Record(f"r{self._written}", action, by, role, int(leads), (subject,), to))

    def revision(self, bundle: Bundle) -> int:
        entry = self.table.get(bundle)
        assert entry is not None
        return entry.revision

    def assign(self, bundle: Bundle, to: BrokerId) -> None:
        self.write(Action.OWN, bundle, to, to)
        self.write(Action.RETURN, bundle, to)

    def gone(self, broker: BrokerId) -> None:
        del self.registered[broker.name]

    def tick(self, now_s: float) -> list[Duty]:
        self.now_s = now_s
        peers = {name: Peer(broker, Registration()) for name, broker in self.registered.items()}
        view = View(now_s, peers, self.suspected, self.heard_s, self.listening_since_s, None, self.eager)
        return self.core.tick(self.table, view)

    def seen(self, bundle: Bundle) -> tuple[tuple[Bundle, int], ...]:
        return ((bundle, self.revision(bundle)),)


@pytest.fixture
def term() -> Term:
    term = Term()
    term.assign(term.bundles[0], A)
    return term


def kinds(duties: list[Duty]) -> list[str]:
    return [type(duty).__name__ for duty in duties]


# --- orphans


def test_a_healthy_cluster_is_left_alone(term: Term):
    assert term.tick(0) == []
    assert term.tick(1_000) == []


def test_what_a_vanished_broker_holds_is_revoked_as_seen(term: Term):
    term.gone(A)
    (revoke,) = term.tick(0)
    assert isinstance(revoke, Revoke)
    assert (revoke.holder, revoke.subjects) == (A, term.seen(term.bundles[0]))


def test_all_of_a_dead_brokers_bundles_are_revoked_in_one_duty():
    term = Term(4)
    for bundle in term.bundles:
        term.assign(bundle, A)
    term.gone(A)
    (revoke,) = term.tick(0)
    assert isinstance(revoke, Revoke)
    assert {bundle for bundle, _ in revoke.subjects} == set(term.bundles)


@pytest.mark.parametrize("state", [State.ASSIGNING, State.TRANSFERRING, State.RELEASING])
def test_an_orphan_in_flight_is_revoked_too(state: State):
    term = Term()
    (bundle,) = term.bundles
    term.write(Action.OWN, bundle, A, A)
    if state is not State.ASSIGNING:
        term.write(Action.RETURN, bundle, A)
        term.write(Action.TRANSFER, bundle, A, B)
    if state is State.RELEASING:
        term.write(Action.READY, bundle, B)
    term.gone(A)
    assert Revoke in {type(duty) for duty in term.tick(0)}


def test_a_restarted_broker_inherits_nothing(term: Term):
    term.registered[A.name] = A2
    (revoke,) = term.tick(0)
    assert isinstance(revoke, Revoke)
    assert "replaced by a:1#2" in revoke.reason


def test_broker_is_not_replaced_before_its_newer_incarnation_is_seen():
    term = Term()
    term.assign(term.bundles[0], A2)
    term.heard_s[A2] = 0.0
    assert term.tick(0) == [], "the watch still shows a:1#1"


def test_a_suspected_broker_is_dead_although_it_is_registered(term: Term):
    term.suspected[A] = "a:1#1 refuses connections from b:1, l:1"
    (revoke,) = term.tick(0)
    assert isinstance(revoke, Revoke)
    assert "refuses connections" in revoke.reason


def test_a_broker_heard_on_the_channel_within_two_validities_is_only_cut_off(term: Term):
    term.gone(A)
    term.heard_s[A] = 10.0
    assert term.tick(10.0 + 2 * V) == []
    assert term.core.next_deadline_s() == pytest.approx(10.0 + 2 * V, abs=0.01)
    assert kinds(term.tick(10.0 + 2 * V + SOON)) == ["Revoke"]


def test_nobody_is_silent_before_he_could_have_been_heard(term: Term):
    term.gone(A)
    term.listening_since_s = 50.0
    assert term.tick(50.0 + 2 * V) == []
    assert kinds(term.tick(50.0 + 2 * V + SOON)) == ["Revoke"]


def test_a_holder_heard_before_the_replica_reloaded_is_not_dead_at_once(term: Term):
    """What it said while this broker read a snapshot was missed, so silence counts from the reload."""
    term.gone(A)
    term.heard_s[A] = 10.0
    term.listening_since_s = 50.0
    assert term.tick(50.0 + 2 * V) == []
    assert term.core.next_deadline_s() == pytest.approx(50.0 + 2 * V, abs=0.01)
    assert kinds(term.tick(50.0 + 2 * V + SOON)) == ["Revoke"]


# --- revoke, raise, wait, release


def revoked(term: Term, now_s: float) -> None:
    term.gone(A)
    term.tick(now_s)
    term.write(Action.REVOKE, term.bundles[0], LEADER, leads=True)


def test_a_dead_holder_is_raised_at_once_when_the_revocation_was_read(term: Term):
    revoked(term, 10)
    (raise_,) = term.tick(10.5)
    assert isinstance(raise_, Raise)
    assert raise_.holder == A


def test_a_live_holder_gets_one_validity_to_release_by_itself(term: Term):
    term.tick(20)
    term.write(Action.REVOKE, term.bundles[0], LEADER, leads=True)
    assert term.tick(20) == []
    assert term.tick(20 + V - SOON) == []
    assert kinds(term.tick(20 + V)) == ["Raise"]


@pytest.mark.parametrize(("raised_s", "read_s"), [(10.2, 12.0), (12.0, 10.2)])
def test_nothing_is_released_before_validity_and_margin_since_both_were_seen(
    term: Term, raised_s: float, read_s: float
):
    """The revocation read at one time, the raise answered at another: the later one counts, and not the next tick."""
    if raised_s < read_s:  # raised for another bundle of the same holder
        term.core.raised(A, raised_s)
        revoked(term, read_s)
        assert term.tick(read_s + SOON) == []
    else:
        revoked(term, read_s)
        term.tick(read_s + SOON)
        term.core.raised(A, raised_s)
    due_s = 12.0 + V + MARGIN
    assert term.tick(due_s - SOON) == []
    assert term.core.next_deadline_s() == pytest.approx(due_s)
    (place,) = term.tick(due_s)
    assert place == Place(term.seen(term.bundles[0]), revoked=True)


def test_a_dead_holder_is_raised_while_its_other_bundles_are_gone_through():
    term = Term(2 * WORK_A_TURN)
    for bundle in term.bundles:
        term.assign(bundle, A)
    term.gone(A)
    assert set(kinds(term.tick(10))) == {"Revoke"}
    term.write(Action.REVOKE, term.bundles[0], LEADER, leads=True)
    assert kinds(term.tick(10.1)).count("Raise") == 1
    assert term.core.unfinished
    while term.core.unfinished:
        assert "Raise" not in kinds(term.tick(10.2))


def test_without_an_answer_to_the_raise_nothing_is_ever_released(term: Term):
    revoked(term, 10)
    for tick in range(200):
        assert "Place" not in kinds(term.tick(10.5 + tick))


def test_unanswered_raise_is_repeated_after_the_retry_time_only(term: Term):
    revoked(term, 10)
    assert kinds(term.tick(10.5)) == ["Raise"]
    assert term.tick(10.5 + RETRY - SOON) == []
    assert kinds(term.tick(10.5 + RETRY)) == ["Raise"]


def test_a_raise_that_was_answered_is_not_asked_for_again(term: Term):
    revoked(term, 10)
    term.tick(10.5)
    term.core.raised(A, 10.6)
    assert term.tick(10.5 + RETRY) == []


def test_a_second_answer_does_not_prolong_the_wait(term: Term):
    revoked(term, 10)
    term.tick(10)
    term.core.raised(A, 10.0)
    term.core.raised(A, 11.5)
    assert kinds(term.tick(10.0 + V + MARGIN)) == ["Place"]


def test_later_revocation_waits_from_when_it_was_seen_itself():
    term = Term(2)
    early, late = term.bundles
    for bundle in term.bundles:
        term.assign(bundle, A)
    term.gone(A)
    term.write(Action.REVOKE, early, LEADER, leads=True)
    term.tick(10)
    term.core.raised(A, 10.0)
    term.tick(11.5)
    term.write(Action.REVOKE, late, LEADER, leads=True)
    due = [d for d in term.tick(10.0 + V + MARGIN) if isinstance(d, Place)]
    assert [bundle for place in due for bundle, _ in place.subjects] == [early]


def test_a_new_leader_raises_anew_and_waits_anew(term: Term):
    revoked(term, 10)
    term.tick(10)
    term.core.raised(A, 10.0)
    term.core = LeaderCore(SETTINGS)
    assert kinds(term.tick(12.5)) == ["Raise"], "whatever the leader before has done"
    term.core.raised(A, 12.6)
    assert term.tick(12.6 + V + MARGIN - SOON) == []
    assert kinds(term.tick(12.6 + V + MARGIN)) == ["Place"]


def test_refused_release_is_repeated_after_the_retry_time_only(term: Term):
    revoked(term, 10)
    term.tick(10)
    term.core.raised(A, 10.0)
    due_s = 10.0 + V + MARGIN
    assert kinds(term.tick(due_s)) == ["Place"]
    assert term.tick(due_s + RETRY - SOON) == []
    assert kinds(term.tick(due_s + RETRY)) == ["Place"]


def test_bundle_given_back_by_a_revoked_living_holder_gets_a_new_place(term: Term):
    term.write(Action.REVOKE, term.bundles[0], LEADER, leads=True)
    term.write(Action.RELEASE, term.bundles[0], A)
    (place,) = term.tick(10)
    assert place == Place(term.seen(term.bundles[0]), revoked=False, former=A.name)
    assert term.tick(10 + RETRY - SOON) == []
    assert kinds(term.tick(10 + RETRY)) == ["Place"], "nobody could take it the first time"
    term.write(Action.OWN, term.bundles[0], LEADER, B)
    assert term.tick(10 + 2 * RETRY) == []


def test_homeless_bundle_that_was_placed_meanwhile_is_not_placed_again():
    term = Term(2)
    placed, homeless = term.bundles
    for bundle in term.bundles:
        term.assign(bundle, A)
        term.write(Action.REVOKE, bundle, LEADER, leads=True)
        term.write(Action.RELEASE, bundle, A)
    both = (*term.seen(placed), *term.seen(homeless))
    assert term.tick(10) == [Place(both, revoked=False, former=A.name)]
    term.assign(placed, B)
    assert term.tick(10 + RETRY) == [Place(term.seen(homeless), revoked=False, former=A.name)]
    term.assign(homeless, B)
    assert term.tick(1_000) == []


def test_what_an_administrator_unloaded_stays_without_an_owner(term: Term):
    term.write(Action.UNLOAD, term.bundles[0], A)
    term.write(Action.RELEASE, term.bundles[0], A)
    assert term.tick(10) == []


# --- eager namespaces


def test_unrequested_bundle_stays_without_owner_unless_namespace_is_eager():
    term = Term(3)
    assert term.tick(10) == []
    term.eager = (NAMESPACE, "there/is-none")
    assert term.tick(10) == [Place(sum((term.seen(bundle) for bundle in term.bundles), ()), revoked=False)]
    assert term.tick(10 + RETRY - SOON) == []
    assert kinds(term.tick(10 + RETRY)) == ["Place"], "nobody could take them the first time"
    for bundle in term.bundles:
        term.assign(bundle, A)
    assert term.tick(20) == []


def test_free_bundle_of_an_eager_namespace_gets_a_place_at_once():
    term = Term(2)
    term.eager = (NAMESPACE,)
    for bundle in term.bundles:
        term.assign(bundle, A)
    assert term.tick(10) == []
    assert term.core.next_deadline_s() is None, "nothing is looked at again"
    term.write(Action.UNLOAD, term.bundles[1], A)
    term.write(Action.RELEASE, term.bundles[1], A)
    assert term.tick(11) == [Place(term.seen(term.bundles[1]), revoked=False)]
    term.write(Action.OWN, term.bundles[1], LEADER, B)
    assert term.tick(12) == []
    create = Record("m", Action.CREATE_NAMESPACE, LEADER, Role.ADMIN, namespace="shop/more",
                    seen_namespace=NEVER, boundaries=even_boundaries(2))  # fmt: skip
    term.eager = (NAMESPACE, "shop/more")
    assert term.tick(13) == []
    change = term.table.replay(0, term.table.next_offset(0), create)
    assert isinstance(change, Change)
    assert term.core.observe(change, term.now_s), "a tick is due"
    (place,) = term.tick(14)
    assert isinstance(place, Place)
    assert [bundle.namespace for bundle, _ in place.subjects] == ["shop/more"] * 2


def test_bundle_of_an_eager_namespace_that_is_free_again_soon_gets_a_place_at_once():
    term = Term()
    term.eager = (NAMESPACE,)
    assert kinds(term.tick(10)) == ["Place"]
    term.assign(term.bundles[0], A)
    assert term.tick(10 + SOON) == []
    term.write(Action.UNLOAD, term.bundles[0], A)
    term.write(Action.RELEASE, term.bundles[0], A)
    assert term.tick(10 + 2 * SOON) == [Place(term.seen(term.bundles[0]), revoked=False)]


def test_a_table_that_jumped_is_looked_at_anew():
    term = Term(1)
    term.eager = (NAMESPACE,)
    term.assign(term.bundles[0], A)
    assert term.tick(10) == []
    for action in (Action.UNLOAD, Action.RELEASE):
        subject = Subject(term.bundles[0], term.revision(term.bundles[0]))
        record = Record(action, action, A, Role.BROKER, 0, (subject,))
        assert isinstance(term.table.replay(0, term.table.next_offset(0), record), Change), "not observed"
    assert term.tick(20) == []
    term.core.reloaded()
    assert kinds(term.tick(21)) == ["Place"]


# --- deadlines in flight


@pytest.mark.parametrize("state", [State.ASSIGNING, State.RELEASING, State.TRANSFERRING, State.SPLITTING])
def test_stuck_bundle_moves_on_at_its_deadline_from_when_it_was_read(state: State):
    term = Term()
    (bundle,) = term.bundles
    term.write(Action.OWN, bundle, A, A)
    if state is not State.ASSIGNING:
        term.write(Action.RETURN, bundle, A)
    match state:
        case State.RELEASING:
            term.write(Action.UNLOAD, bundle, A)
        case State.TRANSFERRING:
            term.write(Action.TRANSFER, bundle, A, B)
        case State.SPLITTING:
            term.write(Action.SPLIT, bundle, A)
        case _:
            pass
    assert term.tick(7) == []
    assert term.core.next_deadline_s() == 7 + IN_FLIGHT
    assert term.tick(7 + IN_FLIGHT - SOON) == []
    expected = Cancel if state in (State.TRANSFERRING, State.SPLITTING) else Revoke
    (duty,) = term.tick(7 + IN_FLIGHT)
    assert isinstance(duty, expected)


def test_each_step_of_a_move_has_a_deadline_of_its_own(term: Term):
    (bundle,) = term.bundles
    term.write(Action.TRANSFER, bundle, A, B)
    term.tick(0)
    term.write(Action.READY, bundle, B)
    assert term.tick(IN_FLIGHT - SOON) == []
    assert term.tick(IN_FLIGHT) == []
    assert kinds(term.tick(2 * IN_FLIGHT)) == ["Revoke"]


def test_a_move_to_a_dead_broker_is_cancelled_at_once(term: Term):
    term.write(Action.TRANSFER, term.bundles[0], A, B)
    term.gone(B)
    (cancel,) = term.tick(0)
    assert isinstance(cancel, Cancel)
    assert cancel.subjects == term.seen(term.bundles[0])


def test_duty_is_repeated_after_the_retry_time_until_the_bundle_moved_on(term: Term):
    term.gone(A)
    assert kinds(term.tick(0)) == ["Revoke"]
    assert term.tick(RETRY - SOON) == []
    assert term.core.next_deadline_s() == RETRY
    assert kinds(term.tick(RETRY)) == ["Revoke"]
    term.write(Action.TRANSFER, term.bundles[0], A, B)
    assert kinds(term.tick(RETRY + SOON)) == ["Revoke"], "as seen now"


# --- cut off, but alive


def cut_off(term: Term, now_s: float) -> list[Duty]:
    term.heard_s[A] = now_s
    return term.tick(now_s)


def test_broker_cut_off_longer_than_the_grace_is_evacuated_by_planned_moves(term: Term):
    term.gone(A)
    assert cut_off(term, 5) == []
    assert cut_off(term, 5 + GRACE - SOON) == []
    (evacuate,) = cut_off(term, 5 + GRACE)
    assert isinstance(evacuate, Evacuate)
    assert (evacuate.holder, evacuate.subjects) == (A, term.seen(term.bundles[0]))


def test_the_grace_begins_anew_when_it_was_back_meanwhile(term: Term):
    term.gone(A)
    cut_off(term, 0)
    term.registered[A.name] = A
    cut_off(term, 100)
    term.gone(A)
    assert cut_off(term, 101) == []
    assert cut_off(term, GRACE + 1) == []
    assert kinds(cut_off(term, 101 + GRACE)) == ["Evacuate"]


def test_the_grace_begins_anew_when_it_held_nothing_meanwhile(term: Term):
    """What is remembered of somebody who left long ago must not meet him when he is back."""
    (bundle,) = term.bundles
    term.gone(A)
    cut_off(term, 0)
    term.write(Action.TRANSFER, bundle, A, B)
    term.write(Action.READY, bundle, B)
    term.write(Action.RELEASE, bundle, A)
    term.write(Action.RETURN, bundle, B)
    term.registered[A.name] = A
    term.tick(10)
    term.gone(A)
    term.write(Action.TRANSFER, bundle, B, A)
    term.write(Action.READY, bundle, A)
    term.write(Action.RELEASE, bundle, B)
    term.write(Action.RETURN, bundle, A)
    assert cut_off(term, GRACE + 5) == []


def test_what_the_leader_remembers_of_duties_is_bounded():
    term = Term(4)
    for bundle in term.bundles:
        term.assign(bundle, A)
    term.gone(A)
    for tick in range(2_000):
        bundle = term.bundles[tick % 4]
        term.tick(tick * RETRY)
        term.write(Action.TRANSFER, bundle, A, B)
        term.write(Action.CANCEL, bundle, A)
    assert len(term.core._asked) < 1_200
