"""The client-side router: sends each request to the owner of its key, so that callers see latency, not errors.

It caches routes by bundle. After a hint in an answer (`Moved`), an unanswered request or a `NotServing` it looks the
key up again, at any broker, with jittered pauses, until the caller's budget is spent. So a request may be sent more
than once: give it an id by which the service recognizes it (as `loadmanager/demo/counter` does), or retry only
idempotent requests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self, TypeVar

import aiohttp

from loadmanager.client.cluster import Pin
from loadmanager.client.credentials import Credentials
from loadmanager.client.directory import Directory
from loadmanager.client.redirection import Moved, NotServing
from loadmanager.client.route import Route, RouteTable, SeenTokens, Span
from loadmanager.errors import Forbidden, NotFound, Unavailable
from statechannel.errors import Error
from statechannel.law.bundle import parse_key
from statechannel.law.record import Token

T = TypeVar("T")
Send = Callable[[Route], Awaitable[T]]

LOOKUP_TIMEOUT_S = 2.0
"""How long one broker may defer a lookup before the router asks again, possibly another broker."""

FIRST_PAUSE_S = 0.002
LAST_PAUSE_S = 0.25
CONNECTIONS = 1_024


class BudgetSpent(Unavailable):
    """No answer within the budget; `reason`, also its cause, is the last error."""

    def __init__(self, message: str, reason: BaseException | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.said_by = reason.said_by if isinstance(reason, Error) else ""


class Router:
    """The router of one process; use `async with`, or `close()` it. `admin_urls` are those of some brokers.

    The router learns the other brokers. It belongs to the event loop on which it is constructed. `credentials` are for
    lookups (by default those of the environment); a `session` of the caller brings its own TLS. `cluster` is the name
    of the brokers' cluster, or its header (`loadmanager.client.cluster`): brokers of another one are skipped. Without
    it the router keeps to the cluster of most of `admin_urls`.
    """

    def __init__(
        self,
        admin_urls: Iterable[str],
        *,
        session: aiohttp.ClientSession | None = None,
        credentials: Credentials | None = None,
        cluster: str = "",
    ) -> None:
        urls = list(admin_urls)
        if not urls:
            raise ValueError("give the admin URL of at least one broker")
        self._own_session = session is None
        credentials = credentials or Credentials.of_environment()
        self.session = session or credentials.session(limit=CONNECTIONS)
        self.directory = Directory(urls, self.session, credentials, Pin(cluster))
        self.routes = RouteTable()
        self._tokens = SeenTokens()
        self._lookups: dict[Span | tuple[str, int], asyncio.Task[Route]] = {}
        self.lookups = 0
        """The number of lookups sent, without merged ones and cache hits."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give up lookups in progress and close the connections."""
        for task in list(self._lookups.values()):
            task.cancel()
        if self._own_session:
            await self.session.close()

    # --- routes

    def cached(self, topic: str) -> Route | None:
        """The cached route, None if there is none; never waits."""
        return self.routes.cached(topic)

    async def route(self, topic: str) -> Route:
        """The cached route, or the answer of one lookup, which concurrent callers for one bundle share.

        Raises NotFound (no such namespace), Forbidden (this client may not look it up), Unavailable (nobody serves it
        now, or no broker of this cluster answers), Conflict (the given brokers are of different clusters, and it is
        not clear which one is meant), InvalidName.
        """
        while True:
            route = self.routes.cached(topic)
            if route is not None:
                return route
            route = await asyncio.shield(self._lookup(topic))
            if parse_key(topic).position in route.bundle:
                return route

    def _lookup(self, topic: str) -> asyncio.Task[Route]:
        """The lookup in progress for this bundle; while its range is unknown, for this part of the hash space.

        A lookup that has just ended does not count: waiting for it again and again would block the loop for ever.
        """
        key = self.routes.span(topic) or _part_of_ring(topic)
        task = self._lookups.get(key)
        if task is None or task.done():
            task = self._lookups[key] = asyncio.get_running_loop().create_task(self._find(topic))
            task.add_done_callback(lambda done: self._found(key, done))
        return task

    def _found(self, key: Span | tuple[str, int], task: asyncio.Task[Route]) -> None:
        if self._lookups.get(key) is task:
            del self._lookups[key]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the callers have it, or nobody waits any more

    async def _find(self, topic: str) -> Route:
        self.lookups += 1
        route = await self.directory.locate(topic, LOOKUP_TIMEOUT_S)
        if not self.routes.learn(route):
            raise Unavailable(f"{route.broker} owned {route.bundle} some time ago; look up the owner again", 0.0)
        return route

    # --- requests

    async def call(
        self,
        topic: str,
        send: Send[T],
        *,
        budget_s: float = 10.0,
        token_of: Callable[[T], Token | None] | None = None,
    ) -> T:
        """Call `send(route)` until it succeeds or `budget_s` is spent; returns its result.

        Retries after Moved, NotServing, a connection error (OSError, aiohttp.ClientError), or an answer with an older
        token than was seen. Raises BudgetSpent, NotFound, Forbidden, Conflict, InvalidName, and any other error of
        `send`.
        """
        trouble: BaseException | None = None
        try:
            async with asyncio.timeout(budget_s):
                attempt = 0
                while True:
                    attempt += 1
                    outcome = await self._try(topic, send, token_of)
                    if not isinstance(outcome, _Trouble):
                        return outcome
                    trouble = outcome.error
                    await asyncio.sleep(outcome.pause_s(attempt))
        except TimeoutError:
            raise BudgetSpent(f"{topic}: no answer within {budget_s:g} s: {_told(trouble)}", trouble) from trouble

    async def _try(self, topic: str, send: Send[T], token_of: Callable[[T], Token | None] | None) -> T | _Trouble:
        route: Route | None = None
        try:
            route = await self.route(topic)
            answer = await send(route)
        except Moved as moved:
            self._follow(route, moved)
            return _Trouble(moved, at_once=True)
        except (NotFound, Forbidden):
            raise
        except Unavailable as error:
            self._forget(route)
            return _Trouble(error)
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            self._forget(route)
            return _Trouble(error)
        token = token_of(answer) if token_of is not None else None
        if token is not None and not self._tokens.accept(topic, token):
            self._forget(route)
            return _Trouble(NotServing(f"{route.broker} answered under the token {token}, older than one seen before"))
        return answer

    def _follow(self, route: Route | None, moved: Moved) -> None:
        if moved.urls and moved.bundle is not None:
            self.routes.learn(Route(moved.bundle, moved.broker, moved.urls))
        else:
            self._forget(route)

    def _forget(self, route: Route | None) -> None:
        if route is not None:
            self.routes.forget(route)


def _told(trouble: BaseException | None) -> str:
    if trouble is None:
        return "the first attempt was still under way"
    said_by = trouble.said_by if isinstance(trouble, Error) else ""
    return f"{said_by} said: {trouble}" if said_by else str(trouble) or type(trouble).__name__


def _part_of_ring(topic: str) -> tuple[str, int]:
    parsed = parse_key(topic)
    return parsed.namespace, parsed.position >> 26


class _Trouble:
    """A failed attempt that is to be repeated."""

    def __init__(self, error: BaseException, *, at_once: bool = False) -> None:
        self.error = error
        self._at_once = at_once

    def pause_s(self, attempt: int) -> float:
        """Seconds to wait: none after the first hint, else exponential back-off with jitter."""
        if self._at_once and attempt == 1:
            return 0.0
        pause_s = min(FIRST_PAUSE_S * 2 ** min(attempt - 1, 20), LAST_PAUSE_S)
        return random.uniform(0.5, 1.0) * pause_s
