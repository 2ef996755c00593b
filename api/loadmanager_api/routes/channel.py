"""`/v1/channel`: this broker's replica of the channel, digests, late verdicts, and readers of its log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from math import inf, isfinite
from typing import Annotated

import msgspec
from fastapi import Query, Request, Response
from msgspec.structs import asdict
from pydantic import BaseModel, ConfigDict, Field

from loadmanager.broker.node import Node
from loadmanager.channel.audit.digests import (
    BUNDLES_AT_MOST,
    NAMESPACES_AT_MOST,
    NamespaceDigests,
    PartitionDigests,
    namespace_digests,
    partition_digests,
)
from loadmanager.channel.log_status import Outlook, look
from loadmanager.channel.owner.service import owner_of
from loadmanager.cluster.readers import NAME, READER_TTL_S, ChannelReader, ReaderRegistry
from loadmanager.errors import NotFound
from loadmanager_api.openapi import answers, shape
from loadmanager_api.paging import MOST, Cursor, Limit, Paging, Prefix, SinceMs
from loadmanager_api.routing import Acting, ControlRouter, TheNode, leader_of
from loadmanager_api.shapes import WHOLE, Shape
from loadmanager_api.state import kept
from statechannel.law.bundle import Bundle, check_namespace
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change

MAX_PARTITIONS = 1_024


class SnapshotResponse(Shape):
    """A kept snapshot. It covers everything below `next_offset`. `at_ms` is its writer's wall clock."""

    snapshot_id: str
    next_offset: int
    at_ms: int
    bundles: int
    size_bytes: int
    chunks: int


class PartitionResponse(BaseModel):
    """One partition of the channel, applied up to below `next_offset`. Equal offsets have equal `digest`s on all
    replicas.

    The asked broker may serve for `proof_left_s` without another proof; null: it never had one. The log holds offsets
    from `begin` to below `end`. `owner` writes the snapshots, listed newest first, and trims. A
    value that the log did not answer is null.
    """

    partition: int
    next_offset: int
    epoch: int
    leader: str | None
    digest: str | None = None
    begin: int | None = None
    end: int | None = None
    lag: int | None = None
    owner: str | None = None
    snapshots: list[SnapshotResponse] | None = None
    since_snapshot: int | None = None
    proof_left_s: float | None = None


class SkippedEntry(Shape):
    """An entry of the log that is not a record of ours."""

    partition: int
    offset: int
    detail: str


class AgreementResponse(Shape):
    """What all brokers of a log agree on: the coordination root by its identity, and the values of proofs."""

    root: str
    proof_validity_s: float
    clock_drift: float
    margin_s: float
    partitions: int


class ChannelResponse(BaseModel):
    """The state of this broker's replica of the channel."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    cluster: str
    identity: str | None
    generation: int | None
    broker: str
    leader: str | None
    connection: str
    safe_mode: str | None
    write_version: int
    publishes_in_flight: int
    accepted: int
    append_failures: int
    refused: dict[str, int]
    skipped: int
    skipped_entries: list[SkippedEntry]
    bundles: dict[str, int]
    namespaces: int
    last_error: str
    stopped_by: str | None
    reloads: int = 0
    readers: list[str] = []
    log_problem: str | None = None
    agreement: AgreementResponse | None = None
    """Partition 0's word, which the others repeat; null in a log that has none yet."""
    agreement_following: AgreementResponse | None = None
    """What is about to replace it, in the first partition that says so. Until then no broker gets a proof there."""
    partitions: list[PartitionResponse]


class ReaderPositions(BaseModel):
    """Where a reader wants to continue, for each partition; null stands for the log's begin."""

    positions: (
        Annotated[list[Annotated[int, Field(strict=True, ge=0), WHOLE]], Field(max_length=MAX_PARTITIONS)] | None
    ) = None


class Reader(Shape):
    """A registered reader of the channel's log: nothing from its positions on is trimmed until `until_ms`."""

    name: str
    positions: list[int]
    registered_ms: int
    until_ms: int


class Readers(BaseModel):
    """Registered readers by name. `next` is the `cursor` of the next page, null on the last one."""

    readers: list[Reader]
    next: str | None


class LateVerdict(BaseModel):
    """The verdict on a record whose publisher no longer waited."""

    record_id: str
    verdict: str
    detail: str


def refusals(counts: Mapping[str, int]) -> dict[str, int]:
    """Refused records by reason."""
    return {key.removeprefix("refused "): n for key, n in sorted(counts.items()) if key.startswith("refused ")}


