"""One term's work on plans with advice, from approval to kept or undone; and on every plan that is to be undone.

Decides nothing itself: `core.py` chooses the next act and judges the result, appliers perform it. Each step is written
to the plan before and after the act. The next leader finds all it needs in the plan and in the changed object.

Rounds come from the decision log and are measured by one ruler, although leaders and settings changed in between. A
round without a decision (balancing is off or paused) does not count. If the round's model was kept, the spread is
recomputed with the ruler; else the recorded spread counts, if the weights were the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from loadmanager.decisions.log import DecisionLog
from loadmanager.decisions.record import DecisionRecord
from loadmanager.errors import Conflict, Invalid
from loadmanager.leader.advice.changes import Applier, Done, Lost, Obstacle, Waits
from loadmanager.leader.advice.core import (
    HARM_PERCENT,
    MIN_ROUNDS,
    Sample,
    Turn,
    advice_of,
    effect,
    measured,
    period,
    settling_ms,
    told,
    turn,
    waits_for,
)
from loadmanager.leader.plans.advice import (
    CLOCKS_APART_MS,
    Change,
    ChangeSettings,
    MoveBundles,
    Period,
    Ruler,
    as_number,
    check,
)
from loadmanager.leader.plans.plan import PieceOutcome, Plan, PlanState
from loadmanager.leader.plans.proposals import figures
from loadmanager.leader.plans.store import PlanStore
from loadmanager.leader.plans.table import UNDECIDED, UNDER_WAY, PlanAction
from loadmanager.leader.rebalancing.moves import Counts
from loadmanager.settings import Settings
from statechannel.runtime.tasks import failure_of, is_bug

Rounds = Callable[[int, int, Ruler], Awaitable[Sequence[Sample]]]
"""The rounds from one time to another, oldest first, measured by one ruler."""

LOOK_S = 0.5
AUTOMATIC = "advice_apply"
"""The author of a run that was not approved by a person: the setting."""
CLOCK_BEHIND_MS = 86_400_000
"""Data that end further ahead of a leader's clock than this are wrong by any clock."""
LOOKS = 20
"""How often rounds are counted within the measured time, if there are too few."""


