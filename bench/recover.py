"""What it takes to find new places for all that a tenth of the brokers held: the leader's placement, without the log.

The table is made by replaying records, and holds the bundles of the living as well. Placing is asked as the leader's
duties ask it: one dead broker's bundles after the other's, so many at once. `kind` does not matter: nothing is written.
"""

from __future__ import annotations

import time
from collections import Counter
from types import SimpleNamespace
from typing import cast

from bench.figures import emit, percentile
from loadmanager.broker.placing import Placing
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.views import Views
from loadmanager.leader.service import PLACED_AT_ONCE
from loadmanager.model.load import BrokerLoadData
from loadmanager.model.registration import Registration
from loadmanager.strategies.placement.least_loaded import LeastLoaded
from loadmanager.strategies.placement.placement import Candidate, Given, begin
from loadmanager.strategies.registry import PLACEMENTS
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.record import NEVER, Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Refusal
from statechannel.ports import Connection, Member

PARTITIONS = 4
BUNDLES_EACH = 650
DEAD = 0.1
SIZES = (100, 300, 1_000)
SINGLY = 200
ADMIN = BrokerId("admin:1", 1)


def run(kind: str) -> None:
    """All figures of this bench."""
    for brokers in SIZES:
        _recover([BrokerId(f"broker-{number:04}.bench:6650", 1) for number in range(brokers)])


def _recover(brokers: list[BrokerId]) -> None:
    dead, living = brokers[: int(len(brokers) * DEAD)], brokers[int(len(brokers) * DEAD) :]
    table = _table(brokers, dead, living[0])
    one = _placing(table, living)
    held = [[entry for bundle in table.held_by(each) if (entry := table.get(bundle))] for each in dead]
    owners: Counter[BrokerId] = Counter()
    chunks_ms: list[float] = []
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    for entries in held:
        for at in range(0, len(entries), PLACED_AT_ONCE):
            began = time.perf_counter()
            some = entries[at : at + PLACED_AT_ONCE]
            placed = one.place_many(some, [dead[0].name] * len(some))
            chunks_ms.append((time.perf_counter() - began) * 1e3)
            owners.update(owner for owner in placed if owner is not None)
    took_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
    bundles = sum(map(len, held))
    assert owners.total() == bundles, "not all found a place"
    even = bundles / len(living)
    emit(
        "recover", f"places for {bundles:,} bundles of {len(dead)} dead on {len(living)} living brokers", took_s, "s",
        us_a_bundle=round(took_s / bundles * 1e6, 2), longest_step_ms=round(max(chunks_ms), 1),
        step_p50_ms=round(percentile(chunks_ms, 50), 1), cpu_s=round(cpu_s, 3),
        off_even_percent=round(100 * (max(owners.values()) / even - 1), 2),
    )  # fmt: skip
    _pure(bundles, living)
    other = _placing(table, living)
    begin_s = time.perf_counter()
    for entry in held[0][:SINGLY]:
        assert other.place_many([entry], [None])[0] is not None
    each_ms = (time.perf_counter() - begin_s) / SINGLY * 1e3
    emit("recover", f"the same one by one, a bundle, {len(living)} living brokers", each_ms, "ms")


def _pure(bundles: int, living: list[BrokerId]) -> None:
    """The choice alone, of as many bundles in one namespace."""
    known = [Candidate(each, BUNDLES_EACH, 0.3 + row % 11 / 100, BUNDLES_EACH) for row, each in enumerate(living)]
    asked = tile("bench/all", even_boundaries(bundles))
    begin_s, cpu_s = time.perf_counter(), time.process_time()
    batch = begin(LeastLoaded(), known, Given())
    for at in range(0, bundles, PLACED_AT_ONCE):
        batch.foresee(asked[at : at + PLACED_AT_ONCE])
        for bundle in asked[at : at + PLACED_AT_ONCE]:
            owner = batch.choose(bundle)
            assert owner is not None
            batch.gave(owner)
    took_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
    emit(
        "recover", f"the choice alone, {bundles:,} bundles, {len(living)} living brokers", took_s, "s",
        target="< 1", met=took_s < 1, cpu_s=round(cpu_s, 3),
    )  # fmt: skip


def _table(brokers: list[BrokerId], dead: list[BrokerId], leader: BrokerId) -> OwnershipTable:
    """Each namespace has a bundle on each broker; those of the dead are revoked."""
    table, offsets = OwnershipTable(PARTITIONS), [0] * PARTITIONS

    def write(partition: int, record: Record) -> None:
        verdict = table.replay(partition, offsets[partition], record)
        assert not isinstance(verdict, Refusal), verdict
        offsets[partition] += 1

    boundaries = even_boundaries(len(brokers))
    places = {name: table.partition_of(name) for name in (f"bench/ns-{number}" for number in range(BUNDLES_EACH))}
    for name, partition in places.items():
        created = Record(
            "", Action.CREATE_NAMESPACE, ADMIN, Role.ADMIN,
            namespace=name, boundaries=boundaries, seen_namespace=NEVER,
        )  # fmt: skip
        write(partition, created)
    tiles = {name: tile(name, boundaries) for name in places}
    for row, broker in enumerate(brokers):
        for action in (Action.OWN, Action.RETURN):
            for partition in range(PARTITIONS):
                mine = [tiles[name][row] for name, place in places.items() if place == partition]
                to = broker if action is Action.OWN else None
                write(partition, Record("", action, broker, Role.BROKER, 0, _subjects(table, mine), to))
    for partition in range(PARTITIONS):
        write(partition, Record("", Action.LEAD, leader, Role.LEADER, epoch=1))
    for broker in dead:
        for partition in range(PARTITIONS):
            mine = [bundle for bundle in table.held_by(broker) if table.partition_of(bundle.namespace) == partition]
            write(partition, Record("", Action.REVOKE, leader, Role.LEADER, 1, _subjects(table, mine)))
    assert len(table.in_state(State.REVOKING)) == len(dead) * BUNDLES_EACH
    return table


def _subjects(table: OwnershipTable, bundles: list[Bundle]) -> tuple[Subject, ...]:
    return tuple(Subject(bundle, entry.revision) for bundle in bundles if (entry := table.get(bundle)) is not None)


def _placing(table: OwnershipTable, living: list[BrokerId]) -> Placing:
    """As the leader has it: all report between 30 and 40 %, with all their bundles."""
    membership = Membership(validity_s=2.0, recovery_grace_s=150.0, now_s=0.0)
    members = {each.name: Member(each, Registration().encode()) for each in living}
    membership.saw_members(members, Connection.CONNECTED, 0.0)
    loads = {
        each.name: BrokerLoadData(
            each, 0, 30.0 + row % 11, in_rate_msg_s=1000, bundles=BUNDLES_EACH, capacity={"cpu": 8}
        )
        for row, each in enumerate(living)
    }
    shown = SimpleNamespace(several=lambda names: [loads.get(name) for name in names])
    views = cast("Views", SimpleNamespace(brokers=shown))
    return Placing(living[0], table, membership, views, PLACEMENTS.make("least-loaded"))
