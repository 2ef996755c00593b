"""The peers of the node of `turns`: one table for all of them, and the records that the living ones write."""

from __future__ import annotations

from contextvars import Context
from random import Random
from typing import TYPE_CHECKING

import msgspec

from statechannel.law import codec
from statechannel.law.bundle import Bundle
from statechannel.law.record import BUNDLES_A_RECORD, Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Transition
from statechannel.ports import LogEntry, Payload
from tests.simulator.world import EPOCH_MS

if TYPE_CHECKING:
    from bench.turns_world import TurnsWorld

TOPIC = "bundle-state"
PARTITIONS = 4


class Referee:
    """Folds the channel as every broker does, and writes what the living peers would."""

    def __init__(self, world: TurnsWorld) -> None:
        self.table = OwnershipTable(PARTITIONS)
        self.dead: set[BrokerId] = set()
        self.random = Random(2)
        self._world = world
        self._written = 0
        self._owed: dict[tuple[int, BrokerId, Action, BrokerId | None], list[Subject]] = {}

    def saw(self, topic: str, entry: LogEntry) -> None:
        """An entry was taken by the log."""
        if topic != TOPIC or entry.value is None:
            return
        verdict = self.table.replay(entry.partition, entry.offset, codec.decode(entry.value))
        if isinstance(verdict, Change) and verdict.record.action is not Action.CREATE_NAMESPACE:
            for transition in verdict.transitions:
                self._owe(entry.partition, transition)

    def _owe(self, partition: int, transition: Transition) -> None:
        after = transition.after
        if after is None:
            return
        who, to = after.holder, None
        match after.state:
            case State.ASSIGNING:
                action = Action.RETURN
            case State.TRANSFERRING:
                who, action = after.target, Action.READY
            case State.RELEASING:
                action, to = Action.RELEASE, None
            case State.REVOKING:
                action = Action.RELEASE
            case _:
                return
        if who is None or who in self.dead or who.name == self._world.brokers[0].name:
            return
        if not self._owed:
            Context().run(self._world.loop.call_later, 0.002, self._pay)
        self._owed.setdefault((partition, who, action, to), []).append(Subject(after.bundle, after.revision))

    def _pay(self) -> None:
        owed, self._owed = self._owed, {}
        for (partition, who, action, to), subjects in owed.items():
            self.write(partition, Record("", action, who, Role.BROKER, to=to), subjects)

    def write(self, partition: int, record: Record, subjects: list[Subject]) -> None:
        """Append the record, in parts."""
        payloads: list[Payload] = []
        for begin in range(0, len(subjects), BUNDLES_A_RECORD):
            self._written += 1
            part = msgspec.structs.replace(
                record, id=f"referee-{self._written}", at_ms=EPOCH_MS,
                subjects=tuple(subjects[begin : begin + BUNDLES_A_RECORD]),
            )  # fmt: skip
            payloads.append(Payload(None, codec.encode(part)))
        self._world.log.append(TOPIC, partition, payloads)

    def some_of(self, broker: BrokerId, count: int) -> list[Bundle]:
        """A few bundles that the broker holds."""
        found: list[Bundle] = []
        for name in self.table.namespaces_of(broker):
            namespace = self.table.namespace(name)
            assert namespace is not None
            found += [entry.bundle for entry in namespace.entries if entry.holder == broker]
            if len(found) >= count:
                break
        return found[:count]

    def drain(self, brokers: list[BrokerId], targets: list[BrokerId]) -> None:
        """These leave: each transfers all it holds, a part to each of some of the others."""
        held: dict[BrokerId, list[Ownership]] = {broker: [] for broker in brokers}
        for entry in self.table:  # once for all of them
            if entry.holder in held and entry.state is State.ASSIGNED:
                held[entry.holder].append(entry)
        for broker, entries in held.items():
            some = self.random.sample(targets, min(10, len(targets)))
            moves: dict[tuple[int, BrokerId], list[Subject]] = {}
            for index, entry in enumerate(entries):
                place = self.table.partition_of(entry.bundle.namespace), some[index * len(some) // len(entries)]
                moves.setdefault(place, []).append(Subject(entry.bundle, entry.revision))
            for (partition, to), subjects in moves.items():
                record = Record("", Action.TRANSFER, broker, Role.BROKER, to=to, reason="drain")
                self.write(partition, record, subjects)
