"""The router for services that speak HTTP and keep the contract of `loadmanager.client.redirection`.

`HttpRouter` is for asyncio; `SyncRouter` runs one on an event loop with a thread of its own, for threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec

from loadmanager.client.credentials import Credentials
from loadmanager.client.redirection import TOKEN_HEADER, NotServing, error_of
from loadmanager.client.route import Route
from loadmanager.client.router import JSON, Router
from statechannel.errors import InvalidName
from statechannel.law.record import Token

ATTEMPT_TIMEOUT_S = 6.0
"""For one attempt: longer than a service holds a request whose bundle is on its way."""


class HttpAnswer(msgspec.Struct, frozen=True):
    """An answer of the owner, of any status except the contract's 421 and 503."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def token(self) -> Token | None:
        """The fencing token of the answer, None if it has none."""
        text = self.headers.get(TOKEN_HEADER)
        try:
            return Token.parse(text) if text else None
        except InvalidName:
            return None

    def json(self) -> Any:
        """The body as JSON. Raises msgspec.DecodeError."""
        return msgspec.json.decode(self.body)


class HttpRouter:
    """`await router.post("shop/carts/alice", "/v1/items", {...})`: to the owner of the key, wherever it is."""

    def __init__(
        self,
        router: Router,
        *,
        protocol: str = "http",
        credentials: Credentials | None = None,
        without_url: str = "",
    ) -> None:
        """`credentials` are sent to the owner: only for what brokers answer at their admin endpoint. `without_url` says
        of an owner that registered no URL for the protocol what is wrong with it."""
        self.router = router
        self._protocol = protocol
        self._without_url = without_url or f"registered no {protocol} URL"
        self._credentials = credentials or Credentials()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.router.close()

    async def get(self, topic: str, path: str, *, budget_s: float = 10.0) -> HttpAnswer:
        """GET from the owner. Raises as `Router.call`."""
        return await self.request("GET", topic, path, None, budget_s=budget_s)

    async def post(self, topic: str, path: str, json: object = msgspec.UNSET, *, budget_s: float = 10.0) -> HttpAnswer:
        """POST to the owner, again if it did not answer; without `json`, it has no body. Raises as `Router.call`."""
        body = None if json is msgspec.UNSET else msgspec.json.encode(json)
        return await self.request("POST", topic, path, body, budget_s=budget_s)

    async def request(
        self, method: str, topic: str, path: str, body: bytes | None, *, budget_s: float = 10.0
    ) -> HttpAnswer:
        """Any request to the owner. Raises as `Router.call`."""
        headers = {} if body is None else JSON
        timeout = aiohttp.ClientTimeout(total=ATTEMPT_TIMEOUT_S, sock_connect=1.0)

        async def send(route: Route) -> HttpAnswer:
            url = route.url(self._protocol)
            if not url:
                raise NotServing(f"{route.broker} {self._without_url}", 0.1)
            directory = self.router.directory
            async with (
                directory.asking(url, self._credentials) as said,
                self.router.session.request(
                    method, url + path, data=body, headers={**headers, **said}, timeout=timeout
                ) as response,
            ):
                directory.pin.check(response.headers, f"{route.broker} at {url}")
                answer = HttpAnswer(response.status, response.headers, await response.read())
            redirection = error_of(answer.status, answer.headers, answer.body)
            if redirection is not None:
                redirection.said_by = route.broker
                raise redirection
            return answer

        return await self.router.call(topic, send, budget_s=budget_s, token_of=_token_of)


def _token_of(answer: HttpAnswer) -> Token | None:
    return answer.token


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
            self._http = self._wait(self._made(admin_urls, protocol, credentials, cluster))
        except BaseException:
            self._end()
            raise

    async def _made(
        self, admin_urls: Iterable[str], protocol: str, credentials: Credentials | None, cluster: str
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

    def post(self, topic: str, path: str, json: object = msgspec.UNSET, *, budget_s: float = 10.0) -> HttpAnswer:
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
