"""The two ways to fill a new log: from a file (restore), and from the log that a cluster leaves (migrate).

In a migration all steps that may fail harmlessly come first; then the old log is closed, and then it is copied. After
any interruption the same command goes on; see `docs/decisions/0010-moving-the-channel.md`.

A cluster that leaves has no registered broker, its log is closed for good, and no proof counts any more. After `retire`
a partition gives no channel proof, and every broker that reads it stops. Once every name's incarnation is raised,
no broker gets a coordination proof. Earlier proofs run out after `proof_validity_s` and a margin. The leader does the
same for a single dead holder (`statechannel.runtime.proofs`).
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence

import msgspec

from loadmanager.channel.migration.export import (
    Export,
    documents_in,
    export_of,
    fill_documents,
    fill_groups,
    groups_in,
)
from loadmanager.channel.migration.log_import import Import, Wanted, check_generation, in_root
from loadmanager.channel.migration.offline_log import FoldedLog, patiently
from loadmanager.errors import Conflict
from statechannel.errors import LogUnavailable
from statechannel.law.partition import AT_WORK, ClusterIdentity, generation_of
from statechannel.law.record import Action, Record, Role
from statechannel.ports import Connection, Coordination, Identity, Log, TopicSpec

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


class Place(msgspec.Struct, frozen=True):
    """A log and the coordination service beside it, both started."""

    log: Log
    coordination: Coordination
    log_address: str
    coordination_address: str


class Terms(msgspec.Struct, frozen=True):
    """Parameters of both ways. `validity_s` and `margin_s` are those of the brokers that leave."""

    cluster: str
    partitions: int | None
    validity_s: float
    margin_s: float
    now_ms: int
    wait_s: float = 0.0
    """How long to wait for brokers that are registered."""
    wanted: Wanted = in_root
    """Makes the new log's agreement from the old one; by default the same values."""


class Moved(msgspec.Struct, frozen=True):
    """The result. `was_done` says that an earlier run had finished, and this one changed nothing."""

    cluster: str
    identity: str
    generation: int
    was_done: bool
    partitions: int
    namespaces: int
    bundles: int
    owners: dict[str, int]
    """How many bundles each broker's name holds."""


async def restore(
    export: Export,
    seal: str,
    new: Place,
    terms: Terms,
    *,
    generation: int | None = None,
    old: tuple[Coordination, str] | None = None,
    say: Say,
) -> Moved:
    """Fill a new log from an export; `seal` identifies its file. `old` is the lost log's coordination.

    Raises Conflict, Unavailable and the errors of the ports; writes nothing if something does not fit.
    """
    chosen = check_fits(export, terms.cluster, generation)
    target = FoldedLog(new.log, new.log_address, cause_of_import(seal))
    await target.open(terms.partitions)
    work = Import(target, terms.cluster, chosen)
    if work.is_done and not target.foreign:
        return _moved(target, export, was_done=True)
    work.check()
    if old is not None:
        await check_lost(*old, export.cluster_identity, chosen)
    await until_left(new.coordination, terms.wait_s, new.coordination_address, say)
    if old is not None:
        await until_left(old[0], terms.wait_s, old[1], say)
    await work.claim(new.coordination)
    if old is not None:
        await fence(old[0], export.incarnations())
        await _until_proofs_are_out(export, terms, say)
    return await _copied(work, target, export, terms, say)


async def check_target(log: Log, address: str, cause: str, cluster: str, generation: int) -> None:
    """Raises Conflict where the log has records that an import with this cause would refuse. Writes no record."""
    target = FoldedLog(log, address, cause)
    await target.open()
    work = Import(target, cluster, generation)
    if target.foreign or not work.is_done:
        work.check()


def cause_of_import(seal: str) -> str:
    """What identifies the records of the import of this file."""
    return f"import {seal}"


def cause_of_move(identity: ClusterIdentity) -> str:
    """What identifies the records of the move of this cluster."""
    return f"move of {identity.identity}"


async def movable(old: Place, terms: Terms, new_address: str) -> Export:
    """What `migrate` would move. Raises Conflict as it does before its first change; changes nothing itself."""
    source = FoldedLog(old.log, old.log_address)
    await source.open()
    _checked_source(source, terms, new_address)
    await identity_of(old.coordination, old.coordination_address)
    await until_left(old.coordination, 0.0, old.coordination_address, lambda _: None)
    return export_of(source.table, {}, source.address, terms.now_ms)


def check_fits(export: Export, cluster: str, generation: int | None) -> int:
    """The generation of the new log. Raises Conflict for an export of another cluster, or a used generation."""
    later = export.next_generation
    if export.cluster_identity.cluster != cluster:
        raise Conflict(
            f"the export is of cluster {export.cluster_identity.cluster!r}, not {cluster!r}: correct --cluster"
        )
    if generation is not None and generation < later:
        raise Conflict(
            f"generation {generation} is not above {later - 1}, which was used already: tokens would go back"
        )
    return check_generation(generation or later)


