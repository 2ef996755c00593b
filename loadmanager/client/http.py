"""A router for services that speak HTTP and keep the contract of `loadmanager.client.redirection`."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from loadmanager.client.credentials import Credentials
from loadmanager.client.redirection import TOKEN_HEADER, NotServing, error_of
from loadmanager.client.route import Route
from loadmanager.client.router import Router
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

    async def post(self, topic: str, path: str, json: object, *, budget_s: float = 10.0) -> HttpAnswer:
        """POST to the owner, again if it did not answer. Raises as `Router.call`."""
        return await self.request("POST", topic, path, msgspec.json.encode(json), budget_s=budget_s)

    async def request(
        self, method: str, topic: str, path: str, body: bytes | None, *, budget_s: float = 10.0
    ) -> HttpAnswer:
        """Any request to the owner. Raises as `Router.call`."""
        headers = {} if body is None else {"Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=ATTEMPT_TIMEOUT_S, sock_connect=1.0)

        async def send(route: Route) -> HttpAnswer:
            url = route.url(self._protocol)
            if not url:
                raise NotServing(f"{route.broker} {self._without_url}", 0.1)
            pin = self.router.directory.pin
            said = {**headers, **pin.headers(), **self._credentials.headers(url)}
            async with self.router.session.request(
                method, url + path, data=body, headers=said, timeout=timeout
            ) as response:
                pin.check(response.headers, f"{route.broker} at {url}")
                answer = HttpAnswer(response.status, response.headers, await response.read())
            redirection = error_of(answer.status, answer.headers, answer.body)
            if redirection is not None:
                redirection.said_by = route.broker
                raise redirection
            return answer

        return await self.router.call(topic, send, budget_s=budget_s, token_of=_token_of)


def _token_of(answer: HttpAnswer) -> Token | None:
    return answer.token
