"""What operators lay down about placement: one document a subject, each with a version of its own. Values only.

Documents are checked when they are written (`validation.py`); what they mean for a model is in `constraining.py`.
Names of brokers are advertised `host:port`s. Patterns are regular expressions that must match as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from statechannel.law.bundle import Bundle


class Kind(StrEnum):
    """What a document is about; its key in the topic is `kind/name`."""

    ISOLATION = "isolation"
    FAILURE_DOMAIN = "failure-domain"
    NAMESPACE = "namespace"
    BUNDLE = "bundle"
    BROKER = "broker"
    CLUSTER = "cluster"


class IsolationPolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Namespaces that match go to primary brokers, and to secondary ones while fewer than `min_available` primaries
    are there (live, not draining, below `usage_threshold_percent`). Namespaces under no policy go to brokers that no
    policy claims as primary (Pulsar's shared brokers). Name: of the policy."""

    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    min_available: int = 1
    usage_threshold_percent: float = 100.0


class FailureDomain(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Brokers that fail together; overrides what they registered themselves. Name: of the domain."""

    brokers: tuple[str, ...]


class NamespacePolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Name: `tenant/namespace`. None: as in the cluster."""

    anti_affinity_group: str = ""
    balancing: bool | None = None
    """False: its bundles are neither moved, split nor merged by themselves."""
    paused: bool = False
    """As `balancing=False`, for the time being (`pause` and `resume`)."""
    exclusive: bool = True
    """False: a broker that is cut off from everything goes on serving it; it may have two owners for that time."""
    eager: bool = False
    """True: the leader gives its bundles to brokers without a first lookup."""
    weight: float = 1.0
    settings: Mapping[str, float | int | str | bool] = msgspec.field(default_factory=dict)
    """Settings of the cluster that have another value here; see `validation.NAMESPACE_SETTINGS`."""


class BundlePolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Name: the bundle. It holds for the part of the ring, so a split's children have it too."""

    pin: str = ""
    """A broker's name: it goes there and stays there, as long as that broker lives. `*`: stays wherever it is."""
    exclude: tuple[str, ...] = ()
    """Brokers that it does not go to."""
    balancing: bool | None = None
    quarantined: str = ""
    """Why nobody may take it any more: brokers died of it. What a leader has written here it tries again, and ends, by
    itself (`leader/quarantine/trials.py`); what a person has written stays."""
    weight: float = 1.0
    settings: Mapping[str, float | int | str | bool] = msgspec.field(default_factory=dict)


class BrokerPolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Name: the broker. It outlives restarts of the broker, unlike what the broker says of itself."""

    drain: bool = False
    """It gives everything away and takes nothing."""
    paused: bool = False
    """Automatic decisions leave it alone: they move nothing to it nor from it."""
    max_bundles: int | None = None
    capacity: Mapping[str, float] = msgspec.field(default_factory=dict)
    """What it counts as, by resource (`cpu` in cores, `in_rate_bytes_s`, …); above what it declared itself."""


class ClusterPolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Name: `cluster`. There is one."""

    paused: bool = False
    """No automatic decision at all; unlike the setting `balancing` meant to be ended soon."""
    reason: str = ""


Policy = IsolationPolicy | FailureDomain | NamespacePolicy | BundlePolicy | BrokerPolicy | ClusterPolicy
CLUSTER = "cluster"

TYPES: Mapping[Kind, type[Policy]] = {
    Kind.ISOLATION: IsolationPolicy,
    Kind.FAILURE_DOMAIN: FailureDomain,
    Kind.NAMESPACE: NamespacePolicy,
    Kind.BUNDLE: BundlePolicy,
    Kind.BROKER: BrokerPolicy,
    Kind.CLUSTER: ClusterPolicy,
}


class Policies(msgspec.Struct, frozen=True):
    """All that hold at one moment, by name. `revision` grows with each accepted change of any."""

    isolation: Mapping[str, IsolationPolicy] = msgspec.field(default_factory=dict)
    failure_domains: Mapping[str, FailureDomain] = msgspec.field(default_factory=dict)
    namespaces: Mapping[str, NamespacePolicy] = msgspec.field(default_factory=dict)
    bundles: Mapping[Bundle, BundlePolicy] = msgspec.field(default_factory=dict)
    brokers: Mapping[str, BrokerPolicy] = msgspec.field(default_factory=dict)
    cluster: ClusterPolicy = ClusterPolicy()
    revision: int = -1


NO_POLICIES = Policies()
