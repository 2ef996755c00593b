"""Collects evidence which bundles kill the brokers that take them, from the channel's accepted records alone. Pure.

A leader's `revoke` of an orphan (`leader.core.ORPHAN`), or its `cancel` of a transfer whose target was lost, shows that
a broker is *lost*. This counts against the bundles that the broker was given within `quarantine_window_s`, or prepared
for, once its process is known to have crashed (`losses.py`), with the weight that `evidence.py` computes. A broker that
keeps a bundle for the window, or gives it away alive, counts for the bundle.

Every broker collects this itself, by the records and their times: all get the same result, and a new leader continues
where the old one was. A broker that has just started knows only what came after its newest snapshot. That is
acceptable: in snapshots the evidence would become part of the law, brokers that did not die remember, and a verdict is
a policy, which is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from zlib import crc32

import msgspec

from loadmanager.leader.core import ORPHAN, STUCK
from loadmanager.leader.quarantine.evidence import (
    Death,
    Evidence,
    Lived,
    Step,
    density,
    evidence_against,
    guilt,
    pause_s,
)
from loadmanager.leader.quarantine.losses import FATE, Losses
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Transition

GIVEN_KEPT = 100_000
"""How often giving out a bundle is remembered; when a whole cluster starts, the oldest are forgotten."""
NAMESPACES_KEPT = 1_000
STEPS_KEPT = 40
BROKERS_KEPT = 20_000
BY_THE_LEADER_S = 60.0
"""Other brokers leave a watched bundle to the leader for four pauses and this time."""


class Given(msgspec.Struct, frozen=True, gc=False):
    """Who was given a bundle, and when, by the writer's wall clock."""

    to: BrokerId
    at_ms: int
    number: int = 0
    """A sequence number."""


