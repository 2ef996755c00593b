"""Ends a cluster on its old log: no broker is registered, the log is closed for good, and no proof counts any more.

After `retire` a partition gives no channel proof, and every broker that reads it stops. Once every name's incarnation
is raised, nobody gets a coordination proof. Earlier proofs run out after `proof_validity_s` and a margin. The leader
does the same for a single dead holder (`statechannel.runtime.proofs`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from loadmanager.channel.migration.folding import FoldedLog
from loadmanager.errors import Conflict
from statechannel.errors import LogUnavailable
from statechannel.law.imported import AT_WORK, generation_of
from statechannel.law.partition import ClusterIdentity
from statechannel.law.record import Action, Record, Role
from statechannel.ports import Connection, Coordination, Identity

Say = Callable[[str], None]
"""Shows progress to people."""

LOOK_S = 0.1
CORRECT = "give --from-coordination the address that the old brokers had"


async def until_left(coordination: Coordination, wait_s: float, where: str, say: Say) -> None:
    """Return when no broker is registered. Raises Conflict after `wait_s`, naming those that are."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s
    told = ""
    while coordination.members or coordination.connection is not Connection.CONNECTED:
        if loop.time() >= until_s:
            names = ", ".join(sorted(coordination.members)) or "not known, it does not answer"
            raise Conflict(
                f"registered in {where}: {names}. Stop these brokers (SIGTERM; a killed broker counts until its "
                "session ends), then run this command again, or give --wait SECONDS"
            )
        if (waiting_for := ", ".join(sorted(coordination.members))) != told:
            say(f"waiting up to {until_s - loop.time():.0f} s for the brokers registered in {where}: {waiting_for}")
            told = waiting_for
        await asyncio.sleep(LOOK_S)


async def identity_of(coordination: Coordination, where: str) -> Identity:
    """What this root belongs to. Raises Conflict if it belongs to nothing.

    An unused root has no registered brokers, so a mistyped root would hide brokers that still run at the right one.
    """
    tied = await coordination.identity()
    if tied is None:
        raise Conflict(f"{where} belongs to no cluster: no broker was ever registered there; {CORRECT}")
    return tied


async def check_lost(
    coordination: Coordination, where: str, cluster_identity: ClusterIdentity, generation: int
) -> None:
    """Raises Conflict unless the root was that of the exported log, or of one between it and the new generation."""
    tied = await identity_of(coordination, where)
    if tied.cluster != cluster_identity.cluster:
        raise Conflict(f"{where} belongs to cluster {tied.cluster!r}, not to {cluster_identity.cluster!r}: {CORRECT}")
    found = cluster_identity.generation if tied.log == cluster_identity.identity else generation_of(tied.log)
    if found >= generation:
        raise Conflict(
            f"{where} belongs to a log of generation {found}: a new one of generation {generation} would give out its "
            f"tokens again. Import a later export, or give --generation {found + 1}"
        )
    if found < cluster_identity.generation:
        raise Conflict(f"{where} belongs to a log of generation {found}, older than the export's: {CORRECT}")


async def retire(old: FoldedLog, moved_to: str) -> None:
    """Close every partition that is open, and read that back. Raises Conflict if the log was moved elsewhere."""
    check_retired(old, moved_to)
    for partition in range(old.table.partitions):
        if old.table.retired(partition) is None:
            record = Record(
                secrets.token_hex(8), Action.RETIRE, AT_WORK, Role.ADMIN, moved_to=moved_to, cause=old.cause
            )
            await old.append(partition, [record])
    await old.read_on()
    check_retired(old, moved_to)
    if not is_retired(old):
        raise LogUnavailable(f"{old.address} was not closed in all its partitions: run this command again")


def check_retired(old: FoldedLog, moved_to: str) -> None:
    """Raises Conflict if the log was closed in favour of another one."""
    places = {place for p in range(old.table.partitions) if (place := old.table.retired(p)) is not None}
    if places - {moved_to}:
        raise Conflict(
            f"{old.address} was moved to {', '.join(places - {moved_to})} already. Use that log, or run that `migrate` "
            "to its end with exactly this address. If that log is lost, use `channel export --closed` on "
            f"{old.address} and `channel import` into the new one"
        )


def is_retired(old: FoldedLog) -> bool:
    """Whether every partition is closed for good."""
    return all(old.table.retired(partition) is not None for partition in range(old.table.partitions))


async def fence(coordination: Coordination, numbers: dict[str, int]) -> None:
    """Raise every name's incarnation, so that no earlier one can get a proof."""
    for name, number in numbers.items():
        if name != AT_WORK.name:
            await coordination.start_incarnation(name, number)


async def until_proofs_are_out(validity_s: float, margin_s: float, say: Say) -> None:
    """Wait as long as an earlier proof may count."""
    say(f"waiting {validity_s + margin_s:.1f} s until no proof of the old cluster counts")
    await asyncio.sleep(validity_s + margin_s)
