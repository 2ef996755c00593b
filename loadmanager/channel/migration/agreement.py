"""Replaces the agreement of all brokers of a log: another coordination root, another proof time. Brokers may run on.

The steps, in order. Write `amend` to every partition: from then on no broker gets a channel proof, and every broker
that reads it ends its incarnation. Raise every incarnation in the old root: no broker gets a proof there either. Wait
for `proof_validity_s` and the margin of the old agreement, until all proofs have run out. Write `agree` to every
partition. An agreement is in force only once every partition has it. So after an interruption no broker serves under
either agreement until this command, or another replacement, is run to its end.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import msgspec

from loadmanager.channel.migration.log_import import Wanted
from loadmanager.channel.migration.move import Place, Say, fence, until_proofs_are_out
from loadmanager.channel.migration.offline_log import FoldedLog, patiently
from loadmanager.errors import Conflict
from statechannel.errors import LogUnavailable
from statechannel.law.agreement import Agreed, Agreement
from statechannel.law.partition import AT_WORK
from statechannel.law.record import Action, Record, Role
from statechannel.ports import Coordination, Log

DrawId = Callable[[], str]


class Replaced(msgspec.Struct, frozen=True):
    """The agreements before and now. `was_done` says that nothing had to be changed."""

    before: Agreement
    now: Agreement
    was_done: bool


async def replace_agreement(
    place: Place,
    cluster: str,
    wanted: Wanted,
    *,
    old: tuple[Coordination, str] | None,
    lost: bool,
    say: Say,
    draw_id: DrawId = lambda: secrets.token_hex(8),
) -> Replaced:
    """Replace the agreement by the `wanted` one.

    `old` is the coordination root to leave; without it, the operator confirms with `lost` that it is gone. `draw_id`
    gives each record an id. Raises Conflict if something does not fit (nothing was changed), and the errors of the
    ports: run it again then.
    """
    log = FoldedLog(place.log, place.log_address)
    await log.open()
    identity = _checked(log, cluster)
    before = _word(log)
    await _check_old(log, old)
    root = await place.coordination.identify(cluster, identity)
    now = wanted(before, root)
    left = {agreed.agreement.root for agreed in _agreed_in(log) if agreed.agreement is not None} - {root}
    if left and old is None and not lost:
        raise Conflict(
            f"the log belongs to coordination root {', '.join(sorted(left))}, and {place.coordination_address} is root "
            f"{root}. Name the old root with --from-coordination; if it is gone for good, give --lost"
        )
    if all(_is_in_force(agreed, now) for agreed in _agreed_in(log)):
        return Replaced(before, now, was_done=True)
    say(f"the new agreement: {now}")
    await _write(log, Action.AMEND, now, draw_id)
    say("the log has it; running brokers end their incarnations now, and wait")
    leaving = [old[0]] if old is not None else []
    if root not in left:
        leaving.append(place.coordination)
    for coordination in leaving:
        await fence(coordination, _numbers(log, coordination))
    in_force = [agreed.agreement for agreed in _agreed_in(log) if agreed.agreement is not None]
    await until_proofs_are_out(max(a.proof_validity_s for a in in_force), max(a.margin_s for a in in_force), say)
    await _write(log, Action.AGREE, now, draw_id)
    return Replaced(before, now, was_done=False)


async def present_agreement(source: Log, address: str, cluster: str) -> Agreement:
    """What the brokers of the log agree on. Raises Conflict as `replace_agreement`; changes nothing."""
    log = FoldedLog(source, address)
    await log.open()
    _checked(log, cluster)
    return _word(log)


def _checked(log: FoldedLog, cluster: str) -> str:
    """The log's identity. Raises Conflict unless it is this cluster's, and open."""
    cluster_identity = log.table.cluster_identity
    if cluster_identity is None:
        raise Conflict(f"{log.address} belongs to no cluster yet: its first broker writes the agreement")
    if cluster_identity.cluster != cluster:
        raise Conflict(f"{log.address} is of cluster {cluster_identity.cluster!r}, not {cluster!r}: correct --cluster")
    if (moved_to := log.table.retired(0)) is not None:
        raise Conflict(f"{log.address} was moved to {moved_to}: name the new log with --log")
    return cluster_identity.identity


def _word(log: FoldedLog) -> Agreement:
    word = log.table.agreed(0).agreement
    if word is None:
        raise Conflict(
            f"{log.address} does not say yet what brokers agree on: they write it once all of them run this release"
        )
    return word


async def _check_old(log: FoldedLog, old: tuple[Coordination, str] | None) -> None:
    if old is None:
        return
    found = await old[0].identity()
    known = {agreed.agreement.root for agreed in _agreed_in(log) if agreed.agreement is not None}
    if found is None or found.root not in known:
        is_root = "empty" if found is None else f"root {found.root}"
        raise Conflict(
            f"{old[1]} is {is_root}, and the log belongs to {', '.join(sorted(known))}: correct --from-coordination"
        )


def _agreed_in(log: FoldedLog) -> list[Agreed]:
    return [log.table.agreed(partition) for partition in range(log.table.partitions)]


def _is_in_force(agreed: Agreed, now: Agreement) -> bool:
    return agreed.agreement == now and agreed.following is None


def _numbers(log: FoldedLog, coordination: Coordination) -> dict[str, int]:
    """The highest incarnation of each name that the log knows, or that is registered."""
    numbers = {name: member.broker.incarnation for name, member in coordination.members.items()}
    for partition in range(log.table.partitions):
        for name, number in log.table.cut(partition).incarnations:
            numbers[name] = max(number, numbers.get(name, 0))
    return numbers


async def _write(log: FoldedLog, action: Action, now: Agreement, draw_id: DrawId) -> None:
    """Write `action` to every partition and read it back. Raises Conflict if another agreement is written meanwhile."""

    async def write() -> None:
        for partition, agreed in enumerate(_agreed_in(log)):
            if _is_in_force(agreed, now) or (action is Action.AMEND and agreed.following == now):
                continue
            record = Record(draw_id(), action, AT_WORK, Role.ADMIN, agreement=now, seen_agreement=agreed.revision)
            await log.append(partition, [record])
        await log.read_on()
        if not all(_is_in_force(agreed, now) or agreed.following == now for agreed in _agreed_in(log)):
            raise Conflict("another `channel agree` runs at the same time: run one of the two again")
        if action is Action.AGREE and not all(_is_in_force(agreed, now) for agreed in _agreed_in(log)):
            raise LogUnavailable(f"{log.address} has not taken the agreement in all partitions: run this command again")

    await patiently(write)
