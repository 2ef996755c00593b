"""The whole audit of a live log: replays each partition, and compares it with every kept snapshot and replica.

Each comparison is at the offset of the snapshot or replica. If one differs, the audit finds the first namespace and
bundle that differ. It trusts only the log and, if that was trimmed, the oldest snapshot. Registered brokers' endpoints
give the digests of their replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from enum import StrEnum
from typing import Any, Generic, TypeVar, cast

import aiohttp
import msgspec

from loadmanager.channel.audit.auditor import Auditor, Broken
from loadmanager.channel.audit.digests import (
    NamespaceDigests,
    PartitionDigests,
    difference,
    differing_bundle,
    differing_part,
)
from loadmanager.client.cluster import Pin
from loadmanager.client.credentials import Credentials
from loadmanager.client.router import Directory
from loadmanager.errors import Forbidden, NotFound, Unavailable
from loadmanager.model.registration import read_peer
from statechannel.errors import BadSnapshot, ForeignCluster, InvariantError, NewerRecord, Trimmed
from statechannel.law.partition import ClusterIdentity, PartitionState
from statechannel.law.snapshot import SNAPSHOTS, SnapshotsReader
from statechannel.ports import Log, Member, TopicSpec
from statechannel.runtime.replay import Folded, Replay, read_snapshots

T = TypeVar("T")

REQUEST_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 3.0
GREETING_TIMEOUT_S = 10.0
"""A broker that does not answer with its name in this time is not asked for digests: these may take longer."""

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
        self, broker: str, url: str, session: aiohttp.ClientSession, directory: Directory, credentials: Credentials
    ) -> None:
        self.broker = broker
        self._credentials = credentials
        self._url = url
        self._session = session
        self._directory = directory

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
            async with (
                self._directory.asking(self._url, self._credentials) as headers,
                self._session.get(self._url + path, params=query, headers=headers, allow_redirects=False) as answer,
            ):
                self._directory.pin.check(answer.headers, self._url)
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
    members: Mapping[str, Member], opened: aiohttp.ClientSession, credentials: Credentials, cluster: str
) -> list[Endpoint]:
    """The endpoints of all registered brokers, by name. They answer if they belong to a cluster of this name."""
    peers = [read_peer(member) for _, member in sorted(members.items())]
    directory = Directory((), opened, credentials, Pin(cluster))
    return [Endpoint(str(peer.broker), peer.registration.admin_url, opened, directory, credentials) for peer in peers]


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


SHOWN_AT_MOST = 10
"""How many violations, and how many gaps, of a log are listed; the others are counted."""


class Outcome(StrEnum):
    """The result of a comparison."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNCHECKED = "unchecked"


class Finding(msgspec.Struct, frozen=True):
    """The result for `who` (the log itself, a snapshot, a broker) at an offset of a partition."""

    who: str
    partition: int
    next_offset: int | None
    outcome: Outcome
    detail: str = ""


class Claim(msgspec.Struct, frozen=True):
    """`who` claims that the partition has this digest below this offset; `endpoint` can give details."""

    who: str
    next_offset: int
    digest: str
    endpoint: Endpoint | None = None


class FirstFew(Generic[T]):
    """The first SHOWN_AT_MOST of any number of items, and how many there are: a damaged log may have millions."""

    def __init__(self) -> None:
        self.shown: list[T] = []
        self.count = 0

    def add(self, item: T) -> None:
        """Count it, and keep it if it is one of the first."""
        self.count += 1
        if len(self.shown) < SHOWN_AT_MOST:
            self.shown.append(item)

    @property
    def more(self) -> int:
        """How many are not kept."""
        return self.count - len(self.shown)


