"""The values that all brokers of a log must agree on, and how they are replaced. Pure.

The leader may revoke safely (`proofs.py`, `loadmanager/leader/core.py`) only if all brokers share one coordination root
and one proof time. So the log names them: in each partition an `agree` record puts an agreement in force, and an
`amend` record begins to replace it. From `amend` to the next `agree` the partition accepts no no-op and no `lead`, so
that every proof under the old agreement runs out first.
"""

from __future__ import annotations

import msgspec

NEVER_AGREED = -1


class Agreement(msgspec.Struct, frozen=True, gc=False):
    """The random identity of the coordination root, and the values that decide how long a proof counts."""

    root: str
    proof_validity_s: float
    clock_drift: float
    margin_s: float
    partitions: int

    def __str__(self) -> str:
        return (
            f"coordination root {self.root}, proof_validity_s {self.proof_validity_s:g}, clock_drift "
            f"{self.clock_drift:g}, margin {self.margin_s:g} s, {self.partitions} partitions"
        )


class Agreed(msgspec.Struct, frozen=True, gc=False):
    """What one partition says: the agreement in force, the one that replaces it, and the offset of the last change."""

    agreement: Agreement | None = None
    following: Agreement | None = None
    """Set from `amend` until `agree`: meanwhile the partition gives nobody a proof, nor the lead."""
    revision: int = NEVER_AGREED


NOTHING_AGREED = Agreed()


def differences(theirs: Agreement, ours: Agreement) -> str:
    """A sentence of the values that differ, the log's first; empty if none does."""
    return ", ".join(
        f"{name} is {getattr(theirs, name)} in the log and {getattr(ours, name)} here"
        for name in Agreement.__struct_fields__
        if getattr(theirs, name) != getattr(ours, name)
    )