async def migrate(old: Place, new: Place, terms: Terms, topics: Sequence[TopicSpec], *, say: Say) -> Moved:
    """Move a cluster whose brokers have stopped from one log to another. `topics` are those of the new one.

    Raises Conflict, Unavailable and the errors of the ports. The old log is unchanged until it is closed.
    """
    source = FoldedLog(old.log, old.log_address)
    await source.open()
    cluster_identity = _checked_source(source, terms, new.log_address)
    await identity_of(old.coordination, old.coordination_address)
    word = source.table.agreed(0).agreement
    await old.coordination.identify(
        cluster_identity.cluster, cluster_identity.identity, None if word is None else word.root
    )
    target = FoldedLog(new.log, new.log_address, cause_of_move(cluster_identity))
    for spec in topics:
        await patiently(lambda spec=spec: new.log.open_topic(spec))
    await target.open(terms.partitions)
    work = Import(target, terms.cluster, cluster_identity.generation + 1)
    if work.is_done and is_retired(source) and _continues(target, cluster_identity):
        return _moved(target, export_of(source.table, {}, source.address, terms.now_ms), was_done=True)
    work.check()
    await until_left(new.coordination, 0.0, new.coordination_address, say)
    await until_left(old.coordination, terms.wait_s, old.coordination_address, say)
    await work.claim(new.coordination)
    say(f"{new.log_address} is claimed for generation {cluster_identity.generation + 1} of cluster {terms.cluster}")
    await until_left(old.coordination, terms.wait_s, old.coordination_address, say)
    await retire(source, new.log_address)
    await fence(old.coordination, export_of(source.table, {}, source.address, terms.now_ms).incarnations())
    say(f"{old.log_address} is closed for good: no broker starts on it any more")
    await _until_proofs_are_out(export_of(source.table, {}, source.address, terms.now_ms), terms, say)
    await source.read_on()
    documents, groups = await documents_in(old.log), await groups_in(old.log, members=True)
    export = export_of(source.table, documents, source.address, terms.now_ms, groups)
    return await _copied(work, target, export, terms, say)


async def _until_proofs_are_out(export: Export, terms: Terms, say: Say) -> None:
    """Wait for the longest validity and margin of the settings and the log: brokers may take either."""
    said = [state.agreed.agreement for state in export.states if state.agreed.agreement is not None]
    validity_s = max(terms.validity_s, *(word.proof_validity_s for word in said), 0.0)
    margin_s = max(terms.margin_s, *(word.margin_s for word in said), 0.0)
    await until_proofs_are_out(validity_s, margin_s, say)


def _checked_source(source: FoldedLog, terms: Terms, moved_to: str) -> ClusterIdentity:
    cluster_identity = source.table.cluster_identity
    if cluster_identity is None:
        raise Conflict(f"{source.address} belongs to no cluster, so there is nothing to move: correct --from-log")
    if cluster_identity.cluster != terms.cluster:
        raise Conflict(
            f"{source.address} is of cluster {cluster_identity.cluster!r}, not {terms.cluster!r}: correct --cluster"
        )
    check_retired(source, moved_to)
    return cluster_identity


def _continues(target: FoldedLog, cluster_identity: ClusterIdentity) -> bool:
    """Whether a filled log is the next generation of the same cluster."""
    found = target.table.cluster_identity
    expected = (cluster_identity.cluster, cluster_identity.generation + 1)
    return found is not None and (found.cluster, found.generation) == expected


async def _copied(work: Import, target: FoldedLog, export: Export, terms: Terms, say: Say) -> Moved:
    say(f"writing {export.bundles} bundles")
    await work.fill(export, terms.wanted)
    copied = await fill_documents(target.log, export.documents)
    say(f"wrote {copied} entries of policies, settings and plans")
    if export.groups:
        say(f"wrote {await fill_groups(target.log, export.groups)} entries of consumer groups")
    say("comparing the new log with the old")
    await work.finish(export)
    return _moved(target, export, was_done=False)


def _moved(target: FoldedLog, export: Export, *, was_done: bool) -> Moved:
    cluster_identity = target.table.cluster_identity
    assert cluster_identity is not None
    return Moved(
        cluster=cluster_identity.cluster,
        identity=cluster_identity.identity,
        generation=cluster_identity.generation,
        was_done=was_done,
        partitions=target.table.partitions,
        namespaces=sum(1 for _ in export.namespaces()),
        bundles=export.bundles,
        owners=export.owners(),
    )
