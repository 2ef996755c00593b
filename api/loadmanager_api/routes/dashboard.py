"""`/` and `/dashboard/`: the files of the dashboard. They hold no data, which comes from the other routes.

The page loads nothing from anywhere else, runs no script but these files, and no other page may frame it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from loadmanager.errors import NotFound
from loadmanager_api.routing import ControlRouter, on_http_loop

router = ControlRouter(include_in_schema=False)

KINDS: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
"""The files that are served, by the end of their names."""

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",  # the browser asks each time whether its copy is current
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Asset:
    """A file of the dashboard, with the digest of its content as its ETag."""

    def __init__(self, content: bytes, kind: str) -> None:
        self.content = content
        self.kind = kind
        self.etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'


@cache
def assets() -> Mapping[str, Asset]:
    """All files by their path below `dashboard/`."""
    return dict(_assets(files("loadmanager_api") / "dashboard", ""))


def _assets(folder: Traversable, path: str) -> list[tuple[str, Asset]]:
    found: list[tuple[str, Asset]] = []
    for each in folder.iterdir():
        kind = KINDS.get(each.name.rpartition(".")[2])
        if each.is_dir():
            found += _assets(each, f"{path}{each.name}/")
        elif kind is not None:
            found.append((path + each.name, Asset(each.read_bytes(), kind)))
    return found


@router.get("/", response_class=Response)
@on_http_loop
async def show_dashboard(request: Request) -> Response:
    """Answer the page of the dashboard."""
    return _sent(request, "index.html")


@router.get("/docs", response_class=Response)
@on_http_loop
async def show_docs() -> Response:
    """Redirect to the view of the dashboard that describes the API."""
    return RedirectResponse("/#/api", 307)


@router.get("/dashboard/{file:text}", response_class=Response)
@on_http_loop
async def show_file(request: Request, file: str) -> Response:
    """Answer a file that the page loads."""
    return _sent(request, file)


def _sent(request: Request, name: str) -> Response:
    found = assets().get(name)
    if found is None:
        raise NotFound(f"the dashboard has no file {name!r}; it begins at /")
    headers = {**HEADERS, "ETag": found.etag}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.kind, headers=headers)
