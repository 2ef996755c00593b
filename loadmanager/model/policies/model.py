"""The policies that operators write: one document for each subject, each with its own version. Values only.

`validation.py` checks documents when they are written; `constraints.py` applies them to a model. Names of brokers are
advertised `host:port`s. Patterns are regular expressions that must match as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from statechannel.law.bundle import Bundle


class Kind(StrEnum):
    """The subject of a document; its key in the topic is `kind/name`."""

    ISOLATION = "isolation"
    FAILURE_DOMAIN = "failure-domain"
    NAMESPACE = "namespace"
    BUNDLE = "bundle"
    BROKER = "broker"
    CLUSTER = "cluster"
    ACCESS = "access"


class AccessRole(StrEnum):
    """What a principal may do; each role may do what those before it may."""

    CLIENT = "client"
    """Look up owners."""
    VIEWER = "viewer"
    """Read everything."""
    OPERATOR = "operator"
    """Move, split and merge bundles; drain; run plans; pause."""
    ADMIN = "admin"
    """Create and delete namespaces, write policies and settings."""

    @property
    def rank(self) -> int:
        """1 for the role with the fewest rights."""
        return _RANKS[self]


_RANKS: Mapping[AccessRole, int] = {role: rank for rank, role in enumerate(AccessRole, 1)}


class IsolationPolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Matching namespaces go to primary brokers; to secondary ones too while too few primaries are available.

    That is: while fewer than `min_available` primaries are live, not draining and below `usage_threshold_percent`.
    Namespaces without a policy go to brokers that are no policy's primary (Pulsar's shared brokers). Name: of the
    policy.
    """

    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...] = ()
    min_available: int = 1
    usage_threshold_percent: float = 100.0


class FailureDomain(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Brokers that fail together; overrides what they registered. Name: of the domain."""

    brokers: tuple[str, ...]


class NamespacePolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Policy of a namespace. Name: `tenant/namespace`. None: as in the cluster."""

    anti_affinity_group: str = ""
    balancing: bool | None = None
    """False: its bundles are not moved, split or merged automatically."""
    paused: bool = False
    """As `balancing=False`, but temporary (`pause` and `resume`)."""
    exclusive: bool = True
    """False: a broker that is cut off from everything goes on serving it. It may then have two owners for a while."""
    eager: bool = False
    """True: the leader places its bundles without a first lookup."""
    weight: float = 1.0
    settings: Mapping[str, float | int | str | bool] = msgspec.field(default_factory=dict)
    """Cluster settings with another value here; see `overriding.NAMESPACE_SETTINGS`."""


class BundlePolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Policy of a bundle. Name: the bundle. It holds for the range, so the children of a split inherit it."""

    pin: str = ""
    """The broker where the bundle goes and stays while that broker lives. `*`: it stays where it is."""
    exclude: tuple[str, ...] = ()
    """Brokers that must not get the bundle."""
    balancing: bool | None = None
    quarantined: str = ""
    """Why no broker may take the bundle: brokers died with it.

    A leader retries and ends what a leader wrote here (`leader/quarantine/keeper.py`). A person's entry stays.
    """
    weight: float = 1.0
    settings: Mapping[str, float | int | str | bool] = msgspec.field(default_factory=dict)


class BrokerPolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Policy of a broker. Name: the broker. It outlives restarts, unlike what the broker declares itself."""

    drain: bool = False
    """The broker gives everything away and takes nothing."""
    paused: bool = False
    """Automatic decisions move nothing to or from the broker."""
    max_bundles: int | None = None
    capacity: Mapping[str, float] = msgspec.field(default_factory=dict)
    """Its capacity by resource (`cpu` in cores, `in_rate_bytes_s`, …); overrides what the broker declares."""


class ClusterPolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Policy of the cluster. Name: `cluster`; there is only one."""

    paused: bool = False
    """No automatic decisions; unlike the setting `balancing`, meant to end soon."""
    reason: str = ""


class AccessPolicy(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Gives principals a role in namespaces. Name: free."""

    role: AccessRole
    principals: tuple[str, ...]
    """Subjects of tokens, or names in client certificates; `*`: every authenticated principal."""
    namespaces: tuple[str, ...]
    """`tenant/namespace`, `tenant/*` for all of a tenant, or `*` for the whole cluster."""


Policy = IsolationPolicy | FailureDomain | NamespacePolicy | BundlePolicy | BrokerPolicy | ClusterPolicy | AccessPolicy
CLUSTER = "cluster"
EVERYWHERE = "*"
"""In an access policy: all namespaces, of the cluster or of a tenant; as a principal: everyone."""

TYPES: Mapping[Kind, type[Policy]] = {
    Kind.ISOLATION: IsolationPolicy,
    Kind.FAILURE_DOMAIN: FailureDomain,
    Kind.NAMESPACE: NamespacePolicy,
    Kind.BUNDLE: BundlePolicy,
    Kind.BROKER: BrokerPolicy,
    Kind.CLUSTER: ClusterPolicy,
    Kind.ACCESS: AccessPolicy,
}


class Policies(msgspec.Struct, frozen=True):
    """All policies at one moment, by name. `revision` grows with each accepted change of any of them."""

    isolation: Mapping[str, IsolationPolicy] = msgspec.field(default_factory=dict)
    failure_domains: Mapping[str, FailureDomain] = msgspec.field(default_factory=dict)
    namespaces: Mapping[str, NamespacePolicy] = msgspec.field(default_factory=dict)
    bundles: Mapping[Bundle, BundlePolicy] = msgspec.field(default_factory=dict)
    brokers: Mapping[str, BrokerPolicy] = msgspec.field(default_factory=dict)
    cluster: ClusterPolicy = ClusterPolicy()
    access: Mapping[str, AccessPolicy] = msgspec.field(default_factory=dict)
    revision: int = -1


NO_POLICIES = Policies()
