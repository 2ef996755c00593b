"""Runs the quarantine: collects evidence at every broker; as leader reports lost brokers, locks, retries, unlocks.

| state of a bundle | becomes | when |
|---|---|---|
| clear | drawn | two brokers in a row were lost soon after they got it, and no other |
| drawn | suspected | `quarantine_deaths` different brokers were, at least three |
| drawn, suspected | clear | a broker without it is lost; its holder survives with it; a lost broker is alive |
| suspected | locked | odds above `LOCKED_ABOVE`, and `LEAST` of the processes are known to have crashed |
| locked | on trial | `quarantine_retry_s` are over, doubled with each trial |
| on trial | locked | its holder crashes |
| on trial | clear | its holder survives with it for `quarantine_window_s` |
| locked | clear | an operator releases it |

Only a locked bundle is kept from brokers. The lock is the policy field `quarantined`, which survives everything.
Leaders end what leaders wrote there; what an operator wrote stays until an operator ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.documents.fold import Version
from loadmanager.leader.quarantine.evidence import (
    LEAST,
    LOCKED_ABOVE,
    End,
    Evidence,
    Quarantine,
    drawn,
    loss_record,
)
from loadmanager.leader.rebalancing.decider import Decider
from loadmanager.leader.service import Term
from loadmanager.leader.splitting.owner import Journal, What
from loadmanager.model.policies.codec import key_of, named
from loadmanager.model.policies.effective import Ruling, intersects
from loadmanager.model.policies.model import BundlePolicy, Kind, Policies, Policy
from loadmanager.model.registration import Peer, Registration
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership
from statechannel.runtime.channel import Channel
from statechannel.runtime.tasks import failure_of

LOCKED = "brokers died of it"
"""Begins the reason of the policy version with which a leader locks a bundle. An operator may write it, too."""
DOUBLED_AT_MOST = 6
LOOK_S = 0.5
REASON_CHARACTERS = 900
GONE_SESSIONS = 10
"""A lost broker that has not registered again for this many session time-outs has crashed, as far as is known."""
TOLD_AFTER_MS = 2_000
"""The leader revokes a lost broker's bundles well within this time; then a broker that is gone held none."""
KNOWN_KEPT = 10_000


def collect_evidence(channel: Channel, policies: PolicyStore, settings: Callable[[], Settings]) -> Quarantine:
    """The evidence, which follows channel and policies; call this before either of them runs."""
    quarantine = Quarantine(lambda bundle, broker: _holds(channel.table, bundle, broker))

    def changed(key: str, old: Version[Policy] | None, new: Version[Policy]) -> None:
        kind, name = named(key)
        if kind is Kind.BUNDLE and _is_locked(old) and not _is_locked(new):
            quarantine.pardon(Bundle.parse(name), new.at_ms)

    channel.listen(lambda change: quarantine.observe(change, settings().quarantine_window_s))
    policies.documents.on_change(changed)
    return quarantine


def _holds(table: OwnershipTable, bundle: Bundle, broker: BrokerId) -> bool:
    entry = table.get(bundle)
    return entry is not None and broker in (entry.holder, entry.target)


def _is_locked(version: Version[Policy] | None) -> bool:
    return version is not None and isinstance(version.value, BundlePolicy) and bool(version.value.quarantined)


class Lock(msgspec.Struct, frozen=True):
    """A bundle that a leader has locked: why, since when, and how often it was tried again before.

    `why` names the last broker that was lost with it.
    """

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


