"""`/admin/v2/brokers`, `clusters`, `tenants`, `broker-stats` and `resource-quotas`, as Pulsar's tools ask for them, as
far as they mean something here.

`broker-stats load-report` is answered, too, which Pulsar's extensible manager cannot do. Tenants are not stored: one
exists as long as it has a namespace. So creating one succeeds without effect, and one that still has namespaces cannot
be deleted.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from fastapi import Query, Request
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel

from loadmanager.broker.node import Node
from loadmanager.broker.wiring import coordination_address
from loadmanager.diagnostics.redaction import redact_text
from loadmanager.errors import Conflict, NotFound, Unavailable
from loadmanager.model.load import BrokerLoadData
from loadmanager.model.policies.patterns import matches_broker, matches_namespace
from loadmanager.model.registration import VERSION
from loadmanager_api.http.probes import check_health, check_live, check_ready
from loadmanager_api.openapi import answers
from loadmanager_api.routes.brokers import load_fields
from loadmanager_api.routing import Acting, AnyNode, ControlRouter, TheNode, leader_of, no_broker, on_http_loop
from loadmanager_api.state import kept
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle, Key, check_namespace


class BrokerInfo(BaseModel):
    """Pulsar's answer for the leader."""

    serviceUrl: str  # noqa: N815
    brokerId: str  # noqa: N815


class TenantInfo(BaseModel):
    """Pulsar's description of a tenant; none of it is stored here."""

    allowedClusters: list[str]  # noqa: N815
    adminRoles: list[str] = []  # noqa: N815


class OwnedBundle(BaseModel):
    """Pulsar's NamespaceOwnershipStatus; `broker_assignment`: shared, or by an isolation policy primary, secondary."""

    broker_assignment: str
    is_controlled: bool
    is_active: bool = True


class InternalConfiguration(BaseModel):
    """Pulsar's InternalConfigurationData: where the coordination service is. There are no ledgers."""

    zookeeperServers: str  # noqa: N815
    configurationStoreServers: str  # noqa: N815
    metadataStoreUrl: str  # noqa: N815
    configurationMetadataStoreUrl: str  # noqa: N815
    ledgersRootPath: str = ""  # noqa: N815


class ClusterData(BaseModel):
    """Pulsar's ClusterData: the addresses of the asked broker stand for those of the cluster."""

    serviceUrl: str  # noqa: N815
    brokerServiceUrl: str  # noqa: N815
    brokerClientTlsEnabled: bool  # noqa: N815


class ResourceQuota(BaseModel):
    """Pulsar's ResourceQuota. Nothing is limited by it: it is the mean load of this broker's bundles, as measured."""

    msgRateIn: float  # noqa: N815
    msgRateOut: float  # noqa: N815
    bandwidthIn: float  # noqa: N815
    bandwidthOut: float  # noqa: N815
    memory: float = 0.0
    dynamic: bool = True


class Monitored(BaseModel):
    """Pulsar's Metrics: the metrics that have the same labels. null: there is nothing to measure."""

    metrics: dict[str, float | None]
    dimensions: dict[str, str]


router = ControlRouter(prefix="/admin/v2", tags=["brokers"])


# --- brokers


@router.get("/brokers/internal-configuration")
async def internal_configuration(node: TheNode) -> InternalConfiguration:
    """Show where the coordination service is, without credentials."""
    address = redact_text(coordination_address(node.settings))
    return InternalConfiguration(
        zookeeperServers=address,
        configurationStoreServers=address,
        metadataStoreUrl=address,
        configurationMetadataStoreUrl=address,
    )


@router.post("/brokers/shutdown", status_code=204)
async def shut_down(
    request: Request,
    node: TheNode,
    acting: Acting,
    most: Annotated[int, Query(alias="maxConcurrentUnloadPerSec", ge=0, description="ignored")] = 0,
    forced: Annotated[bool, Query(alias="forcedTerminateTopic", description="ignored")] = True,
) -> None:
    """Drain this broker: all its bundles move away, and it takes no more. Its process ends where it was started."""
    kept(request).draining.begin(node.settings.drain_timeout_s)


@router.get("/brokers/{cluster}/{broker}/ownedNamespaces", responses=answers(404))
async def owned_bundles(node: TheNode, cluster: str, broker: str) -> dict[str, OwnedBundle]:
    """List the bundles of a broker. `broker_assignment` is primary or secondary where an isolation policy says so."""
    check_cluster(node, cluster)
    if broker not in node.membership.peers:
        raise NotFound(no_broker(node, broker))
    held = await bundles_of(node, broker)
    statuses = {namespace: _status(node, namespace, broker) for namespace in {bundle.namespace for bundle in held}}
    return {str(bundle): statuses[bundle.namespace] for bundle in held}


