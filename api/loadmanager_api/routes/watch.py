"""`GET /v1/watch`: the table and its changes, as server-sent events that a client can resume."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from loadmanager.errors import Invalid
from loadmanager_api.http.watch import EventStream
from loadmanager_api.openapi import answers
from loadmanager_api.routing import ControlRouter, TheNode, on_http_loop
from loadmanager_api.state import kept
from statechannel.law.bundle import check_namespace

router = ControlRouter(tags=["bundles"])


@router.get("/v1/watch", response_class=Response, responses=answers(409, 410, 412, kinds=("text/event-stream",)))
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
        begun = await found.relays.begin(namespace, last_event_id or since)
    except Invalid as error:
        raise HTTPException(400, str(error)) from None
    return EventStream(found.relays.events(namespace, begun), found.closing)
