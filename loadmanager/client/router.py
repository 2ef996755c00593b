"""The client-side router: sends each request to the owner of its key, so that callers see latency, not errors.

It caches routes by bundle. After a hint in an answer (`Moved`), an unanswered request or a `NotServing` it looks the
key up again, at any broker, with jittered pauses. It ends when the caller's budget is spent. A request may be sent more
than once: give it an id by which the service recognizes it (as `loadmanager/demo/counter` does), or retry only
idempotent requests. Its `Directory` starts with the URLs that it is given and learns the others from the answers. It
asks any broker over its admin interface where a key is served, skips one that fails, and remembers nothing about keys.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from loadmanager.client.cluster import WHO, Pin, continues, header_of
from loadmanager.client.credentials import Credentials
from loadmanager.client.redirection import AnotherCluster, Moved, NotServing, error_detail, retry_after_s
from loadmanager.client.route import Route, RouteTable, SeenTokens, Span
from loadmanager.errors import Conflict, Forbidden, Invalid, NotFound, NotKnown, Unavailable
from statechannel.errors import Error, InvalidName
from statechannel.law.bundle import Bundle, parse_key
from statechannel.law.partition import ClusterIdentity
from statechannel.law.record import Token

REST_S = 1.0
"""For this time after a failure, a broker is asked after the others."""

FAILURES_KEPT = 5
"""A learned URL that fails this often in a row is forgotten; given URLs never are."""

URLS_KEPT = 256
JSON = {"Content-Type": "application/json"}
FIRST_S = 1.0
"""How long the given brokers have, in all, to tell their cluster at the first lookup."""

_SLACK_S = 1.0
_log = logging.getLogger(__name__)


class _Answer(msgspec.Struct):
    topic: str
    bundle: str | None = None
    broker: str | None = None
    admin_url: str | None = None
    urls: dict[str, str] | None = None
    token: str | None = None
    error: _Error | None = None


class _Error(msgspec.Struct):
    status: int = 503
    detail: str = ""
    retry_after_s: float | None = None


class _Answers(msgspec.Struct):
    answers: list[_Answer]


_decoder = msgspec.json.Decoder(_Answers)


class _AdminUrl:
    """One broker's admin interface."""

    __slots__ = ("another", "failures", "given", "rests_until_s", "url")

    def __init__(self, url: str, given: bool) -> None:
        self.url = url
        self.given = given
        self.failures = 0
        self.rests_until_s = 0.0
        self.another = ""
        """The other cluster to which it was seen to belong."""


