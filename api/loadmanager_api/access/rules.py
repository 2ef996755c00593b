"""Which role each route needs, and where. A route without a rule is refused when the application is made.

`RULES` is the whole policy of the interface; docs/rest_page.py shows it. Its paths use kinds of parameters of
our own: what stands in the braces of `/v1/policies/{kind}/{name:document}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec
from starlette.convertors import PathConvertor, register_url_convertor

from loadmanager.model.policies.model import AccessRole, Kind
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle


class _Text(PathConvertor):
    """Anything, with slashes and, unlike Starlette's `path`, with line breaks."""

    regex = r"(?s:.*)"


class _Domain(PathConvertor):
    regex = "persistent|non-persistent"


class _DocumentName(PathConvertor):
    """Does not end in `/history`, unless it is that of a namespace `tenant/history`."""

    regex = r"[^/]*|(?<=/namespace/)[^/]+/history|(?s:.*)(?<!/history)"


class _NameWithHistory(PathConvertor):
    """Any name; that of a namespace has two parts, so that no path is a document's and a history's."""

    regex = r"(?s:(?<!/namespace/).*|[^/]*/.*)"


class _Matter(PathConvertor):
    """What Pulsar keeps for a namespace or a bundle, and a load manager does not: `retention`, `permissions/x`."""

    regex = (
        r"(?<!/antiAffinity/)(?:0x[^/]+/)?(?!(?:bundles|unload|split|antiAffinity|topicHashPositions)(?:/|$))"
        r"[a-z][A-Za-z]*(?:/(?s:.*))?"
    )


def register() -> None:
    """Have routes know them."""
    register_url_convertor("text", _Text())
    register_url_convertor("domain", _Domain())
    register_url_convertor("matter", _Matter())
    register_url_convertor("document", _DocumentName())
    register_url_convertor("with_history", _NameWithHistory())


register()


class Scope(StrEnum):
    """Where a principal must have the role."""

    OPEN = "without authentication"
    ANYWHERE = "in any namespace"
    NAMESPACE = "in the namespace of the path"
    TENANT = "in all namespaces of the tenant"
    QUERY = "in the namespace of the query; without one, in the cluster"
    BODY = "in the namespaces that the body names; if it names none, in the cluster"
    DOCUMENT = "in the namespace that the document is about; if about none, in the cluster"
    CLUSTER = "in the cluster"


class Rule(msgspec.Struct, frozen=True):
    """What a request needs. `role` is not used with the scope OPEN."""

    role: AccessRole
    scope: Scope


_OPEN = Rule(AccessRole.CLIENT, Scope.OPEN)
_ANYBODY = Rule(AccessRole.CLIENT, Scope.ANYWHERE)
_LOOK_UP = Rule(AccessRole.CLIENT, Scope.NAMESPACE)
_LOOK_UP_ALL = Rule(AccessRole.CLIENT, Scope.BODY)
_SEE_MEMBERS = Rule(AccessRole.VIEWER, Scope.ANYWHERE)
_SEE = Rule(AccessRole.VIEWER, Scope.CLUSTER)
_SEE_TENANT = Rule(AccessRole.VIEWER, Scope.TENANT)
_SEE_NAMESPACE = Rule(AccessRole.VIEWER, Scope.NAMESPACE)
_SEE_QUERIED = Rule(AccessRole.VIEWER, Scope.QUERY)
_SEE_DOCUMENT = Rule(AccessRole.VIEWER, Scope.DOCUMENT)
_OPERATE = Rule(AccessRole.OPERATOR, Scope.CLUSTER)
_OPERATE_NAMESPACE = Rule(AccessRole.OPERATOR, Scope.NAMESPACE)
_OPERATE_NAMED = Rule(AccessRole.OPERATOR, Scope.BODY)
_ADMIN = Rule(AccessRole.ADMIN, Scope.CLUSTER)
_ADMIN_TENANT = Rule(AccessRole.ADMIN, Scope.TENANT)
_ADMIN_NAMESPACE = Rule(AccessRole.ADMIN, Scope.NAMESPACE)
_ADMIN_DOCUMENT = Rule(AccessRole.ADMIN, Scope.DOCUMENT)

