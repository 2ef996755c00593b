"""The leader's rounds of a term, whole: decide, begin or propose moves, record what was decided.

A round asks the strategy once, begins what the limits allow, and begins more as room appears; if moves are reviewed, it
proposes a plan. Plans run beside the rounds, and old load data is removed. A failure ends no term: it is noted and
counted, and the next look continues. Decisions are recorded in the background, so a slow log delays no move.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec
from structlog.contextvars import bound_contextvars

from loadmanager.cluster.views import Views
from loadmanager.decisions.codec import kept_memory
from loadmanager.decisions.log import DecisionLog
from loadmanager.decisions.record import BEGUN, DecisionRecord, Outcome, id_of, record_of
from loadmanager.errors import Conflict
from loadmanager.leader.plans.plan import PROPOSAL_LIFE_MS, MoveStatus, Plan, PlanState
from loadmanager.leader.plans.proposals import Occasion, of_decision
from loadmanager.leader.plans.store import PlanStore
from loadmanager.leader.rebalancing.decider import Decider, StrategyFailed
from loadmanager.leader.rebalancing.limits import Deferred, Limits, UnderWay, allow
from loadmanager.leader.rebalancing.moves import HELD_BACK, Counts, MoveStarter, in_words
from loadmanager.leader.rebalancing.plan_runner import PlanRunner
from loadmanager.leader.service import Term
from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Move, Stage
from statechannel.errors import LogError
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.runtime.tasks import Blocking, failure_of, is_bug


class Round(msgspec.Struct, frozen=True):
    """A decision with its input, and the outcomes of its moves so far. `id` is `epoch.round`.

    `memory` is what the strategy was given. `model` is None if the round looked at nothing; `why_no_model` says why.
    """

    id: str
    at_ms: int
    settings: Settings
    policies: int
    decision: Decision
    model: ClusterModel | None = None
    memory: object = None
    why_no_model: str = ""
    outcomes: Mapping[Bundle, Outcome] = msgspec.field(default_factory=dict)
    held: tuple[Deferred, ...] = ()
    plan: str = ""
    """The id of the proposed plan, if moves are reviewed."""


NOTED_AT_ONCE = 20
IN_A_PLAN = "in a plan"
WAITS_FOR_APPROVAL = "waits for approval"
NOT_PROPOSED = "not proposed"
URGENT = frozenset({Stage.POLICY, Stage.DRAIN, Stage.OVERLOAD})
"""Stages for which another plan is proposed although one still waits."""
_log = logging.getLogger(__name__)

Outcomes = dict[Bundle, Outcome]


class Rounds:
    """The rounds of one term; `last` is the last one, with the outcomes of its moves so far."""

    def __init__(
        self,
        deciding: Decider,
        plans: PlanStore,
        starter: MoveStarter,
        counts: Counts,
        leader: str,
        note: Callable[[str], None],
    ) -> None:
        self.last: Round | None = None
        self._deciding = deciding
        self._plans = plans
        self._starter = starter
        self._counts = counts
        self._leader = leader
        self._note = note
        self._waiting: tuple[Move, ...] = ()
        """Moves of the last round that the limits held back."""
        self._seen: dict[Bundle, int] = {}
        """The revisions of bundles when the last round decided, to detect later changes."""

    async def next(self, round_id: str) -> Round:
        """Decide, and begin or propose moves. Raises what the channel and the topic of plans raise."""
        self._waiting = ()
        self._counts.rounds += 1
        self.last = this = await self._decide(round_id)
        if this.decision.moves:
            this = await (self._propose(this) if this.settings.balancing_review else self._begin_all(this))
            self.last = this
        return this

    async def begin_more(self) -> None:
        """Begin held-back moves that have room now; drop them if the settings no longer make such moves."""
        this, settings = self.last, self._deciding.settings()
        off = not settings.balancing or settings.balancing_review
        if this is None or off or this.settings.balancing_strategy != settings.balancing_strategy:
            self._waiting = ()
        elif self._waiting:
            outcomes, held = await self._begin(this, self._waiting)
            self.last = msgspec.structs.replace(this, outcomes={**this.outcomes, **outcomes}, held=held)

    # --- deciding

    async def _decide(self, round_id: str) -> Round:
        deciding = self._deciding
        settings, policies, memory = deciding.settings(), deciding.policies(), deciding.memory
        this = Round(round_id, deciding.wall_ms(), settings, policies.revision, Decision((), ""), memory=memory)

        def idle(why: str) -> Round:
            return msgspec.structs.replace(this, decision=Decision((), why), why_no_model=why)

        if not settings.balancing:
            return idle("the setting balancing is off")
        if policies.cluster.paused:
            why = f": {policies.cluster.reason}" if policies.cluster.reason else ""
            return idle(f"the cluster is paused{why}")
        this = msgspec.structs.replace(this, model=await deciding.model(settings))
        assert this.model is not None
        try:
            decision = await deciding.decide(this.model, settings)
        except Exception as error:  # noqa: BLE001 - a strategy comes from anywhere, and must not end the term
            _log.exception("the strategy %s failed", settings.balancing_strategy)
            self._counts.rounds_failed += 1
            why = f"the strategy {settings.balancing_strategy} failed: {error!r}"
            decision = Decision((), str(error) if isinstance(error, StrategyFailed) else why)
            self._note(decision.reason)
        return msgspec.structs.replace(this, decision=decision)

    # --- moving

    async def _begin_all(self, this: Round) -> Round:
        busy = self._in_plans(PlanState.RUNNING)
        outcomes = _in_a_plan(this, busy)
        entries = ((move.bundle, self._deciding.table.get(move.bundle)) for move in this.decision.moves)
        self._seen = {bundle: entry.revision for bundle, entry in entries if entry is not None}
        begun, held = await self._begin(this, [move for move in this.decision.moves if move.bundle not in outcomes])
        self._counts.held_back.update(each.rule.value for each in held)
        return msgspec.structs.replace(this, outcomes={**outcomes, **begun}, held=held)

    async def _begin(self, this: Round, moves: Sequence[Move]) -> tuple[Outcomes, tuple[Deferred, ...]]:
        deciding = self._deciding
        under_way = UnderWay(deciding.table.in_flight())
        allowed = allow(moves, under_way, Limits.of(deciding.settings()), deciding.policies())
        self._waiting = tuple(each.move for each in allowed.held)
        _remember(this, deciding, allowed.moves)
        outcomes = await self._starter.begin(allowed.moves, this.id, self._seen, this.policies)
        for noted, move in enumerate(allowed.moves, 1):
            if noted % NOTED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if outcomes[move.bundle].outcome == BEGUN:
                self._counts.moves[move.stage.value] += 1
                self._note(f"{in_words(move)}: {move.reason}")
        held = {each.move.bundle: Outcome(HELD_BACK, f"{each.rule}: {each.detail}") for each in allowed.held}
        return {**outcomes, **held}, allowed.held

    # --- reviewing

    async def _propose(self, this: Round) -> Round:
        """Propose a plan; while another one waits, only for urgent moves."""
        taken = {**self._turned_down(this), **self._in_plans()}
        outcomes = _in_a_plan(this, taken)
        new = [move for move in this.decision.moves if move.bundle not in outcomes]
        if self._in_plans():
            urgent = {move.group for move in new if move.stage in URGENT and move.group}
            new = [move for move in new if move.stage in URGENT or move.group in urgent]
        plan_id = next(iter(taken.values()), "")
        if new:
            try:
                plan = await self._add_plan(this, new)
            except (Conflict, LogError) as error:
                self._note(f"the moves of round {this.id} could not be proposed: {error}")
                outcomes |= {move.bundle: Outcome(NOT_PROPOSED, str(error)) for move in new}
            else:
                plan_id, planned = plan.id, {move.bundle for move in plan.moves}
                left_out = Outcome(NOT_PROPOSED, f"plan {plan.id} says why")
                proposed = Outcome(WAITS_FOR_APPROVAL, plan.id)
                outcomes |= {move.bundle: proposed if move.bundle in planned else left_out for move in new}
        later = Outcome(WAITS_FOR_APPROVAL, f"until {plan_id} is decided on")
        outcomes = {move.bundle: outcomes.get(move.bundle, later) for move in this.decision.moves}
        return msgspec.structs.replace(this, outcomes=outcomes, plan=plan_id)

    async def _add_plan(self, this: Round, moves: Sequence[Move]) -> Plan:
        assert this.model is not None
        decision = msgspec.structs.replace(this.decision, moves=tuple(moves))
        occasion = Occasion(self._plans.new_id(), self._leader, this.at_ms, cause=this.id)
        plan = of_decision(occasion, decision, this.model, this.settings, self._deciding.table)
        plan = msgspec.structs.replace(plan, policies=this.policies)
        await self._plans.add(plan)
        self._counts.plans += 1
        self._note(f"plan {plan.id} waits for approval: {len(plan.moves)} moves; see: loadmanager plans show {plan.id}")
        return plan

    def _turned_down(self, this: Round) -> dict[Bundle, str]:
        """Bundles whose move was rejected within the last hour, with that plan: do not ask again so soon."""
        rejected = {
            (move.bundle, move.destination): plan.id
            for plan in self._plans.all()
            if plan.state is PlanState.REJECTED and this.at_ms - plan.steps[-1].at_ms < PROPOSAL_LIFE_MS
            for move in plan.moves
        }
        moves = this.decision.moves
        return {m.bundle: rejected[m.bundle, m.destination] for m in moves if (m.bundle, m.destination) in rejected}

    def _in_plans(self, *states: PlanState) -> dict[Bundle, str]:
        """Bundles of open plans (in these states), with their plan; without moves that the plan has given up."""
        return {
            move.bundle: plan.id
            for plan in self._plans.open()
            if not states or plan.state in states
            for move, outcome in plan.pairs(self._plans.progress(plan))
            if outcome.status not in (MoveStatus.SKIPPED, MoveStatus.FAILED)
        }


def _in_a_plan(this: Round, plans: Mapping[Bundle, str]) -> Outcomes:
    """Outcomes for moves whose bundles are in these plans, and for the rest of their groups."""
    found = {
        move.bundle: Outcome(IN_A_PLAN, plans[move.bundle]) for move in this.decision.moves if move.bundle in plans
    }
    groups = {move.group: move.bundle for move in this.decision.moves if move.bundle in found and move.group}
    for move in this.decision.moves:
        if move.bundle not in found and move.group in groups:
            other = groups[move.group]
            found[move.bundle] = Outcome(IN_A_PLAN, f"only together with {other}, which is in plan {plans[other]}")
    return found


def _remember(this: Round, deciding: Decider, moves: Sequence[Move]) -> None:
    """Remember the loads of moving bundles: they show later whether a bundle's load has really changed."""
    if this.model is None or not moves:
        return
    bundles = this.model.bundles
    wanted = {move.bundle: move for move in moves if move.destination is not None}
    deciding.history.remember(
        (move.bundle, move.source, move.destination, tuple(map(float, bundles.load[row])))  # pyright: ignore[reportArgumentType]
        for row, bundle in enumerate(bundles.ids)
        if (move := wanted.get(bundle)) is not None
    )


