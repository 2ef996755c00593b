"""JSON schemas of policies: Pulsar's shapes for Pulsar's routes, and ours. Shapes only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Text = Annotated[str, StringConstraints(max_length=1_000)]
Texts = Annotated[list[Text], Field(max_length=1_000)]


# --- Pulsar's


class AutoFailover(BaseModel):
    """`min_limit`: the least number of primary brokers that must be there; `usage_threshold`: percent."""

    model_config = ConfigDict(extra="forbid")

    policy_type: Literal["min_available"] = "min_available"
    parameters: Mapping[Literal["min_limit", "usage_threshold"], str | float]


class IsolationData(BaseModel):
    """Pulsar's NamespaceIsolationData. `unload_scope` is taken and means nothing: only what is misplaced ever moves."""

    model_config = ConfigDict(extra="forbid")

    namespaces: Texts
    primary: Texts
    secondary: Texts = []
    auto_failover_policy: AutoFailover = AutoFailover(parameters={"min_limit": "1", "usage_threshold": "100"})
    unload_scope: Literal["all_matching", "none", "changed"] | None = None


class BrokerIsolationData(BaseModel):
    """Pulsar's BrokerNamespaceIsolationData: which namespaces policies bind to a broker."""

    brokerName: str  # noqa: N815 - Pulsar's names
    policyName: str | None = None  # noqa: N815
    isPrimary: bool = False  # noqa: N815
    namespaceRegex: list[str] = []  # noqa: N815


class FailureDomainData(BaseModel):
    """Pulsar's FailureDomain."""

    model_config = ConfigDict(extra="forbid")

    brokers: Texts


# --- ours


class PolicyShown(BaseModel):
    """One version of a document; `policy` is null in a version that deleted it. Its ETag is the version.

    Not `readable`: the asked broker cannot work with it, for its `defect`, and goes by `policy`, which was before.
    """

    kind: str
    name: str
    version: int
    policy: dict[str, Any] | None
    author: str
    at_ms: int
    reason: str
    readable: bool = True
    defect: str = ""


class PoliciesShown(BaseModel):
    """All that hold now. `revision` grows with each change of any."""

    revision: int
    policies: list[PolicyShown]


class PolicyMove(BaseModel):
    """A move that the next round would make, were the document so."""

    bundle: str
    source: str
    destination: str | None
    stage: str
    reason: str


class Misplaced(BaseModel):
    """A bundle that would have to leave its broker."""

    bundle: str
    broker: str


class Preview(BaseModel):
    """What a change of policies would do. `moves` are those of the next round, which the limits of a round bound;
    `misplaced_total` counts all that would have to move, `misplaced` lists the first thousand."""

    misplaced_total: int
    misplaced: list[Misplaced]
    moves: list[PolicyMove]
    reason: str


class PolicyWritten(BaseModel):
    """An accepted change, or with `dry_run` one that would be. `forced`: the rules that were overridden."""

    kind: str
    name: str
    version: int
    dry_run: bool = False
    notes: list[str] = []
    forced: list[str] = []
    preview: Preview | None = None
