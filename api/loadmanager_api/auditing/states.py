"""The state of what a request is about, for `before` and `after` in the audit log. Reads the node, on its loop."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from loadmanager.broker.node import Node
from loadmanager.errors import LoadManagerError
from loadmanager.leader.rebalancing import actions
from loadmanager.model.policies.model import Kind
from loadmanager.settings.dynamic.naming import named
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle, Key

_log = logging.getLogger("loadmanager")

Given = Mapping[str, Any]
"""The arguments of an endpoint by name: parameters of path and query, and its body."""


class About(msgspec.Struct, frozen=True):
    """What a request is about: its name, its namespace (may be empty), and its present state."""

    name: str = ""
    namespace: str = ""
    state: Any = None


def about(node: Node, action: str, given: Given) -> About:
    """What an endpoint of this name with these arguments is about, as this broker knows it."""
    try:
        return _about(node, action, given)
    except (LoadManagerError, InvalidName):  # it does not exist, or is no name: the request will be refused
        return About(_path(given))
    except Exception:  # noqa: BLE001 - the request goes on, and its answer stays, whatever is wrong here
        _log.exception("the audit entry of %s lacks what it is about", action)
        return About(_path(given))


def _about(node: Node, action: str, given: Given) -> About:
    match given:
        case {"tenant": tenant, "namespace": namespace}:
            return _in_namespace(node, f"{tenant}/{namespace}", given)
        case {"kind": kind, "name": name}:
            return _policy(node, Kind(kind), name)
        case {"cluster": _, "policy": name}:
            return _policy(node, Kind.ISOLATION, name)
        case {"cluster": _, "domain": name}:
            return _policy(node, Kind.FAILURE_DOMAIN, name)
        case {"plan_id": plan_id}:
            plan = node.plans.documents.get(plan_id)
            return About(plan_id, "", None if plan is None or plan.value is None else plan.value.state)
        case {"broker": broker}:
            peer = node.membership.peers.get(broker)
            return About(broker, "", None if peer is None else {"draining": peer.registration.draining})
        case {"tenant": tenant}:
            return About(tenant)
        case _:
            return _named(node, action, given)


def _named(node: Node, action: str, given: Given) -> About:
    wanted, wish, name = given.get("wanted"), given.get("wish"), given.get("name")
    if hasattr(wanted, "bundles") and action == "merge_bundles":
        bundles = [Bundle.parse(each) for each in cast("Any", wanted).bundles]
        return About(", ".join(map(str, bundles)), bundles[0].namespace, [_bundle(node, each) for each in bundles])
    if action in ("pause", "resume"):
        paused = actions.paused(node.policies.current())
        namespace, broker = (getattr(wish, field, None) or "" for field in ("namespace", "broker"))
        return About(namespace or broker or "the cluster", namespace, msgspec.to_builtins(paused))
    if action == "unload":
        namespace, broker = (getattr(wish, field, None) or "" for field in ("namespace", "broker"))
        return About(namespace or broker, namespace)
    if isinstance(name, str) and action in ("set_setting", "unset_setting", "update_setting", "delete_setting"):
        ours = named(name).setting.name
        version = node.live.version(ours)
        return About(ours, "", None if version is None or version.value is None else version.value.value)
    return About(name if isinstance(name, str) else "")


def _in_namespace(node: Node, namespace: str, given: Given) -> About:
    match given:
        case {"topic": topic, "domain": domain}:
            entry = node.channel.table.locate(Key.parse(f"{domain}://{namespace}/{topic}"))
            return About(f"{namespace}/{topic}", namespace, None if entry is None else _bundle(node, entry.bundle))
        case {"bundle": str(bounds)} | {"hash_range": str(bounds)}:
            bundle = Bundle.of(namespace, bounds) if "_" in bounds else None  # not for LARGEST, HOT
            state = None if bundle is None else _bundle(node, bundle)
            return About(f"{namespace}/{bounds}", namespace, state)
        case {"consumer_group": name}:
            return About(f"{namespace}/{name}", namespace)
        case {"group": _}:
            return msgspec.structs.replace(_policy(node, Kind.NAMESPACE, namespace), namespace=namespace)
        case _:
            known = node.channel.table.namespace(namespace)
            count = 0 if known is None else len(known.bundles)  # a deleted one has none
            return About(namespace, namespace, {"bundles": count} if count else None)


def _bundle(node: Node, bundle: Bundle) -> Any:
    entry = node.channel.table.get(bundle)
    if entry is None:
        return None
    owner = {} if entry.holder is None else {"owner": str(entry.holder)}
    return {"bundle": str(bundle), "state": entry.state, **owner}


def _policy(node: Node, kind: Kind, name: str) -> About:
    policy = node.policies.current_of(kind, name)
    namespace = name if kind is Kind.NAMESPACE else name.rpartition("/")[0] if kind is Kind.BUNDLE else ""
    return About(f"{kind}/{name}", namespace, None if policy is None else msgspec.to_builtins(policy))


def _path(given: Given) -> str:
    return "/".join(
        str(given[name]) for name in ("tenant", "namespace", "bundle", "hash_range", "name") if name in given
    )