LOOK_S = 0.5
"""The time between two looks at plans, and at moves that were held back."""


class Rebalancer:
    """Rebalances during a term; `decide` works at any time, at any broker.

    `decided` gets each round, and the seconds that it took; `fields_of` gives the fields of its log lines.
    """

    def __init__(
        self,
        deciding: Decider,
        views: Views,
        plans: PlanStore,
        decisions: DecisionLog,
        clock_s: Callable[[], float],
        note: Callable[[str], None],
        decided: Callable[[Round, float], None] = lambda _round, _took_s: None,
        fields_of: Callable[[str], Mapping[str, str]] = lambda cause: {"cause": cause},
    ) -> None:
        self._decided = decided
        self._fields_of = fields_of
        self.deciding = deciding
        self.plans = plans
        self.counts = Counts()
        self.rounds: Rounds | None = None
        """The rounds of the present term, or of this broker's last one."""
        self.running: PlanRunner | None = None
        """While this broker leads."""
        self.waiting: dict[str, str] = {}
        """Why plans with advice make no progress, by id; while this broker leads."""
        self._views = views
        self._decisions = decisions
        self._clock_s = clock_s
        self._note = note

    @property
    def last(self) -> Round | None:
        """The last round that this broker led."""
        return None if self.rounds is None else self.rounds.last

    async def decide(self) -> Decision:
        """What a round would do now; changes nothing, not even the memory.

        Raises ValueError for an unknown strategy, StrategyFailed, and what a foreign package raises when it is loaded.
        """
        settings = self.deciding.settings()
        return await self.deciding.would_decide(await self.deciding.model(settings), settings)

    async def rebalance(self, term: Term) -> None:
        """Run a round every `balancing_interval_s`, until cancelled."""
        leader = term.leadership.leader
        self.deciding.forget()
        starter = MoveStarter(self.deciding, term.executor)
        recorder = DecisionRecorder(self._decisions, self.counts, self._note, self.deciding.run_blocking)
        rounds = Rounds(self.deciding, self.plans, starter, self.counts, str(leader), self._note)
        running = PlanRunner(self.plans, self.deciding, starter, self.counts, str(leader), self._note)
        self.rounds, self.running = rounds, running
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(recorder.run(leader))
                await self._look_until_cancelled(term.leadership.epoch, rounds, running, recorder)
        finally:
            self.running = None

    async def _look_until_cancelled(
        self, epoch: int, rounds: Rounds, running: PlanRunner, recorder: DecisionRecorder
    ) -> None:
        number, last_s = 0, self._clock_s()
        while True:
            interval_s = self.deciding.settings().balancing_interval_s
            await asyncio.sleep(min(LOOK_S, interval_s))
            if self.deciding.membership.safe_mode(self._clock_s()) is not None:
                continue
            await self._survive("a look at the plans", running.tick())
            if self._clock_s() - last_s < interval_s:
                await self._survive("what was held back", rounds.begin_more())
            elif await self._loads_are_read():
                number, last_s = number + 1, self._clock_s()
                self.counts.last_round_s = last_s
                await self._survive("a round", self._round(id_of(epoch, number), rounds, recorder))

    async def _round(self, round_id: str, rounds: Rounds, recorder: DecisionRecorder) -> None:
        began_s = self._clock_s()
        with bound_contextvars(**self._fields_of(round_id)):
            done = await rounds.next(round_id)
        self._decided(done, self._clock_s() - began_s)
        recorder.keep(done)

    async def _loads_are_read(self) -> bool:
        """Remove old load data. Returns False if the rest is not read yet: then there is nothing to decide on."""
        if not (self._views.brokers.ready and self._views.bundles.ready):
            return False
        try:
            await self._views.sweep()
        except (LogError, TimeoutError):
            return False
        return True

    async def _survive(self, what: str, work: Awaitable[None]) -> None:
        if is_bug(await failure_of(what, work, self._note)):
            self.counts.rounds_failed += 1


