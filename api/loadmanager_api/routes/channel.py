"""`/v1/channel`, the readers of its log, `/v1/notes`, `/v1/settings`, `/metrics`: this broker's own condition."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import islice
from typing import Annotated, Any

import msgspec
from fastapi import Query, Request, Response
from prometheus_client.exposition import choose_encoder

from loadmanager.broker.node import Node
from loadmanager.channel.audit.digests import (
    BUNDLES_AT_MOST,
    NAMESPACES_AT_MOST,
    NamespaceDigests,
    PartitionDigests,
    namespace_digests,
    partition_digests,
)
from loadmanager.channel.log_status import look
from loadmanager.cluster.journal import offset_of
from loadmanager.cluster.readers import NAME, ChannelReader, ReaderRegistry
from loadmanager.errors import NotFound
from loadmanager_api.http.counts import http_metrics
from loadmanager_api.openapi import answers, shape
from loadmanager_api.paging import MOST, Cursor, Limit, Paging, Prefix, SinceMs
from loadmanager_api.presenting import settings_shown
from loadmanager_api.presenting_channel import channel_shown
from loadmanager_api.routing import Acting, AnyNode, ControlRouter, TheNode, on_http_loop
from loadmanager_api.schemas import ChannelShown, LateVerdict, Notes, NoteShown, ReaderPositions, Readers, ReaderShown
from loadmanager_api.state import kept
from statechannel.law.bundle import Bundle, check_namespace
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change

router = ControlRouter(tags=["this broker"])


@router.get("/v1/channel")
async def show_channel(
    request: Request,
    node: TheNode,
    digest: Annotated[bool, Query(description="whether to add a digest of each partition")] = False,
) -> ChannelShown:
    """Show how far this replica has read, what it refused and skipped, who leads, and what the log holds.

    Each digest is of the partition as of its `next_offset`.
    """
    outlook = await look(node.world.log, node.channel.topic, kept(request).snapshot_lists)
    return channel_shown(node, outlook, await _digested(node.channel.table) if digest else None)


async def _digested(table: OwnershipTable) -> list[tuple[int, str]]:
    """Offset and digest of one cut per partition; a cut is fast, the digests are computed on another thread."""
    digested: list[tuple[int, str]] = []
    for partition in range(table.partitions):
        state = table.cut(partition)
        digested.append((state.next_offset, await asyncio.to_thread(state.digest)))
    return digested


@router.get("/v1/channel/digests", responses=answers(404, 412, json=shape(PartitionDigests, NamespaceDigests)))
async def show_digests(
    node: TheNode,
    paging: Paging,
    partition: Annotated[int, Query(ge=0)],
    namespace: Annotated[str | None, Query(description="list digests of the bundles of this namespace")] = None,
    cursor: Cursor = None,
) -> Response:
    """List digests of a partition's namespaces, or of a namespace's bundles, to find where two replicas differ.

    A page shows one moment, `next_offset`; the next page may show a later one. 404 for another partition.
    """
    table = node.channel.table
    after = paging.read(cursor, check_namespace if namespace is None else partial(_range_of, namespace)) or ""
    if partition >= table.partitions:
        raise NotFound(f"the channel has the partitions 0 to {table.partitions - 1}, not {partition}")
    state = table.cut(partition)
    if namespace is None:
        found = await asyncio.to_thread(partition_digests, state, after, NAMESPACES_AT_MOST)
    else:
        found = await asyncio.to_thread(namespace_digests, state, check_namespace(namespace), after, BUNDLES_AT_MOST)
    paging.next(found.next or None)
    return Response(msgspec.json.encode(found), media_type="application/json")


def _range_of(namespace: str, cursor: str) -> str:
    return Bundle.of(namespace, cursor).range


@router.get("/v1/channel/records/{record_id}", responses=answers(404))
async def show_verdict(node: TheNode, record_id: str) -> LateVerdict:
    """Show the verdict on a record of this broker that came too late for its request (the `record_id` of a 503).

    404 while the record has not been read back, and for records of other brokers.
    """
    verdict = node.channel.settled(record_id)
    if verdict is None:
        raise NotFound(
            f"no late verdict of {record_id!r} here: it has not been read back (ask again), or it was not written by "
            "this broker since its start, or its verdict came in time"
        )
    if isinstance(verdict, Change):
        return LateVerdict(record_id=record_id, verdict="accepted", detail=f"at offset {verdict.offset}")
    return LateVerdict(record_id=record_id, verdict="refused", detail=f"{verdict.reason}: {verdict.detail}")


@router.get("/v1/channel/readers")
async def list_readers(
    node: TheNode,
    paging: Paging,
    prefix: Prefix = None,
    since_ms: SinceMs = None,
    limit: Limit = MOST,
    cursor: Cursor = None,
) -> Readers:
    """List the registered readers of the log by name, with their positions. `since_ms`: renewed since then."""
    found = {
        name: reader
        for name, reader in _registry(node).all().items()
        if name.startswith(prefix or "") and (since_ms is None or reader.registered_ms >= since_ms)
    }
    page = paging.of(found, str, limit, cursor, NAME.pattern)
    return Readers(readers=[_reader_shown(node, name, found[name]) for name in page], next=paging.following)


@router.get("/v1/channel/readers/{name}", responses=answers(404))
async def show_reader(node: TheNode, name: str) -> ReaderShown:
    """Show one registered reader."""
    return _reader_shown(node, name, _registry(node).get(name))


@router.put("/v1/channel/readers/{name}", responses=answers(409, 412))
async def register_reader(node: TheNode, acting: Acting, name: str, wanted: ReaderPositions) -> ReaderShown:
    """Register, move or renew a reader. The log keeps what the reader has not read for `reader_ttl_s`.

    409 if part of it was trimmed already, 412 if the positions do not fit the channel.
    """
    return _reader_shown(node, name, await _registry(node).register(name, wanted.positions))


@router.delete("/v1/channel/readers/{name}", status_code=204, responses=answers(404))
async def remove_reader(node: TheNode, acting: Acting, name: str) -> None:
    """Remove a reader: trimming no longer waits for it."""
    await _registry(node).remove(name)


def _registry(node: Node) -> ReaderRegistry:
    return ReaderRegistry(node.views.readers, node.world.log, node.channel.topic, node.world.wall_ms)


def _reader_shown(node: Node, name: str, reader: ChannelReader) -> ReaderShown:
    return ReaderShown(
        name=name,
        positions=list(reader.positions),
        registered_ms=reader.registered_ms,
        until_ms=reader.registered_ms + round(1000 * node.settings.reader_ttl_s),
    )


@router.get("/v1/notes")
async def list_notes(
    node: AnyNode,
    paging: Paging,
    about: Annotated[
        str | None, Query(max_length=1_000, description="only notes with this text in them", examples=["shop/carts"])
    ] = None,
    since_ms: SinceMs = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Notes:
    """List the notes of this broker, newest first. It keeps the last 500."""
    before = paging.read(cursor, offset_of)
    found = (
        note
        for note in reversed(node.notes)
        if (before is None or note.number < before)
        and (since_ms is None or note.at_ms >= since_ms)
        and (about or "") in note.text
    )
    page = list(islice(found, limit))
    more = next(found, None) is not None
    shown = [NoteShown(at_ms=note.at_ms, text=note.text) for note in page]
    return Notes(notes=shown, next=paging.next(page[-1].number if more else None))


@router.get("/v1/settings")
async def show_settings(node: AnyNode) -> dict[str, Any]:
    """Show all settings of this broker, except those that may be secret."""
    return settings_shown(node)


@router.get("/metrics", responses=answers(kinds=("text/plain", "application/openmetrics-text")))
@on_http_loop
async def metrics(request: Request) -> Response:
    """Answer metrics for Prometheus; docs/metrics.md has their names.

    The control loop reads its own before all work that waits; the endpoints' loop adds its own and writes the answer.
    """
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    these, handover = kept(request), kept(request).handover
    scraped = await handover.ask(these.metrics.scraped, first=True)
    refused = these.access.refused if these.access is not None else {}
    own = http_metrics(these.counts, handover, refused)
    more = (*own, *these.requests.metrics(), *these.backlogs.metrics())
    return Response(encode(scraped.and_also(more)), media_type=content_type)