class Quarantine:
    """One broker's evidence. Feed it every accepted change in order, from the first one that is read at the start.

    `brokers` gives the present number of brokers.
    """

    def __init__(self, brokers: Callable[[], int] = lambda: 1) -> None:
        self.losses = Losses()
        self._brokers = brokers
        self._window_s = 600.0
        self._given: dict[Bundle, Given] = {}
        self._last_given: deque[tuple[Bundle, Given]] = deque()
        self._given_so_far = 0
        self._began_anew: dict[str, int] = {}
        """Namespaces that were created or deleted as a whole, with the `number` reached then.

        Earlier entries of such a namespace no longer count, and are dropped with the oldest.
        """
        self._promised: dict[Bundle, Given] = {}
        self._holds: dict[BrokerId, set[Bundle]] = {}
        """The bundles that each broker was given lately."""
        self._alive_ms: dict[BrokerId, int] = {}
        self._steps: dict[Bundle, tuple[Step, ...]] = {}
        self._repeated: dict[Bundle, None] = {}
        """Bundles with which several brokers were lost."""
        self._pardons: dict[Bundle, int] = {}
        self._evidence: dict[Bundle, Evidence] = {}
        self._pauses: dict[Bundle, tuple[Evidence, float]] = {}
        self._evidence_at: tuple[int, float] = (0, 0.0)

    # --- feeding

    def observe(self, change: Change, window_s: float) -> None:
        """Take the next accepted record."""
        record = change.record
        self._window_s = window_s
        self.losses.watch(record.at_ms)
        if record.action is Action.NOOP:
            if record.cause == FATE and record.to is not None:
                self._note_loss(record.to, record.at_ms, 0)
                self.losses.take_fate(record)
            return
        if record.role is Role.BROKER:
            self._alive_ms[record.actor] = record.at_ms
            if len(self._alive_ms) > BROKERS_KEPT:
                del self._alive_ms[next(iter(self._alive_ms))]
        if change.whole is not None:
            self._begin_anew(change.whole)
            for bundle in change.bundles((*self._steps, *self._promised)):
                self._forget(bundle)
            return
        if record.action in (Action.CREATE, Action.MERGE):
            self._reshape(change.transitions)
            return
        for transition in change.transitions:
            if transition.after is None:
                self._forget(transition.bundle)
            elif transition.before is not None:
                self._judge(record, transition.before)
                self._follow(transition.before, transition.after, record.at_ms)

    def _judge(self, record: Record, before: Ownership) -> None:
        """Note what the record says about the former holder, or about the target."""
        if record.action is Action.REVOKE and record.reason.startswith(ORPHAN) and before.holder is not None:
            given = self._given_of(before.bundle)
            taking = before.state is State.ASSIGNING
            self._lose(before.bundle, before.holder, given, record.at_ms, taking=taking)
        elif record.action is Action.RELEASE and record.role is Role.BROKER:
            self._gave_away(before, record.at_ms)
        elif _lost_its_target(record, before) and before.target is not None:
            promised = self._promised.get(before.bundle)
            self._lose(before.bundle, before.target, promised, record.at_ms, taking=True)

    def _follow(self, before: Ownership, after: Ownership, at_ms: int) -> None:
        """Note who has been given the bundle."""
        self._promised.pop(after.bundle, None)
        if after.state is State.TRANSFERRING and after.target is not None:
            self._promised[after.bundle] = Given(after.target, at_ms)
        if after.state is not State.ASSIGNING or after.holder is None or after.token == before.token:
            return
        self._take_back(after.bundle)
        self._give(after.bundle, after.holder, at_ms)

    def _give(self, bundle: Bundle, to: BrokerId, at_ms: int) -> None:
        self._given_so_far += 1
        given = self._given[bundle] = Given(to, at_ms, self._given_so_far)
        self._holds.setdefault(to, set()).add(bundle)
        self._last_given.append((bundle, given))
        if len(self._last_given) > GIVEN_KEPT:
            oldest, given = self._last_given.popleft()
            if self._given.get(oldest) is given:
                self._take_back(oldest)

    def _take_back(self, bundle: Bundle) -> None:
        given = self._given.pop(bundle, None)
        if given is not None:
            holds = self._holds[given.to]
            holds.discard(bundle)
            if not holds:
                del self._holds[given.to]

    def _begin_anew(self, namespace: str) -> None:
        """A namespace was created or deleted with all bundles: too many to visit each."""
        self._began_anew[namespace] = self._given_so_far
        if len(self._began_anew) > NAMESPACES_KEPT:
            since = self._last_given[0][1].number if self._last_given else self._given_so_far
            self._began_anew = {name: at for name, at in self._began_anew.items() if at >= since}

    def _given_of(self, bundle: Bundle) -> Given | None:
        given = self._given.get(bundle)
        return None if given is None or given.number <= self._began_anew.get(bundle.namespace, 0) else given

    def _lose(self, bundle: Bundle, broker: BrokerId, given: Given | None, at_ms: int, *, taking: bool) -> None:
        self._note_loss(broker, at_ms, 0 if given is None else given.at_ms)
        held_ms = -1 if given is None or given.to != broker else max(0, at_ms - given.at_ms)
        if not 0 <= held_ms <= self._window_s * 1000:
            self._add(bundle, Lived(broker, at_ms, round(self._window_s * 1000)), begin=False)
        else:
            self._add(bundle, Death(broker, at_ms, held_ms, taking, self._danger_of(bundle, held_ms)))

    def _note_loss(self, broker: BrokerId, at_ms: int, alive_ms: int) -> None:
        if broker not in self.losses:
            alive_ms = max(self._alive_ms.pop(broker, 0), alive_ms)
            self.losses.lost(broker, at_ms, alive_ms, self._brokers(), self._danger(broker, at_ms))

    def _danger(self, broker: BrokerId, at_ms: int) -> float:
        """The expected rate at which the bundles that a broker was given lately kill it at that time, per second."""
        found = ((bundle, self._given_of(bundle)) for bundle in self._holds.get(broker, ()))
        return sum(self._danger_of(bundle, max(0, at_ms - given.at_ms)) for bundle, given in found if given is not None)

    def _danger_of(self, bundle: Bundle, held_ms: int) -> float:
        score = self.evidence(bundle).feared.score if bundle in self._steps else 0.0
        return guilt(score) * density(held_ms / 1000, self._window_s)

    def _gave_away(self, before: Ownership, at_ms: int) -> None:
        """The holder wrote this `release` itself, so it lives. A holder that declined had not taken the bundle."""
        given, steps = self._given_of(before.bundle), self._steps.get(before.bundle)
        if steps is None or before.holder is None or before.state is State.ASSIGNING:
            return
        if before.state is State.REVOKING and steps[-1].broker == before.holder:
            self._keep(before.bundle, steps[:-1])  # it was wrongly taken for dead
            return
        held_ms = self._window_s * 1000 if given is None else max(0, at_ms - given.at_ms)
        self._add(before.bundle, Lived(before.holder, at_ms, round(held_ms)), begin=False)

    def _add(self, bundle: Bundle, step: Step, *, begin: bool = True) -> None:
        steps = self._steps.get(bundle, ())
        twice = steps and steps[-1].broker == step.broker
        if not twice and (steps or begin) and not self._pardoned(bundle, step.at_ms):
            self._keep(bundle, (*steps, step))

    def _keep(self, bundle: Bundle, steps: tuple[Step, ...]) -> None:
        self._evidence.pop(bundle, None)
        self._repeated.pop(bundle, None)
        if not steps:
            self._steps.pop(bundle, None)
            return
        self._steps[bundle] = steps[-STEPS_KEPT:]
        if sum(isinstance(step, Death) for step in steps) > 1:
            self._repeated[bundle] = None

    def _reshape(self, transitions: Iterable[Transition]) -> None:
        """New bundles inherit the evidence against the bundles that they replace."""
        gone = [t.bundle for t in transitions if t.after is None]
        born = [t.after.bundle for t in transitions if t.before is None and t.after is not None]
        given = [each for bundle in gone if (each := self._given_of(bundle)) is not None]
        steps = [self.evidence(bundle) for bundle in gone if bundle in self._steps]
        worst = max(steps, key=lambda each: each.feared.score, default=None)
        kept = () if worst is None else self._steps[worst.bundle]
        for bundle in gone:
            self._forget(bundle)
        for bundle in born:
            if given:
                newest = max(given, key=lambda each: each.at_ms)
                self._give(bundle, newest.to, newest.at_ms)
            self._keep(bundle, kept)

    def _forget(self, bundle: Bundle) -> None:
        self._take_back(bundle)
        self._promised.pop(bundle, None)
        self._keep(bundle, ())

    def pardon(self, bundle: Bundle, at_ms: int) -> None:
        """Somebody unlocked this range: deaths up to this time no longer count, even if they are read later."""
        self._pardons[bundle] = max(at_ms, self._pardons.get(bundle, at_ms))
        for each in [each for each in self._steps if _overlap(each, bundle)]:
            self._keep(each, tuple(step for step in self._steps[each] if step.at_ms > at_ms))

    def _pardoned(self, bundle: Bundle, at_ms: int) -> bool:
        return any(at_ms <= until_ms for each, until_ms in self._pardons.items() if _overlap(each, bundle))

    # --- asking

    def evidence(self, bundle: Bundle) -> Evidence:
        """The evidence against a bundle."""
        if self._evidence_at != (self.losses.version, self._window_s):
            self._evidence_at = self.losses.version, self._window_s
            self._evidence.clear()
            self._pauses.clear()
        found = self._evidence.get(bundle)
        if found is None:
            found = evidence_against(bundle, self._steps.get(bundle, ()), self.losses, self._window_s)
            if bundle in self._repeated:
                self._evidence[bundle] = found
        return found

    def __contains__(self, bundle: Bundle) -> bool:
        """Whether a broker was lately lost with the bundle."""
        return bundle in self._steps

    def __iter__(self) -> Iterator[Bundle]:
        """Bundles with which several brokers were lost."""
        return iter(tuple(self._repeated))

    def __len__(self) -> int:
        return len(self._repeated)

    def given_ms(self, bundle: Bundle, holder: BrokerId) -> int | None:
        """When this holder was given the bundle, if that is known."""
        given = self._given_of(bundle)
        return given.at_ms if given is not None and given.to == holder else None

    def pause_s(self, found: Evidence) -> float:
        """How long a watched bundle is held back after the last death; the same at every broker."""
        assert found.last is not None
        known, pause = self._pauses.get(found.bundle, (None, 0.0))
        if known is not found:
            pause = pause_s(found, self._window_s, crc32(f"{found.bundle} {found.last.step.at_ms}".encode()) / 2**32)
            self._pauses[found.bundle] = found, pause
        return pause

    def is_held_back(self, bundle: Bundle, least: int, now_ms: int) -> bool:
        """Whether lookups must not give out the bundle now."""
        if least <= 0 or bundle not in self._repeated:
            return False
        found = self.evidence(bundle)
        if not found.watched or found.last is None:
            return False
        # later than that no leader gives it out, or a clock is far from ours
        return 0 <= now_ms - found.last.step.at_ms < (4 * self.pause_s(found) + BY_THE_LEADER_S) * 1000

    def held_back(self, bundle: Bundle, least: int, now_ms: int) -> str:
        """Why lookups must not give out the bundle now, empty if they may. Cheap for bundles without evidence."""
        if not self.is_held_back(bundle, least, now_ms):
            return ""
        found = self.evidence(bundle)
        assert found.last is not None
        pause, since_s = self.pause_s(found), (now_ms - found.last.step.at_ms) / 1000
        left = f"held back for {pause - since_s:.1f} s" if since_s < pause else "held back until no broker is lost"
        return f"{left}, then the leader gives it out alone: {found}"


def _lost_its_target(record: Record, before: Ownership) -> bool:
    """Whether a transfer was called off because its target died."""
    called_off = record.action is Action.CANCEL and record.role is Role.LEADER and before.state is State.TRANSFERRING
    return called_off and not record.reason.startswith(STUCK)


def _overlap(one: Bundle, other: Bundle) -> bool:
    return one.namespace == other.namespace and one.lo < other.hi and other.lo < one.hi