WAITING_AT_MOST = 16
NOT_TRIED = Outcome("not tried")


class DecisionRecorder:
    """Records the rounds of one term, in order. Run `run()` beside them."""

    def __init__(
        self, decisions: DecisionLog, counts: Counts, note: Callable[[str], None], run_blocking: Blocking
    ) -> None:
        self._decisions = decisions
        self._counts = counts
        self._note = note
        self._run_blocking = run_blocking
        self._queue: asyncio.Queue[Round] = asyncio.Queue(WAITING_AT_MOST)

    def keep(self, this: Round) -> None:
        """Queue the round; drop it if the log is too far behind."""
        try:
            self._queue.put_nowait(this)
        except asyncio.QueueFull:
            self._lost(this, f"{WAITING_AT_MOST} records wait for the log")

    async def run(self, leader: BrokerId) -> None:
        """Append until cancelled."""
        while True:
            this = await self._queue.get()
            try:
                await self._decisions.append(await self._run_blocking(partial(_record, this, leader)))
            except Exception as error:  # noqa: BLE001 - nothing about a record may stop balancing
                self._lost(this, repr(error))

    def _lost(self, this: Round, why: str) -> None:
        self._counts.records_failed += 1
        self._note(f"the decision of round {this.id} was not recorded: {why}")


def _record(this: Round, leader: BrokerId) -> DecisionRecord:
    moves = this.decision.moves
    return record_of(
        this.id,
        leader,
        this.at_ms,
        this.decision,
        strategy=this.settings.balancing_strategy,
        settings=this.settings,
        model=this.model,
        memory=kept_memory(this.memory),
        policies_revision=this.policies,
        outcomes=[this.outcomes.get(move.bundle, NOT_TRIED) for move in moves],
        without_model=this.why_no_model,
    )
