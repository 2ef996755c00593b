"""`/v1/bundles`: list bundles with state and owner; split, merge, cancel.

Each change returns when the cluster has done it.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from loadmanager_api.crossing import ControlRouter
from loadmanager_api.kept import Acting, TheNode
from loadmanager_api.presenting import bundle_detail, bundle_shown, bundles_after
from loadmanager_api.schemas import BundleDetail, BundlePage, Children, Merged, MergeWanted, SplitWanted
from statechannel.law.bundle import Bundle
from statechannel.law.transitions import State

router = ControlRouter(prefix="/v1/bundles", tags=["bundles"])

MAX_PAGE = 1_000


@router.get("")
async def list_bundles(
    node: TheNode,
    acting: Acting,
    namespace: str | None = None,
    state: State | None = None,
    owner: Annotated[
        str | None, Query(description="only bundles of this owner: host:port, or host:port#incarnation")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 100,
    after: Annotated[str | None, Query(description="the last bundle of the previous page")] = None,
) -> BundlePage:
    """List bundles by name, page by page. 404 for an unknown namespace."""
    if namespace is not None:
        acting.operations.namespace(namespace)
    behind = Bundle.parse(after) if after is not None else None
    found = await bundles_after(node, namespace, behind, state, owner, limit + 1)
    more = len(found) > limit
    page = found[:limit]
    return BundlePage(
        bundles=[bundle_shown(node, entry) for entry in page], next=str(page[-1].bundle) if more else None
    )


@router.get("/{tenant}/{namespace}/{hash_range}")
async def show_bundle(node: TheNode, acting: Acting, tenant: str, namespace: str, hash_range: str) -> BundleDetail:
    """Show everything that this broker knows of one bundle."""
    return bundle_detail(node, acting.operations.bundle(Bundle.of(f"{tenant}/{namespace}", hash_range)))


@router.post("/merge")
async def merge_bundles(acting: Acting, wanted: MergeWanted) -> Merged:
    """Merge neighbours of one owner into one bundle. 409 says which transfers would bring them together."""
    merged = await acting.operations.merge([Bundle.parse(name) for name in wanted.bundles])
    return Merged(bundle=str(merged))


@router.post("/{tenant}/{namespace}/{hash_range}/split")
async def split_bundle(
    acting: Acting, tenant: str, namespace: str, hash_range: str, wanted: SplitWanted | None = None
) -> Children:
    """Split the bundle in two, into so many parts, or at the given positions.

    A range can also be LARGEST (most keys) or HOT (most load). 409 if the bundle has no owner, is on its way, or if its
    owner found no cuts.
    """
    wanted = wanted or SplitWanted()
    children = await acting.operations.split(
        acting.splitting.named(f"{tenant}/{namespace}", hash_range),
        parts=wanted.parts,
        positions=wanted.positions,
        algorithm=wanted.algorithm,
        unload=wanted.unload,
    )
    return Children(children=[str(child) for child in children])


@router.post("/{tenant}/{namespace}/{hash_range}/cancel", status_code=204)
async def cancel(acting: Acting, tenant: str, namespace: str, hash_range: str) -> None:
    """Cancel the transfer or split of the bundle. 409 if there is none, or if it is too late."""
    await acting.operations.cancel(Bundle.of(f"{tenant}/{namespace}", hash_range))
