"""An owner's splits and merges: looks at its bundles, splits hot ones, merges cold neighbours, and records it.

The channel shows the result of every split, also of those asked for elsewhere. Children inherit the load of their
parent. If the owner split by itself, it asks the leader to spread them. A new incarnation loses only the counts of hits
and since when bundles are cold. It counts again from zero, which only delays its next splits and merges.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec
from prometheus_client.metrics_core import Metric

from loadmanager.model.boundaries import NoCuts
from loadmanager.model.families import counter, counters, gauge, gauges
from loadmanager.model.host import BundleLoad, KeyRate
from loadmanager.model.policies.effective import Ruling
from loadmanager.model.policies.model import Policies
from loadmanager.settings import Settings
from loadmanager.settings.choices import Algorithm
from loadmanager.strategies.splitting.cuts import Bounds, Cuts, Inheritance, automatic_cuts, divide, estimated
from loadmanager.strategies.splitting.merging import (
    Cold,
    Merge,
    MergeDecision,
    MergeView,
    decide_merges,
    why_not_merged,
)
from loadmanager.strategies.splitting.splits import (
    Cause,
    Hot,
    Kept,
    Rule,
    SplitDecision,
    View,
    decide_splits,
    judge,
    worth_averaging,
)
from statechannel.errors import StateChannelError
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId, Record, Subject
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Refusal, Transition, Unknown
from statechannel.runtime.channel import Channel
from statechannel.runtime.tasks import Blocking

EVENTS_KEPT = 200


class What(StrEnum):
    """What happened."""

    SPLIT = "split"
    NOT_SPLIT = "not split"
    MERGED = "merged"
    NOT_MERGED = "not merged"
    SPREAD = "spread"
    KEPT = "kept"
    """A child of a split stays with its owner."""
    QUARANTINED = "quarantined"
    TRIED = "given out alone"
    """A locked bundle is tried again."""
    LET_GO = "let go"
    """Its lock has ended: it harms no broker any more."""


class Event(msgspec.Struct, frozen=True):
    """One event: its time by the wall clock, the bundle, and why in words."""

    at_ms: int
    what: What
    bundle: str
    why: str


class Journal:
    """The journal of one incarnation. `splits` counts by label and reason, as Pulsar's `SplitCounter` does."""

    def __init__(self, wall_ms: Callable[[], int], note: Callable[[str], None]) -> None:
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.splits: Counter[tuple[str, str]] = Counter()
        self.counts: Counter[What] = Counter()
        self.looks = 0
        self.looked_ms = 0
        self.idle = "the bundles were not looked at yet"
        """Why the last look decided nothing; empty if it did decide."""
        self.split_decision: SplitDecision | None = None
        self.merge_decision: MergeDecision | None = None
        self._wall_ms = wall_ms
        self._note = note

    def looked(self, splits: SplitDecision, merges: MergeDecision) -> None:
        """Keep the decisions of a look at all bundles."""
        self.looks += 1
        self.looked_ms = self._wall_ms()
        self.idle = ""
        self.split_decision, self.merge_decision = splits, merges

    def did_not_look(self, why: str) -> None:
        """A look was due, but could not decide anything."""
        self.looked_ms = self._wall_ms()
        self.idle = why
        self.split_decision = self.merge_decision = None

    def happened(self, what: What, bundle: object, why: str, *, quietly: bool = False) -> None:
        """Keep an event; unless `quietly`, also note it at once."""
        self.counts[what] += 1
        self.events.append(Event(self._wall_ms(), what, str(bundle), why))
        if not quietly:
            self._note(f"{bundle} {what}: {why}")


REPORTS_AWAITED = 3
"""For how many reports at least children keep their inherited load, so that the leader hears of it."""

KeysOf = Callable[[Bundle, str, BundleLoad], Awaitable[list[KeyRate] | NoCuts]]
"""Asks the service for a bundle's keys, from which cuts are chosen; see `loadmanager.broker.hooks`."""


