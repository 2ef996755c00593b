"""Asks brokers over their admin interface who serves a key. Any broker answers, so one that fails is skipped.

Starts with the URLs that it is given, and learns the others from the answers. Remembers nothing about keys.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterable

import aiohttp
import msgspec

from loadmanager.client.cluster import Pin, continues, header_of
from loadmanager.client.credentials import Credentials
from loadmanager.client.redirection import AnotherCluster, error_detail, retry_after_s
from loadmanager.client.route import Route
from loadmanager.errors import Conflict, Forbidden, NotFound, NotKnown, Unavailable
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle
from statechannel.law.partition import ClusterIdentity
from statechannel.law.record import Token

REST_S = 1.0
"""How long a broker that failed is asked last."""

FAILURES_KEPT = 5
"""A learned URL that fails this often in a row is forgotten; given URLs never are."""

URLS_KEPT = 256
FIRST_S = 1.0
"""How long the given brokers have, all together, to say at the first lookup which cluster is theirs."""

_SLACK_S = 1.0
_WHO = "/admin/v2/brokers/live"
"""A path that every broker answers without credentials."""

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
        self._turn = itertools.count()

    @property
    def urls(self) -> list[str]:
        """The known admin URLs."""
        return list(self._admins)

    async def locate(self, topic: str, timeout_s: float) -> Route:
        """The owner, according to the first broker that answers; each may defer its answer for up to `timeout_s`.

        Raises NotFound (no broker that answered knows the namespace), Forbidden (they refuse this client), Unavailable
        (no owner, no answer, or only of other clusters), Conflict (it is not clear which cluster is meant).
        """
        if not self._chosen:
            if self._choosing is None or self._choosing.done():
                self._choosing = asyncio.create_task(self._choose())
            await asyncio.shield(self._choosing)
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
            async with self._session.get(url + _WHO, allow_redirects=False) as response:
                return {url: self.pin.check(response.headers, url)}
        except (aiohttp.ClientError, OSError, AnotherCluster):
            return {}

    async def _ask(self, admin: _AdminUrl, topic: str, timeout_s: float) -> Route:
        headers = {
            "Content-Type": "application/json",
            **self.pin.headers(),
            **self._credentials.headers(admin.url),
        }
        body = msgspec.json.encode({"topics": [topic], "timeout_ms": int(timeout_s * 1000)})
        async with (
            asyncio.timeout(timeout_s + _SLACK_S),
            self._session.post(f"{admin.url}/v1/lookup", data=body, headers=headers) as response,
        ):
            self.pin.take(response.headers, admin.url)
            if response.status in (401, 403):
                kind = NotKnown if response.status == 401 else Forbidden
                raise kind(error_detail(await response.read()) or f"{admin.url} answers {response.status}")
            if response.status == 503:
                raise Unavailable(f"{admin.url} answers 503", retry_after_s(response.headers))
            response.raise_for_status()
            answer = _decoder.decode(await response.read()).answers[0]
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


def _most(said: Iterable[ClusterIdentity | None]) -> tuple[list[ClusterIdentity], int]:
    """The clusters with the most votes, and how many these are; a later log has the votes of the earlier ones."""
    known = [cluster for cluster in said if cluster is not None]
    votes = {cluster: sum(continues(cluster, each) for each in known) for cluster in known}
    most = max(votes.values(), default=0)
    return [cluster for cluster, count in votes.items() if count == most], most
