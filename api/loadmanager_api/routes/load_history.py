"""`/v1/history`: what the jobs of the load history published, from the folder that the setting `history_dir` names.

Reads files only; neither Spark nor the lake is touched. Documents are sent as they lie there, piece by piece.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Annotated, Any, BinaryIO

from fastapi import Depends
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from loadmanager.errors import NotFound
from loadmanager.history import published
from loadmanager_api.openapi import Responses, answers
from loadmanager_api.routing import AnyNode, ControlRouter, on_http_loop
from loadmanager_api.shapes import Shape


class Provenance(Shape):
    """Where a result comes from: its job and when it ran (`at`), the time it covers (`begin`, `end`; null: open), and
    the versions of the tables it read. `truncated`: there are more rows than these.
    """

    job: str
    at: datetime
    begin: datetime | None
    end: datetime | None
    lake: str
    lake_versions: dict[str, int]
    release: str
    options: dict[str, Any]
    truncated: bool


class ResultListed(Shape):
    """A result without its rows."""

    name: str
    provenance: Provenance
    rows: int
    size_bytes: int


class LoadHistory(BaseModel):
    """Everything that was published: results (`/v1/history/NAME`), pictures (`…/pictures/NAME.png`), and whether there
    is a report (`…/report`).
    """

    results: list[ResultListed]
    pictures: list[str]
    report: bool


class ResultResponse(BaseModel):
    """A result: a table, and single `facts`."""

    name: str
    provenance: Provenance
    rows: list[dict[str, Any]]
    facts: dict[str, Any]
    format: int


router = ControlRouter(prefix="/v1/history", tags=["load history"])

PIECE_BYTES = 1 << 16
JSON: Responses = {200: {"model": ResultResponse}} | answers(404)
HTML = answers(404, kinds=("text/html",))
PNG = answers(404, kinds=("image/png",))
ALONE = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; frame-ancestors 'self'"
}
"""The report needs nothing from anywhere, so it gets nothing."""


async def _root(node: AnyNode) -> str:
    if node.settings.history_dir is None:
        raise NotFound(
            "this broker serves no load history: start it with --set history_dir=<lake>/published, the folder in which "
            "`loadmanager history` publishes"
        )
    return node.settings.history_dir


Root = Annotated[str, Depends(_root)]


@router.get("", responses=answers(404))
@on_http_loop
async def show_load_history(root: Root) -> LoadHistory:
    """List the published results of the load history; each is at `/v1/history/NAME`. An empty list is not an error."""
    results, pictures, report = await asyncio.gather(
        asyncio.to_thread(published.listed, root),
        asyncio.to_thread(published.pictures, root),
        asyncio.to_thread(published.has_report, root),
    )
    return LoadHistory.model_validate({"results": results, "pictures": pictures, "report": report})


@router.get("/analyses", responses=answers(404))
@on_http_loop
async def list_analyses(root: Root) -> list[ResultListed]:
    """List the published analyses."""
    results = await asyncio.to_thread(published.listed, root)
    return [ResultListed.model_validate(each) for each in results if each.name.startswith(published.ANALYSES)]


@router.get("/analyses/{name}", response_class=Response, responses=JSON)
@on_http_loop
async def show_analysis(root: Root, name: str) -> Response:
    """Show one analysis, with its rows."""
    return await _sent(partial(published.open_result, root, published.ANALYSES + name), "application/json")


@router.get("/report", response_class=Response, responses=HTML)
@on_http_loop
async def show_report(root: Root) -> Response:
    """Show the report, a page that needs no other file."""
    return await _sent(partial(published.open_report, root), "text/html; charset=utf-8", ALONE)


@router.get("/pictures/{name}.png", response_class=Response, responses=PNG)
@on_http_loop
async def show_picture(root: Root, name: str) -> Response:
    """Show one picture of the report."""
    return await _sent(partial(published.open_picture, root, name), "image/png")


@router.get("/{name}", response_class=Response, responses=JSON)
@on_http_loop
async def show_result(root: Root, name: str) -> Response:
    """Show the newest result of another job: `audit`, `replay`, `replay-windows`, `advice`, or another one listed."""
    return await _sent(partial(published.open_result, root, name), "application/json")


async def _sent(open_file: Callable[[], BinaryIO], kind: str, headers: dict[str, str] | None = None) -> Response:
    return _Document(await asyncio.to_thread(open_file), kind, headers or {})


class _Document(StreamingResponse):
    """A file, piece by piece; closed whatever becomes of the request."""

    def __init__(self, file: BinaryIO, kind: str, headers: dict[str, str]) -> None:
        self._file = file
        length = {"Content-Length": str(os.fstat(file.fileno()).st_size)}
        super().__init__(iter(partial(file.read, PIECE_BYTES), b""), media_type=kind, headers=length | headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)
