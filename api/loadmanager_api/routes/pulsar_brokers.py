"""What Pulsar's tools ask of brokers and clusters, besides the lists in `brokers.py`.

`broker-stats load-report` is answered, too, which Pulsar's extensible manager cannot do.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from fastapi import Query, Request

from loadmanager.broker.node import Node
from loadmanager.broker.wiring import coordination_address
from loadmanager.diagnostics.doctor.hiding import hide_text
from loadmanager.errors import NotFound, Unavailable
from loadmanager.model.load.model import BrokerLoadData
from loadmanager.model.policies.matching import matches_broker, matches_namespace
from loadmanager_api.openapi import answers
from loadmanager_api.presenting import load_shown, no_broker
from loadmanager_api.pulsar_schemas import ClusterData, InternalConfiguration, Monitored, OwnedBundle, ResourceQuota
from loadmanager_api.routing import Acting, ControlRouter, TheNode
from loadmanager_api.state import kept
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle, Key

router = ControlRouter(prefix="/admin/v2", tags=["brokers"])


# --- brokers


@router.get("/brokers/internal-configuration")
async def internal_configuration(node: TheNode) -> InternalConfiguration:
    """Show where the coordination service is, without credentials."""
    address = hide_text(coordination_address(node.settings))
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
        "report": load_shown(load),
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
