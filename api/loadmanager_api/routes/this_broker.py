"""What any broker says of itself: `/openapi.json`, `/v1/me`, `/v1/health`, `/v1/tasks`, `/v1/notes`, `/metrics`.

`/v1/me`: who the asked broker takes the sender for, and what they may do. `/v1/tasks`: what this process is doing now,
to find what hangs; `loadmanager doctor` uses it. It has names of functions and files only: no values, so no secrets.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator
from itertools import islice
from types import FrameType
from typing import Annotated, Any, cast

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client.exposition import choose_encoder
from pydantic import BaseModel

from loadmanager.broker.health import findings
from loadmanager.cluster.journal import offset_of
from loadmanager.model.policies.model import EVERYWHERE, AccessRole
from loadmanager_api.access.access import ACCESS, Access
from loadmanager_api.access.sender import sender_of
from loadmanager_api.http.counts import http_metrics
from loadmanager_api.openapi import answers
from loadmanager_api.paging import Cursor, Limit, Paging, SinceMs
from loadmanager_api.routing import AnyNode, ControlRouter, on_http_loop
from loadmanager_api.shapes import Shape
from loadmanager_api.state import kept
from statechannel.audit import Severity

router = ControlRouter(tags=["this broker"])


@router.get("/openapi.json", include_in_schema=False)
@on_http_loop
async def openapi(request: Request) -> dict[str, Any]:
    """Describe the interface as an OpenAPI document."""
    return await asyncio.to_thread(cast("FastAPI", request.app).openapi)  # half a second, the first time


PLACES_SHOWN = 1_000


class Role(BaseModel):
    """A role, and where: `*`, `tenant/*` or `tenant/namespace`; the first thousand."""

    role: AccessRole
    namespaces: list[str]


class Me(BaseModel):
    """The sender. Where clients need not authenticate, each is admin, and `principal` is not proven."""

    principal: str
    how: str
    authentication: bool
    roles: list[Role]
    broker: str
    cluster: str


@router.get("/v1/me")
@on_http_loop
async def show_me(request: Request, node: AnyNode) -> Me:
    """Show who sends this request, how that was proven (token, certificate, unverified), and their roles."""
    sender = sender_of(request.scope)
    access: Access | None = request.scope.get(ACCESS)
    everything = {AccessRole.ADMIN: [EVERYWHERE]}
    roles = everything if access is None else access.grants.roles_of(sender.name)
    return Me(
        principal=sender.name,
        how=sender.how,
        authentication=access is not None,
        roles=[Role(role=role, namespaces=places[:PLACES_SHOWN]) for role, places in roles.items()],
        broker=node.settings.advertised,
        cluster=node.settings.cluster,
    )


class FindingResponse(Shape):
    """Something wrong: what, why, and the remedy in `advice`. `since_ms` is when it began, if the broker saw that.

    `severity` is error or warning. `names` are the first brokers, bundles or namespaces that it is about.
    """

    subject: str
    severity: Severity
    found: str
    why: str
    advice: str
    since_ms: int | None
    names: list[str]


@router.get("/v1/health")
async def show_health(node: AnyNode) -> list[FindingResponse]:
    """List what is wrong in the cluster, as the asked broker sees it: errors first; empty if nothing is wrong."""
    return [FindingResponse.model_validate(each) for each in findings(node)]


TASKS_SHOWN = 500
FRAMES_SHOWN = 20


@router.get("/v1/tasks", response_class=PlainTextResponse)
@on_http_loop
async def show_tasks(request: Request) -> str:
    """Show the stacks of all threads and of the tasks on the control loop, innermost call last. Works also if that loop
    hangs.
    """
    return "\n".join([*_threads(), *_tasks(kept(request).handover.control)]) + "\n"


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        yield f"thread {names.get(ident, ident)}"
        for call in traceback.extract_stack(frame, limit=FRAMES_SHOWN):
            yield _line(call.filename, call.lineno, call.name)


def _tasks(control: asyncio.AbstractEventLoop) -> Iterator[str]:
    tasks = sorted(asyncio.all_tasks(control), key=lambda task: task.get_name())
    for task in tasks[:TASKS_SHOWN]:
        yield f"task {task.get_name()}{' (being cancelled)' if task.cancelling() else ''}"
        for frame in islice(_awaiting(task.get_coro()), FRAMES_SHOWN):
            yield _line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    if len(tasks) > TASKS_SHOWN:
        yield f"and {len(tasks) - TASKS_SHOWN} tasks more"


def _awaiting(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a suspended coroutine and of what it awaits; `Task.get_stack` shows the first one only."""
    while coroutine is not None:
        for kind in ("cr", "ag", "gi"):
            frame = getattr(coroutine, f"{kind}_frame", None)
            if frame is not None:
                yield frame
                coroutine = getattr(coroutine, f"{kind}_{'yieldfrom' if kind == 'gi' else 'await'}", None)
                break
        else:
            return


def _line(file: str, number: int | None, name: str) -> str:
    return f"  {file}:{number} {name}"


class Note(Shape):
    """An event at this broker that is of interest to people."""

    at_ms: int
    text: str


class Notes(BaseModel):
    """Notes of a broker, newest first. `next` is the `cursor` of the next page, null on the last one."""

    notes: list[Note]
    next: str | None


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
    shown = [Note.model_validate(note) for note in page]
    return Notes(notes=shown, next=paging.next(page[-1].number if more else None))


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
