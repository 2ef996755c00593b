"""Isolation policies, failure domains and anti-affinity groups, at Pulsar's paths with Pulsar's bodies.

Unlike Pulsar's, setting an isolation policy unloads nothing by itself: the balancer moves what is misplaced, within its
limits. Patterns that are no regular expressions, and rules that no broker satisfies, are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, TypeVar

import msgspec
from fastapi import Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field, StringConstraints

from loadmanager.broker.node import Node
from loadmanager.errors import Conflict, Invalid
from loadmanager.model.policies.constraints import grouped
from loadmanager.model.policies.model import FailureDomain, IsolationPolicy, Kind, NamespacePolicy
from loadmanager.model.policies.patterns import matches_broker
from loadmanager_api.conditions import Conditions, When
from loadmanager_api.openapi import answers, body
from loadmanager_api.routes.pulsar.brokers import check_cluster
from loadmanager_api.routing import Acting, Author, ControlRouter, TheNode
from loadmanager_api.shapes import Body

Text = Annotated[str, StringConstraints(max_length=1_000)]

Texts = Annotated[list[Text], Field(max_length=1_000)]


class AutoFailover(Body):
    """When secondary brokers serve. `min_limit`: least count of primary brokers; `usage_threshold`: percent."""

    policy_type: Literal["min_available"] = "min_available"
    parameters: Mapping[Literal["min_limit", "usage_threshold"], str | float]


class IsolationData(Body):
    """Pulsar's NamespaceIsolationData. `unload_scope` has no effect: only misplaced bundles ever move."""

    namespaces: Texts
    primary: Texts
    secondary: Texts = Field([])
    auto_failover_policy: AutoFailover = AutoFailover(parameters={"min_limit": "1", "usage_threshold": "100"})
    unload_scope: Literal["all_matching", "none", "changed"] | None = None


class BrokerIsolationData(BaseModel):
    """Pulsar's BrokerNamespaceIsolationData: the namespaces that policies bind to a broker."""

    brokerName: str  # noqa: N815 - Pulsar's names
    policyName: str | None = None  # noqa: N815
    primary: bool = False
    namespaceRegex: list[str] = []  # noqa: N815


class FailureDomainData(Body):
    """Pulsar's FailureDomain."""

    brokers: Texts


router = ControlRouter(prefix="/admin/v2", tags=["policies"])

N = TypeVar("N", int, float)

first = ControlRouter(tags=["policies"])
"""Paths of Pulsar's first admin interface that its tools still use."""

GROUP_CHARACTERS = 200

Force = Annotated[bool, Query(description="accept it even if nothing satisfies the rule at present")]


# --- isolation


@router.get("/clusters/{cluster}/namespaceIsolationPolicies", responses=answers(404))
async def list_isolation_policies(node: TheNode, cluster: str) -> dict[str, IsolationData]:
    """List all isolation policies by name."""
    check_cluster(node, cluster)
    return {name: _data(policy) for name, policy in node.policies.current().isolation.items()}


@router.get("/clusters/{cluster}/namespaceIsolationPolicies/brokers", responses=answers(404))
async def list_isolated_brokers(node: TheNode, cluster: str) -> list[BrokerIsolationData]:
    """List each broker with the namespaces that policies bind to it."""
    check_cluster(node, cluster)
    return [_of_broker(node, name) for name in sorted(node.membership.peers)]


@router.get("/clusters/{cluster}/namespaceIsolationPolicies/brokers/{broker}", responses=answers(404))
async def show_isolated_broker(node: TheNode, cluster: str, broker: str) -> BrokerIsolationData:
    """Show the namespaces that policies bind to this broker."""
    check_cluster(node, cluster)
    return _of_broker(node, broker)


@router.get("/clusters/{cluster}/namespaceIsolationPolicies/{policy}", responses=answers(404, 409))
async def show_isolation_policy(node: TheNode, response: Response, cluster: str, policy: str) -> IsolationData:
    """Show one isolation policy. Its ETag begins with its version."""
    check_cluster(node, cluster)
    found = node.policies.get(Kind.ISOLATION, policy)
    response.headers["ETag"] = f'"{found.version}"'
    if not isinstance(found.value, IsolationPolicy):
        raise Conflict(f"isolation policy {policy!r} cannot be worked with: {found.defect}; replace or delete it")
    return _data(found.value)


