"""Writes the recorded log of the newest format, as the law of this release judges it:

    python -m tests.statechannel.record_log > tests/statechannel/recorded/v3.log

Until its format is released a log may be written anew; after that its lines are never edited, and this script writes
that of the next format. Old ones are kept as they are.
"""

from __future__ import annotations

import sys

import msgspec

from statechannel.errors import CorruptRecord
from statechannel.law import codec
from statechannel.law.agreement import Agreement
from statechannel.law.bundle import even_boundaries
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change, Refusal

from .conftest import Ledger

PARTITIONS = 2
NOTED_AT_MS, EACH_MS = 1_800_000_000_000, 1_000
HEAD = (
    f"# A log of wire version {codec.NEWEST_VERSION}: what version 2 can say, deletes that saw all bundles, "
    "and what brokers agree on."
)


def history() -> Ledger:
    """Every action, by everybody who may and some who may not; `replay` of a logged record writes a copy of it."""
    ledger = Ledger(PARTITIONS)
    ledger.replay(Record("g", Action.GENESIS, ledger.A, epoch=1, cluster="recorded-cluster"), 0)
    ledger.replay(Record("g2", Action.GENESIS, ledger.B, epoch=1, cluster="other"), 0)
    ledger.begin(4)
    own_and_move(ledger)
    cut_and_merge(ledger)
    fail_over(ledger)
    delete(ledger)
    agree(ledger)
    close(ledger)
    return ledger


def agree(ledger: Ledger) -> None:
    """What brokers agree on: said, replaced, and led under; with what is refused meanwhile."""
    one = Agreement("root-1", 2.0, 0.05, 0.1, PARTITIONS)
    other = msgspec.structs.replace(one, root="root-2", proof_validity_s=5.0, margin_s=0.25)

    def word(action: Action, agreement: Agreement, role: Role, seen: int) -> Change | Refusal:
        number = f"r{len(ledger.log)}"
        return ledger.replay(Record(number, action, ledger.A, role, agreement=agreement, seen_agreement=seen), 0)

    def lead(epoch: int, root: str, seen: int) -> Change | Refusal:
        number = f"r{len(ledger.log)}"
        return ledger.replay(
            Record(number, Action.LEAD, ledger.LEADER, Role.LEADER, epoch, root=root, seen_agreement=seen), 0
        )

    word(Action.AMEND, other, Role.ADMIN, 0)
    said = ledger.table.next_offset(0)
    word(Action.AGREE, one, Role.BROKER, -1)
    word(Action.AGREE, other, Role.BROKER, said)
    lead(8, "root-2", said)
    lead(8, "root-1", -1)
    lead(8, "root-1", said)
    word(Action.AMEND, other, Role.BROKER, said)
    begun = ledger.table.next_offset(0)
    word(Action.AMEND, other, Role.ADMIN, said)
    lead(9, "root-2", begun)
    ledger.replay(Record(f"r{len(ledger.log)}", Action.NOOP, ledger.A), 0)
    word(Action.AGREE, one, Role.ADMIN, begun)
    word(Action.AGREE, other, Role.ADMIN, begun)
    lead(9, "root-2", begun + 4)


def own_and_move(ledger: Ledger) -> None:
    w, x, y, z = ledger.bundles()
    ledger.write(Action.OWN, (w, x, y), to=ledger.A)
    ledger.write(Action.OWN, (w, z), ledger.B, to=ledger.B, seen=ledger.revision(z))  # one is refused
    ledger.write(Action.RETURN, (w, x, y))
    ledger.write(Action.RETURN, z, ledger.B)
    ledger.as_leader(Action.TRANSFER, x, to=ledger.B)
    ledger.write(Action.READY, x, ledger.A2)
    ledger.write(Action.READY, x, ledger.B)
    ledger.write(Action.RELEASE, x, hand_off=b"\0\1cursor=42")
    ledger.write(Action.RETURN, x, ledger.B)
    ledger.as_leader(Action.TRANSFER, y, to=ledger.A2)
    ledger.as_leader(Action.TRANSFER, y, to=ledger.C)
    ledger.as_admin(Action.CANCEL, y)
    ledger.as_admin(Action.UNLOAD, w)
    ledger.write(Action.RELEASE, w)
    damaged(ledger, b"hello, I am no record")


