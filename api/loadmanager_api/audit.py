"""Writes one audit entry for each request that may change something, and for those that were refused at the gate.

`audited` wraps an endpoint on the control loop, and returns when the entry is durable. So a client that gets an answer
finds the change in the audit log. If the log does not take the entry, the answer is sent all the same, and counted.
`before` and `after` are the state of what a request is about, read from the node, on its loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sized
from itertools import islice
from typing import Any, cast

import msgspec
from pydantic import BaseModel
from starlette.responses import Response
from structlog.contextvars import bind_contextvars

from loadmanager.broker.node import Node
from loadmanager.cluster.audit_log import AuditEntry, Result
from loadmanager.diagnostics.redaction import redact, redact_and_shorten, redact_text
from loadmanager.embedding.handover import Handover
from loadmanager.errors import LoadManagerError, Unavailable
from loadmanager.leader.rebalancing import actions
from loadmanager.model.policies.model import Kind
from loadmanager.settings.names import named
from loadmanager_api.access.sender import Sender
from loadmanager_api.problems import problem_of
from statechannel.errors import InvalidName, LogUnavailable
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
    except (LoadManagerError, InvalidName):  # it does not exist, or is not a name: the request will be refused
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
    wanted, name = given.get("wanted"), given.get("name")
    if hasattr(wanted, "bundles") and action == "merge_bundles":
        bundles = [Bundle.parse(each) for each in cast("Any", wanted).bundles]
        return About(", ".join(map(str, bundles)), bundles[0].namespace, [_bundle(node, each) for each in bundles])
    if action in ("pause", "resume"):
        paused = actions.paused(node.policies.current())
        namespace, broker = (getattr(wanted, field, None) or "" for field in ("namespace", "broker"))
        return About(namespace or broker or "the cluster", namespace, msgspec.to_builtins(paused))
    if action == "unload":
        namespace, broker = (getattr(wanted, field, None) or "" for field in ("namespace", "broker"))
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


CHARACTERS, ENTRIES, LEVELS, VALUES = 300, 50, 8, 200
"""Limits of one state in an audit entry: characters of a text, entries of a list, levels and values. The rest is cut,
so that an entry stays small, whatever a client sends."""

REFUSALS_WAITING = 64
REFUSALS_EVERY_S = 0.1
"""At most this many refusals wait to be written, one per interval. The rest are only counted, so that a client without
credentials cannot flood the log."""


UNKNOWN_OUTCOME = (Unavailable, LogUnavailable)


class AuditedRequest(msgspec.Struct, frozen=True):
    """A request that may change something: the name of its endpoint, with its arguments and the status of a success."""

    sender: Sender
    action: str
    given: Mapping[str, Any]
    asked: dict[str, Any]
    status: int


async def audited(node: Node, request: AuditedRequest, work: Callable[[], Awaitable[Any]]) -> Any:
    """The result of `work`, after its audit entry was written."""
    sender, action, given, status = request.sender, request.action, request.given, request.status
    before, at_ms = about(node, action, given), node.world.wall_ms()

    def entry(result: Result, code: int, detail: str = "") -> AuditEntry:
        after = about(node, action, given)
        return AuditEntry(
            id=node.audit.next_id(),
            at_ms=at_ms,
            principal=sender.name,
            how=sender.how,
            address=sender.address,
            broker=node.settings.advertised,
            action=action,
            about=before.name,
            namespace=before.namespace,
            asked=request.asked,
            before=redact(_plain(before.state, [VALUES])),
            after=redact(_plain(after.state, [VALUES])),
            result=result,
            status=code,
            detail=detail,
        )

    try:
        found = await work()
    except asyncio.CancelledError:
        cancelled = entry(Result.FAILED, 499, "this broker ended before it was answered")
        await asyncio.shield(asyncio.ensure_future(node.audit.append(cancelled)))
        raise
    except Exception as error:
        problem = problem_of(error)
        failed = isinstance(error, UNKNOWN_OUTCOME) or problem.status == 500
        await node.audit.append(entry(Result.FAILED if failed else Result.REFUSED, problem.status, problem.detail))
        raise
    if isinstance(found, Response):
        status = found.status_code
    if status != 307 and not given.get("dry_run"):  # sent on to another broker, or nothing was to be changed
        await node.audit.append(entry(Result.DONE, status, _made(found)))
    return found


def asked(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters and bodies, without secrets, defaults and dependencies. Call it where the request was read."""
    found: dict[str, Any] = {}
    left = [VALUES]
    for name, value in given.items():
        match value:
            case None | False | "" | Sender():
                continue
            case BaseModel():
                found |= _plain(value, left)
            case msgspec.Struct() | str() | int() | float() | list() | dict():
                found[name] = _plain(value, left)
            case _:
                continue  # the node, the response …
    return cast("dict[str, Any]", redact(found))


