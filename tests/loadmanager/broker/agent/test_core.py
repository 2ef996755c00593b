"""The table in the agent core's docstring, row by row; what a hook's end does in each stand; nothing served against the
table, whatever comes when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.broker.agent_core import (
    Abandon,
    Acquire,
    AgentCore,
    Effect,
    Hosted,
    Prepare,
    Publish,
    Release,
    Serve,
    Stand,
    Stop,
)
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId
from statechannel.law.transitions import SERVING_STATES, State
from statechannel.law.verdict import Ownership

ME, OLD_ME, OTHER = BrokerId("me:1", 2), BrokerId("me:1", 1), BrokerId("other:1", 1)
BUNDLE = Bundle("t/n", 0, 0xFFFFFFFF)
GONE = Stand.RELEASED, Stand.SUSPENDED, Stand.FAILED
"""Where the host has nothing any more."""


def entry(
    state: State,
    holder: BrokerId | None = ME,
    target: BrokerId | None = None,
    revision: int = 7,
    token: int = 5,
    hand_off: bytes | None = None,
) -> Ownership:
    return Ownership(BUNDLE, state, holder, target, revision, token, Action.OWN, OTHER, hand_off)


def core_at(stand: Stand | None, token: int = 5) -> AgentCore:
    """A core that was brought to this stand by what happened, not by force."""
    core = AgentCore(ME)
    if stand in (None,):
        return core
    if stand in (Stand.PREPARING, Stand.PREPARED):
        core.reconcile(BUNDLE, entry(State.TRANSFERRING, OTHER, ME, revision=token))
        if stand is Stand.PREPARED:
            core.prepared(BUNDLE, token, failed=False)
        return core
    core.reconcile(BUNDLE, entry(State.ASSIGNING, token=token))
    if stand is Stand.ACQUIRING:
        return core
    core.acquired(BUNDLE, token, failed=stand is Stand.FAILED)
    if stand in (Stand.RELEASING, Stand.RELEASED):
        core.reconcile(BUNDLE, entry(State.RELEASING, token=token))
    if stand is Stand.SUSPENDED:
        core.suspend(BUNDLE)
    if stand is Stand.RELEASED:
        core.released(BUNDLE, token, b"state", failed=False)
    return core


# --- the rows of the table


@pytest.mark.parametrize("stand", [None, Stand.PREPARED, Stand.PREPARING])
def test_what_is_assigning_to_us_is_acquired_with_its_token_and_hand_off(stand: Stand | None):
    effects = core_at(stand, token=3).reconcile(BUNDLE, entry(State.ASSIGNING, token=6, hand_off=b"state"))
    assert effects == [Acquire(BUNDLE, 6, b"state")]


def test_an_acquired_bundle_is_served_before_its_return_is_published():
    core = core_at(Stand.ACQUIRING)
    assert core.acquired(BUNDLE, 5, failed=False) == [Serve(BUNDLE, 5)]
    assert core.reconcile(BUNDLE, entry(State.ASSIGNING)) == [Publish(BUNDLE, Action.RETURN, 7)]


def test_a_bundle_that_the_host_declines_is_abandoned_and_released():
    core = core_at(Stand.ACQUIRING)
    assert core.acquired(BUNDLE, 5, failed=True) == [Abandon(BUNDLE)]
    assert core.reconcile(BUNDLE, entry(State.ASSIGNING)) == [
        Publish(BUNDLE, Action.RELEASE, 7, reason="the host declined")
    ]


def test_a_bundle_on_its_way_to_us_is_prepared_then_reported_ready():
    core = core_at(None)
    transferring = entry(State.TRANSFERRING, OTHER, ME, revision=7)
    assert core.reconcile(BUNDLE, transferring) == [Prepare(BUNDLE, 7)]
    assert core.reconcile(BUNDLE, transferring) == []
    core.prepared(BUNDLE, 7, failed=False)
    assert core.reconcile(BUNDLE, transferring) == [Publish(BUNDLE, Action.READY, 7)]


def test_a_bundle_that_cannot_be_prepared_has_its_move_cancelled():
    core = core_at(Stand.PREPARING, token=7)
    assert core.prepared(BUNDLE, 7, failed=True) == [Abandon(BUNDLE)], "it may have warmed up half of it"
    (publish,) = core.reconcile(BUNDLE, entry(State.TRANSFERRING, OTHER, ME, revision=7))
    assert isinstance(publish, Publish)
    assert publish.action is Action.CANCEL


def test_a_second_move_to_us_is_prepared_anew():
    core = core_at(Stand.PREPARED, token=7)
    assert core.reconcile(BUNDLE, entry(State.TRANSFERRING, OTHER, ME, revision=9)) == [Prepare(BUNDLE, 9)]
    core.prepared(BUNDLE, 7, failed=False)
    assert core.reconcile(BUNDLE, entry(State.TRANSFERRING, OTHER, ME, revision=9)) == []


@pytest.mark.parametrize("target", [OTHER, None])
def test_a_bundle_that_leaves_stops_first_then_is_released_then_handed_on(target: BrokerId | None):
    core = core_at(Stand.SERVING)
    leaving = entry(State.RELEASING, ME, target)
    assert core.reconcile(BUNDLE, leaving) == [Stop(BUNDLE), Release(BUNDLE, 5, target)]
    assert core.reconcile(BUNDLE, leaving) == []
    assert core.released(BUNDLE, 5, b"state", failed=False) == []
    assert core.reconcile(BUNDLE, leaving) == [Stop(BUNDLE), Publish(BUNDLE, Action.RELEASE, 7, b"state")]


def test_failed_release_hands_over_nothing_and_tells_the_host_to_abandon():
    core = core_at(Stand.RELEASING)
    assert core.released(BUNDLE, 5, b"half of the state", failed=True) == [Abandon(BUNDLE)]
    assert Publish(BUNDLE, Action.RELEASE, 7, None) in core.reconcile(BUNDLE, entry(State.RELEASING))


def test_bundle_that_leaves_while_acquired_is_released_and_never_served():
    core = core_at(Stand.ACQUIRING)
    assert core.reconcile(BUNDLE, entry(State.RELEASING)) == [Stop(BUNDLE), Release(BUNDLE, 5, None)]
    assert core.acquired(BUNDLE, 5, failed=False) == []


def test_leaving_bundle_that_the_host_never_had_is_given_back_at_once():
    assert Publish(BUNDLE, Action.RELEASE, 7, None) in core_at(None).reconcile(BUNDLE, entry(State.RELEASING))


@pytest.mark.parametrize("stand", [None, *Stand])
def test_what_is_revoked_is_stopped_before_its_release_is_published(stand: Stand | None):
    effects = core_at(stand).reconcile(BUNDLE, entry(State.REVOKING))
    assert isinstance(effects[-1], Publish)
    assert effects[-1].action is Action.RELEASE
    if stand is not None:
        assert effects[0] == Stop(BUNDLE)
    told = Abandon(BUNDLE) in effects
    assert told == (stand not in (None, *GONE))


def test_child_of_a_split_is_acquired_and_served_without_another_record():
    core = core_at(None)
    assert core.reconcile(BUNDLE, entry(State.ASSIGNED)) == [Acquire(BUNDLE, 5, None)]
    assert core.acquired(BUNDLE, 5, failed=False) == [Serve(BUNDLE, 5)]
    assert core.reconcile(BUNDLE, entry(State.ASSIGNED)) == []


def test_a_child_that_the_host_declines_is_unloaded():
    core = core_at(Stand.FAILED)
    assert core.reconcile(BUNDLE, entry(State.ASSIGNED)) == [
        Publish(BUNDLE, Action.UNLOAD, 7, reason="the host declined")
    ]


@pytest.mark.parametrize("state", [State.ASSIGNED, State.TRANSFERRING])
def test_what_is_served_is_left_alone(state: State):
    target = OTHER if state is State.TRANSFERRING else None
    assert core_at(Stand.SERVING).reconcile(BUNDLE, entry(state, ME, target)) == []


ELSEWHERE = [
    None,
    entry(State.UNASSIGNED, None),
    entry(State.ASSIGNED, OTHER),
    entry(State.ASSIGNING, OTHER),
    entry(State.RELEASING, OTHER),
    entry(State.REVOKING, OTHER),
    entry(State.ASSIGNED, OLD_ME),
]


@pytest.mark.parametrize("now", ELSEWHERE, ids=str)
@pytest.mark.parametrize("stand", list(Stand))
def test_lost_bundle_is_stopped_and_abandoned_if_the_host_has_something(stand: Stand, now: Ownership | None):
    core = core_at(stand)
    effects = core.reconcile(BUNDLE, now)
    assert effects[0] == Stop(BUNDLE)
    assert (Abandon(BUNDLE) in effects) == (stand not in GONE)
    assert core.hosted() == {}
    assert core.reconcile(BUNDLE, now) == []


def test_what_a_former_incarnation_of_ours_holds_is_no_business_of_ours():
    assert core_at(None).reconcile(BUNDLE, entry(State.ASSIGNED, OLD_ME)) == []
    assert core_at(None).reconcile(BUNDLE, entry(State.TRANSFERRING, OTHER, OLD_ME)) == []


def test_a_new_ownership_of_the_same_bundle_is_acquired_under_its_new_token():
    core = core_at(Stand.SERVING, token=5)
    again = entry(State.ASSIGNING, token=9)
    assert core.reconcile(BUNDLE, again) == [Stop(BUNDLE), Release(BUNDLE, 5, None)], "flushed under its old token"
    assert core.reconcile(BUNDLE, again) == []
    core.released(BUNDLE, 5, b"used up", failed=False)
    assert core.reconcile(BUNDLE, again) == [Acquire(BUNDLE, 9, None)]
    assert core.acquired(BUNDLE, 5, failed=False) == [], "the end of an earlier acquire says nothing of this one"
    assert core.acquired(BUNDLE, 9, failed=False) == [Serve(BUNDLE, 9)]


@pytest.mark.parametrize("stand", [s for s in Stand if s is not Stand.ACQUIRING])
def test_an_acquire_that_ends_when_nobody_waits_for_it_serves_nothing(stand: Stand):
    assert core_at(stand).acquired(BUNDLE, 5, failed=False) == []


@pytest.mark.parametrize("stand", [s for s in Stand if s is not Stand.RELEASING])
def test_a_release_that_ends_when_nobody_waits_for_it_changes_nothing(stand: Stand):
    core = core_at(stand)
    before = core.hosted()
    assert core.released(BUNDLE, 5, b"late", failed=False) == []
    assert core.hosted() == before


def test_a_fence_stops_and_abandons_everything_and_publishes_nothing():
    core = core_at(Stand.SERVING)
    assert core.fence() == [Stop(BUNDLE), Abandon(BUNDLE)]
    assert core.fence() == []


# --- whatever comes when

_ENTRIES = st.one_of(
    st.none(),
    st.builds(
        lambda state, holder, target, revision, token: entry(
            state,
            None if state is State.UNASSIGNED else holder,
            target if state in (State.TRANSFERRING, State.RELEASING) else None,
            revision,
            min(token, revision),
        ),
        st.sampled_from(State),
        st.sampled_from([ME, OLD_ME, OTHER]),
        st.sampled_from([ME, OTHER]),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
)
_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("table"), _ENTRIES),
        st.tuples(st.sampled_from(["prepared", "acquired", "released"]), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("fence")),
    ),
    max_size=30,
)


class Follower:
    """Performs effects as the shell does, and holds them against the table."""

    def __init__(self) -> None:
        self.core = AgentCore(ME)
        self.now: Ownership | None = None
        self.served: int | None = None
        self.host_has = False

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Serve():
                    self.served = effect.token
                case Stop():
                    self.served = None
                case Acquire() | Prepare():
                    assert self.served is None, "a hook that takes over runs while the bundle is served"
                    self.host_has = True
                case Release():
                    assert self.served is None
                case Abandon():
                    self.host_has = False
                case Publish():
                    assert self.now is not None
                    assert effect.seen == self.now.revision, "a record about a past that the table has left"
                    if effect.action in (Action.RELEASE, Action.UNLOAD):
                        assert self.served is None, "given away while it is served"

    def check(self) -> None:
        if self.served is not None:
            assert self.now is not None
            assert self.now.holder == ME
            assert self.now.state in SERVING_STATES
            assert self.now.token == self.served, "served under a token that is not the table's"


@given(_EVENTS)
def test_nothing_is_served_against_the_table_however_events_interleave(events: list[tuple[object, ...]]):
    """Each hook result is followed by a reconcile, as the shell does."""
    follower = Follower()
    core = follower.core
    for event in events:
        match event:
            case ("table", now):
                follower.now = now  # type: ignore[assignment]
            case ("prepared", int(token), bool(failed)):
                core.prepared(BUNDLE, token, failed)
            case ("acquired", int(token), bool(failed)):
                follower.take(core.acquired(BUNDLE, token, failed))
            case ("released", int(token), bool(failed)):
                follower.take(core.released(BUNDLE, token, b"x", failed))
            case _:
                follower.take(core.fence())
                assert follower.served is None
                continue
        follower.take(core.reconcile(BUNDLE, follower.now))
        follower.check()
        again = core.reconcile(BUNDLE, follower.now)
        assert all(isinstance(effect, Publish | Stop) for effect in again), "what is done is not done twice"


@given(_EVENTS)
def test_the_host_is_told_the_end_of_all_that_it_was_told_to_begin(events: list[tuple[object, ...]]):
    core = AgentCore(ME)
    for event in events:
        match event:
            case ("table", now):
                core.reconcile(BUNDLE, now)  # type: ignore[arg-type]
            case ("acquired", int(token), bool(failed)):
                core.acquired(BUNDLE, token, failed)
            case _:
                pass
    at_host = core.hosted().get(BUNDLE)
    effects = core.reconcile(BUNDLE, None)
    unfinished = at_host is not None and at_host.stand not in (Stand.RELEASED, Stand.FAILED)
    assert (Abandon(BUNDLE) in effects) == unfinished
    assert core.hosted() == {}


def test_hosted_is_a_copy():
    core = core_at(Stand.SERVING)
    core.hosted().clear()
    assert core.hosted() == {BUNDLE: Hosted(Stand.SERVING, 5)}


# --- proofs that run out


def test_what_serves_when_the_proofs_run_out_is_stopped_and_abandoned_once():
    core = core_at(Stand.SERVING)
    assert core.suspend(BUNDLE) == [Stop(BUNDLE), Abandon(BUNDLE)]
    assert core.suspend(BUNDLE) == []
    assert core.reconcile(BUNDLE, entry(State.ASSIGNED)) == [], "nothing is taken up before a proof is fresh"


@pytest.mark.parametrize("stand", [s for s in Stand if s is not Stand.SERVING])
def test_what_does_not_serve_has_nothing_to_stop_when_the_proofs_run_out(stand: Stand):
    assert core_at(stand).suspend(BUNDLE) == []


def test_fresh_proof_acquires_it_again_from_storage_under_the_same_token():
    core = core_at(Stand.SUSPENDED)
    assert core.resume(BUNDLE, entry(State.ASSIGNED, hand_off=b"used up")) == [Acquire(BUNDLE, 5, None)]
    assert core.acquired(BUNDLE, 5, failed=False) == [Serve(BUNDLE, 5)]


@pytest.mark.parametrize(
    "now", [None, entry(State.ASSIGNED, OTHER), entry(State.ASSIGNED, token=6), entry(State.REVOKING)]
)
def test_what_is_not_ours_any_more_is_not_taken_up_again(now: Ownership | None):
    assert core_at(Stand.SUSPENDED).resume(BUNDLE, now) == []


def test_suspended_bundle_is_given_away_without_hand_off_and_hook():
    core = core_at(Stand.SUSPENDED)
    assert core.reconcile(BUNDLE, entry(State.RELEASING, target=OTHER)) == [
        Stop(BUNDLE), Publish(BUNDLE, Action.RELEASE, 7),
    ]  # fmt: skip
