"""The leader's shell for bundles that brokers died with: tells fates, locks, retries, unlocks; see `trials.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import assert_never

import msgspec

from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.leader.quarantine.losses import fate_record
from loadmanager.leader.quarantine.quarantine import Quarantine
from loadmanager.leader.quarantine.trials import (
    LOCKED,
    Give,
    LetGo,
    Lock,
    LockUp,
    Situation,
    Trials,
    TrialStep,
    lock_of,
)
from loadmanager.leader.rebalancing.deciding import Deciding
from loadmanager.leader.service import Term
from loadmanager.leader.splitting.journal import Journal, What
from loadmanager.model.policies.model import BundlePolicy, Kind, Policies
from loadmanager.model.policies.ruling import Ruling
from loadmanager.model.policies.stored import key_of
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.verdict import Change, Ownership

REASON_CHARACTERS = 900
GONE_SESSIONS = 10
"""A lost broker that has not registered again for this many session time-outs counts as gone."""

Emptiest = Callable[[Ownership, Collection[str]], BrokerId | None]


class Locking:
    """Call `look(term)` again and again while a term lasts."""

    def __init__(
        self,
        deciding: Deciding,
        policies: PolicyStore,
        quarantine: Quarantine,
        trials: Trials,
        emptiest: Emptiest,
        ruling: Callable[[], Ruling],
        journal: Journal,
    ) -> None:
        self._deciding = deciding
        self._policies = policies
        self._quarantine = quarantine
        self._trials = trials
        self._emptiest = emptiest
        self._ruling = ruling
        self._journal = journal
        self._locks: tuple[Policies, list[Lock]] | None = None

    async def look(self, term: Term) -> None:
        """Do what is due."""
        peers, now_ms = self._deciding.membership.peers, self._deciding.wall_ms()
        gone_s = GONE_SESSIONS * self._deciding.settings().session_timeout_s
        leader = term.leadership
        if self._deciding.settings().quarantine_deaths <= 0:
            return
        for found in self._trials.fates(peers, now_ms, gone_s):
            await term.executor.tell(fate_record(leader.leader, leader.epoch, found.broker, found.fate, found.why))
        locks = self._current_locks()
        if locks or len(self._quarantine):
            for step in self._trials.look(self._situation(locks, gone_s)):
                if step is None:
                    await term.executor.steps.passed()
                else:
                    await self._do(step, term)

    def _situation(self, locks: list[Lock], gone_s: float) -> Situation:
        deciding, settings, ruling = self._deciding, self._deciding.settings(), self._ruling()
        return Situation(
            now_ms=deciding.wall_ms(),
            peers=deciding.membership.peers,
            table=deciding.table,
            locks=locks,
            least=lambda bundle: ruling.settings_of(bundle).quarantine_deaths,
            barred=lambda bundle: bool(ruling.quarantined(bundle)),
            choose=self._emptiest,
            retry_s=settings.quarantine_retry_s,
            window_s=settings.quarantine_window_s,
            gone_s=gone_s,
        )

    def _current_locks(self) -> list[Lock]:
        """The locks that leaders set; people's locks are left alone."""
        policies = self._deciding.policies()
        if self._locks is None or self._locks[0] is not policies:
            names = (bundle for bundle, policy in policies.bundles.items() if policy.quarantined)
            history = self._policies.documents.history
            found = [lock_of(bundle, history(key_of(Kind.BUNDLE, str(bundle)))) for bundle in names]
            self._locks = policies, [lock for lock in found if lock is not None]
        return self._locks[1]

    async def _do(self, step: TrialStep, term: Term) -> None:
        match step:
            case Give():
                verdict = await term.executor.give(step.bundle, step.seen, step.to, step.reason)
                if isinstance(verdict, Change):
                    self._journal.happened(What.TRIED, step.bundle, f"to {step.to}: {step.reason}")
            case LockUp():
                await self._write(step.bundle, step.why[:REASON_CHARACTERS], LOCKED, term)
                self._journal.happened(What.QUARANTINED, step.bundle, step.why)
            case LetGo():
                await self._write(step.bundle, "", step.why, term)
                self._journal.happened(What.LET_GO, step.bundle, step.why)
            case _:
                assert_never(step)

    async def _write(self, bundle: Bundle, text: str, reason: str, term: Term) -> None:
        def changed(policy: BundlePolicy) -> BundlePolicy:
            return msgspec.structs.replace(policy, quarantined=text)

        author = str(term.leadership.leader)
        await self._policies.change(Kind.BUNDLE, str(bundle), changed, author=author, reason=reason, force=True)
