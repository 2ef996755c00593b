"""Policies as documents: their keys and values in the topic, and the result of all documents together. Pure.

An unusable document (written by another release or by hand, past this release's checks) is not in force: its previous
version stays, if there was one. All brokers of a release decide this alike, from the document alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import cast

import msgspec

from loadmanager.model.policies.model import (
    CLUSTER,
    TYPES,
    AccessPolicy,
    BrokerPolicy,
    BundlePolicy,
    ClusterPolicy,
    FailureDomain,
    IsolationPolicy,
    Kind,
    NamespacePolicy,
    Policies,
    Policy,
)
from loadmanager.model.policies.validation import check_fields
from loadmanager.settings.removed import REMOVED
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle

KINDS: Mapping[type[Policy], Kind] = {kind_of: kind for kind, kind_of in TYPES.items()}


class Stored(msgspec.Struct, frozen=True):
    """A document's value in the topic."""

    kind: Kind
    policy: msgspec.Raw


def key_of(kind: Kind, name: str) -> str:
    """The document's key in the topic."""
    return f"{kind}/{name}"


def named(key: str) -> tuple[Kind, str]:
    """The inverse of `key_of`."""
    kind, _, name = key.partition("/")
    return Kind(kind), name


def fold(documents: Mapping[str, Policy], revision: int) -> Policies:
    """The documents, by kind and name. A document whose key and kind differ is ignored."""
    by_kind: dict[Kind, dict[str, Policy]] = {kind: {} for kind in Kind}
    bundles: dict[Bundle, BundlePolicy] = {}
    for key, policy in sorted(documents.items()):
        kind = KINDS[type(policy)]
        name = key.removeprefix(f"{kind}/")
        if isinstance(policy, BundlePolicy):
            with suppress(InvalidName):
                bundles[_bundle(name)] = policy
        elif name != key:
            by_kind[kind][name] = policy
    return Policies(
        isolation=cast("dict[str, IsolationPolicy]", by_kind[Kind.ISOLATION]),
        failure_domains=cast("dict[str, FailureDomain]", by_kind[Kind.FAILURE_DOMAIN]),
        namespaces=cast("dict[str, NamespacePolicy]", by_kind[Kind.NAMESPACE]),
        bundles=bundles,
        brokers=cast("dict[str, BrokerPolicy]", by_kind[Kind.BROKER]),
        cluster=cast("ClusterPolicy", by_kind[Kind.CLUSTER].get(CLUSTER, ClusterPolicy())),
        access=cast("dict[str, AccessPolicy]", by_kind[Kind.ACCESS]),
        revision=revision,
    )


_bundle = lru_cache(1 << 16)(Bundle.parse)
"""Cached: every change folds all documents again, but their names are parsed once."""


def decode(data: bytes) -> Policy:
    """The inverse of `encode`. Raises for unusable documents; the previous version then stays in force."""
    stored = msgspec.json.decode(data, type=Stored)
    policy = msgspec.json.decode(stored.policy, type=TYPES[stored.kind])
    if isinstance(policy, NamespacePolicy | BundlePolicy):  # an earlier release may have written more
        kept = {name: value for name, value in policy.settings.items() if name not in REMOVED}
        policy = msgspec.structs.replace(policy, settings=kept)
    check_fields(policy)
    return policy


def encode(policy: Policy) -> bytes:
    """The value of a document."""
    return msgspec.json.encode(Stored(KINDS[type(policy)], msgspec.Raw(msgspec.json.encode(policy))))
