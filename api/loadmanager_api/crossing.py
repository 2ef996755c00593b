"""Which thread runs a route: by default the control loop, unless the endpoint is marked `on_http_loop`.

An endpoint that may change something runs within `audited`, which writes its audit entry.

The endpoints' loop parses every request and writes every answer. A marked endpoint runs there too: it may touch the
node only as other threads may (`loadmanager/embedding/handover.py`), and answers even while the control loop is busy.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, TypeVar

from fastapi import APIRouter, Response

from loadmanager_api.access.gate import SENDER
from loadmanager_api.auditing.recording import Request, asked, audited
from loadmanager_api.kept import HANDOVER
from loadmanager_api.long_work import ATTEMPT
from loadmanager_api.routing import RuledRoute

Endpoint = TypeVar("Endpoint", bound=Callable[..., Coroutine[Any, Any, Any]])

_as_they_are: set[Callable[..., Any]] = set()


def on_http_loop(endpoint: Endpoint) -> Endpoint:
    """Run this endpoint on the loop that parses its requests."""
    _as_they_are.add(endpoint)
    return endpoint


class ControlRouter(APIRouter):
    """A router whose endpoints run on the control loop; requests are parsed and validated before.

    Each of its routes needs a rule that says who may use it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=RuledRoute, **options)

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        crossing = endpoint if endpoint in _as_they_are else _crossing(endpoint, options.get("status_code") or 200)
        if options.get("status_code") == 204:
            options["response_class"] = Response  # the default class says that nothing is JSON
        super().add_api_route(path, crossing, **options)


def _crossing(endpoint: Callable[..., Coroutine[Any, Any, Any]], status: int) -> Callable[..., Any]:
    @wraps(endpoint)
    async def crossed(**named: Any) -> Any:
        handover, sender = HANDOVER.get(), SENDER.get()
        if sender is None:
            return await handover.ask(lambda: endpoint(**named))
        attempt = ATTEMPT.get()
        if attempt is not None and not named.get("dry_run"):
            await attempt.begin(endpoint.__name__, named)
        request = Request(sender, endpoint.__name__, named, asked(named), status)
        return await handover.ask(lambda: audited(handover.node, request, partial(endpoint, **named)))

    # Older releases of FastAPI look names in annotations up in the module of the wrapper.
    vars(crossed)["__signature__"] = inspect.signature(endpoint, eval_str=True)
    return on_http_loop(crossed)
