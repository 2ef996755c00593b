"""Pause and resume the cluster, a namespace or a broker.

A pause is a field of the subject's policy: it outlives leaders and restarts, and keeps its author and reason. It stops
rounds and running plans at once; moves under way finish. Administrators can still move single bundles.
"""

from __future__ import annotations

from typing import cast

import msgspec

from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.errors import Invalid
from loadmanager.model.policies.model import (
    CLUSTER,
    BrokerPolicy,
    ClusterPolicy,
    Kind,
    NamespacePolicy,
    Policies,
    Policy,
)


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
    """Pause; whether that changed anything. Raises Invalid, NotFound (no such namespace), Conflict, LogUnavailable."""
    return await _set(store, subject, True, author, reason)


async def resume(store: PolicyStore, subject: Subject, author: str, reason: str) -> bool:
    """The inverse of `pause`."""
    return await _set(store, subject, False, author, reason)


async def _set(store: PolicyStore, subject: Subject, value: bool, author: str, reason: str) -> bool:
    kind, name = subject.kind_and_name
    await store.documents.catch_up()
    if _is_paused(store.current(), subject) == value:
        return False

    def changed(policy: Policy) -> Policy:
        if kind is Kind.CLUSTER:
            return msgspec.structs.replace(cast("ClusterPolicy", policy), paused=value, reason=reason if value else "")
        return msgspec.structs.replace(cast("NamespacePolicy | BrokerPolicy", policy), paused=value)

    why = reason or ("pause" if value else "resume")
    return await store.change(kind, name, changed, author=author, reason=why) is not None


def _is_paused(policies: Policies, subject: Subject) -> bool:
    if subject.namespace is not None:
        return policies.namespaces.get(subject.namespace, NamespacePolicy()).paused
    if subject.broker is not None:
        return policies.brokers.get(subject.broker, BrokerPolicy()).paused
    return policies.cluster.paused


def paused(policies: Policies) -> Paused:
    """What is paused now."""
    return Paused(
        policies.cluster.paused,
        policies.cluster.reason,
        tuple(sorted(name for name, policy in policies.namespaces.items() if policy.paused)),
        tuple(sorted(name for name, policy in policies.brokers.items() if policy.paused)),
    )
