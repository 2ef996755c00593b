"""What all brokers of a log must agree on, and how far the log's word on it has come. Pure.

The bargain between a holder and the leader (`proofs.py`, `loadmanager/leader/core.py`) holds only among brokers that
share one coordination root and one proof time. So the log itself says which these are: per partition an `agree` record
puts an agreement in force, and an `amend` record begins to replace it. From `amend` to the next `agree` no no-op and no
`lead` counts in the partition, so that a proof under the old agreement can run out first.
"""

from __future__ import annotations

import msgspec

NEVER_AGREED = -1


class Agreement(msgspec.Struct, frozen=True, gc=False):
    """The coordination root by its random identity, and the values that a proof and its end are counted by."""

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
    """One partition's word: what is in force, what it is about to be replaced by, and the offset that said so last."""

    agreement: Agreement | None = None
    following: Agreement | None = None
    """Set from `amend` on until `agree`: meanwhile nobody gets a proof from the partition, or the lead."""
    revision: int = NEVER_AGREED


NOTHING_AGREED = Agreed()


def differences(theirs: Agreement, ours: Agreement) -> str:
    """Each value that differs, the log's first; empty if none does."""
    return ", ".join(
        f"{name} is {getattr(theirs, name)} in the log and {getattr(ours, name)} here"
        for name in Agreement.__struct_fields__
        if getattr(theirs, name) != getattr(ours, name)
    )
