"""Answers `explain`, `what-if` and the dry run: finds the situation in question, and calls the pure parts.

Needs only the log's topics; but what a leader would see now needs a living broker.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

import msgspec

from loadmanager.channel.replay_queue import ReplayQueue
from loadmanager.decisions.codec import BadDecision, kept_memory
from loadmanager.decisions.explaining.broker import BrokerAnswer, explain_broker
from loadmanager.decisions.explaining.bundle import BundleAnswer, explain_bundle
from loadmanager.decisions.explaining.situation import Situation, situation_of
from loadmanager.decisions.explaining.what_if import (
    Again,
    Edits,
    Preview,
    WhatIf,
    decide,
    decide_again,
    preview,
    what_if,
)
from loadmanager.decisions.explaining.whereabouts import ChannelReader
from loadmanager.decisions.log import DecisionLog
from loadmanager.decisions.record import NOTHING_KEPT, DecisionRecord, Summary
from loadmanager.errors import Gone, Invalid, NotFound
from loadmanager.model.policies.model import Policy
from loadmanager.strategies.rebalancing.decision import Decision
from statechannel.law.bundle import Bundle
from statechannel.runtime.tasks import Blocking

TRIALS_S = 8.0
"""The time limit for trying changes, per answer."""
LEFT_OUT_TOLD = 10
"""How many of the brokers that take no part the answer for a bundle names."""


class Live(Protocol):
    """What a living broker knows besides the log."""

    async def now(self) -> Situation:
        """The situation that a round would see now; it has no round."""
        ...

    def documents(self) -> Mapping[str, Policy]:
        """The policies in force, by `kind/name`."""
        ...

    def evidence(self, bundle: Bundle) -> tuple[str, ...]:
        """The evidence on a bundle with which brokers were lost; empty if there is none."""
        ...

    def left_out(self) -> Mapping[str, str]:
        """The registered brokers that no round moves anything from or to at present, and why."""
        ...


class Explainer:
    """Answers questions. `documents_at` gives the policies of a revision, None if they are not known.

    `run_blocking` runs slow work.
    """

    def __init__(
        self,
        decisions: DecisionLog,
        channel: ChannelReader,
        replays: ReplayQueue,
        documents_at: Callable[[int], Awaitable[Mapping[str, Policy] | None]],
        run_blocking: Blocking,
        live: Live | None = None,
    ) -> None:
        self.decisions = decisions
        self._channel = channel
        self._replays = replays
        self._documents_at = documents_at
        self._run_blocking = run_blocking
        self._live = live

    # --- each raises Unavailable, LogUnavailable, and what it says besides

    async def bundle(self, bundle: Bundle, at_ms: int | None = None, *, trying: bool = True) -> BundleAnswer:
        """Explain a bundle. Raises NotFound for one that never existed, Gone."""
        situation = await self.situation(at_ms)
        whereabouts = await self._channel.whereabouts(bundle, at_ms)
        if not whereabouts.exists and not whereabouts.events:
            raise NotFound(f"there {'was' if at_ms else 'is'} no bundle {bundle}, as far as the channel's log tells")
        until_s = time.monotonic() + TRIALS_S
        may_try = (lambda: time.monotonic() < until_s) if trying else None
        answer: BundleAnswer = await self._run(partial(explain_bundle, situation, bundle, whereabouts, may_try))
        if at_ms is not None or self._live is None:
            return answer
        left_out = [f"{name} is left out: {why}" for name, why in sorted(self._live.left_out().items())[:LEFT_OUT_TOLD]]
        return msgspec.structs.replace(answer, notes=(*answer.notes, *self._live.evidence(bundle), *left_out))

    async def broker(self, name: str, at_ms: int | None = None) -> BrokerAnswer:
        """Explain a broker. Raises NotFound for one that took no part, Gone."""
        situation = await self.situation(at_ms)
        found: BrokerAnswer | None = await self._run(partial(explain_broker, situation, name))
        why = self._live.left_out().get(name) if at_ms is None and self._live is not None else None
        if why is not None:
            why = f"{name} is left out: {why}"
            if found is None:
                return BrokerAnswer(broker=name, at_ms=situation.at_ms, answer=why)
            return msgspec.structs.replace(found, answer=f"{why}; {found.answer}")
        if found is None:
            known = ", ".join(list(situation.names)[:10]) or "none"
            raise NotFound(f"no broker {name} took part in that round; there are: {known}")
        return found

    async def what_if(self, edits: Edits, at_ms: int | None = None) -> WhatIf:
        """The decision if something were different. Raises Invalid, Conflict, Gone."""
        if at_ms is None and self._live is not None:
            situation, documents = await self._remembering(await self._live.now()), self._live.documents()
        else:
            situation = await self.situation(at_ms)
            documents = await self._documents_at(situation.policies_revision)
        return await self._run(partial(what_if, situation, edits, documents))

    async def preview(self) -> Preview:
        """The decision of a round now. Raises Invalid without a living broker, Conflict."""
        if self._live is None:
            raise Invalid("only a running broker knows what a round would do now: ask one, or see the last decision")
        return await self._run(partial(preview, await self._remembering(await self._live.now())))

    async def decision(self, decision_id: str) -> DecisionRecord:
        """A recorded decision. Raises Invalid for an invalid id, NotFound."""
        try:
            found = await self.decisions.get(decision_id)
        except ValueError as error:
            raise Invalid(str(error)) from None
        if found is None:
            raise NotFound(
                f"there is no decision {decision_id}, or it is older than the week for which decisions are kept"
            )
        return found.record

    async def decide_again(self, decision_id: str) -> Again:
        """Whether a recorded decision is reproduced. Raises what `decision` raises."""
        return await self._run(partial(decide_again, await self.decision(decision_id)))

    async def listed(self, count: int, before: int | None) -> list[Summary]:
        """The newest decisions, newest first."""
        return await self.decisions.newest(count, before)

    async def situation(self, at_ms: int | None) -> Situation:
        """The situation of the last round at or before a time; without one what a round would see now. Raises Gone."""
        found = await self.decisions.at(2**53 if at_ms is None else at_ms)
        if found is not None:
            return await self._with_a_model(situation_of(found.record), at_ms)
        if at_ms is None and self._live is not None:
            return await self._live.now()
        raise Gone(
            "no decision is recorded at or before that time: it is older than the week for which decisions are kept, "
            "or there was no leader yet"
        )

    async def _with_a_model(self, situation: Situation, at_ms: int | None) -> Situation:
        """If the round has no model, use another: the present one, or that of the last round before that has one."""
        if situation.model is not None:
            return situation
        if at_ms is None and self._live is not None:
            now = await self._live.now()
            return msgspec.structs.replace(situation, model=now.model, settings=now.settings)
        found = await self.decisions.with_model(situation.at_ms if at_ms is None else at_ms)
        if found is None:
            return situation
        return msgspec.structs.replace(situation, model=found.record.model, model_of=found.record.id)

    async def _remembering(self, now: Situation) -> Situation:
        """The situation with the strategy's memory, if it has any and this broker does not lead.

        The memory is reproduced from the last round.
        """
        if now.memory != NOTHING_KEPT:
            return now
        found = await self.decisions.at(2**53)
        if found is None or found.record.strategy != now.strategy or found.record.model is None:
            return now
        try:
            again: Decision = await self._run(partial(decide, situation_of(found.record)))
        except BadDecision:
            return now
        return msgspec.structs.replace(now, memory=kept_memory(again.memory))

    async def _run(self, work: Callable[[], Any]) -> Any:
        """Run one such task at a time, since each may use a processor for seconds. Raises Unavailable."""
        async with self._replays.turn():
            return await self._run_blocking(work)
