"""Decides what a round would do now: builds the model and asks the configured strategy. Begins nothing.

A new strategy is made when the setting changes. What it remembers from round to round is kept here, for one term. A
strategy may raise, answer nonsense, or never answer; the leader continues with a StrategyFailed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from loadmanager.cluster.fitness import Fitness
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.views import Views
from loadmanager.errors import Conflict
from loadmanager.model.cluster import ClusterModel
from loadmanager.model.observation import MoveHistory, Observed, cluster_model
from loadmanager.model.policies.model import Policies
from loadmanager.model.registration import Peer
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision
from loadmanager.strategies.rebalancing.strategy import Strategy, vetted
from loadmanager.strategies.registry import STRATEGIES
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.runtime.tasks import Blocking

ANSWER_S = 30.0
"""A million bundles take three seconds. A thread cannot be stopped: a slower answer is abandoned."""


class StrategyFailed(Conflict):
    """A strategy gave no answer that can be acted on."""


class Asking:
    """Asks strategies. An overdue one gets no other question until it has answered, as each occupies a thread."""

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
            answer.exception()  # retrieved, as perhaps no caller waits for it any more


def _question(
    name: str, strategy: Strategy, model: ClusterModel, settings: Settings, memory: object
) -> Callable[[], Decision]:
    def question() -> Decision:
        try:
            return vetted(strategy.decide(model, settings, memory), model)
        except BaseException as error:  # also StopIteration, which no future can carry, and an exit
            raise StrategyFailed(f"the strategy {name} failed: {error!r}") from error

    return question


T = TypeVar("T")

SHOWN_MS = 1_000


class Decider:
    """Decides for rounds and previews; calls `settings` and `policies` each time, since both change meanwhile."""

    def __init__(
        self,
        table: OwnershipTable,
        membership: Membership,
        views: Views,
        history: MoveHistory,
        settings: Callable[[], Settings],
        policies: Callable[[], Policies],
        wall_ms: Callable[[], int],
        run_blocking: Blocking,
        forbids: Callable[[Bundle, BrokerId], str],
        fitness: Fitness,
    ) -> None:
        self.table = table
        self.membership = membership
        self.history = history
        self.settings = settings
        self.policies = policies
        self.wall_ms = wall_ms
        self.forbids = forbids
        """The hard rule that keeps a bundle off a broker; empty if there is none."""
        self.fitness = fitness
        self._views = views
        self.run_blocking = run_blocking
        """Runs slow work off the loop."""
        self._asking = Asking(run_blocking)
        self._recent: tuple[ClusterModel, Settings, Policies] | None = None
        self._strategy: tuple[str, Strategy] | None = None
        self.memory: object = None
        """The memory that the strategy gets next."""

    def forget(self) -> None:
        """A new term begins."""
        self._strategy, self.memory = None, None

    async def model(self, settings: Settings | None = None, policies: Policies | None = None) -> ClusterModel:
        """The present cluster model of the brokers that take part and are fit, with these settings and policies.

        Raises Unavailable if the loads of bundles cannot be read.
        """
        await self._views.read_bundles()
        return await self._model_of_what_is_read(settings, policies)

    async def _model_of_what_is_read(self, settings: Settings | None, policies: Policies | None) -> ClusterModel:
        """The model, without bundles while their loads are not read.

        It is built off the loop, from a frozen copy of the table. A thousand brokers take a fifth of a second, and the
        loop also writes the proofs of ownership.
        """
        taking_part = [peer for peer in self.membership.peers.values() if self.takes_part(peer)]
        peers = tuple(self.fitness.open_of(taking_part))
        observed = Observed(
            peers=peers,
            loads=_of(peers, self._views.brokers),
            tops=_of(peers, self._views.bundles),
            table=self.table.frozen(),
            history=self.history,
            now_ms=self.wall_ms(),
            settings=settings or self.settings(),
            policies=policies or self.policies(),
        )
        found: ClusterModel = await self.run_blocking(lambda: cluster_model(observed))
        return found

    async def recent_model(self) -> ClusterModel:
        """As `model`, up to SHOWN_MS old: for readers, who may be many and ask often.

        While the log does not answer, it may lack bundles.
        """
        now_ms, settings, policies = self.wall_ms(), self.settings(), self.policies()
        at = self._recent
        if at is None or at[1] is not settings or at[2] is not policies or abs(now_ms - at[0].at_ms) > SHOWN_MS:
            await self._views.bundles.read(SHOWN_MS / 1000)
            at = self._recent = await self._model_of_what_is_read(settings, policies), settings, policies
        return at[0]

    async def decide(self, model: ClusterModel, settings: Settings) -> Decision:
        """The strategy's next decision; keeps its memory. Raises ValueError for an unknown name, StrategyFailed."""
        if self._strategy is None or self._strategy[0] != settings.balancing_strategy:
            self._strategy = (settings.balancing_strategy, STRATEGIES.make(settings.balancing_strategy))
            self.memory = None
        decision = await self._asking.ask(self._strategy[1], model, settings, self.memory)
        self.memory = decision.memory
        return decision

    async def would_decide(self, model: ClusterModel, settings: Settings) -> Decision:
        """As `decide`, but a preview: nothing is remembered. Raises the same."""
        same = self._strategy is not None and self._strategy[0] == settings.balancing_strategy
        memory = self.memory if same else None
        return await self._asking.ask(STRATEGIES.make(settings.balancing_strategy), model, settings, memory)

    def takes_part(self, peer: Peer) -> bool:
        """Whether a broker may give or take bundles."""
        return peer.broker not in self.membership.suspected and not peer.registration.behind

    def left_out(self) -> dict[str, str]:
        """The registered brokers that the model leaves out, and why."""
        peers, suspected = tuple(self.membership.peers.values()), self.membership.suspected
        open_to = {peer.broker for peer in self.fitness.open_of([peer for peer in peers if self.takes_part(peer)])}
        found = dict[str, str]()
        for peer in peers:
            if peer.registration.behind:
                found[peer.broker.name] = "it cannot read the log"
            elif peer.broker not in open_to:
                found[peer.broker.name] = suspected.get(peer.broker) or self.fitness.why(peer.broker)
        return found

    def taking(self, name: str) -> BrokerId | None:
        """The present incarnation of a broker that takes bundles now, None if it does not."""
        peer = self.membership.peers.get(name)
        return None if peer is None or self.drains(name) or not self.takes_part(peer) else peer.broker

    def drains(self, name: str) -> bool:
        """Whether a broker is draining on request."""
        peer, policy = self.membership.peers.get(name), self.policies().brokers.get(name)
        return (peer is not None and peer.registration.draining) or (policy is not None and policy.drain)


def _of(peers: Iterable[Peer], view: Mapping[str, T]) -> Mapping[str, T]:
    """A copy of the view's entries for these brokers, since the view goes on changing."""
    return {peer.broker.name: found for peer in peers if (found := view.get(peer.broker.name)) is not None}