class Loads(Protocol):
    """The measured loads of this broker's bundles; `LoadService` provides them."""

    @property
    def loads(self) -> Mapping[Bundle, BundleLoad]: ...

    def mean_of(self, bundle: Bundle) -> BundleLoad: ...

    async def means_of(self, bundles: Collection[Bundle]) -> Mapping[Bundle, BundleLoad]: ...


class Begun(msgspec.Struct, frozen=True):
    """A split that this owner asked for by itself."""

    hot: Hot
    cuts: Cuts
    keys: Sequence[KeyRate]


class Reshaper:
    """Run `run()` for one incarnation. `idle` says why nothing may be done now, empty if it may."""

    def __init__(
        self,
        me: BrokerId,
        channel: Channel,
        loads: Callable[[], Loads],
        settings: Callable[[], Settings],
        policies: Callable[[], Policies],
        keys_of: KeysOf,
        idle: Callable[[], str | None],
        clock_s: Callable[[], float],
        run_blocking: Blocking,
        journal: Journal,
    ) -> None:
        self._me = me
        self._channel = channel
        self._loads = loads
        self._settings = settings
        self._policies = policies
        self._keys_of = keys_of
        self._idle = idle
        self._clock_s = clock_s
        self._run_blocking = run_blocking
        self.journal = journal
        self._inheritance = Inheritance()
        self._measured: Collection[Bundle] = ()
        self._begun: dict[Bundle, Begun] = {}
        self._hits: Mapping[Bundle, int] = {}
        self._cold: Mapping[Bundle, Cold] = {}

    async def run(self) -> None:
        """Look every `split_interval_s`, until cancelled."""
        self._channel.listen(self._changed)
        try:
            while True:
                await asyncio.sleep(self._settings().split_interval_s)
                await self.look()
        finally:
            self._channel.unlisten(self._changed)

    # --- input of the load report

    def inherited(self, measured: Mapping[Bundle, BundleLoad]) -> Mapping[Bundle, BundleLoad]:
        """The measured loads; a young child has at least its inherited load."""
        self._measured = frozenset(measured)
        return self._inheritance.applied(measured, self._clock_s())

    def spread(self) -> tuple[Bundle, ...]:
        """The children that the leader is asked to find places for."""
        return self._inheritance.spread(self._clock_s())

    # --- looking

    async def look(self) -> None:
        """Judge every bundle of this broker, and begin the splits and merges that follow."""
        idle = self._idle() or ("" if self._settings().balancing else "the setting balancing is off")
        if idle:
            self._hits = {}
            self.journal.did_not_look(idle)
            return
        ruling, now_s = self._ruling(), self._clock_s()
        loads, hits, cold = self._loads().loads, self._hits, self._cold
        near = await self._run_blocking(lambda: worth_averaging(loads, ruling.settings_of, hits))
        judged = dict(loads) | dict(await self._loads().means_of(near))
        splitting = self._channel.table.in_state(State.SPLITTING)
        splits = await self._run_blocking(
            lambda: decide_splits(self._view(ruling, judged, splitting), ruling.settings_of, hits)
        )
        merges = await self._run_blocking(
            lambda: decide_merges(self._merge_view(ruling), ruling.settings_of, cold, now_s)
        )
        self._hits, self._cold = splits.hits, merges.cold
        self.journal.looked(splits, merges)
        hot: tuple[Hot, ...] = splits.splits
        await asyncio.gather(*(self._split(each, ruling) for each in hot))
        for merge in merges.merges:
            await self._merge(merge)

    def _ruling(self) -> Ruling:
        return Ruling(self._settings(), self._policies(), self._me.name)

    def _view(self, ruling: Ruling, loads: Mapping[Bundle, BundleLoad], splitting: Collection[Bundle]) -> View:
        """The input for splits; called on any thread, since it visits every held bundle."""
        return View(
            loads=loads,
            assigned={bundle for bundle in loads if self._at_rest(bundle) is not None},
            counts=self._counts(loads),
            splitting=splitting,
            left_alone=ruling.why_left_alone,
        )

    def _merge_view(self, ruling: Ruling) -> MergeView:
        """The input for merges; called on any thread."""
        held = [entry for bundle in self._loads().loads if (entry := self._at_rest(bundle)) is not None]
        return MergeView(
            tokens={entry.bundle: entry.token for entry in held},
            loads={bundle: load for bundle, load in self._loads().loads.items() if bundle in self._measured},
            counts=self._counts(entry.bundle for entry in held),
            left_alone=ruling.why_left_alone,
            policies=ruling.policies_of,
        )

    def _at_rest(self, bundle: Bundle) -> Ownership | None:
        entry = self._channel.table.get(bundle)
        return entry if entry is not None and entry.state is State.ASSIGNED and entry.holder == self._me else None

    def _counts(self, bundles: Iterable[Bundle]) -> dict[str, int]:
        table = self._channel.table
        names = {bundle.namespace for bundle in bundles}
        return {name: len(known.lower_bounds) for name in names if (known := table.namespace(name)) is not None}

    def explain(self, bundle: Bundle) -> tuple[str, str] | None:
        """Why a bundle of this broker is not split, and not merged, now; None if it is not held here."""
        loads = self._loads().loads
        if bundle not in loads:
            return None
        ruling = self._ruling()
        settings = ruling.settings_of(bundle)
        found = judge(
            self._view(
                ruling, {**loads, bundle: self._loads().mean_of(bundle)}, self._channel.table.in_state(State.SPLITTING)
            ),
            bundle,
            settings,
            self._hits.get(bundle, 0) + 1,
        )
        split = f"{found.rule}: {found.detail}" if isinstance(found, Kept) else f"at the next look: {found}"
        return split, why_not_merged(self._merge_view(ruling), bundle, settings, self._cold, self._clock_s())

    # --- doing

    async def _split(self, hot: Hot, ruling: Ruling) -> None:
        bundle, settings = hot.bundle, ruling.settings_of(hot.bundle)
        by_count = hot.measure.cause in (Cause.TOPICS, Cause.SESSIONS)
        keys = await self._keys_of(bundle, Algorithm.TOPIC_COUNT if by_count else Algorithm.LOAD, hot.load)
        cuts = automatic_cuts(hot, settings.split_algorithm, keys, Bounds.of(settings))
        entry = self._at_rest(bundle)
        if isinstance(cuts, NoCuts) or entry is None:
            why = cuts.reason if isinstance(cuts, NoCuts) else "it was moved meanwhile"
            self._failed(hot, f"{hot}; {why}")
            return
        known = estimated(bundle, hot.load) if isinstance(keys, NoCuts) else keys
        self._begun[bundle] = Begun(hot, cuts, known)
        reason = "; ".join(filter(None, (str(hot), f"{len(cuts.positions) + 1} parts by {cuts.algorithm}", cuts.why)))
        why = await self._publish(Action.SPLIT, [entry], reason, cuts.positions)
        if why:
            del self._begun[bundle]
            self._failed(hot, f"{hot}; {why}")

    async def _merge(self, merge: Merge) -> None:
        entries = [entry for bundle in merge.bundles if (entry := self._at_rest(bundle)) is not None]
        if len(entries) < len(merge.bundles):
            return  # the next look sees what changed
        why = await self._publish(Action.MERGE, entries, merge.reason)
        if why:
            self.journal.happened(What.NOT_MERGED, merge.whole, f"{merge.reason}; {why}")
        else:
            self.journal.happened(What.MERGED, merge.whole, merge.reason)

    async def _publish(
        self, action: Action, entries: Sequence[Ownership], reason: str, boundaries: tuple[int, ...] = ()
    ) -> str:
        """Publish; why the channel did not accept the record, empty if it did."""
        subjects = tuple(Subject(entry.bundle, entry.revision) for entry in entries)
        record = Record("", action, self._me, subjects=subjects, boundaries=boundaries, reason=reason, cause="load")
        try:
            verdict = await self._channel.publish(record)
        except StateChannelError as error:
            return str(error)
        match verdict:
            case Refusal() | Unknown():
                return f"the channel did not take it: {verdict.detail}"
            case _:
                return ""

    def _failed(self, hot: Hot, why: str) -> None:
        self.journal.splits["Failure", hot.measure.cause] += 1
        self.journal.happened(What.NOT_SPLIT, hot.bundle, why)

    # --- results

    def _changed(self, change: Change) -> None:
        if change.whole is not None:
            for bundle in change.bundles([*self._begun, *self._inheritance.bundles()]):
                self._inheritance.settle(bundle)
                self._begun.pop(bundle, None)
            return
        gone = [each for each in change.transitions if each.after is None]
        if change.record.action is Action.CREATE and gone:
            self._born(gone[0], [each.bundle for each in change.transitions if each.after is not None])
        for transition in change.transitions:
            before, after = transition.before, transition.after
            if after is None or after.holder != self._me:
                self._inheritance.settle(transition.bundle)
                self._begun.pop(transition.bundle, None)
            elif before is not None and before.state is State.SPLITTING and after.state is not State.SPLITTING:
                begun = self._begun.pop(transition.bundle, None)
                if begun is not None:
                    self._failed(begun.hot, f"{begun.hot}; {change.record.action}: {change.record.reason}")

    def _born(self, parent: Transition, children: Sequence[Bundle]) -> None:
        before = parent.before
        if before is None or before.holder != self._me:
            return
        bundle, begun = parent.bundle, self._begun.pop(parent.bundle, None)
        ruling = self._ruling()
        load = begun.hot.load if begun is not None else self._loads().loads.get(bundle, BundleLoad())
        keys = begun.keys if begun is not None else estimated(bundle, load)
        settings = ruling.settings
        self._inheritance.give(
            divide(load, sorted(children), keys),
            self._clock_s() + max(settings.load_window_s, REPORTS_AWAITED * settings.load_report_min_interval_s),
            spread=begun is not None,
        )
        cause = begun.hot.measure.cause if begun is not None else Cause.ADMIN
        why = f"{begun.hot}; by {begun.cuts.algorithm}" if begun is not None else "an administrator asked for it"
        if begun is not None and begun.cuts.why:
            why = f"{why}: {begun.cuts.why}"
        self.journal.splits["Success", cause] += 1
        self.journal.happened(What.SPLIT, bundle, f"into {len(children)} parts: {why}")