def _plain(value: Any, left: list[int], depth: int = 0) -> Any:
    """The value as JSON has it; `left` counts how many values it may still have."""
    left[0] -= 1
    if depth > LEVELS or left[0] < 0:
        return "…"
    match value:
        case BaseModel():
            names = sorted(value.model_fields_set)
            return {name: _plain(getattr(value, name), left, depth + 1) for name in names}
        case msgspec.Struct():
            return _plain(msgspec.to_builtins(value), left, depth)
        case str():
            return _text(value)
        case dict():
            some = islice(value.items(), ENTRIES)
            return {_text(str(name)): _plain(each, left, depth + 1) for name, each in some} | _rest(value)
        case list() | tuple():
            return [_plain(each, left, depth + 1) for each in value[:ENTRIES]] + list(_rest(value).values())
        case int() if abs(value) >= 1 << 63:
            return f"{float(value):g}" if abs(value) < 1 << 1_000 else "a very large number"
        case _:
            return value


def _text(value: str) -> str:
    shown = value[:CHARACTERS].encode("utf-8", "backslashreplace").decode()  # it may be no Unicode
    return shown if len(value) <= CHARACTERS else f"{shown} …"


def _rest(value: Sized) -> dict[str, str]:
    return {"…": f"and {len(value) - ENTRIES} more"} if len(value) > ENTRIES else {}


def _made(found: Any) -> str:
    """What a successful request made, if it is a thing of its own."""
    match found:
        case BaseModel():
            name = getattr(found, "id", None)
            return f"made {name}" if isinstance(name, str) else ""
        case _:
            return ""


class Refusals:
    """Refusals of one broker's gate, for the audit log. Belongs to the endpoints' loop."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._waiting: deque[tuple[Sender, str, str, int, str]] = deque()
        self._left_out = 0
        self._writing: asyncio.Task[None] | None = None

    def note(self, sender: Sender, method: str, path: str, status: int, detail: str) -> None:
        """Have this refusal written soon, unless too many wait."""
        if len(self._waiting) >= REFUSALS_WAITING:
            self._left_out += 1
            return
        self._waiting.append((sender, method, path[:CHARACTERS], status, detail))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())

    async def close(self) -> None:
        """Write nothing more."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.wait((self._writing,))

    async def _write(self) -> None:
        node = self._handover.node
        while self._waiting:
            sender, method, path, status, detail = self._waiting.popleft()
            bind_contextvars(principal=sender.name)
            left_out, self._left_out = self._left_out, 0
            more = f" ({left_out} more refusals are not listed)" if left_out else ""
            entry = AuditEntry(
                id=node.audit.next_id(),
                at_ms=node.world.wall_ms(),
                principal=sender.name,
                how=sender.how,
                address=sender.address,
                broker=node.settings.advertised,
                action=method.lower(),
                about=redact_text(path),
                result=Result.REFUSED,
                status=status,
                detail=redact_and_shorten(detail) + more,
            )
            try:
                await self._handover.ask(lambda entry=entry: node.audit.append(entry))
            except Unavailable:
                node.audit.lost += 1
            await asyncio.sleep(REFUSALS_EVERY_S)
