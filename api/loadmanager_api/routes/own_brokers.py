"""`/v1/brokers`: the members with their load, and their drains.

A drain is the broker's own work, so these requests (and only these) are sent on: 307 to the admin URL of the broker.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import RedirectResponse

from loadmanager.broker.node import Node
from loadmanager.errors import Conflict, NotFound, Unavailable
from loadmanager_api.crossing import ControlRouter
from loadmanager_api.draining import Draining
from loadmanager_api.kept import Acting, TheNode, kept
from loadmanager_api.presenting import broker_shown, brokers_shown
from loadmanager_api.schemas import BrokerShown, DrainShown

router = ControlRouter(prefix="/v1/brokers", tags=["brokers"])


@router.get("")
async def list_brokers(node: TheNode) -> list[BrokerShown]:
    """List every registered broker, and brokers that are gone but still hold bundles."""
    return brokers_shown(node)


@router.get("/{broker}")
async def show_broker(node: TheNode, broker: str) -> BrokerShown:
    """Show one broker by its name."""
    peer = node.membership.peers.get(broker)
    if peer is not None:
        return broker_shown(node, peer.broker, peer)
    held = [holder for holder in node.channel.table.holders() if holder.name == broker]
    if not held:
        raise _unknown(node, broker)
    return broker_shown(node, max(held), None)


@router.get("/{broker}/drain", response_model=DrainShown)
async def drain_progress(request: Request, node: TheNode, acting: Acting, broker: str) -> DrainShown | Response:
    """Show the progress of the broker's drain."""
    return _elsewhere(request, node, broker) or _draining(request).progress()


@router.put("/{broker}/drain", status_code=202, response_model=DrainShown)
async def drain(
    request: Request,
    node: TheNode,
    acting: Acting,
    broker: str,
    timeout_s: Annotated[
        float | None,
        Query(gt=0, le=86_400, description="time limit in seconds; by default the setting drain_timeout_s"),
    ] = None,
    force: Annotated[bool, Query(description="drain even if no other broker takes bundles")] = False,
) -> DrainShown | Response:
    """Drain the broker: it takes no more bundles, and all of its bundles move away. Answers at once; `GET` shows
    progress.

    409 if no other broker could take its bundles: they would have no owner.
    """
    elsewhere = _elsewhere(request, node, broker)
    if elsewhere is not None:
        return elsewhere
    drained = {name for name, policy in node.policies.current().brokers.items() if policy.drain}
    if not force and all(peer.broker.name in {broker, *drained} for peer in node.membership.eligible()):
        raise Conflict("no other broker takes bundles: start or undrain one, or insist (?force=true, --force)")
    draining = _draining(request)
    draining.begin(timeout_s or node.settings.drain_timeout_s)
    return draining.progress().model_copy(update={"draining": True})


@router.delete("/{broker}/drain", status_code=204, response_model=None)
async def undrain(request: Request, node: TheNode, acting: Acting, broker: str) -> Response | None:
    """Cancel the drain: the broker takes bundles again."""
    elsewhere = _elsewhere(request, node, broker)
    if elsewhere is None:
        await _draining(request).end()
    return elsewhere


def _draining(request: Request) -> Draining:
    return kept(request).draining


def _elsewhere(request: Request, node: Node, broker: str) -> Response | None:
    """A redirect to the broker itself, None if it is this one."""
    if broker == node.settings.advertised:
        return None
    peer = node.membership.peers.get(broker)
    if peer is None:
        raise _unknown(node, broker)
    if not peer.registration.admin_url:
        raise Unavailable(f"{broker} registered no admin URL: ask it directly")
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"{peer.registration.admin_url}{request.url.path}{query}", 307)


def _unknown(node: Node, broker: str) -> NotFound:
    return NotFound(f"there is no broker {broker}; registered: {', '.join(sorted(node.membership.peers)) or 'none'}")