def _partition(node: Node, partition: int, outlook: Outlook, digested: tuple[int, str] | None) -> PartitionResponse:
    table = node.channel.table
    lead = table.lead(partition)
    next_offset, digest = digested or (table.next_offset(partition), None)
    owner = owner_of(node.world.coordination, node.membership, partition)
    snapshots = outlook.snapshots(partition)
    end = outlook.ends[partition] if outlook.ends is not None else None
    left_s = node.serving.until_s()[partition] - node.proof_clock.now_s() if node.serving is not None else -inf
    return PartitionResponse(
        partition=partition,
        next_offset=next_offset,
        epoch=lead.epoch,
        leader=str(lead.leader) if lead.leader else None,
        digest=digest,
        begin=outlook.begins[partition] if outlook.begins is not None else None,
        end=end,
        lag=max(0, end - next_offset) if end is not None else None,
        owner=str(owner) if owner is not None else None,
        snapshots=None
        if snapshots is None
        else [SnapshotResponse.model_validate(each) for each in reversed(snapshots)],
        since_snapshot=next_offset - snapshots[-1].next_offset if snapshots else None,
        proof_left_s=round(left_s, 3) if isfinite(left_s) else None,
    )


router = ControlRouter(tags=["this broker"])


@router.get("/v1/channel")
async def show_channel(
    request: Request,
    node: TheNode,
    digest: Annotated[bool, Query(description="whether to add a digest of each partition")] = False,
) -> ChannelResponse:
    """Show how far this replica has read, what it refused and skipped, who leads, and what the log holds.

    Each digest is of the partition as of its `next_offset`.
    """
    outlook = await look(node.world.log, node.channel.topic, kept(request).snapshot_lists)
    digested = await _digested(node.channel.table) if digest else None
    channel, table = node.channel, node.channel.table
    counts, cluster_identity, leader = channel.counts, table.cluster_identity, leader_of(node)
    agreed = table.agreed(0).agreement
    following = next((each for p in range(table.partitions) if (each := table.agreed(p).following) is not None), None)
    return ChannelResponse(
        cluster=node.settings.cluster,
        identity=cluster_identity.identity if cluster_identity else None,
        generation=cluster_identity.generation if cluster_identity else None,
        broker=str(node.current.me),
        leader=str(leader) if leader else None,
        connection=node.world.coordination.connection.value,
        safe_mode=node.membership.safe_mode(node.world.clock_s()),
        write_version=channel.write_version,
        publishes_in_flight=channel.in_flight,
        accepted=counts["accepted"],
        append_failures=counts["append_failed"],
        refused=refusals(counts),
        skipped=counts["skipped"],
        skipped_entries=[SkippedEntry.model_validate(each) for each in channel.skipped],
        bundles={state.value: count for state, count in table.count_by_state().items()},
        namespaces=len(table.namespaces()),
        last_error=channel.last_error,
        stopped_by=str(channel.stopped_by) if channel.stopped_by else None,
        reloads=counts["reloads"],
        readers=sorted(node.views.readers),
        log_problem=outlook.problem or None,
        agreement=None if agreed is None else AgreementResponse.model_validate(agreed),
        agreement_following=None if following is None else AgreementResponse.model_validate(following),
        partitions=[
            _partition(node, p, outlook, digested[p] if digested is not None else None) for p in range(table.partitions)
        ],
    )


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
    return Readers(readers=[_reader(node, name, found[name]) for name in page], next=paging.following)


@router.get("/v1/channel/readers/{name}", responses=answers(404))
async def show_reader(node: TheNode, name: str) -> Reader:
    """Show one registered reader."""
    return _reader(node, name, _registry(node).get(name))


@router.put("/v1/channel/readers/{name}", responses=answers(409, 412))
async def register_reader(node: TheNode, acting: Acting, name: str, wanted: ReaderPositions) -> Reader:
    """Register, move or renew a reader. The log keeps what the reader has not read for 30 days.

    409 if part of it was trimmed already, 412 if the positions do not fit the channel.
    """
    return _reader(node, name, await _registry(node).register(name, wanted.positions))


@router.delete("/v1/channel/readers/{name}", status_code=204, responses=answers(404))
async def remove_reader(node: TheNode, acting: Acting, name: str) -> None:
    """Remove a reader: trimming no longer waits for it."""
    await _registry(node).remove(name)


def _registry(node: Node) -> ReaderRegistry:
    return ReaderRegistry(node.views.readers, node.world.log, node.channel.topic, node.world.wall_ms)


def _reader(node: Node, name: str, reader: ChannelReader) -> Reader:
    until_ms = reader.registered_ms + round(1000 * READER_TTL_S)
    return Reader.model_validate(asdict(reader) | {"name": name, "until_ms": until_ms})
