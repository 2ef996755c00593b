"""Asks live brokers' endpoints for digests of their replicas: offset and digest of each partition, and of its parts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec

from loadmanager.channel.audit.digests import NamespaceDigests, PartitionDigests
from loadmanager.client.credentials import Credentials
from loadmanager.errors import Forbidden, Unavailable
from loadmanager.model.registration import read_peer
from statechannel.ports import Member

T = TypeVar("T")

REQUEST_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 3.0
GREETING_TIMEOUT_S = 10.0
"""A broker that does not answer with its name in this time is not asked for digests, which may take longer."""

ASKED_AT_ONCE = 16


class Said(msgspec.Struct, frozen=True):
    """A replica's digest of a partition, as of everything below `next_offset`."""

    partition: int
    next_offset: int
    digest: str


class _Named(msgspec.Struct, frozen=True):
    broker: str


class _Channel(msgspec.Struct, frozen=True):
    broker: str
    partitions: list[Said]
    stopped_by: str | None = None


class Endpoint:
    """The endpoint of one broker."""

    def __init__(
        self, broker: str, url: str, session: aiohttp.ClientSession, credentials: Credentials | None = None
    ) -> None:
        self.broker = broker
        self._credentials = credentials or Credentials()
        self._url = url
        self._session = session

    async def said(self) -> list[Said]:
        """The digests by partition. Raises Unavailable, with the reason."""
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                self._check_name((await self._ask("/v1/channel", {}, _Named)).broker)
        except TimeoutError:
            raise Unavailable(f"it did not answer within {GREETING_TIMEOUT_S:g} s") from None
        found = await self._ask("/v1/channel", {"digest": "true"}, _Channel)
        self._check_name(found.broker)
        if found.stopped_by is not None:
            raise Unavailable(f"its replica reads no further: {found.stopped_by}")
        return found.partitions

    def _check_name(self, broker: str) -> None:
        if broker != self.broker:
            raise Unavailable(f"{broker} answers there by now")

    async def namespaces(self, partition: int, after: str) -> PartitionDigests:
        """A page of namespaces. Raises Unavailable."""
        return await self._ask("/v1/channel/digests", {"partition": str(partition)} | _from(after), PartitionDigests)

    async def bundles(self, partition: int, namespace: str, after: str) -> NamespaceDigests:
        """A page of a namespace's bundles. Raises Unavailable."""
        query = {"partition": str(partition), "namespace": namespace} | _from(after)
        return await self._ask("/v1/channel/digests", query, NamespaceDigests)

    async def _ask(self, path: str, query: Mapping[str, str], kind: type[T]) -> T:
        if not self._url:
            raise Unavailable("it registered no admin URL")
        try:
            headers = self._credentials.headers(self._url)
            async with self._session.get(
                self._url + path, params=query, headers=headers, allow_redirects=False
            ) as answer:
                body = await answer.read()
        except TimeoutError:
            raise Unavailable("it did not answer in time") from None
        except Forbidden as error:
            raise Unavailable(str(error)) from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"it does not answer: {error}") from None
        if answer.status != 200:
            raise Unavailable(f"HTTP {answer.status}: {_reason(body)}")
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise Unavailable(f"its answer cannot be read (is it of another release?): {error}") from None


def _from(cursor: str) -> dict[str, str]:
    return {"cursor": cursor} if cursor else {}


def session(credentials: Credentials) -> aiohttp.ClientSession:
    """The HTTP session for all endpoints; close it."""
    return credentials.session(timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S))


def endpoints_of(
    members: Mapping[str, Member], opened: aiohttp.ClientSession, credentials: Credentials
) -> list[Endpoint]:
    """The endpoints of all registered brokers, by name."""
    peers = [read_peer(member) for _, member in sorted(members.items())]
    return [Endpoint(str(peer.broker), peer.registration.admin_url, opened, credentials) for peer in peers]


async def ask_all(endpoints: Sequence[Endpoint]) -> list[list[Said] | Unavailable]:
    """Each endpoint's digests, or why it gives none."""
    places = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(endpoint: Endpoint) -> list[Said] | Unavailable:
        async with places:
            try:
                return await endpoint.said()
            except Unavailable as error:
                return error

    return await asyncio.gather(*(ask(endpoint) for endpoint in endpoints))


def _reason(body: bytes) -> str:
    try:
        answer: Any = msgspec.json.decode(body)
        return str(answer["reason"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
