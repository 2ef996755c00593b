"""What the brokers of one log agree on: the coordination root, and values that every broker must share. Pure.

The leader may revoke safely (`proofs.py`, `loadmanager/leader/core.py`) only if all brokers share one coordination root
and one proof time. So the log names them: in each partition an `agree` record puts an agreement in force, and an
`amend` record begins to replace it. From `amend` to the next `agree` the partition accepts no no-op and no `lead`, so
that every proof under the old agreement runs out first.

The first process that uses a root draws its identity at random, and the log names the identity that counts. So a broker
recognizes a root that is new, mistyped, moved or wiped.
"""

from __future__ import annotations

import msgspec

from statechannel.errors import ForeignCluster

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
    """Set from `amend` until `agree`: meanwhile the partition gives no proof, and no lead."""
    revision: int = NEVER_AGREED


NOTHING_AGREED = Agreed()


def differences(theirs: Agreement, ours: Agreement) -> str:
    """A sentence of the values that differ, the log's first; empty if none does."""
    return ", ".join(
        f"{name} is {getattr(theirs, name)} in the log and {getattr(ours, name)} here"
        for name in Agreement.__struct_fields__
        if getattr(theirs, name) != getattr(ours, name)
    )


CORRECT = (
    "correct --coordination; if that root was lost, or the cluster is to move to this one, run "
    "`loadmanager channel agree` (docs/migrate.md)"
)


class Identity(msgspec.Struct, frozen=True):
    """What a coordination root belongs to, and its own random identity: see `Coordination.identify`.

    `root` is empty if only releases before record format 3 have used this root.
    """

    cluster: str
    log: str
    root: str = ""

    @property
    def owner(self) -> str:
        """The beginning of a message that refuses something."""
        return f"this coordination root belongs to cluster {self.cluster!r} with log {self.log!r}"


def check_root(found: Identity | None, ours: Identity) -> None:
    """Raises ForeignCluster unless `found` fits `ours`; if `ours` has no `root`, `found` may be None."""
    if ours.root and (found is None or found.root != ours.root):
        present = "is empty" if found is None else f"has the identity {found.root or 'of an earlier release'}"
        raise ForeignCluster(
            f"the log of cluster {ours.cluster!r} belongs to coordination root {ours.root}, and the root here "
            f"{present}: {CORRECT}"
        )
    if found is not None and (found.cluster, found.log) != (ours.cluster, ours.log):
        raise ForeignCluster(
            f"{found.owner}, not to cluster {ours.cluster!r} with log {ours.log!r}: correct the cluster name or the "
            "log's address, or choose another coordination root"
        )


def lost(where: str, root: str) -> str:
    """The message for a root whose data vanished while we use it."""
    return f"{where} has lost the data of coordination root {root}: only proofs in the log count now; {CORRECT}"


def replaced(where: str, found: str, root: str) -> str:
    """The message for a root that another one has replaced."""
    return f"{where} is coordination root {found or 'without an id'} now, it was {root}: {CORRECT}"
