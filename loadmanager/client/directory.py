"""Asks brokers over their admin interface who serves a key. Any broker answers, so one that fails is skipped.

Starts with the URLs that it is given, and learns the others from the answers. Remembers nothing about keys.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable

import aiohttp
import msgspec

from loadmanager.client.credentials import Credentials
from loadmanager.client.redirection import error_detail, retry_after_s
from loadmanager.client.route import Route
from loadmanager.errors import Forbidden, NotFound, Unavailable
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle
from statechannel.law.record import Token

REST_S = 1.0
"""How long a broker that failed is asked last."""

FAILURES_KEPT = 5
"""A learned URL that fails this often in a row is forgotten; given URLs never are."""

URLS_KEPT = 256
_SLACK_S = 1.0


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

    __slots__ = ("failures", "given", "rests_until_s", "url")

    def __init__(self, url: str, given: bool) -> None:
        self.url = url
        self.given = given
        self.failures = 0
        self.rests_until_s = 0.0


class Directory:
    """The known brokers. Uses `session`, and does not close it; `credentials` say who asks."""

    def __init__(
        self, admin_urls: Iterable[str], session: aiohttp.ClientSession, credentials: Credentials | None = None
    ) -> None:
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
        (no owner, or no answer).
        """
        refusal: NotFound | Forbidden | None = None
        failures: list[str] = []
        for admin in self._in_order():
            try:
                return await self._ask(admin, topic, timeout_s)
            except (NotFound, Forbidden) as error:
                error.said_by = admin.url
                refusal = error
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

    async def _ask(self, admin: _AdminUrl, topic: str, timeout_s: float) -> Route:
        headers = {"Content-Type": "application/json", **self._credentials.headers(admin.url)}
        body = msgspec.json.encode({"topics": [topic], "timeout_ms": int(timeout_s * 1000)})
        async with (
            asyncio.timeout(timeout_s + _SLACK_S),
            self._session.post(f"{admin.url}/v1/lookup", data=body, headers=headers) as response,
        ):
            if response.status in (401, 403):
                raise Forbidden(error_detail(await response.read()) or f"{admin.url} answers {response.status}")
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
