"""Decides what a leader does about bundles that brokers died with: finds fates, locks, retries, unlocks. Pure.

Only the leader gives out a *watched* bundle (`evidence.Evidence.watched`), after its pause and an equally long time
without a lost broker. If many are watched, each broker gets an eighth of those that wait at a time, the least
suspicious first. A *locked* bundle is tried again after `quarantine_retry_s`, then after twice as long each time: on
the emptiest broker that may take it and has no other bundle on trial. A broker that lives with it for
`quarantine_window_s` clears it; so does the return of brokers that were taken for dead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from loadmanager.leader.quarantine.evidence import Death, Evidence, Weighed
from loadmanager.leader.quarantine.fates import Found, Processes
from loadmanager.leader.quarantine.losses import Fate
from loadmanager.leader.quarantine.quarantine import Quarantine
from loadmanager.model.policies.model import BundlePolicy, Policy
from loadmanager.model.registration import Peer
from loadmanager.settings.documents.model import Version
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

LOCKED = "brokers died of it"
"""Begins the reason of the policy version with which a leader locks a bundle; anybody may write it to ask for that."""
TRIED = "; tried again "
DOUBLED_AT_MOST = 6
WAITS_AT_MOST = 3.0
"""For how many of its pauses a watched bundle waits for a calm; then it is given out all the same."""
CALM_BEFORE_TRIAL_S = 60.0
SETTLED, SETTLED_HELD, SETTLED_AT_MOST = 60, 2.0, 10
"""When a holder counts as living with a watched bundle, and may be given the next one.