class Directory:
    """The known brokers of one cluster, that of `pin`. Uses `session`, and does not close it; `credentials` say who
    asks.
    """

    def __init__(
        self,
        admin_urls: Iterable[str],
        session: aiohttp.ClientSession,
        credentials: Credentials | None = None,
        pin: Pin | None = None,
    ) -> None:
        self.pin = pin or Pin()
        self._choosing: asyncio.Task[None] | None = None
        self._chosen = False
        self._admins = {url.rstrip("/"): _AdminUrl(url.rstrip("/"), given=True) for url in admin_urls}
        self._session = session
        self._credentials = credentials or Credentials()
        self._confirmed: set[str] = set()
        """URLs that told their cluster since they last failed. Credentials may go there."""
        self._turn = itertools.count()

    @property
    def urls(self) -> list[str]:
        """The known admin URLs."""
        return list(self._admins)

    @asynccontextmanager
    async def asking(self, url: str, credentials: Credentials) -> AsyncGenerator[dict[str, str]]:
        """Around a request to the admin interface at `url`; yields its headers: the cluster and the credentials.

        Before credentials go to an address, it names its cluster without them. It must do so again after a request that
        failed or was cancelled: something else may answer there by then. Raises AnotherCluster, also if it names none,
        Forbidden (as `Credentials.headers`), and the errors of a request.
        """
        try:
            shown = credentials.headers(url)
            if shown and url not in self._confirmed:
                async with self._session.get(url + WHO, headers=self.pin.headers(), allow_redirects=False) as response:
                    self.pin.cluster = self.pin.named(response.headers, url)
                if len(self._confirmed) >= URLS_KEPT:
                    self._confirmed.clear()
                self._confirmed.add(url)
            yield {**self.pin.headers(), **shown}
        except BaseException:
            self._confirmed.discard(url)
            raise

    async def locate(self, topic: str, timeout_s: float) -> Route:
        """The owner, according to the first broker that answers; each may defer its answer for up to `timeout_s`.

        Raises NotFound (no broker that answered knows the namespace) and Forbidden (they refuse this client). Raises
        Unavailable (no owner, no answer, or only other clusters) and Conflict (it is not clear which cluster is meant).
        """
        await self.choose()
        refusal: NotFound | Forbidden | None = None
        failures: list[str] = []
        for admin in self._in_order():
            try:
                return await self._ask(admin, topic, timeout_s)
            except (NotFound, Forbidden) as error:
                error.said_by = admin.url
                refusal = error
            except AnotherCluster as error:
                self._skip(admin, error)
                failures.append(str(error))
            except Unavailable as error:
                error.said_by = admin.url
                raise
            except (
                aiohttp.ClientError,
                OSError,
                msgspec.MsgspecError,
                InvalidName,
            ) as error:  # a time-out is an OSError
                self._failed(admin)
                failures.append(f"{admin.url}: {str(error) or type(error).__name__}")
        raise refusal or Unavailable(f"no broker answers a lookup: {'; '.join(failures)}", 0.1)

    async def choose(self) -> None:
        """Decide which cluster is meant, unless that is decided. Raises Conflict if it is not clear."""
        if not self._chosen:
            if self._choosing is None or self._choosing.done():
                self._choosing = asyncio.create_task(self._choose())
            await asyncio.shield(self._choosing)

    async def _choose(self) -> None:
        """Pin the cluster of most of the given brokers, if there are several and none is pinned, or only its name.

        Raises Conflict if as many belong to one cluster as to another.
        """
        if (self.pin.cluster is not None and self.pin.cluster.generation >= 0) or len(self._admins) < 2:
            self._chosen = True
            return
        asking = [asyncio.create_task(self._cluster_of(admin.url)) for admin in self._admins.values()]
        said: dict[str, ClusterIdentity | None] = {}
        try:
            async with asyncio.timeout(FIRST_S):
                for each in asyncio.as_completed(asking):
                    said |= await each
                    best, votes = _most(said.values())
                    if votes > len(asking) / 2:
                        break
        except TimeoutError:
            pass  # a broker that does not answer has no vote
        finally:
            for each in asking:
                each.cancel()
        best, _ = _most(said.values())
        if len(best) > 1:
            told = ", ".join(f"{url} to {header_of(cluster)}" for url, cluster in sorted(said.items()) if cluster)
            raise Conflict(f"the given brokers belong to different clusters, {told}: name one, as `cluster`")
        self.pin.cluster = next(iter(best), self.pin.cluster)
        self._chosen = bool(said)

    async def _cluster_of(self, url: str) -> dict[str, ClusterIdentity | None]:
        """By URL; empty without an answer, or if it is another cluster's; None if the answer does not say it."""
        try:
            async with self._session.get(url + WHO, allow_redirects=False) as response:
                return {url: self.pin.check(response.headers, url)}
        except (aiohttp.ClientError, OSError, AnotherCluster):
            return {}

    async def _ask(self, admin: _AdminUrl, topic: str, timeout_s: float) -> Route:
        body = msgspec.json.encode({"topics": [topic], "timeout_ms": int(timeout_s * 1000)})
        async with (
            asyncio.timeout(timeout_s + _SLACK_S),
            self.asking(admin.url, self._credentials) as said,
            self._session.post(f"{admin.url}/v1/lookup", data=body, headers={**JSON, **said}) as response,
        ):
            self.pin.take(response.headers, admin.url)
            text = await response.read()
            if response.status not in (401, 403, 503):
                response.raise_for_status()
        if response.status in (401, 403):
            kind = NotKnown if response.status == 401 else Forbidden
            raise kind(error_detail(text) or f"{admin.url} answers {response.status}")
        if response.status == 503:
            raise Unavailable(f"{admin.url} answers 503", retry_after_s(response.headers))
        answer = _decoder.decode(text).answers[0]
        admin.failures = 0
        return self._read(answer)

    def _read(self, answer: _Answer) -> Route:
        if answer.error is not None or answer.bundle is None or answer.broker is None:
            error = answer.error or _Error()
            if error.status == 404:
                raise NotFound(error.detail)
            if error.status == 403:
                raise Forbidden(error.detail)
            raise Unavailable(error.detail, 0.1 if error.retry_after_s is None else error.retry_after_s)
        if answer.admin_url:
            self._learn(answer.admin_url.rstrip("/"))
        token = Token.parse(answer.token) if answer.token else None
        return Route(Bundle.parse(answer.bundle), answer.broker, answer.urls or {}, token)

    def _learn(self, url: str) -> None:
        if url not in self._admins and len(self._admins) < URLS_KEPT:
            self._admins[url] = _AdminUrl(url, given=False)

    def _skip(self, admin: _AdminUrl, error: AnotherCluster) -> None:
        if admin.another != error.cluster:
            admin.another = error.cluster
            _log.warning("%s: this broker is skipped", error)
        self._failed(admin)

    def _failed(self, admin: _AdminUrl) -> None:
        self._confirmed.discard(admin.url)
        admin.failures += 1
        admin.rests_until_s = time.monotonic() + REST_S
        if admin.failures >= FAILURES_KEPT and not admin.given:
            self._admins.pop(admin.url, None)

    def _in_order(self) -> list[_AdminUrl]:
        """All brokers, beginning with another one at each call; those that failed just now come last."""
        admins = list(self._admins.values())
        first = next(self._turn) % len(admins)
        now_s = time.monotonic()
        return sorted(admins[first:] + admins[:first], key=lambda admin: admin.rests_until_s > now_s)