class PartitionAudit:
    """Audits one partition. `said` has each endpoint's digest of it."""

    def __init__(
        self,
        log: Log,
        topic: str,
        partition: int,
        partitions: int,
        said: Sequence[tuple[Endpoint, Said]],
        cluster_identity: ClusterIdentity | None = None,
    ) -> None:
        self._log = log
        self._topic = topic
        self._partition = partition
        self._said = said
        self._snapshots = SnapshotsReader(partition)
        self._replay = Replay(log, topic, partition, partitions)
        self._auditor = Auditor(partition, partitions)
        self._broken: FirstFew[tuple[int, Broken]] = FirstFew()
        self._gaps: FirstFew[range] = FirstFew()
        self._findings: list[Finding] = []
        self._end = 0
        self.cluster_identity = cluster_identity
        """The log's cluster identity; known once partition 0 was replayed."""

    async def run(self) -> list[Finding]:
        """Run the audit; returns all findings. Raises LogUnavailable."""
        try:
            await self._replay.open()
            self._auditor.begin(self._replay.begin, self._replay.table.cut(self._partition))
            self._snapshots = await read_snapshots(self._log, self._topic + SNAPSHOTS, self._partition)
            self._end = (await self._log.ends(self._topic))[self._partition]
            claims = sorted([*self._of_snapshots(), *self._of_endpoints()], key=lambda claim: claim.next_offset)
            for claim in claims:
                await self._judge(claim)
            await self._advance(None)
            self._judge_log()
        except (BadSnapshot, NewerRecord) as error:
            self._tell("log", None, Outcome.DIFFERS, str(error))
        except InvariantError as error:
            self._tell("log", self._offset, Outcome.DIFFERS, f"the replay broke the law: {error}")
        except Trimmed as error:
            self._tell("log", self._offset, Outcome.UNCHECKED, f"it was trimmed meanwhile, verify again: {error}")
        return self._findings

    @property
    def _offset(self) -> int:
        return self._replay.table.next_offset(self._partition)

    def _tell(self, who: str, next_offset: int | None, outcome: Outcome, detail: str = "") -> None:
        self._findings.append(Finding(who, self._partition, next_offset, outcome, detail))

    # --- claims

    def _of_endpoints(self) -> list[Claim]:
        return [Claim(endpoint.broker, said.next_offset, said.digest, endpoint) for endpoint, said in self._said]

    def _of_snapshots(self) -> list[Claim]:
        claims: list[Claim] = []
        index = self._snapshots.index
        if index is not None and self.cluster_identity is not None and index.cluster_identity != self.cluster_identity:
            self._tell(
                "snapshots",
                None,
                Outcome.DIFFERS,
                f"they are of {index.cluster_identity}, the log of {self.cluster_identity}",
            )
        for info in index.snapshots if index is not None else ():
            who = f"snapshot {info.snapshot_id}"
            try:
                claims.append(Claim(who, info.next_offset, self._snapshots.state(info.snapshot_id).digest()))
            except BadSnapshot as error:
                self._tell(who, info.next_offset, Outcome.DIFFERS, str(error))
        return claims

    # --- replaying and comparing

    async def _advance(self, until: int | None) -> None:
        async with aclosing(cast("AsyncGenerator[Folded, None]", self._replay.run(until))) as entries:
            async for folded in entries:
                applied = folded.applied
                if missing := self._auditor.missing(applied.offset):
                    self._gaps.add(missing)
                for broken in self._auditor.take(applied):
                    self._broken.add((applied.offset, broken))

    async def _judge(self, claim: Claim) -> None:
        if claim.next_offset < self._replay.begin:
            detail = f"the log was trimmed up to {self._replay.begin}: verify again"
            self._tell(claim.who, claim.next_offset, Outcome.UNCHECKED, detail)
            return
        await self._advance(claim.next_offset)
        if self._offset < claim.next_offset:
            detail = f"it goes up to {claim.next_offset}, the log ends at {self._offset}: the log lost its end"
            self._tell(claim.who, claim.next_offset, Outcome.DIFFERS, detail)
            return
        state = self._cut()
        if state.digest() == claim.digest:
            behind = self._end - claim.next_offset if claim.endpoint is not None else 0
            self._tell(claim.who, claim.next_offset, Outcome.AGREES, f"{behind} behind the end" if behind > 0 else "")
        else:
            where = await self._where(claim, state)
            self._tell(claim.who, claim.next_offset, Outcome.DIFFERS, where)

    def _cut(self) -> PartitionState:
        self._replay.table.check_invariants()
        state = self._replay.table.cut(self._partition)
        for broken in self._auditor.check(state):
            self._broken.add((self._offset, broken))
        return state

    def _judge_log(self) -> None:
        self._cut()
        if self._partition == 0:
            self.cluster_identity = self._replay.table.cluster_identity
        for offset, broken in self._broken.shown:
            self._tell("log", self._offset, Outcome.DIFFERS, f"offset {offset}: {broken.detail} ({broken.invariant})")
        if more := self._broken.more:
            self._tell("log", self._offset, Outcome.DIFFERS, f"{more} more violations: mend the first ones first")
        if not self._broken.count:
            counts = ", ".join(f"{self._auditor.counts[name]} {name}" for name in ("accepted", "refused", "corrupt"))
            base = self._replay.snapshot
            begun = "from its beginning" if base is None else f"from snapshot {base.snapshot_id}"
            gaps = f"; no entries at {_ranges(self._gaps)}" if self._gaps.count else ""
            self._tell("log", self._offset, Outcome.AGREES, f"{begun}: {counts}{gaps}")

    # --- finding out where

    async def _where(self, claim: Claim, ours: PartitionState) -> str:
        if claim.endpoint is None:
            theirs = self._snapshots.state(claim.who.removeprefix("snapshot "))
            return difference(ours, theirs) or "its digest differs"
        try:
            return await self._ask_where(claim.endpoint)
        except Unavailable as error:
            return f"where cannot be said: {error}"

    async def _ask_where(self, endpoint: Endpoint) -> str:
        """Ask for digests of ever smaller parts; each answer is of a later offset, up to which we replay first."""
        after = ""
        while True:
            page = await endpoint.namespaces(self._partition, after)
            ours = await self._at(page.next_offset)
            namespace, rest = differing_part(ours, page, after)
            if namespace is not None:
                return await self._ask_bundle(endpoint, namespace)
            if rest is not None:
                return f"{rest} differ"
            if page.next is None:
                return f"it differed, and agrees at offset {page.next_offset}"
            after = page.next

    async def _ask_bundle(self, endpoint: Endpoint, namespace: str) -> str:
        after = ""
        while True:
            page = await endpoint.bundles(self._partition, namespace, after)
            found = differing_bundle(await self._at(page.next_offset), page, after)
            if found is not None:
                return f"{found} (at offset {page.next_offset})"
            if page.next is None:
                return f"{namespace} differed, and agrees at offset {page.next_offset}"
            after = page.next

    async def _at(self, next_offset: int) -> PartitionState:
        await self._advance(next_offset)
        return self._cut()


