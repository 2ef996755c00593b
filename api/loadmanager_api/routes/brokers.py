"""`/v1/brokers`: the members with their load, and their drains. `/v1/usage`: how full they were.

A drain is the broker's own work, so these requests (and only these) are sent on: 307 to the admin URL of the broker. A
drain by policy is the leader's work: any broker writes the policy.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, cast

import msgspec
from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse
from msgspec.structs import asdict
from pydantic import BaseModel

from loadmanager.broker.health import wall_ms_of
from loadmanager.broker.node import Node
from loadmanager.cluster.usage_history import Copy, UsageRows, rows
from loadmanager.diagnostics.redaction import HIDDEN
from loadmanager.errors import Conflict, NotFound, Unavailable
from loadmanager.model.load import BrokerLoadData
from loadmanager.model.policies.model import BrokerPolicy, Kind, Policy
from loadmanager.model.registration import Peer
from loadmanager_api.openapi import answers, shape
from loadmanager_api.paging import MOST, Cursor, Limit, Paging
from loadmanager_api.routing import Acting, Author, ControlRouter, TheNode, leader_of, no_broker, on_http_loop
from loadmanager_api.state import kept
from statechannel.law.record import BrokerId


class BrokerResponse(BaseModel):
    """A broker: what it registered, how others see it, and what it holds.

    `registered` is false for a broker that is gone: it still holds bundles, or ended without a drain in the last hour,
    or a policy names it. `gone_ms` is when its registration ended, as the asked broker saw it. `suspected` says why it
    is thought dead.
    A broker that is `behind` says that it cannot read the log, and gets no bundles. `unfit` says why it gets none but
    for trials: it could not acquire several in a row.
    """

    broker: str
    incarnation: int
    registered: bool
    live: bool
    leader: bool
    draining: bool
    behind: bool
    suspected: str | None
    unfit: str | None
    bundles: int
    gone_ms: int | None = None
    admin_url: str = ""
    urls: dict[str, str] = {}
    version: str = ""
    failure_domain: str = ""
    capacity: dict[str, float] = {}
    properties: dict[str, str] = {}
    started_ms: int = 0
    load: dict[str, Any] | None = None


class Drain(BaseModel):
    """The progress of a drain. `running` turns false at its deadline even if bundles are left."""

    broker: str
    draining: bool
    running: bool
    total: int
    left: int
    done: bool


def broker_response(node: Node, broker: BrokerId, peer: Peer | None) -> BrokerResponse:
    """One broker; `peer` is None if this incarnation is not registered."""
    load = node.views.brokers.get(broker.name)
    registered: dict[str, Any] = {}
    if peer is not None:  # properties are hidden as in the settings: people write what they like
        registered = asdict(peer.registration) | {"properties": dict.fromkeys(peer.registration.properties, HIDDEN)}
    policy = node.policies.current().brokers.get(broker.name)
    departed = node.membership.departed.get(broker.name)
    gone = peer is None and departed is not None and departed.peer.broker == broker
    more = {
        "broker": broker.name,
        "incarnation": broker.incarnation,
        "registered": peer is not None,
        "live": node.membership.is_live(broker, node.world.clock_s()),
        "leader": leader_of(node) == broker,
        "draining": peer is not None and (peer.registration.draining or (policy is not None and policy.drain)),
        "behind": peer is not None and peer.registration.behind,
        "suspected": node.membership.suspected.get(broker),
        "unfit": node.fitness.why(broker) or None,
        "bundles": node.channel.table.count_held_by(broker),
        "gone_ms": wall_ms_of(node, departed.at_s) if gone and departed is not None else None,
        "load": load_fields(load) if load is not None and load.broker == broker else None,
    }
    return BrokerResponse.model_validate(registered | more)


def load_fields(load: BrokerLoadData) -> dict[str, Any]:
    """A broker's load, with names for all of its numbers."""
    shown: dict[str, Any] = msgspec.to_builtins(load)
    return shown | {"io": msgspec.structs.asdict(load.io)}


router = ControlRouter(prefix="/v1", tags=["brokers"])

SHOWN_AT_ONCE = 50
"""Brokers that are shown in one turn of the control loop."""

ByPolicy = Annotated[
    bool,
    Query(description="by a broker policy: any broker answers, the leader moves the bundles, restarts change nothing"),
]


@router.get("/usage", response_class=Response, responses=answers(json=shape(UsageRows)))
@on_http_loop
async def show_usage(request: Request, node: TheNode) -> Response:
    """Show how full each broker was in the last hour, as far back as the asked broker was there to see it."""

    async def copied() -> Copy:
        return node.usage_history.copy()

    found = rows(await kept(request).handover.ask(copied, light=True))
    return Response(msgspec.json.encode(found), media_type="application/json")