@router.post(
    "/clusters/{cluster}/namespaceIsolationPolicies/{policy}", status_code=204, responses=answers(404, 409, 412)
)
async def set_isolation_policy(
    node: TheNode,
    acting: Acting,
    author: Author,
    when: When,
    cluster: str,
    policy: str,
    wanted: IsolationData,
    force: Force = False,
) -> None:
    """Set an isolation policy. 412 for a bad regular expression, 409 if nothing satisfies a rule.

    As in Pulsar, and unlike `PUT /v1/policies/isolation/…`, it may leave namespaces without any broker that are under
    no policy; the history says which.
    """
    check_cluster(node, cluster)
    seen = when.seen(None, node.policies.latest(Kind.ISOLATION, policy))
    await when.met(
        node.policies.put(Kind.ISOLATION, policy, _policy(wanted), seen=seen, author=author, force=force, strand=True)
    )


@router.delete(
    "/clusters/{cluster}/namespaceIsolationPolicies/{policy}", status_code=204, responses=answers(404, 409, 412)
)
async def delete_isolation_policy(
    node: TheNode, acting: Acting, author: Author, when: When, cluster: str, policy: str, force: Force = False
) -> None:
    """Delete an isolation policy. 409 if that leaves a namespace without any broker."""
    check_cluster(node, cluster)
    seen = when.seen(None, node.policies.latest(Kind.ISOLATION, policy))
    await when.met(node.policies.delete(Kind.ISOLATION, policy, seen=seen, author=author, force=force))


# --- failure domains


@router.get("/clusters/{cluster}/failureDomains", responses=answers(404))
async def list_failure_domains(node: TheNode, cluster: str) -> dict[str, FailureDomainData]:
    """List all failure domains by name."""
    check_cluster(node, cluster)
    domains = node.policies.current().failure_domains
    return {name: FailureDomainData(brokers=list(each.brokers)) for name, each in domains.items()}


@router.get("/clusters/{cluster}/failureDomains/{domain}", responses=answers(404, 409))
async def show_failure_domain(node: TheNode, response: Response, cluster: str, domain: str) -> FailureDomainData:
    """Show one failure domain. Its ETag begins with its version."""
    check_cluster(node, cluster)
    found = node.policies.get(Kind.FAILURE_DOMAIN, domain)
    response.headers["ETag"] = f'"{found.version}"'
    if not isinstance(found.value, FailureDomain):
        raise Conflict(f"failure domain {domain!r} cannot be worked with: {found.defect}; replace or delete it")
    return FailureDomainData(brokers=list(found.value.brokers))


@router.post("/clusters/{cluster}/failureDomains/{domain}", status_code=204, responses=answers(404, 409, 412))
async def set_failure_domain(
    node: TheNode,
    acting: Acting,
    author: Author,
    when: When,
    cluster: str,
    domain: str,
    wanted: FailureDomainData,
    force: Force = False,
) -> None:
    """Set the brokers of a failure domain. 409 if one of them is in another domain."""
    check_cluster(node, cluster)
    policy = FailureDomain(brokers=tuple(wanted.brokers))
    seen = when.seen(None, node.policies.latest(Kind.FAILURE_DOMAIN, domain))
    await when.met(node.policies.put(Kind.FAILURE_DOMAIN, domain, policy, seen=seen, author=author, force=force))


@router.delete("/clusters/{cluster}/failureDomains/{domain}", status_code=204, responses=answers(404, 412))
async def delete_failure_domain(
    node: TheNode, acting: Acting, author: Author, when: When, cluster: str, domain: str
) -> None:
    """Delete a failure domain. Its brokers are then in the domains that they registered themselves, if any."""
    check_cluster(node, cluster)
    seen = when.seen(None, node.policies.latest(Kind.FAILURE_DOMAIN, domain))
    await when.met(node.policies.delete(Kind.FAILURE_DOMAIN, domain, seen=seen, author=author))


# --- anti-affinity


async def _group(request: Request) -> str:
    text = (await request.body()).decode("utf-8", "replace").strip()
    if text.startswith('"'):
        try:
            text = msgspec.json.decode(text, type=str)
        except msgspec.DecodeError:
            raise Invalid("the group is not a JSON string") from None
    if not 1 <= len(text) <= GROUP_CHARACTERS:
        raise Invalid(f"the body is the name of the group, 1 to {GROUP_CHARACTERS} characters")
    return text


Group = Annotated[str, Depends(_group)]


