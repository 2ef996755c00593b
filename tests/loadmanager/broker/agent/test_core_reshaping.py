"""Splits and merges in the agent's core: cuts are found or the split is called off; what is gone is released before
what overlaps it is acquired or given on, whatever comes in between."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.broker.agent_core import (
    Abandon,
    Acquire,
    AgentCore,
    AskKeys,
    Effect,
    Publish,
    Release,
    Serve,
    Stand,
    Stop,
    in_order,
)
from loadmanager.model.boundaries import NoCuts
from loadmanager.model.host import KeyRate
from loadmanager.settings.choices import Algorithm
from loadmanager.strategies.splitting.cuts import Bounds
from loadmanager.strategies.splitting.splits import Limits
from statechannel.law.bundle import FULL_UPPER, Bundle, even_boundaries
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Cutting, Ownership

ME, OTHER = BrokerId("me:1", 2), BrokerId("other:1", 1)
NAME, HALF = "t/n", 0x80000000
WHOLE, LOWER, UPPER = Bundle(NAME, 0, FULL_UPPER), Bundle(NAME, 0, HALF), Bundle(NAME, HALF, FULL_UPPER)


def entry(
    bundle: Bundle,
    state: State = State.ASSIGNED,
    token: int = 5,
    revision: int = 7,
    holder: BrokerId | None = ME,
    target: BrokerId | None = None,
    cutting: Cutting | None = None,
) -> Ownership:
    return Ownership(
        bundle, state, holder, target, revision, token, Action.OWN, OTHER, cutting=cutting
    )  # fmt: skip


CHILDREN = [entry(LOWER, token=9), entry(UPPER, token=9)]


def serving(bundle: Bundle = WHOLE, core: AgentCore | None = None) -> AgentCore:
    core = core or AgentCore(ME)
    core.reconcile(bundle, entry(bundle))
    assert core.acquired(bundle, 5, failed=False) == [Serve(bundle, 5)]
    return core


def reported(core: AgentCore, bundle: Bundle, instead: list[Ownership], *, failed: bool = False) -> list[Effect]:
    """A release ended, and the shell reconciles what is gone and what is in its place."""
    effects = core.released(bundle, 5, b"state", failed)
    effects += core.reconcile(bundle, None, instead)
    return effects + [effect for other in instead for effect in core.reconcile(other.bundle, other)]


# --- finding cuts


def splitting(cutting: Cutting | None) -> list[Effect]:
    return serving().reconcile(WHOLE, entry(WHOLE, State.SPLITTING, cutting=cutting))


@pytest.mark.parametrize(
    ("cutting", "cuts"),
    [
        (Cutting((3, 9)), (3, 9)),
        (None, (HALF,)),
        (Cutting(algorithm=Algorithm.RANGE, parts=4), even_boundaries(4)[1:-1]),
    ],
)
def test_cuts_that_are_given_or_need_no_keys_are_published_at_once(cutting: Cutting | None, cuts: tuple[int, ...]):
    assert splitting(cutting) == [Publish(WHOLE, Action.CREATE, 7, boundaries=cuts)]


def keys(*positions: int) -> list[KeyRate]:
    return [KeyRate(position) for position in positions]


@pytest.mark.parametrize(
    ("algorithm", "cuts"),
    [(Algorithm.FLOW_OR_QPS, (46, 56)), (Algorithm.LOAD, (45,)), (Algorithm.HOT_KEY, (50, 51))],
)
def test_cuts_by_load_go_by_what_the_keys_carry(algorithm: Algorithm, cuts: tuple[int, ...]):
    core, now = serving(), entry(WHOLE, State.SPLITTING, cutting=Cutting(algorithm=algorithm, parts=2))
    assert core.reconcile(WHOLE, now) == [AskKeys(WHOLE, 7, algorithm)]
    rates = [KeyRate(40, 60.0), KeyRate(50, 80.0), KeyRate(60, 40.0)]
    bounds = Bounds(Limits(1, 1, 100.0, 1e9), 0.1)
    assert core.keys_answered(WHOLE, 7, now, rates, bounds) == [Publish(WHOLE, Action.CREATE, 7, boundaries=cuts)]


def test_cuts_by_the_number_of_keys_are_asked_of_the_host():
    core, now = serving(), entry(WHOLE, State.SPLITTING, cutting=Cutting(algorithm=Algorithm.TOPIC_COUNT, parts=3))
    assert core.reconcile(WHOLE, now) == [AskKeys(WHOLE, 7, Algorithm.TOPIC_COUNT)]
    assert core.keys_answered(WHOLE, 7, now, keys(1, 5, 9)) == [Publish(WHOLE, Action.CREATE, 7, boundaries=(3, 7))]


@pytest.mark.parametrize(
    ("positions", "says"), [([4, 4, 4], "3 keys at 1 positions, too few for 3"), (NoCuts("no idea"), "no idea")]
)
def test_without_cuts_the_split_is_called_off_with_the_reason(positions: list[int] | NoCuts, says: str):
    core, now = serving(), entry(WHOLE, State.SPLITTING, cutting=Cutting(algorithm=Algorithm.TOPIC_COUNT, parts=3))
    (publish,) = core.keys_answered(WHOLE, 7, now, positions if isinstance(positions, NoCuts) else keys(*positions))
    assert isinstance(publish, Publish)
    assert publish.action is Action.CANCEL
    assert says in publish.reason


def test_an_algorithm_of_a_newer_release_is_called_off():
    (publish,) = splitting(Cutting(algorithm="by_magic"))
    assert isinstance(publish, Publish)
    assert (publish.action, "by_magic" in publish.reason) == (Action.CANCEL, True)


@pytest.mark.parametrize(
    "now",
    [
        None,
        entry(WHOLE),
        entry(WHOLE, State.SPLITTING, revision=8),
        entry(WHOLE, State.SPLITTING, holder=OTHER),
        entry(WHOLE, State.REVOKING),
    ],
)
def test_keys_that_come_too_late_are_not_published(now: Ownership | None):
    assert serving().keys_answered(WHOLE, 7, now, keys(1, 5, 9)) == []


def test_what_its_host_declined_is_not_split():
    core = AgentCore(ME)
    core.reconcile(WHOLE, entry(WHOLE))
    core.acquired(WHOLE, 5, failed=True)
    (publish,) = core.reconcile(WHOLE, entry(WHOLE, State.SPLITTING))
    assert isinstance(publish, Publish)
    assert publish.action is Action.CANCEL


def test_what_is_still_being_acquired_or_suspended_is_cut_when_it_is_served():
    core, now = AgentCore(ME), entry(WHOLE, State.SPLITTING)
    core.reconcile(WHOLE, entry(WHOLE))
    assert core.reconcile(WHOLE, now) == []
    core.acquired(WHOLE, 5, failed=False)
    core.suspend(WHOLE)
    assert core.reconcile(WHOLE, now) == []
    core.resume(WHOLE, now)
    core.acquired(WHOLE, 5, failed=False)
    assert core.reconcile(WHOLE, now) == [Publish(WHOLE, Action.CREATE, 7, boundaries=(HALF,))]


# --- what is gone, and what is in its place


def test_split_bundle_is_released_before_its_children_are_acquired():
    core = serving()
    assert core.reconcile(WHOLE, None, CHILDREN) == [Stop(WHOLE), Release(WHOLE, 5, None)]
    assert [core.reconcile(child.bundle, child) for child in CHILDREN] == [[], []]
    assert reported(core, WHOLE, CHILDREN) == [Stop(WHOLE), Acquire(LOWER, 9, None), Acquire(UPPER, 9, None)]
    assert core.acquired(LOWER, 9, failed=False) == [Serve(LOWER, 9)]


def test_of_merged_bundles_all_are_released_before_the_whole_is_acquired():
    core, whole = serving(UPPER, serving(LOWER)), entry(WHOLE, token=9)
    for part in (LOWER, UPPER):
        assert core.reconcile(part, None, [whole]) == [Stop(part), Release(part, 5, None)]
    assert core.reconcile(WHOLE, whole) == []
    assert reported(core, LOWER, [whole]) == [Stop(LOWER)]
    assert reported(core, UPPER, [whole]) == [Stop(UPPER), Acquire(WHOLE, 9, None)]


def test_failed_release_is_abandoned_before_the_children_are_acquired():
    core = serving()
    core.reconcile(WHOLE, None, CHILDREN)
    effects = reported(core, WHOLE, CHILDREN, failed=True)
    assert effects == [Abandon(WHOLE), Stop(WHOLE), Acquire(LOWER, 9, None), Acquire(UPPER, 9, None)]


def test_what_is_gone_while_it_was_acquired_is_released_and_never_served():
    core = AgentCore(ME)
    core.reconcile(WHOLE, entry(WHOLE))
    assert core.reconcile(WHOLE, None, CHILDREN) == [Stop(WHOLE), Release(WHOLE, 5, None)]
    assert core.acquired(WHOLE, 5, failed=False) == []


@pytest.mark.parametrize("failed", [True, False])
def test_where_the_host_has_nothing_left_the_children_are_acquired_at_once(failed: bool):
    core = AgentCore(ME)
    core.reconcile(WHOLE, entry(WHOLE))
    core.acquired(WHOLE, 5, failed=failed)
    core.suspend(WHOLE)
    assert core.reconcile(WHOLE, None, CHILDREN) == [Stop(WHOLE)]
    assert core.reconcile(*pair(CHILDREN[0])) == [Acquire(LOWER, 9, None)]


def pair(now: Ownership) -> tuple[Bundle, Ownership]:
    return now.bundle, now


@pytest.mark.parametrize(
    "instead",
    [
        [],
        [entry(LOWER, holder=OTHER), entry(UPPER, holder=OTHER)],
        [entry(LOWER, State.REVOKING), entry(UPPER)],
        [entry(LOWER, State.UNASSIGNED, holder=None), entry(UPPER)],
    ],
)
def test_what_is_gone_and_not_all_ours_is_abandoned(instead: list[Ownership]):
    assert serving().reconcile(WHOLE, None, instead) == [Stop(WHOLE), Abandon(WHOLE)]


def test_child_given_away_meanwhile_waits_for_the_flush_of_its_parent():
    core = serving()
    core.reconcile(WHOLE, None, CHILDREN)
    leaving = entry(LOWER, State.RELEASING, token=9, revision=11, target=OTHER)
    assert core.reconcile(*pair(leaving)) == [], "the next owner would read what is not flushed yet"
    effects = reported(core, WHOLE, [leaving, CHILDREN[1]])
    assert effects == [Stop(WHOLE), Stop(LOWER), Publish(LOWER, Action.RELEASE, 11), Acquire(UPPER, 9, None)]


def test_child_revoked_meanwhile_is_given_up_while_its_parent_flushes_on():
    core = serving()
    core.reconcile(WHOLE, None, CHILDREN)
    revoked = entry(LOWER, State.REVOKING, token=9, revision=11)
    assert core.reconcile(*pair(revoked)) == [Publish(LOWER, Action.RELEASE, 11, reason="stopped: revoked")]
    assert core.reconcile(WHOLE, None, [revoked, CHILDREN[1]]) == []
    assert reported(core, WHOLE, [CHILDREN[1]]) == [Stop(WHOLE), Acquire(UPPER, 9, None)]


def test_split_undone_before_the_flush_ended_acquires_the_whole_anew():
    core = serving()
    core.reconcile(WHOLE, None, CHILDREN)
    again = entry(WHOLE, token=12, revision=12)
    for child in CHILDREN:
        assert core.reconcile(child.bundle, None, [again]) == []
    assert core.reconcile(*pair(again)) == []
    assert core.released(WHOLE, 5, None, failed=False) == []
    assert core.reconcile(*pair(again)) == [Acquire(WHOLE, 12, None)]


def test_a_fence_abandons_what_is_gone_as_well_and_forgets_it():
    core = serving()
    core.reconcile(WHOLE, None, CHILDREN)
    assert core.fence() == [Stop(WHOLE), Abandon(WHOLE)]
    assert core.hosted() == {}
    assert core.reconcile(*pair(CHILDREN[0])) == [Acquire(LOWER, 9, None)]


def test_proofs_that_run_out_leave_the_flush_alone():
    core = serving()
    core.reconcile(WHOLE, None, CHILDREN)
    assert core.suspend(WHOLE) == []
    assert core.hosted()[WHOLE].stand is Stand.RELEASING


def test_a_child_that_the_host_declines_is_unloaded():
    core = serving()
    core.reconcile(WHOLE, None, CHILDREN)
    reported(core, WHOLE, CHILDREN)
    assert core.acquired(LOWER, 9, failed=True) == [Abandon(LOWER)]
    (publish,) = core.reconcile(*pair(CHILDREN[0]))
    assert isinstance(publish, Publish)
    assert publish.action is Action.UNLOAD


# --- whatever comes when


class Play:
    """A real table, a core, and a host whose hooks end when the test says so. Checks the contract of `host.py`."""

    def __init__(self) -> None:
        self.table, self.core, self.offset = OwnershipTable(1), AgentCore(ME), -1
        self.busy: dict[Bundle, tuple[str, int]] = {}
        self.loaded: dict[Bundle, int] = {}
        self.served: set[Bundle] = set()
        self.raised: list[tuple[Bundle, int]] = []
        """What the storage has been told."""
        self.write(Record("", Action.CREATE_NAMESPACE, ME, Role.ADMIN, namespace=NAME, boundaries=even_boundaries(2)))
        self.write(Record("", Action.LEAD, OTHER, Role.LEADER, epoch=1))
        for bundle in (LOWER, UPPER):
            self.act(Action.OWN, bundle, ME, to=ME)
            self.end(bundle, failed=False)
            self.act(Action.RETURN, bundle, ME)

    def write(self, record: Record) -> bool:
        self.offset += 1
        verdict = self.table.replay(0, self.offset, msgspec.structs.replace(record, id=f"r{self.offset}"))
        if not isinstance(verdict, Change):
            return False
        for transition in in_order(verdict.transitions):
            self.reconcile(transition.bundle)
        return True

    def reconcile(self, bundle: Bundle) -> None:
        now = self.table.get(bundle)
        self.take(self.core.reconcile(bundle, now, [] if now is not None else self.instead_of(bundle)))

    def instead_of(self, bundle: Bundle) -> list[Ownership]:
        return [now for now in self.table if overlap(now.bundle, bundle)]

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Stop():
                    self.served.discard(effect.bundle)
                case Serve():
                    self.served.add(effect.bundle)
                case Acquire():
                    self.begin("acquire", effect.bundle, effect.token)
                case Release():
                    assert effect.bundle not in self.served
                    if self.busy.get(effect.bundle, ("", 0))[0] == "acquire":
                        self.end(effect.bundle, failed=False)  # in turn: the shell waits for it
                    self.begin("release", effect.bundle, effect.token)
                case Abandon():
                    self.busy.pop(effect.bundle, None)
                    self.loaded.pop(effect.bundle, None)
                case Publish():
                    now = self.table.get(effect.bundle)
                    assert now is not None
                    assert now.revision == effect.seen, "a record about a past that the table has left"
                    if effect.action is Action.RELEASE and now.state is State.RELEASING:
                        unflushed = [b for b in self.loaded if overlap(b, effect.bundle)]
                        assert not unflushed, f"given on although {unflushed} were not flushed"
                case _:
                    pass

    def begin(self, hook: str, bundle: Bundle, token: int) -> None:
        rivals = [b for b in self.busy if overlap(b, bundle)]
        assert not rivals, f"{hook} of {bundle} while the hooks of {rivals} run"
        self.busy[bundle] = (hook, token)
        if hook == "acquire":
            left = [b for b in self.loaded if overlap(b, bundle)]
            assert not left, f"{bundle} is acquired although the host still has {left}"
            assert token >= self.newest(bundle), "the token of a place went down"
            self.raised.append((bundle, token))

    def newest(self, bundle: Bundle) -> int:
        return max((token for raised, token in self.raised if overlap(raised, bundle)), default=-1)

    def end(self, bundle: Bundle, failed: bool) -> None:
        hook, token = self.busy.pop(bundle)
        if hook == "acquire":
            self.loaded.update({} if failed else {bundle: token})
            self.take(self.core.acquired(bundle, token, failed))
        else:
            old = self.loaded.pop(bundle, None)
            assert failed or old is None or self.newest(bundle) == old, "its flush would be refused"
            self.take(self.core.released(bundle, token, None, failed))
        self.reconcile(bundle)
        for now in self.instead_of(bundle):
            self.reconcile(now.bundle)

    def check(self) -> None:
        for bundle in self.served:
            now = self.table.get(bundle)
            assert now is not None
            assert now.holder == ME
        assert not any(overlap(a, b) for a, b in itertools.combinations(self.served, 2))

    def act(self, action: Action, bundle: Bundle, by: BrokerId, **more: object) -> None:
        now = self.table.get(bundle)
        assert now is not None
        self.write(Record("", action, by, subjects=(Subject(bundle, now.revision),), **more))  # type: ignore[arg-type]

    def settle(self) -> None:
        """Every hook ends well, and all that the core wants published is: nothing of ours is left behind."""
        for _ in range(20):
            for bundle in list(self.busy):
                if bundle in self.busy:
                    self.end(bundle, failed=False)
            for now in list(self.table):
                by = {State.ASSIGNING: Action.RETURN, State.RELEASING: Action.RELEASE, State.REVOKING: Action.RELEASE}
                wanted = by.get(now.state)
                published = [e for e in self.core.reconcile(now.bundle, now) if isinstance(e, Publish)]
                if wanted is not None and now.holder == ME and wanted in [p.action for p in published]:
                    self.act(wanted, now.bundle, ME)
        mine = {now.bundle for now in self.table if now.holder == ME and now.state is State.ASSIGNED}
        failed = {b for b, at in self.core.hosted().items() if at.stand in (Stand.FAILED, Stand.SUSPENDED)}
        assert self.served == mine - failed, "what is ours is served in the end"
        assert set(self.core.hosted()) >= mine
        assert not any(self.table.get(b) is None for b in self.core.hosted()), "what is gone is left behind"


def overlap(one: Bundle, other: Bundle) -> bool:
    return one.lo < other.hi and other.lo < one.hi


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["own", "return", "unload", "release", "split", "merge", "merge", "revoke", "end", "fail"]),
        st.integers(0, 7),
    ),
    max_size=40,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=400)
@given(_STEPS)
def test_hooks_of_overlapping_ranges_never_meet_and_no_flush_comes_too_late(steps: list[tuple[str, int]]):
    play = Play()
    for step, number in steps:
        entries = sorted(play.table, key=lambda e: e.bundle)
        now = entries[number % len(entries)]
        bundle, running = now.bundle, sorted(play.busy)
        match step:
            case "end" | "fail" if running:
                play.end(running[number % len(running)], failed=step == "fail")
            case "own":
                play.act(Action.OWN, bundle, ME, to=ME)
            case "return" if bundle in play.served:
                play.act(Action.RETURN, bundle, ME)
            case "unload":
                play.act(Action.UNLOAD, bundle, ME)
            case "release" if any(isinstance(e, Publish) for e in play.core.reconcile(bundle, now)):
                play.act(Action.RELEASE, bundle, ME)
            case "revoke":
                play.act(Action.REVOKE, bundle, OTHER, role=Role.LEADER, epoch=1)
            case "split" if bundle.hi - bundle.lo > 1 << 28:
                play.act(Action.CREATE, bundle, ME, boundaries=((bundle.lo + bundle.hi + 1) // 2,))
            case "merge" if len(entries) > 1:
                left, right = list(itertools.pairwise(entries))[number % (len(entries) - 1)]
                subjects = (Subject(left.bundle, left.revision), Subject(right.bundle, right.revision))
                play.write(Record("", Action.MERGE, ME, subjects=subjects))
            case _:
                pass
        play.check()
    play.settle()
