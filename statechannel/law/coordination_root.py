"""Whose coordination root this is, and whether the log names it. Pure; adapters call it.

The first process that uses a root draws its identity at random. The log names the identity that counts
(`agreement.py`); so a broker recognizes a root that is new, mistyped, moved or wiped.
"""

from __future__ import annotations

import msgspec

from statechannel.errors import ForeignCluster

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
