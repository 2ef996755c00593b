"""The client for threads: a `Router` and its `HttpRouter` on an event loop with a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Self, TypeVar

from loadmanager.client.credentials import Credentials
from loadmanager.client.http import HttpAnswer, HttpRouter
from loadmanager.client.route import Route
from loadmanager.client.router import Router
from statechannel.law.record import Token

T = TypeVar("T")


class SyncRouter:
    """As `Router` and `HttpRouter`, with plain functions for any thread. Use `with`, or `close()` it."""

    def __init__(
        self,
        admin_urls: Iterable[str],
        *,
        protocol: str = "http",
        credentials: Credentials | None = None,
        cluster: str = "",
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loadmanager-router", daemon=True)
        self._thread.start()
        try:
            self._http = self._wait(self._made(list(admin_urls), protocol, credentials, cluster))
        except BaseException:
            self._end()
            raise

    async def _made(
        self, admin_urls: list[str], protocol: str, credentials: Credentials | None, cluster: str
    ) -> HttpRouter:
        return HttpRouter(Router(admin_urls, credentials=credentials, cluster=cluster), protocol=protocol)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up lookups in progress and close the connections. Idempotent."""
        if not self._loop.is_closed():
            self._wait(self._http.router.close())
            self._end()

    def cached(self, topic: str) -> Route | None:
        """The cached route, None if there is none."""
        return self._http.router.cached(topic)

    def route(self, topic: str) -> Route:
        """Where the key is served. Raises as `Router.route`."""
        return self._wait(self._http.router.route(topic))

    def call(
        self,
        topic: str,
        send: Callable[[Route], T],
        *,
        budget_s: float = 10.0,
        token_of: Callable[[T], Token | None] | None = None,
    ) -> T:
        """As `Router.call`, with a plain `send` on a worker thread; a hanging one is abandoned after the budget."""

        async def sending(route: Route) -> T:
            return await asyncio.to_thread(send, route)

        return self._wait(self._http.router.call(topic, sending, budget_s=budget_s, token_of=token_of))

    def get(self, topic: str, path: str, *, budget_s: float = 10.0) -> HttpAnswer:
        """As `HttpRouter.get`."""
        return self._wait(self._http.get(topic, path, budget_s=budget_s))

    def post(self, topic: str, path: str, json: object, *, budget_s: float = 10.0) -> HttpAnswer:
        """As `HttpRouter.post`."""
        return self._wait(self._http.post(topic, path, json, budget_s=budget_s))

    def request(self, method: str, topic: str, path: str, body: bytes | None, *, budget_s: float = 10.0) -> HttpAnswer:
        """As `HttpRouter.request`."""
        return self._wait(self._http.request(method, topic, path, body, budget_s=budget_s))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