def _status(node: Node, namespace: str, broker: str) -> OwnedBundle:
    for policy in node.policies.current().isolation.values():
        if matches_namespace(policy.namespaces, namespace):
            primary = matches_broker(policy.primary, broker)
            return OwnedBundle(broker_assignment="primary" if primary else "secondary", is_controlled=True)
    return OwnedBundle(broker_assignment="shared", is_controlled=False)


async def bundles_of(node: Node, broker: str) -> list[Bundle]:
    """The bundles that a broker holds, by name; in steps, since they may be many."""
    table = node.channel.table
    holders = {holder for holder in table.holders() if holder.name == broker}
    found: list[Bundle] = []
    names = sorted({name for holder in holders for name in table.namespaces_of(holder)})
    for _, entries in table.walk(names, holders):
        found += [entry.bundle for entry in entries]
        await asyncio.sleep(0)
    return sorted(found)


# --- clusters


@router.get("/clusters")
async def list_clusters(node: TheNode) -> list[str]:
    """List the only cluster that is known here."""
    return [node.settings.cluster]


@router.get("/clusters/{cluster}", responses=answers(404))
async def show_cluster(node: TheNode, cluster: str) -> ClusterData:
    """Show the addresses of this cluster: those of the asked broker."""
    check_cluster(node, cluster)
    registration = node.registration
    service = registration.urls.get("pulsar", "") or registration.urls.get("http", "")
    return ClusterData(
        serviceUrl=registration.admin_url,
        brokerServiceUrl=service,
        brokerClientTlsEnabled=registration.admin_url.startswith("https:"),
    )


def check_cluster(node: Node, cluster: str) -> None:
    """Raise NotFound unless this is the cluster's name."""
    if cluster != node.settings.cluster:
        raise NotFound(f"this is cluster {node.settings.cluster!r}; nothing is known here of {cluster!r}")


# --- statistics of this broker


@router.get("/broker-stats/load-report")
async def load_report(node: TheNode) -> dict[str, Any]:
    """Show this broker's last load report, and the loads of its hottest bundles by name."""
    load = _load_of(node)
    name = node.settings.advertised
    own = node.incarnation.load.current if node.incarnation else None
    return {
        "name": name,
        "brokerVersionString": node.registration.version,
        "webServiceUrl": node.registration.admin_url,
        "pulsarServiceUrl": node.registration.urls.get("pulsar", ""),
        "lastUpdate": load.sampled_ms,
        "cpu": {"usage": load.cpu_percent, "limit": 100.0},
        "memory": {"usage": load.memory_percent, "limit": 100.0},
        "msgRateIn": load.in_rate_msg_s,
        "msgRateOut": load.out_rate_msg_s,
        "msgThroughputIn": load.in_rate_bytes_s,
        "msgThroughputOut": load.out_rate_bytes_s,
        "numTopics": load.keys,
        "numBundles": load.bundles,
        "bundles": [str(bundle) for bundle in await bundles_of(node, name)],
        "lastStats": {str(each.bundle): msgspec.to_builtins(each.load) for each in (own.top.bundles if own else ())},
        "report": load_fields(load),
    }