def urls_of(given: Iterable[str]) -> list[str]:
    """The given admin URLs; one text is one URL. Raises Invalid unless there is one, and all are URLs."""
    urls = [given] if isinstance(given, str) else list(given)
    if not urls:
        raise Invalid("give the admin URL of at least one broker")
    for url in urls:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc or "," in url:
            raise Invalid(f"{url!r} is not the URL of a broker: give a list of URLs, such as ['http://broker-0:8080']")
    return urls


def _most(said: Iterable[ClusterIdentity | None]) -> tuple[list[ClusterIdentity], int]:
    """The clusters with the most votes, and how many these are; a later log has the votes of the earlier ones."""
    known = [cluster for cluster in said if cluster is not None]
    votes = {cluster: sum(continues(cluster, each) for each in known) for cluster in known}
    most = max(votes.values(), default=0)
    return [cluster for cluster, count in votes.items() if count == most], most


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

    The router finds the other brokers. It belongs to the event loop on which it is constructed. `credentials` are for
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
        urls = urls_of(admin_urls)
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

        Raises NotFound (no such namespace), Forbidden (this client may not look it up), Unavailable (no broker serves
        it now, or none of this cluster answers), InvalidName. Raises Conflict if the given brokers are of different
        clusters, and it is not clear which one is meant.
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

        A lookup that has just ended does not count: waiting for it again and again would block the loop forever.
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
            task.exception()  # marks it as retrieved: the callers have it, or none waits any more

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
        `send`. A cancelled call, as one that spends its budget, looks the key up at the next call: an owner that hangs
        may have a successor.
        """
        trouble: BaseException | None = None
        asked: Route | None = None

        async def sending(route: Route) -> T:
            nonlocal asked
            asked = route
            answer = await send(route)
            asked = None
            return answer

        try:
            async with asyncio.timeout(budget_s):
                attempt = 0
                while True:
                    attempt += 1
                    outcome = await self._try(topic, sending, token_of)
                    if not isinstance(outcome, _Trouble):
                        return outcome
                    trouble = outcome.error
                    await asyncio.sleep(outcome.pause_s(attempt))
        except asyncio.CancelledError:
            self._forget(asked)
            raise
        except TimeoutError:
            self._forget(asked)
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
