"""Asks a strategy, which may raise, answer nonsense, or never answer; the leader continues with a StrategyFailed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from loadmanager.errors import Conflict
from loadmanager.model.cluster import ClusterModel
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.rebalancing.strategy import Strategy, vetted
from statechannel.runtime.tasks import Blocking

ANSWER_S = 30.0
"""A million bundles take three seconds. A thread cannot be stopped: a slower answer is abandoned."""


class StrategyFailed(Conflict):
    """A strategy gave no answer that can be acted on."""


class Asking:
    """Asks strategies; one that is overdue gets no other question until it has answered, as each occupies a thread."""

    def __init__(self, run_blocking: Blocking) -> None:
        self._run_blocking = run_blocking
        self._asked: set[asyncio.Future[Decision]] = set()
        self._overdue: dict[str, asyncio.Future[Decision]] = {}

    async def ask(self, strategy: Strategy, model: ClusterModel, settings: Settings, memory: object) -> Decision:
        """Its decision, with the moves that may be made. Raises StrategyFailed."""
        name = settings.balancing_strategy
        earlier = self._overdue.get(name)
        if earlier is not None and not earlier.done():
            raise StrategyFailed(
                f"the strategy {name} still works on an earlier question, for more than {ANSWER_S:g} s"
            )
        answer = asyncio.ensure_future(self._run_blocking(_question(name, strategy, model, settings, memory)))
        self._asked.add(answer)
        answer.add_done_callback(self._ended)
        await asyncio.wait({answer}, timeout=ANSWER_S)
        if not answer.done():
            self._overdue[name] = answer
            raise StrategyFailed(f"the strategy {name} has not answered within {ANSWER_S:g} s")
        return answer.result()

    def _ended(self, answer: asyncio.Future[Decision]) -> None:
        self._asked.discard(answer)
        if not answer.cancelled():
            answer.exception()  # retrieved, as perhaps nobody waits for it any more


def _question(
    name: str, strategy: Strategy, model: ClusterModel, settings: Settings, memory: object
) -> Callable[[], Decision]:
    def question() -> Decision:
        try:
            return vetted(strategy.decide(model, settings, memory), model)
        except BaseException as error:  # also StopIteration, which no future can carry, and an exit
            raise StrategyFailed(f"the strategy {name} failed: {error!r}") from error

    return question
