"""`GET /v1/watch`: the table and its changes, as server-sent events that a client can resume."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from api.doorway import TheNode, kept
from api.event_stream import EventStream
from api.watched import encode, greeting
from loadmanager.chronicle.watch import Watch
from loadmanager.errors import Invalid
from statechannel.bundle import check_namespace

router = APIRouter(tags=["bundles"])


@router.get("/v1/watch", response_class=Response, responses={200: {"content": {"text/event-stream": {}}}})
async def watch(
    request: Request,
    node: TheNode,
    namespace: Annotated[str | None, Query(description="only this one: tenant/namespace")] = None,
    since: Annotated[str | None, Query(description="a revision: the id of the last event that was taken")] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """All bundles, then every change of them; with `since` (or `Last-Event-ID`) the changes behind that revision.

    400 for what is no revision of this channel, 409 for one of another log or beyond its end, 410 if what came after
    it was trimmed.
    """
    if namespace is not None:
        check_namespace(namespace)
    watching = kept(request).watching
    try:
        begun = await watching.begin(namespace, last_event_id or since)
    except Invalid as error:
        raise HTTPException(400, str(error)) from None
    return EventStream(_events(begun, watching.revision().generation), watching.closing)


async def _events(begun: Watch, generation: int) -> AsyncGenerator[bytes, None]:
    yield greeting()
    async with aclosing(begun.pieces()) as pieces:
        async for piece in pieces:
            yield encode(piece, generation)
