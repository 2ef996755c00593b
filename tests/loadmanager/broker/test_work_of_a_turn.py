"""What one turn of the control loop does at a hundred brokers and a hundred thousand bundles: counted, not timed."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from collections.abc import Iterable

import pytest

from loadmanager.cluster.membership import suspected_by
from loadmanager.leader.core import (
    MUCH,
    WORK_A_TURN,
    Asked,
    Duty,
    LeaderCore,
    LeaderSettings,
    Place,
    Raise,
    Revoke,
    View,
)
from loadmanager.model.registration import Peer, Registration
from statechannel.law.bundle import Key, even_boundaries, tile
from statechannel.law.namespace import Created, Namespace
from statechannel.law.partition import Lead, NamespaceState, PartitionState
from statechannel.law.record import NEVER, Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership
from statechannel.ports import LogEntry
from statechannel.runtime.channel import TURN_BYTES, in_turns
from statechannel.runtime.tasks import Turnstile
from tests.loadmanager.small_world import Nodes, virtually
from tests.simulator.world import World

BROKERS = [BrokerId(f"broker-{number:03d}:1", 1) for number in range(100)]
LEADER, RACK = BROKERS[0], BROKERS[1:11]
NAMESPACES, BUNDLES_EACH = 100, 1_000
BIG = 65_536
MOST_OF_A_STEP = 1_000
"""A step of a sweep that begins within the work of a turn may end beyond it."""


class Cluster:
    """A leader's core in its term, over a table in which every broker holds something in every namespace."""

    def __init__(self) -> None:
        self.table = OwnershipTable(1)
        boundaries, namespaces = even_boundaries(BUNDLES_EACH), list[NamespaceState]()
        for number in range(NAMESPACES):
            bundles = tile(f"shop/ns-{number:03d}", boundaries)
            owners = [BROKERS[row % len(BROKERS)] for row in range(BUNDLES_EACH)]
            entries = [
                Ownership(bundle, State.ASSIGNED, owner, None, 2, 1, Action.RETURN, owner)
                for bundle, owner in zip(bundles, owners, strict=True)
            ]
            namespaces.append(NamespaceState(bundles[0].namespace, 2, entries))
        self.table.restore(PartitionState(0, 3, None, Lead(1, LEADER), None, (), tuple(namespaces), (), ()))
        self.core = LeaderCore(LeaderSettings(2.0, 0.1, 30.0, 150.0))
        self.alive = {broker.name: broker for broker in BROKERS}
        self.now_s = 10.0
        self.turns: list[int] = []
        """The work of each turn of the last sweep."""

    def sweep(self, later_s: float = 0.0, places: object = None) -> list[Duty]:
        """All turns of one sweep; what they found due."""
        self.now_s += later_s
        self.turns, duties = [], list[Duty]()
        while not self.turns or self.core.unfinished:
            before = self.core.work
            peers = {name: Peer(broker, Registration()) for name, broker in self.alive.items()}
            duties += self.core.tick(self.table, View(self.now_s, peers, {}, {}, 0.0, places))
            self.turns.append(self.core.work - before)
        return duties

    def write(self, action: Action, subjects: Iterable[tuple[object, int]], to: BrokerId | None = None, *, leads=True):
        chosen = tuple(Subject(bundle, seen) for bundle, seen in subjects)  # type: ignore[arg-type]
        role = Role.LEADER if leads else Role.BROKER
        change = self.table.replay(
            0, self.table.next_offset(0), Record("r", action, LEADER, role, int(leads), chosen, to)
        )
        assert isinstance(change, Change)
        self.core.observe(change, self.now_s)

    def rack_dies(self) -> None:
        for broker in RACK:
            del self.alive[broker.name]

    def revoke(self, duties: list[Duty]) -> None:
        for duty in duties:
            assert isinstance(duty, Revoke)
            self.write(Action.REVOKE, duty.subjects)

    def free(self) -> None:
        """Until all that the rack held has nobody, and no place."""
        self.revoke(self.sweep())
        self.sweep()
        for broker in RACK:
            self.core.raised(broker, self.now_s)
        for duty in self.sweep(later_s=2.2):
            assert isinstance(duty, Place)
            self.write(Action.RELEASE, duty.subjects)


def test_an_idle_sweep_looks_at_holders_and_at_no_bundle():
    cluster = Cluster()
    assert cluster.sweep() == []
    assert sum(cluster.turns) <= 2 * len(BROKERS)


