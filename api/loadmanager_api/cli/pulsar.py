"""Commands that are one request to a broker each, under the names and with the options of pulsar-admin.

`_COMMANDS` has a row for each. What needs more than one request, or asks in other words, is in the module of its group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import click
import msgspec

from loadmanager_api.cli.client import ask, run
from loadmanager_api.cli.command_group import Group
from loadmanager_api.cli.names import BROKER, NAMESPACE, TOPIC, segment, topic_path
from loadmanager_api.cli.options import changes, shows
from loadmanager_api.cli.printing import done, show, show_answer, show_pairs
from loadmanager_api.cli.remote import Remote

NO_EFFECT = "Accepted for pulsar-admin; has no effect."


class Thin(msgspec.Struct, frozen=True):
    """One request.

    `path` has names of parameters in braces; `body` makes the body of all parameters. An answer is shown as a table of
    `each` (of one `part` of it, if that is named), as its parts, or, if it is `raw`, as JSON. `done` is the sentence
    after a change, with names of parameters in braces.
    """

    name: str
    help: str
    path: str
    params: tuple[click.Parameter, ...] = ()
    method: str = "GET"
    body: Callable[[Mapping[str, Any]], Any] | None = None
    each: str = ""
    part: str = ""
    raw: bool = False
    done: str = ""


def _flag(*names: str) -> click.Option:
    return click.Option(names, is_flag=True, help=NO_EFFECT, expose_value=False)


def _ignored(*names: str, **how: Any) -> click.Option:
    return click.Option(names, help=NO_EFFECT, expose_value=False, **how)


CLUSTER = click.Argument(["cluster"], metavar="CLUSTER")
_TENANT = click.Argument(["tenant"], metavar="TENANT")
_NAMESPACE = click.Argument(["namespace"], metavar="TENANT/NAMESPACE", type=NAMESPACE)
_TOPIC = click.Argument(["topic"], metavar="TOPIC", type=TOPIC)
_INDENT = _flag("-i", "--indent")
_FORCE = _flag("-f", "--force")
_OF_TENANTS = (
    _TENANT,
    click.Option(["-r", "--admin-roles", "roles"], multiple=True, metavar="ROLE[,…]", help=NO_EFFECT),
    click.Option(["-c", "--allowed-clusters", "clusters"], multiple=True, metavar="CLUSTER[,…]", help=NO_EFFECT),
)
_METADATA = _ignored("-m", "--metadata", multiple=True, metavar="KEY=VALUE")
_PARTITIONS = click.Option(
    ["-p", "--partitions"], type=click.IntRange(1), required=True, metavar="N", help="Number of partitions."
)
_RANGE = click.Option(["-b", "--bundle"], required=True, metavar="RANGE", help="The bundle: 0x00000000_0x40000000.")
_TOPICS = click.Option(["-tl", "--topic-list", "topics"], multiple=True, metavar="TOPIC", help="Only this; repeatable.")


def _tenant_of(given: Mapping[str, Any]) -> dict[str, list[str]]:
    roles, clusters = (",".join(given[name]).split(",") if given[name] else [] for name in ("roles", "clusters"))
    return {"adminRoles": roles, "allowedClusters": clusters}


_ADMIN = "/admin/v2"
_OF_TOPIC = f"{_ADMIN}/{{topic}}"

_COMMANDS: Mapping[str, tuple[Thin, ...]] = {
    "brokers": (
        Thin("version", "Show the release of the asked broker.", f"{_ADMIN}/brokers/version", each="version"),
        Thin(
            "namespaces",
            "List the bundles of a broker, and whether an isolation policy binds them to it.",
            f"{_ADMIN}/brokers/{{cluster}}/{{url}}/ownedNamespaces",
            (
                CLUSTER,
                click.Option(
                    ["-u", "--url"], required=True, metavar="HOST:PORT", type=BROKER, help="Name of the broker."
                ),
            ),
            each="bundle",
        ),
        Thin(
            "get-internal-config",
            "Show where the coordination service is.",
            f"{_ADMIN}/brokers/internal-configuration",
        ),
    ),
    "clusters": (
        Thin(
            "list", "Show the name of the cluster.", f"{_ADMIN}/clusters", (_flag("-c", "--current"),), each="cluster"
        ),
        Thin("get", "Show the addresses of the asked broker.", f"{_ADMIN}/clusters/{{cluster}}", (CLUSTER,)),
    ),
    "tenants": (
        Thin("list", "List tenants: they exist while they have a namespace.", f"{_ADMIN}/tenants", each="tenant"),
        Thin("get", "Show a tenant.", f"{_ADMIN}/tenants/{{tenant}}", (_TENANT,)),
        Thin(
            "create",
            "Accept the name of a tenant. It exists as soon as it has a namespace.",
            f"{_ADMIN}/tenants/{{tenant}}",
            _OF_TENANTS,
            method="PUT",
            body=_tenant_of,
            done="nothing to do: tenant {tenant} exists as soon as it has a namespace",
        ),
        Thin(
            "update",
            "Accept a change of a tenant. Tenants have no properties here.",
            f"{_ADMIN}/tenants/{{tenant}}",
            _OF_TENANTS,
            method="POST",
            body=_tenant_of,
            done="nothing to do: tenants have no properties here",
        ),
        Thin(
            "delete",
            "Refuse while the tenant has namespaces; without them it does not exist.",
            f"{_ADMIN}/tenants/{{tenant}}",
            (_TENANT, _FORCE),
            method="DELETE",
            done="deleted tenant {tenant}",
        ),
    ),
    "namespaces": (
        Thin(
            "policies",
            "Show the cluster and the bundles of a namespace. `policies` has the rules for their places.",
            f"{_ADMIN}/namespaces/{{namespace}}",
            (_NAMESPACE,),
            raw=True,
        ),
        Thin(
            "get-topic-positions",
            "Show where the topics of a bundle are in the hash space, to split it there.",
            f"{_ADMIN}/namespaces/{{namespace}}/{{bundle}}/topicHashPositions{{topics}}",
            (_NAMESPACE, _RANGE, _TOPICS),
            each="topic",
            part="topicHashPositions",
        ),
    ),
    "topics": (
        Thin(
            "create",
            "Keep the name of a topic. A topic needs no creation: `topics list` shows the name then.",
            _OF_TOPIC,
            (_TOPIC, _METADATA),
            method="PUT",
            done="created {topic}",
        ),
        Thin(
            "create-partitioned-topic",
            "Keep the name of a topic, with a number of partitions.",
            f"{_OF_TOPIC}/partitions",
            (_TOPIC, _PARTITIONS, _METADATA),
            method="PUT",
            body=lambda given: given["partitions"],
            done="created {topic} with {partitions} partitions",
        ),
        Thin(
            "get-partitioned-topic-metadata",
            "Show with how many partitions a topic was created; 0: it is not partitioned.",
            f"{_OF_TOPIC}/partitions",
            (_TOPIC,),
        ),
        Thin(
            "delete",
            "Forget the name of a topic. Its data are the service's, and stay.",
            _OF_TOPIC,
            (_TOPIC, _FORCE),
            method="DELETE",
            done="forgot {topic}",
        ),
        Thin(
            "delete-partitioned-topic",
            "Forget the name of a topic with its partitions. Its data are the service's, and stay.",
            f"{_OF_TOPIC}/partitions",
            (_TOPIC, _FORCE),
            method="DELETE",
            done="forgot {topic}",
        ),
    ),
    "broker-stats": (
        Thin(
            "load-report", "Show the asked broker's last load report.", f"{_ADMIN}/broker-stats/load-report", raw=True
        ),
        Thin(
            "topics",
            "Show the hottest keys of the asked broker's bundles.",
            f"{_ADMIN}/broker-stats/topics",
            (_INDENT,),
            raw=True,
        ),
        Thin(
            "monitoring-metrics",
            "Show the asked broker's metrics; /metrics has them for Prometheus.",
            f"{_ADMIN}/broker-stats/metrics",
            (_INDENT,),
            raw=True,
        ),
    ),
    "resource-quotas": (
        Thin(
            "get",
            "Show the mean load of the asked broker's bundles: nothing is limited by it.",
            f"{_ADMIN}/resource-quotas",
        ),
    ),
}
"""By group of pulsar-admin."""


def thin_commands(group: str) -> list[click.Command]:
    """The commands of the table for a group."""
    return [_command(row) for row in _COMMANDS[group]]


def _command(row: Thin) -> click.Command:
    def work(remote: Remote, **given: Any) -> None:
        """The command, which has its options from the row."""
        body = row.body(given) if row.body else None
        quoted = {name: _QUOTED.get(name, segment)(value) for name, value in given.items() if f"{{{name}}}" in row.path}
        answer = run(ask(remote, row.method, row.path.format(**quoted), body=body))
        if row.method == "GET":
            _show(remote, row, answer)
        else:
            facts = {name: str(value) for name, value in given.items() if value}
            done(remote, row.done.format(**given), **facts)

    shared = shows if row.method == "GET" else changes
    short = row.help.partition(". ")[0].rstrip(".") + "."
    return click.command(row.name, params=list(row.params), help=row.help, short_help=short)(shared(work))


def _show(remote: Remote, row: Thin, answer: Any) -> None:
    part = answer[row.part] if row.part else answer
    match part:
        case _ if row.raw:
            show_answer(remote, answer)
        case str():
            done(remote, part, **{row.each: part})
        case list():
            show(remote, answer, (row.each,), [(name,) for name in part])
        case dict() if not row.each:
            show_pairs(remote, answer, list(part.items()))
        case _:
            _show_table(remote, row.each, answer, part)


def _show_table(remote: Remote, each: str, answer: Any, found: Mapping[str, Any]) -> None:
    """A row for each key, with its value, or with the parts of its value."""
    parts = next((list(value) for value in found.values() if isinstance(value, dict)), None)
    columns = (each, *(name.replace("_", " ") for name in parts or ("position",)))
    rows = [(name, *((value[part] for part in parts) if parts else (value,))) for name, value in found.items()]
    show(remote, answer, columns, rows)


def _only(topics: tuple[str, ...]) -> str:
    return "?" + urlencode([("topics", name) for given in topics for name in given.split(",")]) if topics else ""


_QUOTED: Mapping[str, Callable[[Any], str]] = {
    "topic": topic_path,
    "namespace": str,
    "bundle": lambda given: quote(given.rpartition("/")[2]),  # a full name, as the tables show it, will do as well
    "topics": _only,
}
"""How parameters stand in a path, by their names; others are one segment."""


def pulsar_group(name: str, help: str) -> Group:
    """A group with the commands of the table alone."""
    return Group(name, commands=thin_commands(name), help=help)


broker_stats = pulsar_group("broker-stats", "Show load, hottest keys and metrics of the asked broker, as JSON.")
resource_quotas = pulsar_group("resource-quotas", "Show the mean load of bundles, as pulsar-admin asks for it.")
tenants = pulsar_group("tenants", "Show tenants: they exist while they have a namespace.")
version = thin_commands("brokers")[0]
