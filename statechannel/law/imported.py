"""How a log that was filled from another one tells so: by the identity of its genesis record, and by whether the last
mark stands in it. Until then it holds only a part of the cluster, and no broker may act on it.

The marks are no-ops of a broker that never lives. The table remembers the highest incarnation of every name, also in
snapshots, so the law needs nothing new for this.
"""

from __future__ import annotations

from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable

IDENTITY = "import-"
"""So begins the identity of a log that an import has made."""
AT_WORK, DONE = BrokerId("import", 1), BrokerId("import", 2)
"""Who writes an import's records, and who its last one. No broker is called so: theirs are `host:port`."""


def generation_of(identity: str) -> int:
    """Of the log with this identity: an import's tells it, every other log is of the first generation."""
    number = identity.removeprefix(IDENTITY).partition("-")[0] if identity.startswith(IDENTITY) else ""
    return int(number) if number.isdecimal() else 0


def is_unfinished(table: OwnershipTable) -> bool:
    """Whether an import has begun to fill this log and has not come to its end."""
    genesis = table.genesis
    if genesis is None or not genesis.identity.startswith(IDENTITY):
        return False
    return table.highest_incarnation(DONE.name) < DONE.incarnation