After a 60th of the window, and twice the time that the last lost holder had it, but at most a tenth of the window.
"""
GROUPS = 8
GIVEN_AT_ONCE = 50
LOOKED_AT_ONCE = 50
"""How many bundles are weighed in one step."""


class Lock(msgspec.Struct, frozen=True):
    """A bundle that a leader has locked: why, since when, and how often it was tried again before."""

    bundle: Bundle
    why: str
    since_ms: int
    tries: int

    def due_ms(self, retry_s: float) -> float:
        """When the bundle is tried again."""
        return self.since_ms + retry_s * 1000 * 2 ** min(self.tries, DOUBLED_AT_MOST)


def lock_of(bundle: Bundle, history: Sequence[Version[Policy]]) -> Lock | None:
    """The lock by the versions of the bundle's policy, oldest first; None if there is none, or it is a person's."""
    locks: list[Version[Policy]] = []
    before = ""
    for version in history:
        text = version.value.quarantined if isinstance(version.value, BundlePolicy) else ""
        if not text:
            locks.clear()
        elif text != before:
            locks.append(version)
        before = text
    if not locks or not locks[-1].reason.startswith(LOCKED):
        return None
    by_leaders = [version for version in locks if version.reason.startswith(LOCKED)]
    return Lock(bundle, before, locks[-1].at_ms, len(by_leaders) - 1)


# --- what is to be done


class Give(msgspec.Struct, frozen=True):
    """Give a bundle without an owner to this broker."""

    bundle: Bundle
    seen: int
    to: BrokerId
    reason: str


class LockUp(msgspec.Struct, frozen=True):
    """Lock a bundle, or lock it again for longer."""

    bundle: Bundle
    why: str


class LetGo(msgspec.Struct, frozen=True):
    """End the lock of a bundle."""

    bundle: Bundle
    why: str


TrialStep = Give | LockUp | LetGo


class Situation(msgspec.Struct, frozen=True):
    """What a leader knows at one instant besides the evidence.

    `least` is a bundle's `quarantine_deaths`. `barred` says whether a lock or a person keeps a bundle from all brokers.
    `choose` finds the emptiest broker that may take a bundle, ignoring locks, except the given names.
    """

    now_ms: int
    peers: Mapping[str, Peer]
    table: OwnershipTable
    locks: Sequence[Lock]
    least: Callable[[Bundle], int]
    barred: Callable[[Bundle], bool]
    choose: Callable[[Ownership, Collection[str]], BrokerId | None]
    retry_s: float
    window_s: float
    gone_s: float


class Trials:
    """The trials of one broker as leader; it watches processes also before it leads."""

    def __init__(self, quarantine: Quarantine) -> None:
        self.processes = Processes()
        self._quarantine = quarantine
        self._seen_ms: dict[Bundle, tuple[int, int]] = {}

    def fates(self, peers: Mapping[str, Peer], now_ms: int, gone_s: float) -> list[Found]:
        """Fates of lost brokers that are not in the channel yet."""
        found = (self.processes.fate(loss, peers, now_ms, gone_s) for loss in self._quarantine.losses.undecided())
        return [*(each for each in found if each is not None), *self.processes.unnoted(self._quarantine.losses, now_ms)]

    def look(self, now: Situation) -> Iterator[TrialStep | None]:
        """The deeds that are due now. None ends a step of about a millisecond: the caller may pause there."""
        busy, waiting = Counter[str](), list[Evidence]()
        for looked_at, bundle in enumerate(self._quarantine, 1):
            if looked_at % LOOKED_AT_ONCE == 0:
                yield None
            found, entry = self._quarantine.evidence(bundle), now.table.get(bundle)
            if entry is None:
                continue
            busy.update(self._busy(entry, settles_after_s(found, now.window_s), now))
            least = now.least(bundle)
            if found.is_to_be_locked(least):
                if not now.barred(bundle):
                    yield LockUp(bundle, str(found))
            elif found.watched and entry.state is State.UNASSIGNED and least > 0 and not now.barred(bundle):
                waiting.append(found)
        for lock in now.locks:
            for entry in _parts(lock.bundle, now.table):
                busy.update(self._busy(entry, now.window_s, now))
        for lock in now.locks:
            yield from self._again(lock, now, busy)
            yield None
        yield from self._hand_out(waiting, now, busy)

    def _busy(self, entry: Ownership, settled_s: float, now: Situation) -> Iterator[str]:
        """The name of the bundle's holder, while it is unknown whether it lives with the bundle."""
        if settled_s > 0 and entry.holder is not None:
            given_ms = self._quarantine.given_ms(entry.bundle, entry.holder)
            if given_ms is not None and now.now_ms - given_ms < settled_s * 1000:
                yield entry.holder.name

    def _choose(self, entry: Ownership, but: set[str], now: Situation) -> BrokerId | None:
        """The emptiest broker, usually the last one lost; one that is lost repeatedly only if no other may take it."""
        restless = self._quarantine.losses.restless()
        elsewhere = now.choose(entry, but | {restless}) if restless else None
        return elsewhere or now.choose(entry, but)

    # --- watched ones

    def _hand_out(self, waiting: Sequence[Evidence], now: Situation, busy: Counter[str]) -> Iterator[TrialStep | None]:
        room, given = max(1, len(waiting) // GROUPS), 0
        for found in sorted(waiting, key=lambda each: (each.feared.score, each.bundle)):
            entry = now.table.get(found.bundle)
            if entry is None or given >= GIVEN_AT_ONCE or not self._is_due(found, now):
                continue
            yield None
            full = {name for name, count in busy.items() if count >= room}
            to = self._choose(entry, full, now)
            if to is not None:
                busy[to.name] += 1
                given += 1
                reason = f"alone: {found.in_a_row} brokers in a row were lost with it"
                yield Give(found.bundle, entry.revision, to, reason)

    def _is_due(self, found: Evidence, now: Situation) -> bool:
        assert found.last is not None
        pause_s = self._quarantine.pause_s(found)
        waited_s = (now.now_ms - found.last.step.at_ms) / 1000
        calm_s = (now.now_ms - self._quarantine.losses.newest_ms()) / 1000
        return waited_s >= pause_s and (calm_s >= pause_s or waited_s >= WAITS_AT_MOST * pause_s)

    # --- locked ones

    def _again(self, lock: Lock, now: Situation, busy: Counter[str]) -> Iterator[TrialStep]:
        parts = _parts(lock.bundle, now.table)
        found = [self._quarantine.evidence(entry.bundle) for entry in parts]
        failed = next((last for each in found if (last := _lost_since(each, lock.since_ms)) is not None), None)
        if failed is not None:
            if failed.fate.is_death:
                yield LockUp(lock.bundle, _failed(lock, failed))
            return  # if it is no death, its fate is not known yet
        if any(_acquitted(each, now.least(lock.bundle)) for each in found):
            yield LetGo(lock.bundle, "brokers that were taken for dead came back")
        elif parts and all(self._outlived(entry, now) for entry in parts):
            yield LetGo(lock.bundle, f"{_holders(parts)} lives with it for {now.window_s:g} s")
        else:
            yield from self._try(lock, parts, now, busy)

    def _try(self, lock: Lock, parts: Iterable[Ownership], now: Situation, busy: Counter[str]) -> Iterator[TrialStep]:
        late_ms = now.now_ms - lock.due_ms(now.retry_s)
        calm_s = (now.now_ms - self._quarantine.losses.newest_ms()) / 1000
        wanted_s = min(CALM_BEFORE_TRIAL_S, now.retry_s)
        if late_ms < 0 or (calm_s < wanted_s and late_ms < WAITS_AT_MOST * wanted_s * 1000):
            return
        for entry in parts:
            to = self._choose(entry, set(busy), now) if entry.state is State.UNASSIGNED else None
            if to is not None:
                busy[to.name] += 1
                yield Give(entry.bundle, entry.revision, to, f"trial {lock.tries + 1} of a locked bundle, alone")

    def _outlived(self, entry: Ownership, now: Situation) -> bool:
        """Whether the holder has had the bundle for the whole window."""
        if entry.holder is None or entry.state is not State.ASSIGNED:
            return False
        token, seen_ms = self._seen_ms.get(entry.bundle, (-1, 0))
        if token != entry.token:
            given_ms = self._quarantine.given_ms(entry.bundle, entry.holder)
            seen_ms = now.now_ms if given_ms is None else given_ms
            self._seen_ms[entry.bundle] = entry.token, seen_ms
        return now.now_ms - seen_ms >= now.window_s * 1000


def _parts(bundle: Bundle, table: OwnershipTable) -> list[Ownership]:
    """The present bundles of this range: the bundle itself, or those that overlap it."""
    entry = table.get(bundle)
    if entry is not None:
        return [entry]
    known = table.namespace(bundle.namespace)
    entries = () if known is None else known.entries
    return [each for each in entries if each.bundle.lo < bundle.hi and bundle.lo < each.bundle.hi]


def settles_after_s(found: Evidence, window_s: float) -> float:
    """How long it stays unknown whether the holder of a watched bundle lives with it."""
    if not found.watched or found.last is None:
        return 0.0
    return min(window_s / SETTLED_AT_MOST, max(window_s / SETTLED, SETTLED_HELD * found.last.step.held_ms / 1000))


def _lost_since(found: Evidence, at_ms: int) -> Weighed | None:
    """The last loss with the bundle since then, unless that broker lives."""
    last = found.last
    return last if last is not None and last.step.at_ms > at_ms else None


def _acquitted(found: Evidence, least: int) -> bool:
    """Whether the bundle would not be locked, given that brokers taken for dead came back."""
    lives = any(isinstance(each.step, Death) and each.fate is Fate.LIVES for each in found.steps)
    return lives and not found.is_to_be_locked(max(least, 1))


def _failed(lock: Lock, last: Weighed) -> str:
    first = lock.why.partition(TRIED)[0]
    return f"{first}{TRIED}{lock.tries + 1} times, the last time {last}"


def _holders(parts: Iterable[Ownership]) -> str:
    return ", ".join(sorted({str(entry.holder) for entry in parts}))