def splitting_metrics(journal: Journal, suspects: int, locked: int) -> Iterator[Metric]:
    """All metrics. `suspects` and `locked`: how many bundles there are of each now."""
    splits = {(end, cause.value): journal.splits[end, cause] for end in ("Success", "Failure") for cause in Cause}
    yield counters("splits", "Splits of this broker's bundles", ("result", "reason"), splits)
    yield counter("merges", "Merges that this broker began", journal.counts[What.MERGED])
    yield counter("children_spread", "Children of splits that this broker moved as leader", journal.counts[What.SPREAD])
    yield counter(
        "bundles_quarantined", "Bundles that this broker locked up as leader", journal.counts[What.QUARANTINED]
    )
    yield counter("bundles_tried", "Trials of locked bundles", journal.counts[What.TRIED])
    yield counter("bundles_let_go", "Locked bundles that it let go by itself", journal.counts[What.LET_GO])
    kept = journal.split_decision.counts if journal.split_decision is not None else {}
    stay = {rule.value: kept.get(rule, 0) for rule in Rule}
    yield gauges("bundles_not_split", "By the last look, by rule", "rule", stay)
    yield gauge("bundles_suspect", "Two or more brokers in a row were lost with them", suspects)
    yield gauge("bundles_locked", "In quarantine at present, by leaders and people", locked)
