"""Which thread runs a route: its request is parsed and its answer written by the endpoints, its endpoint is run by the
loop that runs the node, unless it is marked `at_the_door`.

Such an endpoint may touch the node only as other threads may (`loadmanager/embedding/handover.py`); it answers whatever
the control loop is doing.
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
"""Of the broker whose endpoints the present request came through."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Coroutine[Any, Any, Any]])

_as_they_are: set[Callable[..., Any]] = set()


def on_http_loop(endpoint: Endpoint) -> Endpoint:
    """Run this endpoint where its request was parsed."""
    _as_they_are.add(endpoint)
    return endpoint


class ControlRouter(APIRouter):
    """A router whose endpoints run on the control loop; what is in them is parsed and checked before."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().add_api_route(path, endpoint if endpoint in _as_they_are else _crossing(endpoint), **options)


def _crossing(endpoint: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @wraps(endpoint)
    async def crossed(*values: Any, **named: Any) -> Any:
        return await HANDOVER.get().ask(lambda: endpoint(*values, **named))

    # Older releases of FastAPI look names in annotations up in the module of the wrapper.
    vars(crossed)["__signature__"] = inspect.signature(endpoint, eval_str=True)
    return on_http_loop(crossed)
