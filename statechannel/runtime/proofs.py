"""Until when this broker may serve: its proofs that its ownership has not been revoked. Pure arithmetic on one clock.

A proof counts for `validity_s` from *before* its request was sent, on a clock that runs on during suspend. There are
two kinds, and either suffices: a checked write of our own liveness node (for all bundles we hold), or a no-op of ours
read back from a partition (for the bundles of that partition). The leader does its part in
`loadmanager/leader/core.py`: it closes both ways to a new proof, then waits for `validity_s` and a margin.
"""

from __future__ import annotations

NEVER_S = float("-inf")


class Proofs:
    """The newest proofs of one incarnation. All times are seconds of one clock."""

    def __init__(self, partitions: int, validity_s: float) -> None:
        self.validity_s = validity_s
        self._coordination_asked_s = NEVER_S
        self._channel_asked_s = [NEVER_S] * partitions
        self.until_s: list[float] = [NEVER_S] * partitions
        """Per partition the instant before which its bundles may be served. Read by other threads."""
        self._fenced = False

    def coordination_proved(self, asked_s: float) -> None:
        """A request sent at `asked_s` wrote our liveness node and checked our incarnation."""
        if asked_s > self._coordination_asked_s and not self._fenced:
            self._coordination_asked_s = asked_s
            for partition, channel_asked_s in enumerate(self._channel_asked_s):
                self.until_s[partition] = max(asked_s, channel_asked_s) + self.validity_s

    def channel_proved(self, partition: int, asked_s: float) -> None:
        """A no-op appended at `asked_s` was read back; everything before it in the partition is applied."""
        if asked_s > self._channel_asked_s[partition] and not self._fenced:
            self._channel_asked_s[partition] = asked_s
            self.until_s[partition] = max(asked_s, self._coordination_asked_s) + self.validity_s

    def fence(self) -> None:
        """Void all proofs permanently: this incarnation is not current any more."""
        self._fenced = True
        self._coordination_asked_s = NEVER_S
        self._channel_asked_s = [NEVER_S] * len(self._channel_asked_s)
        self.until_s[:] = [NEVER_S] * len(self.until_s)

    def wants_channel_proof(self, now_s: float) -> bool:
        """Whether the coordination proof is so old that the channel should be asked as well."""
        return now_s - self._coordination_asked_s > self.validity_s / 2

    def fresh(self, partition: int, now_s: float) -> bool:
        """Whether bundles of this partition may be served now."""
        return now_s < self.until_s[partition]
