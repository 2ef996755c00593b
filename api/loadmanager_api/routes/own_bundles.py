"""`/v1/bundles`: list bundles with state and owner; split, merge, cancel.

Each change returns when the cluster has done it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query

from loadmanager.broker.node import Node
from loadmanager.model.policies.model import AccessRole
from loadmanager_api.bundle_loads import AWAITED_S, Loads, hottest
from loadmanager_api.openapi import answers
from loadmanager_api.paging import Cursor, Limit, Paging
from loadmanager_api.presenting import bundle_detail, bundle_shown, bundles_after, fits
from loadmanager_api.routing import Acting, ControlRouter, Permission, TheNode
from loadmanager_api.schemas import BundleDetail, BundlePage, BundleShown, Children, Merged, MergeWanted, SplitWanted
from statechannel.law.bundle import Bundle
from statechannel.law.transitions import State
from statechannel.law.verdict import Ownership

router = ControlRouter(prefix="/v1/bundles", tags=["bundles"])


@router.get("", responses=answers(404))
async def list_bundles(
    node: TheNode,
    acting: Acting,
    paging: Paging,
    namespace: str | None = None,
    state: State | None = None,
    owner: Annotated[
        str | None, Query(description="only bundles of this owner: host:port, or host:port#incarnation")
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    order: Annotated[
        Literal["name", "load"],
        Query(description="load: one page of bundles whose load is known, those with the highest message rate first"),
    ] = "name",
) -> BundlePage:
    """List bundles by name, page by page, or the hottest ones. 404 for an unknown namespace."""
    if namespace is not None:
        acting.operations.namespace(namespace)
    if order == "load":
        await node.views.read_bundles()
        at = hottest(node, lambda e: namespace in (None, e.bundle.namespace) and fits(e, state, owner), limit)
        return BundlePage(bundles=_rows(node, at), next=None)
    behind = paging.read(cursor, Bundle.parse)
    found = await bundles_after(node, namespace, behind, state, owner, limit + 1)
    more = len(found) > limit
    await node.views.bundles.read(AWAITED_S)
    page = found[:limit]
    return BundlePage(bundles=_rows(node, page), next=paging.next(page[-1].bundle if more else None))


def _rows(node: Node, entries: list[Ownership]) -> list[BundleShown]:
    loads = Loads(node)
    return [bundle_shown(node, entry, loads) for entry in entries]


@router.get("/{tenant}/{namespace}/{hash_range}", responses=answers(404, 412))
async def show_bundle(node: TheNode, acting: Acting, tenant: str, namespace: str, hash_range: str) -> BundleDetail:
    """Show everything that this broker knows of one bundle."""
    await node.views.bundles.read(AWAITED_S)
    return bundle_detail(node, acting.operations.bundle(Bundle.of(f"{tenant}/{namespace}", hash_range)))


@router.post("/merge", responses=answers(404, 409, 412))
async def merge_bundles(acting: Acting, may: Permission, wanted: MergeWanted) -> Merged:
    """Merge neighbours of one owner into one bundle. 409 says which transfers would bring them together."""
    bundles = [Bundle.parse(name) for name in wanted.bundles]
    for bundle in bundles:
        may.require(AccessRole.OPERATOR, bundle.namespace)
    merged = await acting.operations.merge(bundles)
    return Merged(bundle=str(merged))


@router.post("/{tenant}/{namespace}/{hash_range}/split", responses=answers(404, 409, 412))
async def split_bundle(
    acting: Acting, tenant: str, namespace: str, hash_range: str, wanted: SplitWanted | None = None
) -> Children:
    """Split the bundle in two, into so many parts, or at the given positions.

    A range can also be LARGEST (most keys) or HOT (most load). 409 if the bundle has no owner, is on its way, or if its
    owner found no cuts.
    """
    wanted = wanted or SplitWanted()
    children = await acting.operations.split(
        await acting.splitting.named(f"{tenant}/{namespace}", hash_range),
        parts=wanted.parts,
        positions=wanted.positions,
        algorithm=wanted.algorithm,
        unload=wanted.unload,
    )
    return Children(children=[str(child) for child in children])


@router.post("/{tenant}/{namespace}/{hash_range}/cancel", status_code=204, responses=answers(404, 409, 412))
async def cancel_move(acting: Acting, tenant: str, namespace: str, hash_range: str) -> None:
    """Cancel the transfer or split of the bundle. 409 if there is none, or if it is too late."""
    await acting.operations.cancel(Bundle.of(f"{tenant}/{namespace}", hash_range))