@router.get("/brokers")
async def list_brokers(
    node: TheNode,
    paging: Paging,
    domain: Annotated[str | None, Query(description="only brokers of this failure domain")] = None,
    registered: Annotated[bool | None, Query(description="only brokers that are registered, or are not")] = None,
    limit: Limit = MOST,
    cursor: Cursor = None,
) -> list[BrokerResponse]:
    """List every registered broker, and brokers that are gone: they still hold bundles, or died in the last hour, or a
    policy names them. By name.
    """
    known = {peer.broker: peer for peer in node.membership.peers.values()}
    dead = node.membership.dead(node.world.clock_s(), node.policies.current().brokers)
    found = [
        broker
        for broker in {*known, *node.channel.table.holders(), *(each.peer.broker for each in dead)}
        if registered in (None, broker in known)
        and (domain is None or (broker in known and known[broker].registration.failure_domain == domain))
    ]
    shown: list[BrokerResponse] = []
    for broker in paging.of(found, str, limit, cursor, r".+#\d+"):
        shown.append(broker_response(node, broker, known.get(broker)))
        if len(shown) % SHOWN_AT_ONCE == 0:
            await asyncio.sleep(0)
    return shown


@router.get("/brokers/{broker}", responses=answers(404))
async def show_broker(node: TheNode, broker: str) -> BrokerResponse:
    """Show one broker by its name."""
    peer = node.membership.peers.get(broker)
    if peer is not None:
        return broker_response(node, peer.broker, peer)
    dead = node.membership.dead(node.world.clock_s(), node.policies.current().brokers)
    gone = [each.peer.broker for each in dead if each.peer.broker.name == broker]
    gone += [holder for holder in node.channel.table.holders() if holder.name == broker]
    if not gone:
        raise NotFound(no_broker(node, broker))
    return broker_response(node, max(gone), None)


@router.get("/brokers/{broker}/drain", response_model=Drain, responses=answers(307, 404))
async def drain_progress(request: Request, node: TheNode, acting: Acting, broker: str) -> Drain | Response:
    """Show the progress of the broker's drain."""
    return _elsewhere(request, node, broker) or _progress(request, node)


@router.put("/brokers/{broker}/drain", status_code=202, response_model=Drain, responses=answers(307, 404, 409))
async def drain(
    request: Request,
    node: TheNode,
    acting: Acting,
    author: Author,
    broker: str,
    timeout_s: Annotated[
        float | None,
        Query(gt=0, le=86_400, description="time limit in seconds; by default the setting drain_timeout_s"),
    ] = None,
    force: Annotated[bool, Query(description="drain even if no other broker takes bundles")] = False,
    by_policy: ByPolicy = False,
) -> Drain | Response:
    """Drain the broker: it takes no more bundles, and all of its bundles move away. Answers at once; `GET` shows
    progress.

    409 if no other broker could take its bundles: they would have no owner.
    """
    elsewhere = None if by_policy else _elsewhere(request, node, broker)
    if elsewhere is not None:
        return elsewhere
    drained = {name for name, policy in node.policies.current().brokers.items() if policy.drain}
    if not force and all(peer.broker.name in {broker, *drained} for peer in node.membership.eligible()):
        raise Conflict("no other broker takes bundles: start or undrain one, or insist (?force=true, --force)")
    if by_policy:
        await _set_policy(node, broker, author, drain=True)
        left = node.channel.table.count_held_by(node.membership.peers[broker].broker)
        return Drain(broker=broker, draining=True, running=True, total=left, left=left, done=left == 0)
    kept(request).draining.begin(timeout_s or node.settings.drain_timeout_s)
    return _progress(request, node).model_copy(update={"draining": True})


@router.delete("/brokers/{broker}/drain", status_code=204, response_model=None, responses=answers(307, 404, 409))
async def undrain(
    request: Request, node: TheNode, acting: Acting, author: Author, broker: str, by_policy: ByPolicy = False
) -> Response | None:
    """Cancel the drain: the broker takes bundles again."""
    if by_policy:
        await _set_policy(node, broker, author, drain=False)
        return None
    elsewhere = _elsewhere(request, node, broker)
    if elsewhere is None:
        await kept(request).draining.end()
    return elsewhere


async def _set_policy(node: Node, broker: str, author: str, *, drain: bool) -> None:
    if broker not in node.membership.peers:
        raise NotFound(no_broker(node, broker))

    def changed(policy: Policy) -> Policy:
        return msgspec.structs.replace(cast("BrokerPolicy", policy), drain=drain)

    reason = "drain" if drain else "undrain"
    await node.policies.change(Kind.BROKER, broker, changed, author=author, reason=reason)


def _progress(request: Request, node: Node) -> Drain:
    progress, draining = node.current.drain.progress(), kept(request).draining
    return Drain(
        broker=node.settings.advertised,
        draining=node.registration.draining,
        running=draining.running,
        total=progress.total,
        left=progress.left,
        done=progress.done,
    )


def _elsewhere(request: Request, node: Node, broker: str) -> Response | None:
    """A redirect to the broker itself, None if it is this one."""
    if broker == node.settings.advertised:
        return None
    peer = node.membership.peers.get(broker)
    if peer is None:
        raise NotFound(no_broker(node, broker))
    if not peer.registration.admin_url:
        raise Unavailable(f"{broker} registered no admin URL: ask it directly")
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{peer.registration.admin_url}{request.url.path}{query}", 307)