class Processes:
    """The registrations that this broker has seen, by which it judges what became of a lost broker."""

    def __init__(self) -> None:
        self._known: dict[BrokerId, Registration] = {}
        self._present: dict[str, Peer] = {}
        self._vanished: dict[BrokerId, int] = {}

    def saw(self, peers: Mapping[str, Peer], now_ms: int) -> None:
        """Take the registered brokers after a change."""
        for name, before in self._present.items():
            peer = peers.get(name)
            if peer is None or peer.broker != before.broker:
                self._vanished[before.broker] = now_ms
        self._present = dict(peers)
        for peer in peers.values():
            self._known.pop(peer.broker, None)
            self._known[peer.broker] = peer.registration
            self._vanished.pop(peer.broker, None)
        while len(self._known) > KNOWN_KEPT:
            del self._known[next(iter(self._known))]

    def vanished(self, quarantine: Quarantine, now_ms: int, gone_s: float) -> list[BrokerId]:
        """Brokers whose end is to be reported, since they are no longer registered and did not drain."""
        tell = list[BrokerId]()
        for broker, at_ms in tuple(self._vanished.items()):
            known = self._known.get(broker)
            end = quarantine.end_of(broker)
            if known is None or now_ms - at_ms > 2 * gone_s * 1000 or (known.draining and end is None):
                del self._vanished[broker]
            elif end is End.OPEN or (end is None and now_ms - at_ms >= TOLD_AFTER_MS):
                tell.append(broker)
        return tell

    def end_of(self, broker: BrokerId, now_ms: int, gone_s: float) -> tuple[End, str]:
        """What became of a broker that vanished, and how that is known."""
        known, peer = self._known[broker], self._present.get(broker.name)
        if known.draining:
            return End.LIVES, "it was leaving"
        if peer is None:
            if now_ms - self._vanished[broker] < gone_s * 1000:
                return End.OPEN, "it is not registered"
            return End.CRASHED, f"nothing has registered as {broker.name} for {gone_s:g} s"
        if peer.registration.started_ms == known.started_ms:
            return End.LIVES, f"the same process came back as {peer.broker}"
        return End.CRASHED, f"another process runs as {peer.broker}"


