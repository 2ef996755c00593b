"""Recognizes a log that an import fills: by the identity of its genesis record, and by the import's last mark.

Until that mark the log holds only a part of the cluster, and no broker may act on it. The marks are no-ops of a broker
that never lives. The table remembers the highest incarnation of every name, also in snapshots, so the law needs no new
rule for imports.
"""

from __future__ import annotations

from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable

IDENTITY = "import-"
"""The prefix of the identity of a log that an import made."""
AT_WORK, DONE = BrokerId("import", 1), BrokerId("import", 2)
"""The author of an import's records, and that of its last one. No broker has this name: theirs are `host:port`."""


def generation_of(identity: str) -> int:
    """The generation of the log with this identity: an import's identity tells it, every other log has 0."""
    number = identity.removeprefix(IDENTITY).partition("-")[0] if identity.startswith(IDENTITY) else ""
    return int(number) if number.isdecimal() else 0


def is_unfinished(table: OwnershipTable) -> bool:
    """Whether an import began to fill this log and has not finished."""
    cluster_identity = table.cluster_identity
    if cluster_identity is None or not cluster_identity.identity.startswith(IDENTITY):
        return False
    return table.highest_incarnation(DONE.name) < DONE.incarnation
