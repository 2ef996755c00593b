"""An operator's actions on balance, at any broker: propose plans, take steps with them, pause and resume.

A bulk unload is a plan too, approved because an operator asked for it. So it has waves, progress, an end and a list of
failures, and outlives the leader that began it. A pause is a field of the subject's policy: it outlives leaders and
restarts, and keeps its author and reason. It stops rounds and running plans at once; moves under way finish.
Administrators can still move single bundles.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

import msgspec

from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.errors import Conflict, Invalid, LoadManagerError, NotFound
from loadmanager.leader.plans.plan import Plan
from loadmanager.leader.plans.proposals import (
    Occasion,
    figures,
    of_bundles,
    of_decision,
    running,
    undoing,
    verified,
)
from loadmanager.leader.plans.table import UNDOABLE, By, PlanAction
from loadmanager.leader.rebalancing.rounds import Rebalancer
from loadmanager.model.policies.model import (
    CLUSTER,
    BrokerPolicy,
    ClusterPolicy,
    Kind,
    NamespacePolicy,
    Policies,
    Policy,
)
from loadmanager.settings import TOLERANCES, Settings
from loadmanager.strategies.registry import STRATEGIES
from statechannel.law.record import BrokerId
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

DEFAULT_WAVE = 10


class Unload(msgspec.Struct, frozen=True):
    """Unload all bundles of either a namespace or a broker, `wave` at a time; without `to` lookups place them."""

    namespace: str | None = None
    broker: str | None = None
    to: str | None = None
    wave: int = DEFAULT_WAVE


class OperatorActions:
    """An operator's actions on plans, at one broker."""

    def __init__(self, rebalancer: Rebalancer) -> None:
        self._deciding = rebalancer.deciding
        self._plans = rebalancer.plans

    async def plan(self, plan_id: str) -> Plan:
        """The plan as it is now, whichever broker changed it last. Raises NotFound, LogUnavailable."""
        await self._plans.refresh()
        return self._plans.get(plan_id)

    # --- making plans

    async def propose(self, author: str, reason: str, overrides: Mapping[str, str | float]) -> Plan:
        """Propose what the strategy would do now; `overrides` may have `strategy` and `tolerance`.

        Raises Invalid, Conflict (nothing to do, with the reason), LogUnavailable.
        """
        deciding = self._deciding
        settings = _with(deciding.settings(), overrides)
        policies = deciding.policies()
        model = await deciding.model(settings)
        try:
            decision = await deciding.would_decide(model, settings)
        except LoadManagerError:
            raise
        except Exception as error:
            raise Conflict(f"the strategy {settings.balancing_strategy} failed: {error!r}") from error
        occasion = Occasion(self._plans.new_id(), author, deciding.wall_ms(), reason)
        plan = of_decision(occasion, decision, model, settings, deciding.table)
        return await self._plans.add(
            msgspec.structs.replace(plan, policies=policies.revision, settings=dict(overrides))
        )

    async def unload(self, what: Unload, author: str, reason: str, *, review: bool = False) -> Plan:
        """Unload a namespace or broker in waves, at once or with `review` after approval.

        Raises Invalid, NotFound, Conflict (nothing can go, or the destination takes nothing), LogUnavailable.
        """
        entries = self._entries(what)
        to = None if what.to is None else self._destination(what.to)
        why = reason or f"unload of {what.namespace or what.broker}"
        occasion = Occasion(self._plans.new_id(), author, self._deciding.wall_ms(), why)
        plan = of_bundles(occasion, entries, to, what.wave, self._deciding.forbids)
        return await self._plans.add(plan if review else running(plan, self._deciding.table, why))

    async def undo(self, plan_id: str, author: str, reason: str) -> Plan:
        """Propose a plan that undoes this one. Raises NotFound, Conflict, LogUnavailable."""
        plan = await self.plan(plan_id)
        if plan.state not in UNDOABLE:
            raise Conflict(f"plan {plan_id} is {plan.state}: only a plan that has run can be undone")
        if not plan.moves:
            raise Conflict(f"plan {plan_id} moved no bundle: to undo its {plan.kind_of_change}, withdraw it")
        self._plans.check_undoable(plan)
        occasion = Occasion(self._plans.new_id(), author, self._deciding.wall_ms(), reason)
        return await self._plans.add(undoing(occasion, plan, self._deciding.table, self._deciding.taking))

    # --- steps

    async def act(self, plan_id: str, action: PlanAction, author: str, reason: str) -> Plan:
        """Approve, reject, run, cancel or withdraw. Raises NotFound, Conflict (see `table.py`), LogUnavailable."""
        await self._plans.refresh()
        return await self._plans.act(plan_id, action, By.OPERATOR, author, reason)

    async def verify(self, plan_id: str, author: str) -> Plan:
        """Check the plan's present effect, and record it in the plan. Raises NotFound, Conflict, LogUnavailable."""
        plan, deciding = await self.plan(plan_id), self._deciding
        if not plan.outcomes:
            raise Conflict(f"plan {plan_id} is {plan.state}: there is nothing to verify until it has run to its end")
        if not plan.moves:
            raise Conflict(f"plan {plan_id} moved no bundle: its effect is measured, and shown in the plan")
        actual = figures(await deciding.model(), deciding.settings(), plan.predicted.usages)
        return await self._plans.verify(plan_id, author, verified(plan, deciding.table, deciding.wall_ms(), actual))

    def _entries(self, what: Unload) -> Iterable[Ownership]:
        table = self._deciding.table
        if (what.namespace is None) == (what.broker is None):
            raise Invalid("name either a namespace or a broker")
        if what.namespace is not None:
            known = table.namespace(what.namespace)
            if known is None or not known.exists:
                raise NotFound(f"there is no namespace {what.namespace}")
            return [entry for entry in known.entries if entry.state is not State.UNASSIGNED]
        holders = [holder for holder in table.holders() if holder.name == what.broker]
        if not holders and what.broker not in self._deciding.membership.peers:
            raise NotFound(f"there is no broker {what.broker}")
        held = (table.get(bundle) for holder in holders for bundle in table.held_by(holder))
        return [entry for entry in held if entry is not None]

    def _destination(self, name: str) -> BrokerId:
        if name not in self._deciding.membership.peers:
            known = ", ".join(sorted(self._deciding.membership.peers)) or "none"
            raise NotFound(f"there is no broker {name}; registered: {known}")
        found = self._deciding.taking(name)
        if found is None:
            raise Conflict(f"{name} takes no bundles now: it drains, cannot read the channel, or does not answer")
        return found