def test_all_dead_brokers_are_gone_through_in_one_walk_and_in_steps(monkeypatch: pytest.MonkeyPatch):
    cluster, walked = Cluster(), Counter[str]()
    touched = Namespace.touched

    def counting(self: Namespace, begin: int = 0, end: int | None = None) -> list[Ownership]:
        found = touched(self, begin, end)
        walked[self.name] += len(found)
        return found

    monkeypatch.setattr(Namespace, "touched", counting)
    cluster.rack_dies()
    duties = cluster.sweep()
    assert sum(walked.values()) == NAMESPACES * BUNDLES_EACH, "once, however many are dead"
    assert sum(len(duty.subjects) for duty in duties if isinstance(duty, Revoke)) == len(RACK) * 1_000
    assert max(len(duty.subjects) for duty in duties if isinstance(duty, Revoke)) <= 250
    assert len(cluster.turns) > 5
    assert max(cluster.turns) <= WORK_A_TURN + MOST_OF_A_STEP
    walked.clear()
    assert cluster.sweep(later_s=0.1) == []
    assert not walked, "nor again before anything was read of it"
    cluster.revoke(duties[: len(duties) // 2])
    assert not [duty for duty in cluster.sweep(later_s=1.1) if isinstance(duty, Revoke)]
    assert not walked, "nor while it is being done"
    rest = cluster.sweep(later_s=1.1)
    assert {subject for duty in rest if isinstance(duty, Revoke) for subject in duty.subjects} == {
        subject for duty in duties[len(duties) // 2 :] if isinstance(duty, Revoke) for subject in duty.subjects
    }, "but what was forgotten is asked for again, and nothing else"


def test_what_is_in_flight_is_watched_by_the_records_that_sent_it_there():
    cluster = Cluster()
    cluster.rack_dies()
    cluster.revoke(cluster.sweep())
    assert len(cluster.table.in_state(State.REVOKING)) == 10_000
    duties = cluster.sweep(later_s=0.1)
    assert [type(duty) for duty in duties] == [Raise] * len(RACK)
    assert sum(cluster.turns) <= 1_000, "a few records, not 10,000 bundles"
    for broker in RACK:
        cluster.core.raised(broker, cluster.now_s)
    places = cluster.sweep(later_s=2.2)
    assert sum(len(duty.subjects) for duty in places if isinstance(duty, Place)) == 10_000
    assert len(places) == 1, "all of them together, so that few records say where each goes"
    assert max(cluster.turns) <= WORK_A_TURN + MOST_OF_A_STEP


def test_unplaced_bundles_are_asked_together_rarely_and_on_new_places():
    cluster = Cluster()
    cluster.rack_dies()
    cluster.free()
    assert cluster.table.count_by_state()[State.UNASSIGNED] == 10_000
    asked = [cluster.sweep(later_s=float(second > 0)) for second in range(61)]
    rounds = [duties for duties in asked if duties]
    assert len(rounds) <= 7, "not sixty"
    for duties in rounds:
        assert [type(duty) for duty in duties] == [Place] * len(RACK), "one for what each dead broker had"
        assert sum(len(duty.subjects) for duty in duties if isinstance(duty, Place)) == 10_000
    assert max(cluster.turns) <= WORK_A_TURN + MOST_OF_A_STEP
    cluster.sweep(later_s=0.1)
    assert len(cluster.sweep(later_s=0.1, places="a broker came")) == len(RACK)
    assert cluster.sweep(later_s=0.1, places="a broker came") == []


def test_a_namespace_of_65536_bundles_comes_and_goes_without_a_look_at_each(monkeypatch: pytest.MonkeyPatch):
    made = 0
    entry = Created.entry

    def counting(*arguments):
        nonlocal made
        made += 1
        return entry(*arguments)

    monkeypatch.setattr(Created, "entry", counting)
    table = OwnershipTable(1)

    def write(action: Action, seen: int, boundaries: tuple[int, ...] = ()) -> Change:
        record = Record(
            "n", action, LEADER, Role.ADMIN, namespace="big/one", seen_namespace=seen, seen_latest=seen,
            boundaries=boundaries,
        )  # fmt: skip
        change = table.replay(0, table.next_offset(0), record)
        assert isinstance(change, Change)
        return change

    core = LeaderCore(LeaderSettings(2.0, 0.1, 30.0, 150.0))
    created = write(Action.CREATE_NAMESPACE, NEVER, even_boundaries(BIG))
    core.observe(created, 0.0)
    assert created.bundles([]) == []
    assert len(created.transitions) == len(table) == BIG
    deleted = write(Action.DELETE_NAMESPACE, created.offset)
    core.observe(deleted, 0.0)
    assert made <= 4, "those that were asked for by name"
    assert len(deleted.transitions) == BIG
    assert len(table) == 0
    table.check_invariants()


def test_the_log_is_applied_in_parts():
    batch = [LogEntry(0, offset, None, b"x" * 400, 0) for offset in range(1_000)] + [
        LogEntry(0, 1_000, None, b"x" * 100_000, 0)
    ]
    parts = list(in_turns(batch))
    assert [entry for part in parts for entry in part] == batch
    assert all(len(part) == 1 or sum(len(e.value or b"") for e in part) <= TURN_BYTES for part in parts)
    assert len(parts) < 60


def test_judging_a_rack_by_its_neighbours_asks_about_each_broker_once():
    asked = 0

    class Peers(dict[str, Peer]):
        def __iter__(self):
            raise AssertionError("all brokers are gone through for each that is suspected")

        def get(self, name, default=None):
            nonlocal asked
            asked += 1
            return super().get(name, default)

    peers = Peers({broker.name: Peer(broker, Registration()) for broker in BROKERS})
    suspicions = [(BROKERS[50 + n], broker) for broker in RACK for n in range(4)]
    assert set(suspected_by(suspicions, peers)) == set(RACK)
    assert asked == len(suspicions)


async def test_turnstile_lets_some_pass_a_turn_in_order_and_forgets_who_left():
    turnstile, passed = Turnstile(10), list[int]()

    async def go_on(number: int) -> None:
        await turnstile.passed()
        passed.append(number)

    tasks = [asyncio.ensure_future(go_on(number)) for number in range(100)]
    await asyncio.sleep(0)
    assert passed == list(range(10))
    tasks[15].cancel()
    counts = [len(passed)]
    while len(passed) < 99:
        await asyncio.sleep(0)
        counts.append(len(passed))
    assert passed == [number for number in range(100) if number != 15]
    assert max(later - before for before, later in itertools.pairwise(counts)) <= 10


@virtually
async def test_namespace_is_unloaded_and_looked_up_by_records_of_many_bundles(world: World):
    nodes = Nodes(world)
    (a,) = await nodes.ready("a:1")
    operations, lookup = a.node.current.operations, a.node.current.lookup
    await a.ask(lambda: operations.create_namespace("big/one", even_boundaries(600)))
    known = a.node.channel.table.namespace("big/one")
    assert known is not None
    topics = [Key("big/one", str(bundle), bundle.lo) for bundle in known.bundles]
    written = Counter[Action]()
    a.node.channel.listen(lambda change: written.update([change.record.action]))

    async def look_up() -> None:
        await asyncio.gather(*(lookup.locate(topic, 10.0) for topic in topics))

    await a.ask(look_up)
    assert written[Action.OWN] <= 20
    await a.ask(lambda: operations.unload_namespace("big/one"))
    assert written[Action.UNLOAD] == 5
    assert a.node.channel.table.count_by_state()[State.UNASSIGNED] == 600


class Noting(Turnstile):
    """Notes who passes."""

    def __init__(self) -> None:
        super().__init__(1)
        self.who: set[str] = set()

    async def passed(self) -> None:
        caller = sys._getframe(1)
        self.who.add(caller.f_code.co_qualname)
        await super().passed()


@virtually
async def test_whoever_takes_milliseconds_passes_the_turnstile_of_the_replica(world: World):
    nodes = Nodes(world)
    (a,) = await nodes.ready("a:1")  # it leads
    (b,) = await nodes.ready("b:1")
    replica = a.node.channel.replica
    steps = replica.steps = Noting()
    operations, lookup = a.node.current.operations, a.node.current.lookup
    await a.ask(lambda: operations.create_namespace("shop/orders", even_boundaries(8)))

    async def look_up_all() -> None:
        for bundle in tile("shop/orders", even_boundaries(8)):
            await lookup.locate(Key("shop/orders", str(bundle), bundle.lo), 10.0)

    await a.ask(look_up_all)
    await a.ask(lambda: operations.unload_namespace("shop/orders"))
    await a.ask(look_up_all)
    await a.ask(lambda: a.node.drain(10.0))
    passed = {"Replica.follow", "Leader._term", "Lookup._place_wanted", "Operations._unload_once", "Drain._send_away"}
    assert passed <= steps.who
    assert b.node.channel.table.count_held_by(b.node.current.me) == 8


def test_what_was_asked_for_long_ago_is_forgotten_some_of_it_in_each_sweep():
    asked = Asked(1.0)
    for number in range(5 * MUCH):
        assert asked.is_due("place", number, 1, 0.0)
    assert asked.is_due("place", "lately", 1, 100.0)
    left = [len(asked)]
    while not left[1:] or left[-1] != left[-2]:
        asked.forget_old(100.0)
        left.append(len(asked))
    assert max(before - after for before, after in itertools.pairwise(left)) <= MUCH
    assert len(asked) <= MUCH
    assert not asked.is_due("place", "lately", 1, 100.5)