def cut_and_merge(ledger: Ledger) -> None:
    y = ledger.bundles()[2]
    split = ledger.record(Action.SPLIT, y)
    ledger.replay(msgspec.structs.replace(split, algorithm="by-load", parts=2))
    ledger.write(Action.CREATE, y, boundaries=(y.hi,))
    ledger.write(Action.CREATE, y, boundaries=(y.lo + 0x10000000,))
    left, right = ledger.bundles()[2:4]
    ledger.write(Action.MERGE, (right, left))
    ledger.write(Action.MERGE, (left, right))


def fail_over(ledger: Ledger) -> None:
    y = ledger.bundles()[2]
    ledger.lead(2, ledger.B, ledger.table.partition_of(y.namespace))
    ledger.as_leader(Action.REVOKE, y)
    revoke = ledger.record(Action.REVOKE, y, ledger.B, role=Role.LEADER, epoch=2)
    ledger.replay(revoke)
    ledger.replay(revoke)
    ledger.write(Action.RELEASE, y, ledger.B, role=Role.LEADER, epoch=2, to=ledger.A)
    ledger.write(Action.RELEASE, y, ledger.B, role=Role.LEADER, epoch=2, to=ledger.A2)
    ledger.write(Action.RETURN, y, ledger.A2)


def delete(ledger: Ledger) -> None:
    """A copy of a delete that was refused comes when it would fit; then one of each kind that counts."""
    ledger.create_namespace("game/rooms", even_boundaries(2))
    left, _ = ledger.bundles("game/rooms")
    ledger.write(Action.OWN, left, to=ledger.A)
    ledger.delete_namespace("game/rooms")
    refused = ledger.log[-1][2]
    assert isinstance(refused, Record)
    ledger.write(Action.RELEASE, left)
    ledger.replay(refused)
    ledger.delete_namespace("game/rooms")
    ledger.create_namespace("game/rooms", even_boundaries(1), seen=-1)
    ledger.create_namespace("game/rooms", even_boundaries(1))
    ledger.create_namespace("game/rooms", even_boundaries(2))
    ledger.delete_namespace("game/rooms")


def close(ledger: Ledger) -> None:
    ledger.replay(Record("end", Action.RETIRE, ledger.B, Role.LEADER, 2, moved_to="bundle-state-2"), 0)
    ledger.replay(Record("end", Action.RETIRE, ledger.B, Role.ADMIN, moved_to="bundle-state-2"), 0)
    ledger.replay(Record("late", Action.NOOP, BrokerId("d:6650", 9)), 0)
    ledger.replay(Record("alive", Action.NOOP, ledger.A2), 1)


def damaged(ledger: Ledger, value: bytes, partition: int = 0) -> None:
    offset = ledger.table.next_offset(partition)
    ledger.table.skip(partition, offset)
    ledger.log.append((partition, offset, value))


def lines(ledger: Ledger) -> list[str]:
    table = OwnershipTable(PARTITIONS)
    entries, first = list[str](), dict[object, int]()
    for number, (partition, offset, written) in enumerate(ledger.log):
        at_ms = NOTED_AT_MS + EACH_MS * first.setdefault(written, number)
        payload = written if isinstance(written, bytes) else codec.encode(dated(written, at_ms))
        entries.append(f"{partition} {offset} {verdict(table, partition, offset, payload)} {payload.decode()}")
    return [HEAD, *(f"# digest {table.digest(p)}" for p in range(PARTITIONS)), *entries]


def dated(record: Record, at_ms: int) -> Record:
    return msgspec.structs.replace(record, at_ms=at_ms, cause="recorded")


def verdict(table: OwnershipTable, partition: int, offset: int, payload: bytes) -> str:
    try:
        outcome = table.replay(partition, offset, codec.decode(payload))
    except CorruptRecord:
        table.skip(partition, offset)
        return "corrupt"
    return "change" if isinstance(outcome, Change) else outcome.reason


if __name__ == "__main__":
    sys.stdout.write("\n".join([*lines(history()), ""]))
