"""`GET /v1/watch`: the table and its changes, as server-sent events that a client can resume."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated

from fastapi import Header, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from loadmanager.channel.history.watch import Watch
from loadmanager.embedding.handover import Handover
from loadmanager.errors import Invalid, Unavailable
from loadmanager_api.crossing import ControlRouter, on_http_loop
from loadmanager_api.event_stream import EventStream
from loadmanager_api.kept import TheNode, kept
from loadmanager_api.watched import encode, greeting
from statechannel.law.bundle import check_namespace

router = ControlRouter(tags=["bundles"])


@router.get("/v1/watch", response_class=Response, responses={200: {"content": {"text/event-stream": {}}}})
@on_http_loop
async def watch(
    request: Request,
    node: TheNode,
    namespace: Annotated[str | None, Query(description="only this namespace: tenant/namespace")] = None,
    since: Annotated[str | None, Query(description="a revision: the id of the last event received")] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Stream all bundles, then every change. With `since` (or `Last-Event-ID`), stream the changes after that revision.

    400 if it is no revision of this channel, 409 if it is one of another log or beyond the end, 410 if later changes
    were trimmed.
    """
    if namespace is not None:
        check_namespace(namespace)
    found = kept(request)
    try:
        begun = await found.handover.ask(lambda: found.watching.begin(namespace, last_event_id or since))
    except Invalid as error:
        raise HTTPException(400, str(error)) from None
    events = _events(found.handover, begun, found.watching.revision().generation)
    return EventStream(events, found.closing)


async def _events(handover: Handover, begun: Watch, generation: int) -> AsyncGenerator[bytes, None]:
    """Each is made into bytes here; what it says is found out on the control loop."""
    yield greeting()
    with suppress(Unavailable):  # the broker has left
        async with aclosing(handover.stream(begun.pieces)) as pieces:
            async for piece in pieces:
                yield encode(piece, generation)
