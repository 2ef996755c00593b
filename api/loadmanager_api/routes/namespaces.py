"""`/admin/v2/namespaces`, as Pulsar answers it, and `/admin/v2/{domain}/…/unload` for single topics.

Unlike Pulsar's, no broker redirects (307) to the owner: every broker reads and writes the same channel, so the one that
is asked does it. Each call returns when the cluster has done it, not when it was written down.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from fastapi import Body, Query
from starlette.exceptions import HTTPException

from loadmanager.broker.incarnation import Incarnation
from loadmanager.broker.node import Node
from loadmanager.errors import Conflict, Invalid
from loadmanager.model.boundaries import MOST_PARTS
from loadmanager_api.openapi import answers
from loadmanager_api.presenting import no_broker
from loadmanager_api.routing import Acting, Author, ControlRouter, TheNode
from loadmanager_api.schemas import BundlesData, NamespacePolicies, NewNamespace, RingPosition
from statechannel.law.bundle import Bundle, Key, even_boundaries
from statechannel.law.table import Namespace

router = ControlRouter(prefix="/admin/v2", tags=["namespaces"])

Destination = Annotated[str | None, Query(alias="destinationBroker", description="host:port of the new owner")]
Force = Annotated[bool, Query(description="override policies; the record says so")]
_BOUNDARY = re.compile(r"0x[0-9a-fA-F]{8}", re.ASCII)


@router.get("/namespaces/{tenant}")
async def list_namespaces(node: TheNode, tenant: str) -> list[str]:
    """List the names of the tenant's namespaces."""
    return node.channel.table.namespaces(tenant)


@router.get("/namespaces/{tenant}/{namespace}", responses=answers(404))
async def show_namespace(node: TheNode, acting: Acting, tenant: str, namespace: str) -> NamespacePolicies:
    """Show the part of Pulsar's policies that exists here."""
    known = acting.operations.namespace(f"{tenant}/{namespace}")
    return NamespacePolicies(bundles=_bundles(known), replication_clusters=[node.settings.cluster])


@router.put("/namespaces/{tenant}/{namespace}", status_code=204, responses=answers(409, 412))
async def create_namespace(
    node: TheNode, acting: Acting, author: Author, tenant: str, namespace: str, wanted: NewNamespace | None = None
) -> None:
    """Create a namespace with these boundaries, with so many even bundles, or with `namespace_default_bundles`. 409 if
    it exists.
    """
    boundaries = _boundaries(wanted or NewNamespace(), node.settings.namespace_default_bundles)
    name = f"{tenant}/{namespace}"
    left = node.told_topics.versions(name)  # by a deletion that did not end
    await acting.operations.create_namespace(name, boundaries)
    await node.told_topics.forget_all(left, author)


@router.delete("/namespaces/{tenant}/{namespace}", status_code=204, responses=answers(404, 409))
async def delete_namespace(node: TheNode, acting: Acting, author: Author, tenant: str, namespace: str) -> None:
    """Unload all bundles of the namespace, then delete it, and forget the topics that were created in it."""
    name = f"{tenant}/{namespace}"
    await acting.operations.delete_namespace(name)
    await node.told_topics.forget_all(node.told_topics.versions(name), author)


@router.get("/namespaces/{tenant}/{namespace}/bundles", responses=answers(404))
async def show_bundles(acting: Acting, tenant: str, namespace: str) -> BundlesData:
    """Show the boundaries of its bundles. `/v1/bundles` has their states and owners."""
    return _bundles(acting.operations.namespace(f"{tenant}/{namespace}"))


@router.put("/namespaces/{tenant}/{namespace}/unload", status_code=204, responses=answers(404, 409, 412))
async def unload_namespace(acting: Acting, tenant: str, namespace: str, destination: Destination = None) -> None:
    """Unload all its bundles; lookups assign them again."""
    if destination:
        raise Invalid("destinationBroker is for one bundle: name it, /{bundle}/unload?destinationBroker=…")
    await acting.operations.unload_namespace(f"{tenant}/{namespace}")


