"""Audits one live partition: replays its log, and compares the result with every kept snapshot and every replica.

Each comparison is at the offset of the snapshot or replica. If one differs, the audit finds the first namespace and
bundle that differ. It trusts only the log and, if that was trimmed, the oldest snapshot.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from enum import StrEnum
from typing import Generic, TypeVar, cast

import msgspec

from loadmanager.channel.audit.auditor import Auditor
from loadmanager.channel.audit.differences import difference, differing_bundle, differing_part
from loadmanager.channel.audit.endpoints import Endpoint, Said
from loadmanager.channel.audit.invariants import Broken
from loadmanager.errors import Unavailable
from statechannel.errors import BadSnapshot, InvariantError, NewerRecord, Trimmed
from statechannel.law.partition import ClusterIdentity, PartitionState
from statechannel.law.snapshot import SNAPSHOTS, SnapshotsReader
from statechannel.ports import Log
from statechannel.runtime.replay import Folded, Replay, read_snapshots

T = TypeVar("T")

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
