"""Who should read what where members divide the partitions (`Mode.CLIENT`). Pure.

Every member computes the whole division from the same view, by the same strategy as the coordinator, and claims its
part. A slow member, or one that claims nothing, strands no partition: the coordinator computes a proposal of its own,
and unclaimed partitions go to the members named there. A claim counts until its member makes another one, so that a new
generation moves nothing before it has claims of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from loadmanager.consumers.coordinator.records import Partition


class Claim(msgspec.Struct, frozen=True):
    """What a member claims to read, computed for a generation."""

    generation: int
    partitions: frozenset[Partition]


class Claims:
    """The claims of one generation and those before that still count, beside its proposal."""

    def __init__(self, proposal: Mapping[Partition, str], claims: Mapping[str, Claim | None]) -> None:
        self.proposal = proposal
        self._claims: dict[str, Claim] = {}
        self._claimers: dict[Partition, dict[str, int]] = {}
        for member, claim in claims.items():
            if claim is not None:
                self.put(member, claim)

    def put(self, member: str, claim: Claim) -> Collection[Partition]:
        """A member claims this from now on; of these partitions others may have become the readers."""
        former = self._claims.get(member)
        before = frozenset[Partition]() if former is None else former.partitions
        for partition in before - claim.partitions:
            self._claimers.get(partition, {}).pop(member, None)
        for partition in claim.partitions & self.proposal.keys():
            self._claimers.setdefault(partition, {})[member] = claim.generation
        self._claims[member] = claim
        return (before | claim.partitions) & self.proposal.keys()

    def reader(self, partition: Partition, present: str | None) -> str:
        """The member that should read a partition of the proposal; `present` is the one that should now.

        Among several claimers, one with a claim of the newest generation wins: the present one, or the proposed one.
        """
        proposed, claimers = self.proposal[partition], self._claimers.get(partition)
        if not claimers:
            return proposed
        newest = max(claimers.values())
        by = [member for member, generation in claimers.items() if generation == newest]
        return next((each for each in (present, proposed) if each in by), min(by))