@router.put("/namespaces/{tenant}/{namespace}/{bundle}/unload", status_code=204, responses=answers(404, 409, 412))
async def unload_bundle(
    node: TheNode,
    acting: Acting,
    tenant: str,
    namespace: str,
    bundle: str,
    author: Author,
    destination: Destination = None,
    force: Force = False,
) -> None:
    """Transfer the bundle to `destinationBroker`; without one, unload it from its owner, if it has one.

    409 if the destination owns it already, is not registered, is draining or does not answer, or if a policy forbids
    the transfer (the answer names the rule; `force` overrides it). 404 if there is no such bundle.
    """
    await _move(node, acting, Bundle.of(f"{tenant}/{namespace}", bundle), destination, author, force=force)


@router.put("/namespaces/{tenant}/{namespace}/{bundle}/split", status_code=204, responses=answers(404, 409, 412))
async def split_bundle(
    acting: Acting,
    tenant: str,
    namespace: str,
    bundle: str,
    unload: bool = False,
    algorithm: Annotated[str | None, Query(alias="splitAlgorithmName")] = None,
    positions: Annotated[list[RingPosition] | None, Body(max_length=MOST_PARTS)] = None,
) -> None:
    """Split the bundle in two, or at the positions in the body. With `unload`, unload the parts afterwards.

    A range can also be LARGEST (most keys) or HOT (most load), among the bundles whose load is known here; 409 if there
    is none. `/v1/bundles/…/split` splits into more parts and answers them. 409 if the bundle has no owner or is on its
    way.
    """
    whole = await acting.splitting.named(f"{tenant}/{namespace}", bundle)
    await acting.operations.split(whole, positions=positions or None, algorithm=algorithm, unload=unload)


@router.api_route(
    "/namespaces/{tenant}/{namespace}/{matter:matter}",
    methods=["GET", "POST", "PUT", "DELETE"],
    include_in_schema=False,
)
async def not_kept(tenant: str, namespace: str, matter: str) -> None:
    """501: what else Pulsar keeps for a namespace is about messages, which are the service's."""
    raise HTTPException(
        501,
        f"{matter} of namespace {tenant}/{namespace}: a load manager knows where topics are served, and keeps no rules "
        "for their messages. Ask the service at the address that GET /lookup/v2/topic/… answers; rules for places are "
        "at /v1/policies/namespace, and roles at /v1/policies/access",
    )


@router.put("/{domain}/{tenant}/{namespace}/{topic:text}/unload", status_code=204, responses=answers(404, 409, 412))
async def unload_topic(
    node: TheNode,
    acting: Acting,
    domain: Literal["persistent", "non-persistent"],
    tenant: str,
    namespace: str,
    topic: str,
    author: Author,
    destination: Destination = None,
    force: Force = False,
) -> None:
    """Transfer the topic's whole bundle to another broker (PIP-192's `topics unload --dest`)."""
    entry = acting.operations.bundle_of(Key.parse(f"{domain}://{tenant}/{namespace}/{topic}"))
    await _move(node, acting, entry.bundle, destination, author, force=force)


async def _move(
    node: Node, acting: Incarnation, bundle: Bundle, destination: str | None, author: str, *, force: bool
) -> None:
    if destination:
        acting.operations.bundle(bundle)
        if destination not in node.membership.peers:  # 409 as in Pulsar: 404 would say that the bundle is missing
            raise Conflict(no_broker(node, destination))
        await acting.operations.transfer(bundle, destination, author=author, force=force)
    else:
        await acting.operations.unload(bundle)


def _bundles(known: Namespace) -> BundlesData:
    edges = [*known.lower_bounds, known.bundles[-1].hi]
    return BundlesData(boundaries=[f"0x{edge:08x}" for edge in edges], numBundles=len(known.bundles))


def _boundaries(wanted: NewNamespace, default_bundles: int) -> tuple[int, ...]:
    data = wanted.bundles or BundlesData(numBundles=wanted.numBundles)
    if not data.boundaries:
        return even_boundaries(default_bundles if data.numBundles is None else data.numBundles)
    if data.numBundles is not None and data.numBundles != len(data.boundaries) - 1:
        raise Invalid(
            f"{len(data.boundaries)} boundaries make {len(data.boundaries) - 1} bundles, not {data.numBundles}"
        )
    return tuple(_position(boundary) for boundary in data.boundaries)


def _position(text: str) -> int:
    if _BOUNDARY.fullmatch(text) is None:
        raise Invalid(f"{text!r} is no boundary; write 0x40000000")
    return int(text, 16)