class Following:
    """Follows the advice of plans in one term. `tick` is called again and again."""

    def __init__(
        self,
        store: PlanStore,
        appliers: Mapping[str, Applier],
        rounds: Rounds,
        settings: Callable[[], Settings],
        held_up: Callable[[], str],
        wall_ms: Callable[[], int],
        leader: str,
        note: Callable[[str], None],
        counts: Counts,
        waiting: dict[str, str],
    ) -> None:
        self.waiting = waiting
        """Why plans make no progress, by id; only this leader knows."""
        self._store = store
        self._appliers = appliers
        self._rounds = rounds
        self._settings = settings
        self._held_up = held_up
        self._wall_ms = wall_ms
        self._leader = leader
        self._note = note
        self._counts = counts
        self._looked_ms: dict[str, int] = {}

    async def follow(self) -> None:
        """Tick until cancelled. No failure here ends the term."""
        while True:
            await asyncio.sleep(LOOK_S)
            if is_bug(await failure_of("a look at advice", self.tick(), self._note)):
                self._counts.advice_failures += 1

    async def tick(self) -> None:
        """One look at all advice, and at most one act. Raises LogUnavailable."""
        plans = self._store.all()
        for gone in self.waiting.keys() - {plan.id for plan in plans}:
            del self.waiting[gone]
        late = {each.plan.id for each in self._turn(plans).endings if each.action is PlanAction.EXPIRE}
        ended: set[str] = set()
        for plan in plans:
            open_advice = plan.advice is not None and plan.state in UNDECIDED
            if open_advice and plan.id not in late and await self._is_obsolete(plan):
                ended.add(plan.id)
        # refused advice supersedes nothing, so refusals come first
        this = self._turn(self._store.all() if ended else plans)
        for ending in this.endings:
            if ending.plan.id not in ended:
                await self._advance(ending.plan, ending.action, self._leader, ending.reason)
                ended.add(ending.plan.id)
        for plan in (*this.under_way, *(each for each in plans if _is_taken_back(each))):
            await self._go_on(plan)
        for plan in this.next:
            if plan.id in ended:
                continue
            if this.under_way:
                self._waits(
                    plan, f"advice {this.under_way[0].id} is {this.under_way[0].state}: only one runs at a time"
                )
            elif await self._begin(plan):
                break
        for plan in this.forgotten:
            await self._store.delete(plan, self._leader)

    def _turn(self, plans: Sequence[Plan]) -> Turn:
        settings = self._settings()
        return turn(plans, self._wall_ms(), enabled=settings.advice_apply, review=settings.balancing_review)

    # --- beginning

    async def _is_obsolete(self, plan: Plan) -> bool:
        """Whether the plan can never run any more (then its end is written); else note why it waits."""
        now_ms, advice, settings = self._wall_ms(), advice_of(plan), self._settings()
        ahead_ms = advice.provenance.data_to_ms - now_ms
        found: Obstacle | None
        try:
            check(advice, settings.cluster, now_ms + (ahead_ms if 0 < ahead_ms <= CLOCK_BEHIND_MS else 0))
            found = self._obstacle(plan, now_ms)
        except Invalid as error:
            found = Obstacle(PlanAction.REFUSE, str(error))
        if found is not None and found.action is not None:
            await self._advance(plan, found.action, self._leader, found.reason)
            return True
        why = waits_for(plan, now_ms, enabled=settings.advice_apply, review=settings.balancing_review)
        self._waits(plan, why or ("" if found is None else found.reason))
        return False

    def _obstacle(self, plan: Plan, now_ms: int) -> Obstacle | None:
        """What prevents the plan from beginning. A leader whose clock is behind makes advice wait, never ends it."""
        ahead_ms = advice_of(plan).provenance.data_to_ms - now_ms
        if ahead_ms <= CLOCKS_APART_MS:
            return self._applier(plan).obstacle(plan)
        why = f"its data end {ahead_ms / 1000:.0f} s ahead of this leader's clock: correct the clocks"
        return Obstacle(None, why)

    async def _begin(self, plan: Plan) -> bool:
        """Write that the plan runs, then begin it; unless something prevents that."""
        settings = self._settings()
        now_ms, ruler = self._wall_ms(), ruler_of(settings, advice_of(plan).change)
        if self._is_held_up(plan, now_ms):
            return False
        measure_ms = round(settings.advice_measure_s * 1000)
        if not self._is_due(plan, now_ms, measure_ms):
            return False
        baseline = await self._measure(now_ms - measure_ms, now_ms, ruler)
        if not measured(baseline) and not _ahead(plan):
            self._waits(
                plan,
                f"{baseline.rounds} rounds of the last {measure_ms / 1000:g} s can be compared, {MIN_ROUNDS} are "
                "needed: a round counts if it looked at the cluster (balancing is on, nothing paused)",
            )
            return False
        # check again: reading the rounds took time, and something may have changed
        if self._is_held_up(plan, now_ms):
            return False
        before = self._applier(plan).noted(plan)  # first: the next line then reads what another leader has begun since
        await self._unchanged(plan)
        if any(each.advice is not None and each.state in UNDER_WAY for each in self._store.all()):
            return False
        approval = plan.steps[-1] if plan.state is PlanState.APPROVED else None
        author, reason = (AUTOMATIC, "") if approval is None else (approval.author, approval.reason)
        noted = {**before, "baseline": baseline, "ruler": ruler}
        begun = await self._advance(plan, PlanAction.RUN, author, reason, noted=noted)
        self._counts.advice["applied"] += 1
        await self._go_on(begun)
        return True

    def _is_held_up(self, plan: Plan, now_ms: int) -> bool:
        """Whether something prevents beginning now, and note why; `_is_obsolete` writes down what is final."""
        found = self._obstacle(plan, now_ms)
        why = self._held_up() or ("" if found is None else found.reason)
        self._waits(plan, why)
        return bool(why)

    # --- going on

    async def _go_on(self, plan: Plan) -> None:
        match plan.state:
            case PlanState.RUNNING:
                await self._apply(plan)
            case PlanState.MEASURING:
                await self._judge(plan)
            case PlanState.UNDOING:
                await self._undo(plan)
            case _:
                pass

    async def _apply(self, plan: Plan) -> None:
        await self._unchanged(plan)  # a leader that was stalled may have read this long ago
        match await self._applier(plan).apply(plan):
            case Done(detail, outcomes):
                await self._advance(plan, PlanAction.FINISH, self._leader, detail, outcomes)
            case Lost(action, reason):
                await self._advance(plan, action, self._leader, reason)
            case Waits(reason):
                self._waits(plan, reason)

    async def _judge(self, plan: Plan) -> None:
        baseline, ruler = plan.baseline, plan.ruler
        assert baseline is not None, "written when it was begun"
        assert ruler is not None, "written when it was begun"
        since = self._applier(plan).changed_since(plan)
        if since:
            await self._advance(plan, PlanAction.SUPERSEDE, self._leader, since)
            return
        now_ms, measure_ms = self._wall_ms(), baseline.end_ms - baseline.begin_ms
        begin_ms = _measured_from_ms(plan, measure_ms)
        left_ms = begin_ms + measure_ms - now_ms
        if left_ms > 0:
            self._waits(plan, f"its effect is measured for another {left_ms / 1000:.0f} s")
            return
        if not self._is_due(plan, now_ms, measure_ms):
            return
        found = await self._measure(begin_ms, begin_ms + measure_ms, ruler)
        if not measured(found):
            found = await self._measure(begin_ms, now_ms, ruler)
        if not measured(found):
            self._waits(plan, f"{found.rounds} rounds since then can be compared, {MIN_ROUNDS} are needed")
            return
        await self._conclude(plan, baseline, found)

    async def _conclude(self, plan: Plan, baseline: Period, found: Period) -> None:
        result = effect(advice_of(plan).expected, baseline, found, HARM_PERCENT, ahead=_ahead(plan))
        action = PlanAction.HARM if result.harm else PlanAction.KEEP
        plan = await self._advance(plan, action, self._leader, told(result), noted={"effect": result})
        self._counts.advice["harmed" if result.harm else "kept"] += 1
        await self._go_on(plan)

    async def _undo(self, plan: Plan) -> None:
        await self._unchanged(plan)
        match await self._applier(plan).undo(plan):
            case Done(detail):
                await self._advance(plan, PlanAction.UNDO, self._leader, detail)
                self._counts.advice["withdrawn"] += plan.advice is not None
            case Waits(reason):
                self._waits(plan, reason)

    # --- inside

    def _applier(self, plan: Plan) -> Applier:
        return self._appliers[plan.kind_of_change]

    async def _measure(self, begin_ms: int, end_ms: int, ruler: Ruler) -> Period:
        return period(await self._rounds(begin_ms, end_ms, ruler), begin_ms, end_ms, ruler.tolerance)

    def _is_due(self, plan: Plan, now_ms: int, measure_ms: int) -> bool:
        """Whether to read the rounds now. Each look would be too often: reading costs work and yields no new rounds.

        If the clock is set back, the plan is due at once.
        """
        last_ms = self._looked_ms.get(plan.id)
        if last_ms is not None and last_ms <= now_ms < last_ms + measure_ms // LOOKS:
            return False
        self._looked_ms[plan.id] = now_ms
        return True

    async def _unchanged(self, plan: Plan) -> None:
        """Read what others have written. Raises Conflict if the plan has changed.

        A leader writes a step down before it acts, so a reader that sees its act finds the step.
        """
        await self._store.refresh()
        now = self._store.get(plan.id)
        if now != plan:
            raise Conflict(f"plan {plan.id} is {now.state} meanwhile")

    async def _advance(
        self,
        plan: Plan,
        action: PlanAction,
        author: str,
        reason: str,
        outcomes: tuple[PieceOutcome, ...] = (),
        noted: Mapping[str, object] | None = None,
    ) -> Plan:
        """Write a step, if the plan is still as it was read. Raises Conflict."""
        after = await self._store.go_on(plan, action, author, reason, outcomes, noted)
        self.waiting.pop(plan.id, None)
        self._looked_ms.pop(plan.id, None)
        self._note(f"plan {plan.id} is {after.state}" + (f": {reason}" if reason else ""))
        return after

    def _waits(self, plan: Plan, why: str) -> None:
        if why:
            self.waiting[plan.id] = why


