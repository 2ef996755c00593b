"""`/v1/bundles/{…}/history`: every record about one bundle that the log still holds, with its verdict."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from loadmanager.broker.node import Node
from loadmanager.channel.bundle_history import History, history_of
from loadmanager.channel.replay_queue import ReplayQueue
from loadmanager.cluster.journal import offset_of
from loadmanager.errors import NotFound, Unavailable
from loadmanager_api.openapi import answers
from loadmanager_api.paging import Cursor, Limit, Paging
from loadmanager_api.presenting_history import history_shown
from loadmanager_api.routing import ControlRouter, TheNode
from loadmanager_api.schemas_history import HistoryShown
from loadmanager_api.state import kept
from statechannel.errors import BadSnapshot, NewerRecord, Trimmed
from statechannel.law.bundle import Bundle

router = ControlRouter(prefix="/v1/bundles", tags=["bundles"])


@router.get("/{tenant}/{namespace}/{hash_range}/history", responses=answers(404, 412))
async def bundle_history(
    request: Request,
    node: TheNode,
    paging: Paging,
    tenant: str,
    namespace: str,
    hash_range: str,
    limit: Limit = 100,
    cursor: Cursor = None,
    since_ms: Annotated[
        int | None, Query(ge=0, le=2**53, description="only records since this time of the log's clock, in ms")
    ] = None,
) -> HistoryShown:
    """List every record that names the bundle, accepted or refused, newest first, also after a split or merge.

    `next` is the `cursor` of the next page. 404 for a bundle that never existed.
    """
    bundle = Bundle.of(f"{tenant}/{namespace}", hash_range)
    table, replays, before = node.channel.table, kept(request).replay_queue, paging.read(cursor, offset_of)
    if table.namespace(bundle.namespace) is None:
        raise NotFound(f"there is no namespace {bundle.namespace}, and never was")
    found = await _found(node, replays, bundle, limit, before, since_ms)
    entry = table.get(bundle)
    if not found.heard_of and entry is None:
        raise NotFound(_unheard_of(found, since_ms, before))
    next_page = paging.next(found.entries[-1].offset if found.older else None)
    return history_shown(found, entry, next_page, since_ms)


async def _found(
    node: Node, replays: ReplayQueue, bundle: Bundle, limit: int, before: int | None, since_ms: int | None
) -> History:
    channel, table = node.channel, node.channel.table
    place = (table.partition_of(bundle.namespace), table.partitions)
    try:
        return await history_of(
            replays, node.world.log, channel.topic, bundle, place, limit=limit, below=before, since_ms=since_ms
        )
    except Trimmed as error:
        raise Unavailable(f"the log was trimmed while it was read: {error}; try again") from None
    except (BadSnapshot, NewerRecord) as error:
        raise Unavailable(f"the log cannot be replayed: {error}", retry_after_s=60.0) from None


def _unheard_of(found: History, since_ms: int | None, before: int | None) -> str:
    if since_ms is not None:
        return f"no record names {found.bundle} in that time; ask without since_ms"
    where = f" (the log of partition {found.partition} begins at offset {found.log_begin})" if found.log_begin else ""
    if before is not None:
        return f"no record below offset {before} names {found.bundle}{where}; ask without cursor"
    heard = "no record that is still there names" if found.log_begin else "nobody ever heard of"
    return f"{heard} {found.bundle}{where}; see /v1/bundles?namespace={found.bundle.namespace}"
