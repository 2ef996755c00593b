"""JSON schemas of policies: Pulsar's shapes for Pulsar's routes, and ours. Shapes only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints

from loadmanager_api.json_types import STRICT

Text = Annotated[str, StringConstraints(max_length=1_000)]
Texts = Annotated[list[Text], Field(max_length=1_000)]


# --- Pulsar's


class AutoFailover(BaseModel):
    """When secondary brokers serve. `min_limit`: least count of primary brokers; `usage_threshold`: percent."""

    model_config = STRICT

    policy_type: Literal["min_available"] = "min_available"
    parameters: Mapping[Literal["min_limit", "usage_threshold"], str | float]


class IsolationData(BaseModel):
    """Pulsar's NamespaceIsolationData. `unload_scope` has no effect: only misplaced bundles ever move."""

    model_config = STRICT

    namespaces: Texts
    primary: Texts
    secondary: Texts = []
    auto_failover_policy: AutoFailover = AutoFailover(parameters={"min_limit": "1", "usage_threshold": "100"})
    unload_scope: Literal["all_matching", "none", "changed"] | None = None


class BrokerIsolationData(BaseModel):
    """Pulsar's BrokerNamespaceIsolationData: the namespaces that policies bind to a broker."""

    brokerName: str  # noqa: N815 - Pulsar's names
    policyName: str | None = None  # noqa: N815
    primary: bool = False
    namespaceRegex: list[str] = []  # noqa: N815


class FailureDomainData(BaseModel):
    """Pulsar's FailureDomain."""

    model_config = STRICT

    brokers: Texts


# --- ours


class PolicyShown(BaseModel):
    """One version of a document. `policy` is null in a version that deleted it. The ETag is the version.

    If `readable` is false, the asked broker cannot use this version, because of its `defect`; `policy` is then the
    version before, which stays in force.
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
    """Policies in force, by kind and name. `revision` grows with each change of any document. `next` is the `cursor` of
    the next page, null on the last one.
    """

    revision: int
    policies: list[PolicyShown]
    next: str | None


class PolicyMove(BaseModel):
    """A move that the next round would make if the document were in force."""

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
    """The effect of a change of policies.

    `moves` are those of the next round, within its limits. `misplaced_total` counts all bundles that would have to
    move; `misplaced` lists the first thousand.
    """

    misplaced_total: int
    misplaced: list[Misplaced]
    moves: list[PolicyMove]
    reason: str


class PolicyWritten(BaseModel):
    """An accepted change, or with `dry_run` one that would be accepted. `forced` lists overridden rules."""

    kind: str
    name: str
    version: int
    dry_run: bool = False
    notes: list[str] = []
    forced: list[str] = []
    preview: Preview | None = None