def _ranges(gaps: FirstFew[range]) -> str:
    shown = [str(gap[0]) if len(gap) == 1 else f"{gap[0]} to {gap[-1]}" for gap in gaps.shown]
    return ", ".join([*shown, f"{gaps.more} more places"] if gaps.more else shown)


async def verify(
    log: Log,
    topic: str,
    cluster: str,
    members: Mapping[str, Member],
    tell: Callable[[Sequence[Finding]], None],
    partitions: int | None = None,
) -> list[Finding]:
    """All findings; `tell` gets those of each partition as they come.

    Brokers are asked with the credentials of the environment. Raises LogUnavailable, TopicMismatch, NotFound if there
    is no channel in this log, or ForeignCluster if it is another cluster's. (The log may create topics that do not
    exist.)
    """
    count = await log.open_topic(TopicSpec(topic, partitions))
    await log.open_topic(TopicSpec(topic + SNAPSHOTS, count, compacted=True))
    credentials = Credentials.of_environment()
    async with session(credentials) as opened:
        endpoints = endpoints_of(members, opened, credentials, cluster)
        answers = await ask_all(endpoints)
        findings: list[Finding] = []
        cluster_identity: ClusterIdentity | None = None
        for partition in range(count):
            said, silent = _of_partition(endpoints, answers, partition)
            audit = PartitionAudit(log, topic, partition, count, said, cluster_identity)
            found = [*await audit.run(), *silent]
            cluster_identity = audit.cluster_identity
            if partition == 0 and cluster_identity is None and all(f.outcome is Outcome.AGREES for f in found):
                raise NotFound(f"no cluster has begun in topic {topic!r} of this log: see --log and topic_prefix")
            if cluster_identity is not None and cluster_identity.cluster != cluster:
                raise ForeignCluster(
                    f"this log belongs to cluster {cluster_identity.cluster!r}, not {cluster!r}: see --cluster"
                )
            tell(found)
            findings += found
    return findings


def _of_partition(
    endpoints: Sequence[Endpoint], answers: Sequence[list[Said] | Unavailable], partition: int
) -> tuple[list[tuple[Endpoint, Said]], list[Finding]]:
    said: list[tuple[Endpoint, Said]] = []
    silent: list[Finding] = []
    for endpoint, answer in zip(endpoints, answers, strict=True):
        if isinstance(answer, Unavailable):
            silent.append(Finding(endpoint.broker, partition, None, Outcome.UNCHECKED, str(answer)))
            continue
        found = next((each for each in answer if each.partition == partition), None)
        if found is None:
            silent.append(Finding(endpoint.broker, partition, None, Outcome.DIFFERS, "it has no such partition"))
        else:
            said.append((endpoint, found))
    return said, silent
