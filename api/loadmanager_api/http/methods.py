"""HEAD and OPTIONS for every route, and the `Allow` of a method that a path does not have.

`rules.py` names all routes with their methods. HEAD is answered as GET without its body, OPTIONS with `Allow`.
"""

from __future__ import annotations

import asyncio
from functools import cache
from re import Pattern
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from loadmanager_api.access.rules import RULES
from loadmanager_api.problems import problem, respond


class Methods:
    """An ASGI application that answers HEAD and OPTIONS for another one, which knows neither."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        match scope["method"]:
            case "HEAD":
                await _without_body(self._app, scope, receive, send)
            case "OPTIONS" if allowed := allow(scope["path"]):
                await Response(status_code=204, headers={"Allow": allowed})(scope, receive, send)
            case _:
                await self._app(scope, receive, send)


def allow(path: str) -> str:
    """The methods of all routes at this path, as `Allow` has them; empty if there is no route."""
    found = {method for pattern, methods in _routes() if pattern.match(path) for method in methods}
    if not found:
        return ""
    if "GET" in found:
        found.add("HEAD")
    return ", ".join(sorted(found | {"OPTIONS"}))


async def not_allowed(request: Request, error: Exception) -> Response:
    """The answer to a method that no route at the path has."""
    return refused(request.method, request.url.path)


def refused(method: str, path: str) -> Response:
    """The answer to a method that no route at the path has."""
    allowed = allow(path)
    return respond(problem(405, f"{method} is not for {path}; use {allowed}"), {"Allow": allowed})


@cache
def _routes() -> tuple[tuple[Pattern[str], frozenset[str]], ...]:
    return tuple((compile_path(path)[0], frozenset(rules)) for path, rules in RULES.items())


async def _without_body(app: Any, scope: Any, receive: Any, send: Any) -> None:
    """Ask as for GET without a body. Once the head is sent, the client is gone for what would send without an end."""
    begun, unread = asyncio.Event(), [{"type": "http.request", "body": b"", "more_body": False}]

    async def received() -> Any:
        if unread:
            return unread.pop()
        await begun.wait()
        return {"type": "http.disconnect"}

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            begun.set()

    await app({**scope, "method": "GET"}, received, sent)
    await send({"type": "http.response.body", "body": b"", "more_body": False})
