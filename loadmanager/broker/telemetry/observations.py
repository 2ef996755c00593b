"""All that one process observes of itself: it outlives incarnations. Traces are made of it, if somebody wants them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from loadmanager.broker.telemetry.moves import MOVE_S, Move, Moves
from loadmanager.broker.telemetry.spans import (
    Span,
    hook_span,
    move_spans,
    plan_span,
    round_span,
    trace_of_cause,
    trace_of_move,
)
from loadmanager.broker.telemetry.turns import Turns
from loadmanager.leader.plans.plan import Plan, PlanState
from loadmanager.leader.plans.table import OPEN
from loadmanager.settings.documents.model import Version
from statechannel.law.bundle import Bundle
from statechannel.law.record import Record
from statechannel.runtime.durations import Durations

HOOKS = ("prepare", "acquire", "release", "abandon")


class Tracing(Protocol):
    """Takes spans, and counts what became of them."""

    exported: int
    dropped: int
    failed: int

    def offer(self, span: Span) -> None:
        """Take a span; never waits."""
        ...


class Observations:
    """Belongs to the control loop. `name` is the broker's; `clock_s` its own clock, `wall_ms` the wall's.

    `log` gives the identity of the log that it reads, from which the ids of traces are made.
    """

    def __init__(
        self, name: str, clock_s: Callable[[], float], wall_ms: Callable[[], int], log: Callable[[], str]
    ) -> None:
        self.moves = Moves(name, clock_s, wall_ms, self._move_ended)
        self.turns = Turns(clock_s)
        self.hooks = {(hook, result): Durations(MOVE_S) for hook in HOOKS for result in ("ok", "failed")}
        self.leading: Callable[[], bool] = lambda: False
        """Whether this broker leads: then it tells of plans."""
        self.tracing: Tracing | None = None
        """Where spans go; None: there are no traces."""
        self._roots: dict[str, str] = {}
        """By what moves of plans name as their cause: the round that proposed the plan."""
        self._name = name
        self._clock_s, self._wall_ms = clock_s, wall_ms
        self._log = log

    def hook_ended(self, hook: str, bundle: Bundle, took_s: float, well: bool) -> None:
        """A hook of the service returned, or failed."""
        self.hooks[hook, "ok" if well else "failed"].add(took_s)
        move = self.moves.of(bundle)
        if self.tracing is not None and move is not None:
            now_s = self._clock_s()
            root = self._root_of(move)
            self.tracing.offer(hook_span(self._log(), move, root, self._name, hook, now_s - took_s, now_s, well))

    def round_ended(self, cause: str, took_s: float, about: Mapping[str, str | int | float]) -> None:
        """This broker, as leader, made a decision that moves something."""
        if self.tracing is not None:
            now_s = self._clock_s()
            self.tracing.offer(round_span(self._log(), cause, now_s - took_s, now_s, about))

    def plan_changed(self, name: str, old: Version[Plan] | None, new: Version[Plan]) -> None:
        """There is another version of a plan."""
        before, plan, cause = old.value if old is not None else None, new.value, f"plan {name}"
        if plan is None:
            self._roots.pop(cause, None)
            return
        if plan.cause:
            self._roots[cause] = plan.cause
        over = before is not None and before.state in OPEN and plan.state not in OPEN
        if over and self.leading() and self.tracing is not None:
            age_s = (self._wall_ms() - plan.proposed_ms) / 1e3
            about = {"loadmanager.state": plan.state.value, "loadmanager.moves": len(plan.moves)}
            root, now_s = self._roots.get(cause, cause), self._clock_s()
            well = plan.state is not PlanState.FAILED
            self.tracing.offer(plan_span(self._log(), cause, root, now_s - age_s, now_s, about, well))

    def fields_of_hook(self, bundle: Bundle) -> dict[str, str]:
        """The fields of log lines while a hook for the bundle runs."""
        move, fields = self.moves.of(bundle), {"bundle": str(bundle)}
        if self.tracing is not None and move is not None:
            fields["trace"] = trace_of_move(self._log(), move, self._root_of(move))
        return fields

    def fields_of_round(self, cause: str) -> dict[str, str]:
        """The fields of log lines while a round decides."""
        return {"cause": cause} | ({} if self.tracing is None else {"trace": trace_of_cause(self._log(), cause)})

    def _move_ended(self, move: Move, last: Record) -> None:
        if self.tracing is not None and last.actor.name == self._name:
            for span in move_spans(self._log(), move, last, self._root_of(move)):
                self.tracing.offer(span)

    def _root_of(self, move: Move) -> str:
        return self._roots.get(move.begin.cause, move.begin.cause)
