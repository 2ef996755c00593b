"""Commands of pulsar-admin that are one request to a broker each, with its names and options.

Those that need more than one request, or ask in other words, are in the modules of their groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.names import BROKER, NAMESPACE, TOPIC
from loadmanager_api.cli.printing import show_answer
from loadmanager_api.cli.requests import Given, Request, commands, first, second

NO_EFFECT = "Accepted for pulsar-admin; has no effect."


def ignored(*names: str, **how: Any) -> Callable[[Any], Any]:
    """An option that pulsar-admin has: a flag, unless `how` says otherwise."""
    return click.option(*names, help=NO_EFFECT, expose_value=False, **(how or {"is_flag": True}))


def range_of(_ctx: click.Context, _param: click.Parameter, given: str) -> str:
    """The range of a bundle; its full name, as the tables show it, will do as well."""
    return given.rpartition("/")[2]


def _each(_ctx: click.Context, _param: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for names in given for name in names.split(","))


CLUSTER = click.argument("cluster", metavar="CLUSTER")
NAMESPACE_ARGUMENT = click.argument("namespace", metavar="TENANT/NAMESPACE", type=NAMESPACE)
_TENANT = click.argument("tenant", metavar="TENANT")
_TOPIC = click.argument("topic", metavar="TOPIC", type=TOPIC)
_INDENT = ignored("-i", "--indent")
_FORCE = ignored("-f", "--force")
_OF_TENANTS = (
    _TENANT,
    click.option("-r", "--admin-roles", "roles", multiple=True, metavar="ROLE[,…]", help=NO_EFFECT),
    click.option("-c", "--allowed-clusters", "clusters", multiple=True, metavar="CLUSTER[,…]", help=NO_EFFECT),
)
_METADATA = ignored("-m", "--metadata", multiple=True, metavar="KEY=VALUE")
_PARTITIONS = click.option(
    "-p", "--partitions", type=click.IntRange(1), required=True, metavar="N", help="Number of partitions."
)
_URL = click.option("-u", "--url", required=True, metavar="HOST:PORT", type=BROKER, help="Name of the broker.")
_RANGE = click.option(
    *("-b", "--bundle"), required=True, callback=range_of, metavar="RANGE", help="The bundle: 0x00000000_0x40000000."
)
_TOPICS = click.option(
    *("-tl", "--topic-list", "topics"), multiple=True, callback=_each, metavar="TOPIC", help="Only this; repeatable."
)


def _tenant_of(given: Given) -> dict[str, list[str]]:
    roles, clusters = (",".join(given[name]).split(",") if given[name] else [] for name in ("roles", "clusters"))
    return {"adminRoles": roles, "allowedClusters": clusters}


def _part(name: str) -> Callable[[Any], object]:
    return lambda entry: entry[1][name]


_BUNDLES = {
    "bundle": first,
    **{title: _part(title.replace(" ", "_")) for title in ("broker assignment", "is controlled", "is active")},
}

ROWS: Mapping[str, tuple[Request, ...]] = {
    "brokers": (
        Request("version", "GET /admin/v2/brokers/version", "Show the release of the asked broker.", columns="version"),
        Request("namespaces", "GET /admin/v2/brokers/{cluster}/{url}/ownedNamespaces",
            "List the bundles of a broker, and whether an isolation policy binds them to it.", (CLUSTER, _URL),
            columns=_BUNDLES),
        Request("get-internal-config", "GET /admin/v2/brokers/internal-configuration",
            "Show where the coordination service is."),
    ),
    "clusters": (
        Request("list", "GET /admin/v2/clusters", "Show the name of the cluster.", (ignored("-c", "--current"),),
            columns="cluster"),
        Request("get", "GET /admin/v2/clusters/{cluster}", "Show the addresses of the asked broker.", (CLUSTER,)),
    ),
    "tenants": (
        Request("list", "GET /admin/v2/tenants", "List tenants: they exist while they have a namespace.",
            columns="tenant"),
        Request("get", "GET /admin/v2/tenants/{tenant}", "Show a tenant.", (_TENANT,)),
        Request("create", "PUT /admin/v2/tenants/{tenant}",
            "Accept the name of a tenant. It exists as soon as it has a namespace.", _OF_TENANTS, body=_tenant_of,
            done="nothing to do: tenant {tenant} exists as soon as it has a namespace"),
        Request("update", "POST /admin/v2/tenants/{tenant}",
            "Accept a change of a tenant. Tenants have no properties here.", _OF_TENANTS, body=_tenant_of,
            done="nothing to do: tenants have no properties here"),
        Request("delete", "DELETE /admin/v2/tenants/{tenant}",
            "Delete a tenant: refused while it has namespaces. Without them it does not exist.", (_TENANT, _FORCE),
            done="deleted tenant {tenant}"),
    ),
    "namespaces": (
        Request("policies", "GET /admin/v2/namespaces/{namespace}",
            "Show the cluster and the bundles of a namespace. `policies` has the rules for their places.",
            (NAMESPACE_ARGUMENT,), view=show_answer),
        Request("get-topic-positions", "GET /admin/v2/namespaces/{namespace}/{bundle}/topicHashPositions",
            "Show where the topics of a bundle are in the hash space, to split it there.",
            (NAMESPACE_ARGUMENT, _RANGE, _TOPICS), part="topicHashPositions",
            columns={"topic": first, "position": second}),
    ),
    "topics": (
        Request("create", "PUT /admin/v2/{topic}",
            "Keep the name of a topic. A topic needs no creation: `topics list` shows the name then.",
            (_TOPIC, _METADATA), done="created {topic}"),
        Request("create-partitioned-topic", "PUT /admin/v2/{topic}/partitions",
            "Keep the name of a topic, with a number of partitions.", (_TOPIC, _PARTITIONS, _METADATA),
            body=lambda given: given["partitions"], done="created {topic} with {partitions} partitions"),
        Request("get-partitioned-topic-metadata", "GET /admin/v2/{topic}/partitions",
            "Show with how many partitions a topic was created; 0: it is not partitioned.", (_TOPIC,)),
        Request("delete", "DELETE /admin/v2/{topic}",
            "Forget the name of a topic. Its data are the service's, and stay.", (_TOPIC, _FORCE),
            done="forgot {topic}"),
        Request("delete-partitioned-topic", "DELETE /admin/v2/{topic}/partitions",
            "Forget the name of a topic with its partitions. Its data are the service's, and stay.", (_TOPIC, _FORCE),
            done="forgot {topic}"),
    ),
    "broker-stats": (
        Request("load-report", "GET /admin/v2/broker-stats/load-report", "Show the asked broker's last load report.",
            view=show_answer),
        Request("topics", "GET /admin/v2/broker-stats/topics", "Show the hottest keys of the asked broker's bundles.",
            (_INDENT,), view=show_answer),
        Request("monitoring-metrics", "GET /admin/v2/broker-stats/metrics",
            "Show the asked broker's metrics; /metrics has them for Prometheus.", (_INDENT,), view=show_answer),
    ),
    "resource-quotas": (
        Request("get", "GET /admin/v2/resource-quotas",
            "Show the mean load of the asked broker's bundles: nothing is limited by it."),
    ),
}  # fmt: skip
"""By group of pulsar-admin."""


def _group(name: str, help: str) -> Group:
    """A group with the commands of the table alone."""
    return Group(name, commands=commands(ROWS[name]), help=help)


broker_stats = _group("broker-stats", "Show load, hottest keys and metrics of the asked broker, as JSON.")
resource_quotas = _group("resource-quotas", "Show the mean load of bundles, as pulsar-admin asks for it.")
tenants = _group("tenants", "Show tenants: they exist while they have a namespace.")
version = commands(ROWS["brokers"])[0]
