"""One member of a group, as its coordinator knows it. Pure; `group.py` changes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from loadmanager.consumers.coordinator.claims import Claim
from loadmanager.consumers.coordinator.records import (
    MemberRecord,
    Partition,
    Subscription,
    by_topic,
    flat,
    listed,
)

SLACK_MS, DRIFT = 100, 0.01
"""A session lasts so much longer here than at the member: clocks may run apart by this share."""


class Member(msgspec.Struct):
    """What it said, how long its session lasts, and what it may read."""

    subscription: Subscription
    epoch: int
    ends_ms: int = 0
    seen_ms: int = 0
    """When its last heartbeat came."""
    revision: int = 0
    granted: dict[Partition, int] = {}
    """Its partitions, each with the revision in which it got it."""
    revoked: dict[Partition, int] = {}
    """Those among them that it was told to give up, each with the revision that told it so."""
    gives_up_by_ms: int | None = None
    """When it has had its time to give up `revoked`; then its session is not prolonged any more."""
    prolonged: bool = True
    sequence: int = 0
    commits: dict[Partition, int] = {}
    """The sequence of the last commit of each partition."""
    process: str = ""
    """Which one is the member: another one cannot join under its id."""
    claim: Claim | None = None

    @classmethod
    def restored(cls, record: MemberRecord, now_ms: int, remaining_ms: int | None) -> Self:
        """As a former coordinator left it; `remaining_ms` of its session, or a whole one if that is not known."""
        granted, revoked = flat(record.granted), flat(record.revoked)
        member = cls(record.subscription, record.epoch, 0, now_ms, record.revision, granted, revoked)
        member.process = record.process
        member.ends_ms = member.session_from(now_ms) if remaining_ms is None else now_ms + max(0, remaining_ms)
        if record.claims is not None:
            claimed = frozenset((topic, each) for topic, its in record.claims.items() for each in its)
            member.claim = Claim(record.claimed_for, claimed)
        if revoked:
            member.gives_up_by_ms = now_ms + record.subscription.revoke_timeout_ms
        return member

    def session_from(self, now_ms: int) -> int:
        """When a session that is prolonged now ends."""
        timeout_ms = self.subscription.session_timeout_ms
        return now_ms + timeout_ms + SLACK_MS + int(timeout_ms * DRIFT)

    def subscribe(self, wanted: Subscription) -> bool:
        """Store the member's subscription. Returns True if it changed. Its session never gets shorter, because a lease
        granted earlier may last as long as the longest."""
        longest_ms = max(wanted.session_timeout_ms, self.subscription.session_timeout_ms)
        before = self.subscription
        self.subscription = msgspec.structs.replace(wanted, session_timeout_ms=longest_ms)
        return self.subscription != before

    def record(self, weights: Mapping[Partition, float]) -> MemberRecord:
        """What the log keeps of it."""
        claim = self.claim or Claim(0, frozenset())
        claims = None if self.claim is None else listed(claim.partitions)
        granted, revoked = by_topic(self.granted), by_topic(self.revoked)
        weighed = by_topic({each: weights[each] for each in self.granted if each in weights})
        return MemberRecord(
            self.subscription,
            self.epoch,
            self.revision,
            granted,
            revoked,
            claims,
            claim.generation,
            self.process,
            weighed,
        )