_NAMESPACES = "/admin/v2/namespaces/{tenant}/{namespace}"
_BUNDLE = "/v1/bundles/{tenant}/{namespace}/{hash_range}"
_TOPIC = "/admin/v2/{domain:domain}/{tenant}/{namespace}/{topic}"
_CLUSTER = "/admin/v2/clusters/{cluster}"
_GROUP = "/v1/groups/{tenant}/{namespace}/{consumer_group}"

RULES: Mapping[str, Mapping[str, Rule]] = {
    # lookups
    "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic:text}": {"GET": _LOOK_UP},
    "/v1/lookup": {"POST": _LOOK_UP_ALL},
    "/v1/audit": {"GET": Rule(AccessRole.ADMIN, Scope.QUERY)},
    "/admin/v2/{domain:domain}/{tenant}/{namespace}": {"GET": _SEE_NAMESPACE},
    f"{_TOPIC}": {"PUT": _ADMIN_NAMESPACE, "DELETE": _ADMIN_NAMESPACE},
    f"{_TOPIC}/partitions": {"GET": _LOOK_UP, "PUT": _ADMIN_NAMESPACE, "DELETE": _ADMIN_NAMESPACE},
    f"{_TOPIC}/{{more:text}}": {"GET": _SEE_NAMESPACE, "POST": Rule(AccessRole.VIEWER, Scope.NAMESPACE)},
    f"{_NAMESPACES}/{{bundle}}/topicHashPositions": {"GET": _SEE_NAMESPACE},
    # this broker
    "/admin/v2/brokers/health": {"GET": _OPEN},
    "/admin/v2/brokers/live": {"GET": _OPEN},
    "/admin/v2/brokers/ready": {"GET": _OPEN},
    "/admin/v2/brokers/version": {"GET": _OPEN},
    "/openapi.json": {"GET": _ANYBODY},
    "/": {"GET": _OPEN},
    "/docs": {"GET": _OPEN},
    "/dashboard/{file:text}": {"GET": _OPEN},
    "/v1/me": {"GET": _ANYBODY},
    "/metrics": {"GET": _SEE},
    "/v1/health": {"GET": _SEE},
    "/v1/notes": {"GET": _SEE},
    "/v1/settings": {"GET": _SEE},
    "/v1/tasks": {"GET": _SEE},
    "/v1/channel": {"GET": _SEE},
    "/v1/channel/digests": {"GET": _SEE},
    "/v1/channel/records/{record_id}": {"GET": _SEE_MEMBERS},
    "/v1/channel/readers": {"GET": _SEE},
    "/v1/channel/readers/{name}": {"GET": _SEE, "PUT": _OPERATE, "DELETE": _OPERATE},
    # members
    "/admin/v2/brokers": {"GET": _SEE_MEMBERS},
    "/admin/v2/brokers/leaderBroker": {"GET": _SEE_MEMBERS},
    "/admin/v2/brokers/{cluster}": {"GET": _SEE_MEMBERS},
    "/v1/brokers": {"GET": _SEE_MEMBERS},
    "/v1/brokers/{broker}": {"GET": _SEE_MEMBERS},
    "/v1/usage": {"GET": _SEE},
    "/v1/brokers/{broker}/drain": {"GET": _SEE_MEMBERS, "PUT": _OPERATE, "DELETE": _OPERATE},
    "/admin/v2/brokers/internal-configuration": {"GET": _SEE},
    "/admin/v2/brokers/shutdown": {"POST": _OPERATE},
    "/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces": {"GET": _SEE},
    "/admin/v2/broker-stats/load-report": {"GET": _SEE},
    "/admin/v2/broker-stats/topics": {"GET": _SEE},
    "/admin/v2/broker-stats/metrics": {"GET": _SEE},
    "/admin/v2/resource-quotas": {"GET": _SEE},
    "/admin/v2/clusters": {"GET": _SEE_MEMBERS},
    _CLUSTER: {"GET": _SEE_MEMBERS},
    # tenants and namespaces
    "/admin/v2/tenants": {"GET": _SEE},
    "/admin/v2/tenants/{tenant}": {
        "GET": _SEE_TENANT,
        "PUT": _ADMIN_TENANT,
        "POST": _ADMIN_TENANT,
        "DELETE": _ADMIN_TENANT,
    },
    "/admin/v2/namespaces/{tenant}": {"GET": _SEE_TENANT},
    _NAMESPACES: {"GET": _SEE_NAMESPACE, "PUT": _ADMIN_NAMESPACE, "DELETE": _ADMIN_NAMESPACE},
    f"{_NAMESPACES}/bundles": {"GET": _SEE_NAMESPACE},
    f"{_NAMESPACES}/unload": {"PUT": _OPERATE_NAMESPACE},
    f"{_NAMESPACES}/{{bundle}}/unload": {"PUT": _OPERATE_NAMESPACE},
    f"{_NAMESPACES}/{{bundle}}/split": {"PUT": _OPERATE_NAMESPACE},
    f"{_NAMESPACES}/antiAffinity": {"GET": _SEE_NAMESPACE, "POST": _ADMIN_NAMESPACE, "DELETE": _ADMIN_NAMESPACE},
    f"{_NAMESPACES}/{{matter:matter}}": dict.fromkeys(
        ("GET", "POST", "PUT", "DELETE"), Rule(AccessRole.VIEWER, Scope.NAMESPACE)
    ),
    "/admin/v2/namespaces/{cluster}/antiAffinity/{group}": {"GET": _SEE},
    "/admin/namespaces/{cluster}/antiAffinity/{group}": {"GET": _SEE},
    "/admin/v2/{domain}/{tenant}/{namespace}/{topic:text}/unload": {"PUT": _OPERATE_NAMESPACE},
    # bundles
    "/v1/bundles": {"GET": _SEE_QUERIED},
    "/v1/bundles/merge": {"POST": _OPERATE_NAMED},
    _BUNDLE: {"GET": _SEE_NAMESPACE},
    f"{_BUNDLE}/split": {"POST": _OPERATE_NAMESPACE},
    f"{_BUNDLE}/cancel": {"POST": _OPERATE_NAMESPACE},
    f"{_BUNDLE}/history": {"GET": _SEE_NAMESPACE},
    "/v1/splitting": {"GET": _SEE},
    "/v1/splitting/{tenant}/{namespace}/{hash_range}": {"GET": _SEE_NAMESPACE},
    "/v1/watch": {"GET": _SEE_QUERIED},
    # consumer groups
    "/v1/groups": {"GET": _SEE},
    _GROUP: {"GET": _SEE_NAMESPACE, "PATCH": _OPERATE_NAMESPACE, "DELETE": _OPERATE_NAMESPACE},
    f"{_GROUP}/members": {"GET": _SEE_NAMESPACE},
    f"{_GROUP}/members/{{member}}": {"DELETE": _LOOK_UP},
    f"{_GROUP}/members/{{member}}/heartbeat": {"POST": _LOOK_UP},
    f"{_GROUP}/members/{{member}}/commit": {"POST": _LOOK_UP},
    f"{_GROUP}/rebalances": {"GET": _SEE_NAMESPACE},
    f"{_GROUP}/rebalance": {"POST": _OPERATE_NAMESPACE},
    f"{_GROUP}/offsets": {"PUT": _OPERATE_NAMESPACE},
    "/v1/backlog": {"GET": _SEE},
    "/v1/backlog/topics": {"GET": _SEE},
    "/v1/backlog/partitions": {"GET": _SEE},
    "/v1/backlog/filtered": {"GET": _OPERATE},
    # balancing
    "/v1/balancing": {"GET": _SEE},
    "/v1/balancing/pause": {"POST": _OPERATE_NAMED},
    "/v1/balancing/resume": {"POST": _OPERATE_NAMED},
    "/v1/plans": {"GET": _SEE, "POST": _OPERATE},
    "/v1/plans/unload": {"POST": _OPERATE_NAMED},
    "/v1/plans/advice": {"POST": _OPERATE},
    "/v1/plans/{plan_id}": {"GET": _SEE},
    **{
        f"/v1/plans/{{plan_id}}/{action}": {"POST": _OPERATE}
        for action in ("approve", "reject", "run", "cancel", "verify", "undo", "withdraw")
    },
    "/v1/operations": {"GET": _SEE_MEMBERS},
    "/v1/operations/{operation_id}": {"GET": _SEE_MEMBERS},
    "/v1/operations/{operation_id}/cancel": {"POST": Rule(AccessRole.OPERATOR, Scope.ANYWHERE)},
    "/v1/explain/bundles/{tenant}/{namespace}/{hash_range}": {"GET": _SEE_NAMESPACE},
    "/v1/explain/brokers/{broker}": {"GET": _SEE},
    "/v1/decisions": {"GET": _SEE},
    "/v1/decisions/{decision_id}": {"GET": _SEE},
    "/v1/decisions/{decision_id}/again": {"GET": _SEE},
    "/v1/what-if": {"POST": _SEE},
    "/v1/plan": {"GET": _SEE},
    # policies and settings
    "/v1/policies": {"GET": _SEE},
    "/v1/policies/{kind}/{name:document}": {
        "GET": _SEE_DOCUMENT,
        "PUT": _ADMIN_DOCUMENT,
        "PATCH": _ADMIN_DOCUMENT,
        "DELETE": _ADMIN_DOCUMENT,
    },
    "/v1/policies/{kind}/{name:with_history}/history": {"GET": _SEE_DOCUMENT},
    f"{_CLUSTER}/namespaceIsolationPolicies": {"GET": _SEE},
    f"{_CLUSTER}/namespaceIsolationPolicies/brokers": {"GET": _SEE},
    f"{_CLUSTER}/namespaceIsolationPolicies/brokers/{{broker}}": {"GET": _SEE},
    f"{_CLUSTER}/namespaceIsolationPolicies/{{policy}}": {"GET": _SEE, "POST": _ADMIN, "DELETE": _ADMIN},
    f"{_CLUSTER}/failureDomains": {"GET": _SEE},
    f"{_CLUSTER}/failureDomains/{{domain}}": {"GET": _SEE, "POST": _ADMIN, "DELETE": _ADMIN},
    "/v1/config": {"GET": _SEE},
    "/v1/config/{name}": {"GET": _SEE, "PUT": _ADMIN, "DELETE": _ADMIN},
    "/v1/config/{name}/history": {"GET": _SEE},
    "/admin/v2/brokers/configuration": {"GET": _SEE},
    "/admin/v2/brokers/configuration/values": {"GET": _SEE},
    "/admin/v2/brokers/configuration/runtime": {"GET": _SEE},
    "/admin/v2/brokers/configuration/{name}/{value:path}": {"POST": _ADMIN},
    "/admin/v2/brokers/configuration/{name}": {"DELETE": _ADMIN},
    # the load history
    "/v1/history": {"GET": _SEE},
    "/v1/history/analyses": {"GET": _SEE},
    "/v1/history/analyses/{name}": {"GET": _SEE},
    "/v1/history/report": {"GET": _SEE},
    "/v1/history/pictures/{name}.png": {"GET": _SEE},
    "/v1/history/{name}": {"GET": _SEE},
}

ASSETS = "/dashboard/"
"""Below it are the dashboard's own files, which are public: they come with this program."""

_OPEN_PATHS = frozenset(path for path, rules in RULES.items() if any(rule == _OPEN for rule in rules.values()))


def is_open(path: str) -> bool:
    """Whether a path needs no credentials."""
    return path in _OPEN_PATHS or path.startswith(ASSETS)


def rule_for(method: str, path: str) -> Rule:
    """The rule of a route, by the path of its template. Raises RuntimeError if there is none."""
    found = RULES.get(path, {}).get(method)
    if found is None:
        raise RuntimeError(f"{method} {path} has no rule: say in loadmanager_api/access/rules.py who may use it")
    return found


def namespace_of(kind: str, name: str) -> str | None:
    """The namespace that a policy document is about; None if it is not about one."""
    try:
        match kind:
            case Kind.BUNDLE:
                return Bundle.parse(name).namespace
            case Kind.NAMESPACE if name.count("/") == 1:
                return name
            case _:
                return None
    except InvalidName:
        return None
