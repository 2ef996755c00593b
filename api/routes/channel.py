"""`/v1/channel`, `/v1/notes`, `/v1/settings`, `/metrics`: this broker's own condition."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from prometheus_client.exposition import choose_encoder

from api.doorway import AnyNode, TheNode
from api.presenting import channel_shown, settings_shown
from api.schemas import ChannelShown, LateVerdict, Notes, NoteShown
from loadmanager.errors import NotFound
from loadmanager.node import NOTES_KEPT
from statechannel.verdict import Change

router = APIRouter(tags=["this broker"])


@router.get("/v1/channel")
async def show_channel(
    node: TheNode, digest: Annotated[bool, Query(description="with a digest of each partition")] = False
) -> ChannelShown:
    """How far this replica has read, what it refused and skipped, and who leads."""
    return channel_shown(node, digests=digest)


@router.get("/v1/channel/records/{record_id}")
async def show_verdict(node: TheNode, record_id: str) -> LateVerdict:
    """What became of a record of this broker that had no verdict in time (the `record_id` of a 503).

    404 as long as it has not been read back, and for records of other brokers.
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


@router.get("/v1/notes")
async def show_notes(node: AnyNode, limit: Annotated[int, Query(ge=1, le=NOTES_KEPT)] = 100) -> Notes:
    """The newest notes of this broker, newest last."""
    newest = list(islice(reversed(node.notes), limit))
    return Notes(notes=[NoteShown(at_ms=note.at_ms, text=note.text) for note in reversed(newest)])


@router.get("/v1/settings")
async def show_settings(node: AnyNode) -> dict[str, Any]:
    """All settings of this broker, less what may be secret."""
    return settings_shown(node)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """For Prometheus; the names are in docs/metrics.md."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(request.app.state.metrics), media_type=content_type)