@router.get("/broker-stats/topics")
async def topic_stats(acting: Acting) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
    """Show the hottest keys of this broker's bundles, each with its rate: by namespace, bundle and domain."""
    found: dict[str, dict[str, dict[str, dict[str, Any]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for loaded, load in acting.load.loads.items():
        for key, rate_msg_s in load.hottest_keys:
            with suppress(InvalidName):  # services write what they like
                topic = Key.parse(key).full_name
                domain = found[loaded.namespace][loaded.range][topic.partition("://")[0]]
                domain[topic] = {"msgRate": rate_msg_s}
    return found


@router.get("/broker-stats/metrics")
async def monitoring_metrics(request: Request) -> list[Monitored]:
    """Answer this broker's metrics as JSON; `/metrics` has them for Prometheus."""
    by_labels: dict[tuple[tuple[str, str], ...], dict[str, float | None]] = defaultdict(dict)
    for family in (await kept(request).metrics.scraped()).collect():
        for sample in family.samples:
            by_labels[tuple(sorted(sample.labels.items()))][sample.name] = sample.value
    return [Monitored(metrics=metrics, dimensions=dict(labels)) for labels, metrics in by_labels.items()]


@router.get("/resource-quotas")
async def resource_quota(node: TheNode) -> ResourceQuota:
    """Show the mean load of this broker's bundles, as measured: there are no quotas here."""
    load = _load_of(node)
    count = max(1, load.bundles)
    return ResourceQuota(
        msgRateIn=load.in_rate_msg_s / count,
        msgRateOut=load.out_rate_msg_s / count,
        bandwidthIn=load.in_rate_bytes_s / count,
        bandwidthOut=load.out_rate_bytes_s / count,
    )


def _load_of(node: Node) -> BrokerLoadData:
    load = node.views.brokers.get(node.settings.advertised)
    if load is None:
        raise Unavailable("this broker has not reported its load yet; try again")
    return load


@router.get("/brokers")
async def list_brokers(node: TheNode) -> list[str]:
    """List the names of the brokers that are registered and thought to be alive."""
    suspected = node.membership.suspected
    return sorted(name for name, peer in node.membership.peers.items() if peer.broker not in suspected)


@router.get("/brokers/leaderBroker", responses=answers(404))
async def leader_broker(node: TheNode) -> BrokerInfo:
    """Show the leader that this broker last saw. 404 while there is none."""
    leader = leader_of(node)
    if leader is None:
        raise NotFound("there is no leader at the moment; try again")
    peer = node.membership.peer(leader)
    return BrokerInfo(serviceUrl=peer.registration.admin_url if peer else "", brokerId=leader.name)


@router.get("/brokers/health", response_class=PlainTextResponse)
@on_http_loop
async def health(node: AnyNode) -> str:
    """Answer `ok` if this broker is registered and its proofs are fresh, so that it could serve now. Else 503."""
    check_health(node)
    return "ok"


@router.get("/brokers/ready", response_class=PlainTextResponse)
@on_http_loop
async def ready(node: AnyNode) -> str:
    """Answer `ok` once this broker is registered, acts, and has keys to verify tokens if it takes any. Else 503."""
    check_ready(node)
    return "ok"


@router.get("/brokers/live", response_class=PlainTextResponse)
@on_http_loop
async def live(node: AnyNode) -> str:
    """Answer `ok` while the control loop turns, whatever log and coordination do.

    503 after `session_timeout_s` without a turn: restart the process.
    """
    check_live(node)
    return "ok"


@router.get("/brokers/version", response_class=PlainTextResponse)
@on_http_loop
async def version() -> str:
    """Show the release of this broker."""
    return VERSION


@router.get("/brokers/{cluster}", responses=answers(404))
async def list_cluster(node: TheNode, cluster: str) -> list[str]:
    """List brokers, as `/brokers`. 404 for any other cluster than this one."""
    check_cluster(node, cluster)
    return await list_brokers(node)


# --- tenants


@router.get("/tenants")
async def list_tenants(node: TheNode) -> list[str]:
    """List the tenants that have a namespace."""
    return sorted({name.partition("/")[0] for name in node.channel.table.namespaces()})


@router.get("/tenants/{tenant}", responses=answers(404))
async def show_tenant(node: TheNode, tenant: str) -> TenantInfo:
    """Show a tenant. 404 if it has no namespace."""
    if not node.channel.table.namespaces(tenant):
        raise NotFound(f"tenant {tenant!r} has no namespace, and so does not exist; create {tenant}/some-namespace")
    return TenantInfo(allowedClusters=[node.settings.cluster])


@router.put("/tenants/{tenant}", status_code=204, responses=answers(412))
async def create_tenant(acting: Acting, tenant: str) -> None:
    """Accept the tenant and do nothing: a tenant exists as soon as it has a namespace. The body is ignored."""
    check_namespace(f"{tenant}/any")


@router.post("/tenants/{tenant}", status_code=204, responses=answers(404))
async def update_tenant(node: TheNode, tenant: str) -> None:
    """Accept the change and do nothing: tenants have no properties here. 404 for a tenant without a namespace."""
    if not node.channel.table.namespaces(tenant):
        raise NotFound(f"tenant {tenant!r} has no namespace, and so does not exist; create {tenant}/some-namespace")


@router.delete("/tenants/{tenant}", status_code=204, responses=answers(404, 409))
async def delete_tenant(node: TheNode, tenant: str) -> None:
    """Refuse: 409 while the tenant has namespaces, 404 otherwise, since a tenant without namespaces does not exist."""
    namespaces = node.channel.table.namespaces(tenant)
    if not namespaces:
        raise NotFound(f"tenant {tenant!r} has no namespace, and so does not exist: there is nothing to delete")
    shown = ", ".join(namespaces[:8]) + (" …" if len(namespaces) > 8 else "")
    raise Conflict(f"tenant {tenant!r} has namespaces, delete them first: {shown}")