def _with(settings: Settings, overrides: Mapping[str, str | float]) -> Settings:
    """The settings with the overrides of one plan. Raises Invalid."""
    changed: dict[str, str | float] = {}
    strategy = overrides.get("strategy")
    if strategy is not None:
        if strategy not in STRATEGIES.names():
            raise Invalid(f"there is no strategy {strategy!r}; there are {', '.join(STRATEGIES.names())}")
        changed["balancing_strategy"] = strategy
    tolerance = overrides.get("tolerance")
    if tolerance is not None:
        named = isinstance(tolerance, str) and tolerance in TOLERANCES
        if not named and not (isinstance(tolerance, float | int) and 0 < tolerance <= 1):
            raise Invalid(f"{tolerance!r} is not a tolerance; write {', '.join(TOLERANCES)}, or a fraction up to 1")
        changed["balancing_tolerance"] = tolerance
    return settings.model_copy(update=changed)


class Subject(msgspec.Struct, frozen=True):
    """What to pause: a namespace, a broker, or (if neither is given) the cluster."""

    namespace: str | None = None
    broker: str | None = None

    @property
    def kind_and_name(self) -> tuple[Kind, str]:
        """Kind and name of its policy. Raises Invalid if both are given."""
        if self.namespace is not None and self.broker is not None:
            raise Invalid("pause a namespace or a broker, one at a time")
        if self.namespace is not None:
            return Kind.NAMESPACE, self.namespace
        return (Kind.BROKER, self.broker) if self.broker is not None else (Kind.CLUSTER, CLUSTER)


class Paused(msgspec.Struct, frozen=True):
    """All that is paused."""

    cluster: bool
    reason: str
    namespaces: tuple[str, ...]
    brokers: tuple[str, ...]


async def pause(store: PolicyStore, subject: Subject, author: str, reason: str) -> bool:
    """Pause. Returns True if that changed anything.

    Raises Invalid, NotFound (no such namespace), Conflict, LogUnavailable.
    """
    return await _set(store, subject, True, author, reason)


async def resume(store: PolicyStore, subject: Subject, author: str, reason: str) -> bool:
    """The inverse of `pause`."""
    return await _set(store, subject, False, author, reason)


async def _set(store: PolicyStore, subject: Subject, value: bool, author: str, reason: str) -> bool:
    kind, name = subject.kind_and_name
    await store.documents.catch_up()
    now = store.current()
    match kind:
        case Kind.NAMESPACE:
            before = now.namespaces.get(name, NamespacePolicy()).paused
        case Kind.BROKER:
            before = now.brokers.get(name, BrokerPolicy()).paused
        case _:
            before = now.cluster.paused
    if before == value:
        return False

    def changed(policy: Policy) -> Policy:
        if kind is Kind.CLUSTER:
            return msgspec.structs.replace(cast("ClusterPolicy", policy), paused=value, reason=reason if value else "")
        return msgspec.structs.replace(cast("NamespacePolicy | BrokerPolicy", policy), paused=value)

    why = reason or ("pause" if value else "resume")
    return await store.change(kind, name, changed, author=author, reason=why) is not None


def paused(policies: Policies) -> Paused:
    """What is paused now."""
    return Paused(
        policies.cluster.paused,
        policies.cluster.reason,
        tuple(sorted(name for name, policy in policies.namespaces.items() if policy.paused)),
        tuple(sorted(name for name, policy in policies.brokers.items() if policy.paused)),
    )