@router.get("/namespaces/{tenant}/{namespace}/antiAffinity", response_class=PlainTextResponse, responses=answers(404))
async def show_anti_affinity(node: TheNode, acting: Acting, tenant: str, namespace: str) -> str:
    """Show the anti-affinity group of the namespace; empty if it is in none."""
    name = f"{tenant}/{namespace}"
    acting.operations.namespace(name)
    return grouped(node.policies.current().namespaces).get(name, "")


@router.post(
    "/namespaces/{tenant}/{namespace}/antiAffinity",
    status_code=204,
    responses=answers(404, 409, 412),
    openapi_extra=body({"type": "string", "minLength": 1, "maxLength": GROUP_CHARACTERS}),
)
async def set_anti_affinity(
    node: TheNode,
    acting: Acting,
    author: Author,
    when: When,
    tenant: str,
    namespace: str,
    group: Group,
) -> None:
    """Put the namespace into an anti-affinity group, and out of its former one.

    The body is a JSON string, or the bare name, as Pulsar's tools send it. `If-Match` is that of
    `/v1/policies/namespace/{tenant}/{namespace}`.
    """
    await _set_group(node, f"{tenant}/{namespace}", group, author, when)


@router.delete("/namespaces/{tenant}/{namespace}/antiAffinity", status_code=204, responses=answers(404, 409, 412))
async def delete_anti_affinity(
    node: TheNode, acting: Acting, author: Author, when: When, tenant: str, namespace: str
) -> None:
    """Take the namespace out of its anti-affinity group, if it is in one."""
    acting.operations.namespace(f"{tenant}/{namespace}")
    await _set_group(node, f"{tenant}/{namespace}", "", author, when)


@first.get("/admin/namespaces/{cluster}/antiAffinity/{group}", include_in_schema=False)  # as pulsar-admin asks
@router.get("/namespaces/{cluster}/antiAffinity/{group}", responses=answers(404))
async def list_anti_affinity(node: TheNode, cluster: str, group: str, tenant: str | None = None) -> list[str]:
    """List the namespaces of an anti-affinity group. The tenant that Pulsar's tools send is ignored."""
    check_cluster(node, cluster)
    groups = grouped(node.policies.current().namespaces)
    return sorted(name for name, its in groups.items() if its == group)


async def _set_group(node: Node, name: str, group: str, author: str, when: Conditions) -> None:
    def grouping(before: NamespacePolicy) -> NamespacePolicy:
        return msgspec.structs.replace(before, anti_affinity_group=group)

    seen = when.seen(None, node.policies.latest(Kind.NAMESPACE, name))
    await when.met(node.policies.change(Kind.NAMESPACE, name, grouping, seen=seen, author=author))


# --- shapes


def _data(policy: IsolationPolicy) -> IsolationData:
    return IsolationData(
        namespaces=list(policy.namespaces),
        primary=list(policy.primary),
        secondary=list(policy.secondary),
        auto_failover_policy=AutoFailover(
            parameters={
                "min_limit": str(policy.min_available),
                "usage_threshold": f"{policy.usage_threshold_percent:g}",
            }
        ),
    )


def _policy(data: IsolationData) -> IsolationPolicy:
    given = data.auto_failover_policy.parameters
    return IsolationPolicy(
        namespaces=tuple(data.namespaces),
        primary=tuple(data.primary),
        secondary=tuple(data.secondary),
        min_available=_number("min_limit", given.get("min_limit", 1), int),
        usage_threshold_percent=_number("usage_threshold", given.get("usage_threshold", 100), float),
    )


def _number(field: str, given: str | float, kind: Callable[[str | float], N]) -> N:
    try:
        number = kind(given)
    except (ValueError, OverflowError):
        raise Invalid(f"auto_failover_policy.parameters.{field}: {given!r} is not a number") from None
    if not isinstance(given, str) and number != given:
        raise Invalid(f"auto_failover_policy.parameters.{field}: {given!r} is not a whole number")
    return number


def _of_broker(node: Node, broker: str) -> BrokerIsolationData:
    found = BrokerIsolationData(brokerName=broker)
    for name, policy in node.policies.current().isolation.items():
        primary = matches_broker(policy.primary, broker)
        if primary or matches_broker(policy.secondary, broker):
            found.policyName, found.primary = name, found.primary or primary
            found.namespaceRegex += policy.namespaces
    return found
