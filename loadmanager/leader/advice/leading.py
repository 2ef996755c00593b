"""Wires the leader's work on advice when a term begins, and only then imports the modules for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from loadmanager.channel.operations import Operations
from loadmanager.cluster.dependencies import Dependencies
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.decisions.log import DecisionLog
from loadmanager.leader.rebalancing.rounds import Rebalancer
from loadmanager.leader.service import Term
from loadmanager.settings import Settings
from loadmanager.settings.live import LiveSettings
from statechannel.runtime.channel import Channel

if TYPE_CHECKING:
    from loadmanager.leader.advice.changes import Applier


class AdviceDependencies(Protocol):
    """What it uses of the process: a part of `loadmanager.broker.node.Node`."""

    live: LiveSettings
    world: Dependencies
    channel: Channel
    membership: Membership
    policies: PolicyStore
    decisions: DecisionLog

    @property
    def settings(self) -> Settings: ...

    def note(self, text: str) -> None: ...


async def follow_advice(deps: AdviceDependencies, rebalancer: Rebalancer, operations: Operations, term: Term) -> None:
    """Follow the cluster's advice, and undo withdrawn plans, until cancelled."""
    await deps.world.run_blocking(_import)
    from loadmanager.leader.advice.follower import Following, measured_rounds

    following = Following(
        rebalancer.plans,
        _appliers(deps, rebalancer, operations),
        partial(measured_rounds, deps.decisions),
        lambda: deps.settings,
        lambda: _held_up(deps),
        deps.world.wall_ms,
        str(term.leadership.leader),
        deps.note,
        rebalancer.counts,
        rebalancer.waiting,
    )
    try:
        await following.follow()
    finally:
        rebalancer.waiting.clear()


def _import() -> None:
    """Import the modules on a thread first, since that takes twenty milliseconds."""
    for name in ("changes", "follower"):
        import_module(f"loadmanager.leader.advice.{name}")


def _appliers(deps: AdviceDependencies, rebalancer: Rebalancer, operations: Operations) -> Mapping[str, Applier]:
    from loadmanager.leader.advice.changes import MovesApplier, SettingsApplier, SplitsApplier

    return {
        "settings": SettingsApplier(deps.live),
        "splits": SplitsApplier(deps.channel.table, operations, lambda: deps.settings),
        "moves": MovesApplier(rebalancer.plans, rebalancer.deciding),
    }


def _held_up(deps: AdviceDependencies) -> str:
    """Why no plan may begin now; empty if one may."""
    safe_mode = deps.membership.safe_mode(deps.world.clock_s())
    if safe_mode is not None:
        return safe_mode
    return "the cluster is paused" if deps.policies.current().cluster.paused else ""
