"""Which thread runs a route: by default the control loop, unless the endpoint is marked `on_http_loop`.

The endpoints' loop parses every request and writes every answer. A marked endpoint runs there too: it may touch the
node only as other threads may (`loadmanager/embedding/handover.py`), and answers even while the control loop is busy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

from fastapi import APIRouter

from loadmanager.embedding.handover import Handover

HANDOVER: ContextVar[Handover] = ContextVar("loadmanager.handover")
"""The handover of the broker whose endpoints received the present request."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Coroutine[Any, Any, Any]])

_as_they_are: set[Callable[..., Any]] = set()


def on_http_loop(endpoint: Endpoint) -> Endpoint:
    """Run this endpoint on the loop that parses its requests."""
    _as_they_are.add(endpoint)
    return endpoint


class ControlRouter(APIRouter):
    """A router whose endpoints run on the control loop; requests are parsed and validated before."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().add_api_route(path, endpoint if endpoint in _as_they_are else _crossing(endpoint), **options)


def _crossing(endpoint: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(endpoint)
    async def crossed(*values: Any, **named: Any) -> Any:
        return await HANDOVER.get().ask(lambda: endpoint(*values, **named))

    # Older releases of FastAPI look names in annotations up in the module of the wrapper.
    vars(crossed)["__signature__"] = inspect.signature(endpoint, eval_str=True)
    return on_http_loop(crossed)