class Keeper:
    """A leader's work on the quarantine; run `keep(term)` while a term lasts.

    `draw` chooses a broker at random among those that may take a bundle apart from its lock, and says from how many.
    """

    def __init__(
        self,
        deciding: Decider,
        policies: PolicyStore,
        quarantine: Quarantine,
        processes: Processes,
        draw: Callable[[Ownership], tuple[BrokerId, int] | None],
        ruling: Callable[[], Ruling],
        safe_mode: Callable[[], str | None],
        journal: Journal,
        note: Callable[[str], None],
    ) -> None:
        self._deciding = deciding
        self._policies = policies
        self._quarantine = quarantine
        self._processes = processes
        self._draw = draw
        self._ruling = ruling
        self._safe_mode = safe_mode
        self._journal = journal
        self._note = note
        self._locks: tuple[Policies, list[Lock]] | None = None
        self._kept: dict[Bundle, tuple[int, float]] = {}
        """The token of each locked bundle, and since when it has been assigned under it, by the loop's clock."""

    async def keep(self, term: Term) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if self._safe_mode() is None and self._deciding.settings().quarantine_deaths > 0:
                await failure_of("the quarantine", self._look(term), self._note)

    async def _look(self, term: Term) -> None:
        await self._tell(term)
        for found in tuple(self._quarantine.rows()):
            ruling = self._ruling()
            if self._is_to_be_locked(found, ruling):
                await self._lock(found.bundle, str(found), 0, term)
            await term.executor.steps.passed()
        for lock in self._current_locks():
            await self._retry(lock, term)
            await term.executor.steps.passed()

    async def _tell(self, term: Term) -> None:
        """Report the end of brokers: whether they crashed, and that those which held nothing were lost."""
        now_ms = self._deciding.wall_ms()
        gone_s = GONE_SESSIONS * self._deciding.settings().session_timeout_s
        leader = term.leadership
        for broker in self._processes.vanished(self._quarantine, now_ms, gone_s):
            end, why = self._processes.end_of(broker, now_ms, gone_s)
            if end is not self._quarantine.end_of(broker):
                await term.executor.tell(loss_record(leader.leader, leader.epoch, broker, end, why))

    def _is_to_be_locked(self, found: Evidence, ruling: Ruling) -> bool:
        if not found.is_suspected(ruling.settings_of(found.bundle).quarantine_deaths) or found.odds <= LOCKED_ABOVE:
            return False
        if self._deciding.table.get(found.bundle) is None or ruling.quarantined(found.bundle):
            return False
        return sum(self._quarantine.end_of(death.broker) is End.CRASHED for death in found.deaths) >= LEAST

    async def _retry(self, lock: Lock, term: Term) -> None:
        now_ms, settings = self._deciding.wall_ms(), self._deciding.settings()
        entries = self._overlapping(lock.bundle)
        deaths = [death for e in entries if (death := self._quarantine.last_death(e.bundle)) is not None]
        last = max(deaths, key=lambda death: death.at_ms, default=None)
        if last is not None and f" {last.broker} " not in lock.why:  # not by times, which are of several clocks
            end = self._quarantine.end_of(last.broker)
            if end is End.CRASHED:
                why = f"{LOCKED}; tried again {lock.tries + 1} times, the last time it crashed {last}"
                await self._lock(lock.bundle, why, lock.tries + 1, term)
            if end is not End.LIVES:
                return
        now_s = asyncio.get_running_loop().time()
        if entries and all(self._keeps(entry, now_s) >= settings.quarantine_window_s for entry in entries):
            holders = ", ".join(sorted({str(entry.holder) for entry in entries}))
            why = f"{holders} lives with it for {settings.quarantine_window_s:g} s"
            await self._write(lock.bundle, "", why, term)
            self._journal.happened(What.LET_GO, lock.bundle, why)
        elif now_ms >= lock.due_ms(settings.quarantine_retry_s):
            for entry in entries:
                await self._try(entry, lock, term)

    async def _try(self, entry: Ownership, lock: Lock, term: Term) -> None:
        found = self._draw(entry) if entry.state is State.UNASSIGNED else None
        if found is None:
            return
        to, candidates = found
        reason = f"trial {lock.tries + 1} of a locked bundle"
        verdict = await term.executor.give(entry.bundle, entry.revision, to, reason, drawn(candidates))
        if isinstance(verdict, Change):
            self._journal.happened(What.TRIED, entry.bundle, f"to {to}: {reason}")

    def _keeps(self, entry: Ownership, now_s: float) -> float:
        """For how many seconds this leader has seen the bundle assigned to its holder; -1 if it is not."""
        if entry.state is not State.ASSIGNED:
            return -1.0
        token, since_s = self._kept.get(entry.bundle, (-1, 0.0))
        if token != entry.token:
            since_s = now_s
            self._kept[entry.bundle] = entry.token, since_s
        return now_s - since_s

    def _overlapping(self, bundle: Bundle) -> list[Ownership]:
        """The present bundles of this range: the bundle itself, or those that overlap it."""
        entry = self._deciding.table.get(bundle)
        if entry is not None:
            return [entry]
        known = self._deciding.table.namespace(bundle.namespace)
        return [each for each in (known.entries if known is not None else ()) if intersects(each.bundle, bundle)]

    def _current_locks(self) -> list[Lock]:
        """The locks that leaders set; people's locks are left alone."""
        policies = self._deciding.policies()
        if self._locks is None or self._locks[0] is not policies:
            names = (bundle for bundle, policy in policies.bundles.items() if policy.quarantined)
            history = self._policies.documents.history
            found = [lock_of(bundle, history(key_of(Kind.BUNDLE, str(bundle)))) for bundle in names]
            self._locks = policies, [lock for lock in found if lock is not None]
            if not self._locks[1]:
                self._kept.clear()
        return self._locks[1]

    async def _lock(self, bundle: Bundle, why: str, tries: int, term: Term) -> None:
        now_ms = self._deciding.wall_ms()
        due_ms = Lock(bundle, why, now_ms, tries).due_ms(self._deciding.settings().quarantine_retry_s)
        due = datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(" ", "seconds").removesuffix("+00:00")
        end = f"; next trial at {due} UTC"
        await self._write(bundle, why[: REASON_CHARACTERS - len(end)] + end, LOCKED, term)
        self._journal.happened(What.QUARANTINED, bundle, why)

    async def _write(self, bundle: Bundle, text: str, reason: str, term: Term) -> None:
        def changed(policy: BundlePolicy) -> BundlePolicy:
            return msgspec.structs.replace(policy, quarantined=text)

        author = str(term.leadership.leader)
        await self._policies.change(Kind.BUNDLE, str(bundle), changed, author=author, reason=reason, force=True)