def _measured_from_ms(plan: Plan, measure_ms: int) -> int:
    """When the change has settled; for pre-moves not before their peak begins."""
    change, settled_ms = advice_of(plan).change, plan.steps[-1].at_ms + settling_ms(measure_ms)
    return max(settled_ms, change.not_after_ms) if isinstance(change, MoveBundles) else settled_ms


def _ahead(plan: Plan) -> bool:
    """Whether the plan is ahead of a predicted peak: then no earlier period can serve as a baseline."""
    return isinstance(advice_of(plan).change, MoveBundles)


def _is_taken_back(plan: Plan) -> bool:
    """Whether an operator has withdrawn a plan without advice."""
    return plan.advice is None and plan.state is PlanState.UNDOING


WEIGHTS = ("weight_cpu", "weight_memory", "weight_bandwidth", "weight_message_rate")


async def measured_rounds(decisions: DecisionLog, begin_ms: int, end_ms: int, ruler: Ruler) -> Sequence[Sample]:
    """The rounds of a period by the decision log, oldest first. Raises LogUnavailable."""
    found = await decisions.between(begin_ms, end_ms, partial(sample, ruler=ruler))
    return sorted(found, key=lambda each: each.at_ms)


def ruler_of(settings: Settings, change: Change) -> Ruler:
    """The present tolerance and weights; but advised weights, since such advice claims that they are the right ones."""
    weights: dict[str, float] = {name: getattr(settings, name) for name in WEIGHTS}
    if isinstance(change, ChangeSettings):
        weights |= {each.name: as_number(each.name, each.to) for each in change.changes if each.name in WEIGHTS}
    return Ruler(**weights, tolerance=settings.tolerance)


def sample(record: DecisionRecord, ruler: Ruler) -> Sample | None:
    """The sample of one round; None if it has none."""
    if not record.digest:
        return None
    weights = {name: getattr(ruler, name) for name in WEIGHTS}
    if record.model is not None:
        settings = Settings.model_construct(None, **weights)
        return Sample(record.at_ms, max(0.0, figures(record.model, settings, ()).spread))
    alike = all(record.settings.get(name) == weight for name, weight in weights.items())
    return Sample(record.at_ms, record.decision.spread_before) if alike else None
