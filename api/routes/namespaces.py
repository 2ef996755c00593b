"""`/admin/v2/namespaces`, as Pulsar answers it, and `/admin/v2/{domain}/…/unload` for single topics.

Unlike Pulsar's, no broker redirects (307) to the owner: every broker reads and writes the same channel, so the one that
is asked does it. Each call returns when the cluster has done it, not when it was written down.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from fastapi import APIRouter, Query

from api.doorway import Acting, TheNode
from api.schemas import BundlesData, NamespacePolicies, NewNamespace
from loadmanager.errors import Invalid
from loadmanager.incarnation import Incarnation
from statechannel.bundle import DEFAULT_BUNDLES, Bundle, Topic, even_boundaries
from statechannel.table import Namespace

router = APIRouter(prefix="/admin/v2", tags=["namespaces"])

Destination = Annotated[
    str | None, Query(alias="destinationBroker", description="host:port of the broker that shall own it")
]
_BOUNDARY = re.compile(r"0x[0-9a-fA-F]{8}", re.ASCII)


@router.get("/namespaces/{tenant}")
async def list_namespaces(node: TheNode, tenant: str) -> list[str]:
    """Names of the tenant's namespaces."""
    return node.channel.table.namespaces(tenant)


@router.get("/namespaces/{tenant}/{namespace}")
async def show_namespace(node: TheNode, acting: Acting, tenant: str, namespace: str) -> NamespacePolicies:
    """The part of Pulsar's policies that exists here."""
    known = acting.operations.namespace(f"{tenant}/{namespace}")
    return NamespacePolicies(bundles=_bundles(known), replication_clusters=[node.settings.cluster])


@router.put("/namespaces/{tenant}/{namespace}", status_code=204)
async def create_namespace(acting: Acting, tenant: str, namespace: str, wanted: NewNamespace | None = None) -> None:
    """Create it, with the given boundaries, or so many even bundles, or four. 409 if it exists."""
    await acting.operations.create_namespace(f"{tenant}/{namespace}", _boundaries(wanted or NewNamespace()))


@router.delete("/namespaces/{tenant}/{namespace}", status_code=204)
async def delete_namespace(acting: Acting, tenant: str, namespace: str) -> None:
    """Unload all its bundles, then delete it."""
    await acting.operations.delete_namespace(f"{tenant}/{namespace}")


@router.get("/namespaces/{tenant}/{namespace}/bundles")
async def show_bundles(acting: Acting, tenant: str, namespace: str) -> BundlesData:
    """Its boundaries. States and owners are at `/v1/bundles`."""
    return _bundles(acting.operations.namespace(f"{tenant}/{namespace}"))


@router.put("/namespaces/{tenant}/{namespace}/unload", status_code=204)
async def unload_namespace(acting: Acting, tenant: str, namespace: str, destination: Destination = None) -> None:
    """Take all its bundles from their owners; lookups assign them again."""
    if destination:
        raise Invalid("destinationBroker is for one bundle: name it, /{bundle}/unload?destinationBroker=…")
    await acting.operations.unload_namespace(f"{tenant}/{namespace}")


@router.put("/namespaces/{tenant}/{namespace}/{bundle}/unload", status_code=204)
async def unload_bundle(
    acting: Acting,
    tenant: str,
    namespace: str,
    bundle: str,
    destination: Destination = None,
) -> None:
    """Transfer the bundle to `destinationBroker`; without one, take it from its owner, if it has one.

    409 if the destination owns it already, is draining or does not answer; 404 if there is no such bundle or broker.
    """
    await _move(acting, Bundle.of(f"{tenant}/{namespace}", bundle), destination)


@router.put("/{domain}/{tenant}/{namespace}/{topic:path}/unload", status_code=204)
async def unload_topic(
    acting: Acting,
    domain: Literal["persistent", "non-persistent"],
    tenant: str,
    namespace: str,
    topic: str,
    destination: Destination = None,
) -> None:
    """Move the topic, which is to say its whole bundle (PIP-192's `topics unload --dest`)."""
    entry = acting.operations.bundle_of(Topic.parse(f"{domain}://{tenant}/{namespace}/{topic}"))
    await _move(acting, entry.bundle, destination)


async def _move(acting: Incarnation, bundle: Bundle, destination: str | None) -> None:
    if destination:
        await acting.operations.transfer(bundle, destination)
    else:
        await acting.operations.unload(bundle)


def _bundles(known: Namespace) -> BundlesData:
    edges = [*known.lower_bounds, known.bundles[-1].hi]
    return BundlesData(boundaries=[f"0x{edge:08x}" for edge in edges], numBundles=len(known.bundles))


def _boundaries(wanted: NewNamespace) -> tuple[int, ...]:
    data = wanted.bundles or BundlesData(numBundles=wanted.numBundles)
    if not data.boundaries:
        return even_boundaries(DEFAULT_BUNDLES if data.numBundles is None else data.numBundles)
    if data.numBundles is not None and data.numBundles != len(data.boundaries) - 1:
        raise Invalid(
            f"{len(data.boundaries)} boundaries make {len(data.boundaries) - 1} bundles, not {data.numBundles}"
        )
    return tuple(_position(boundary) for boundary in data.boundaries)


def _position(text: str) -> int:
    if _BOUNDARY.fullmatch(text) is None:
        raise Invalid(f"{text!r} is no boundary; write 0x40000000")
    return int(text, 16)
