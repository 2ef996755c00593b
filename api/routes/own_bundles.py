"""`/v1/bundles`: which bundles there are, in which state, and whose."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query

from api.doorway import Acting, TheNode
from api.presenting import bundle_detail, bundle_shown, bundles_after
from api.schemas import BundleDetail, BundlePage
from statechannel.bundle import Bundle
from statechannel.transitions import State

router = APIRouter(prefix="/v1/bundles", tags=["bundles"])

MAX_PAGE = 1_000


@router.get("")
async def list_bundles(
    node: TheNode,
    acting: Acting,
    namespace: str | None = None,
    state: State | None = None,
    owner: Annotated[str | None, Query(description="host:port, or host:port#incarnation")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    after: Annotated[str | None, Query(description="the last bundle of the page before")] = None,
) -> BundlePage:
    """Bundles in the order of their names, page by page. 404 for an unknown namespace."""
    if namespace is not None:
        acting.operations.namespace(namespace)
    behind = Bundle.parse(after) if after is not None else None
    found = list(islice(bundles_after(node, namespace, behind, state, owner), limit + 1))
    more = len(found) > limit
    page = found[:limit]
    return BundlePage(
        bundles=[bundle_shown(node, entry) for entry in page], next=str(page[-1].bundle) if more else None
    )


@router.get("/{tenant}/{namespace}/{hash_range}")
async def show_bundle(node: TheNode, acting: Acting, tenant: str, namespace: str, hash_range: str) -> BundleDetail:
    """Everything that this broker knows of one bundle."""
    return bundle_detail(node, acting.operations.bundle(Bundle.of(f"{tenant}/{namespace}", hash_range)))
