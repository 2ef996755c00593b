"""What follows from one change at a thousand brokers, or at 65,536 bundles, costs what changed: counted, not timed."""

from __future__ import annotations

import asyncio
from itertools import islice
from types import SimpleNamespace

import pytest

from loadmanager.broker.placing import PENDING_AT_ONCE
from loadmanager.model.load import BrokerLoadData
from loadmanager.model.policies import patterns as module
from loadmanager.model.policies.patterns import Pattern, any_of, matching_brokers, try_names
from loadmanager.model.registration import Peer, Registration
from loadmanager.strategies.placement.placement import Roster
from loadmanager_api.routes.bundles import bundles_after
from statechannel.errors import InvariantError
from statechannel.law.bundle import even_boundaries, tile
from statechannel.law.namespace import MADE_AT_ONCE, Created, Namespace
from statechannel.law.partition import Lead, Moves, NamespaceState, PartitionState
from statechannel.law.record import NEVER, Action, BrokerId, Record, Role, Subject
from statechannel.law.snapshot import CHUNK_BUNDLES, packed
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Transition
from tests.loadmanager.broker.test_placing import placing
from tests.loadmanager.small_world import A, B, C, Hand, replica, virtually
from tests.simulator.world import World

BROKERS = [BrokerId(f"broker-{number:04d}:1", 1) for number in range(1_000)]
BIG = 65_536


@pytest.fixture
def matched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were matched."""
    names: list[str] = []
    matches = Pattern.matches

    def counting(self: Pattern, name: str) -> bool:
        names.append(name)
        return matches(self, name)

    monkeypatch.setattr(Pattern, "matches", counting)
    return names


def test_a_broker_that_comes_is_matched_once_and_nobody_else_again(matched: list[str]):
    patterns = tuple(f"broker-{number:04d}:1" for number in range(980, 1_000))
    names = tuple(broker.name for broker in BROKERS)
    before = matching_brokers(patterns, names[:-1])
    assert before.sum() == 19
    assert len(matched) <= 2 * len(names), "twenty patterns in one go: the name and its host"
    matched.clear()
    assert matching_brokers(patterns, names).sum() == 20
    assert set(matched) <= {names[-1], "broker-0999"}
    matched.clear()
    assert matching_brokers(patterns, names[100:]).sum() == 20
    assert not matched


def test_what_was_matched_in_steps_is_not_matched_again(matched: list[str]):
    patterns, names = ("broker-000.*", "tenth"), tuple(broker.name for broker in BROKERS)
    steps = try_names(patterns, names)
    next(steps)
    assert len(matched) <= 2
    for _ in steps:
        pass
    matched.clear()
    assert matching_brokers(patterns, names).sum() == 10
    assert not matched


def test_many_patterns_are_one_expression_and_match_what_each_would():
    patterns = ("a|b:1", r"\Qc.d", "(?i)E", "(?P<x>f)g", "(?P<x>h)", "[^i]j")
    for name in ("a", "b:1", "ab:1", "c.d", "cxd", "e", "E", "A", "fg", "h", "ij", "kj", ")|(?:", ""):
        alone = any(Pattern(pattern).matches(name) for pattern in patterns)
        assert any(each.matches(name) for each in any_of(patterns)) == alone, name
    assert len(any_of(tuple(f"broker-{number}" for number in range(20)))) == 1


def test_names_of_brokers_that_are_gone_are_forgotten():
    patterns = ("ever-other",)
    for generation in range(20):
        matching_brokers(patterns, tuple(f"b-{generation}-{number}" for number in range(50)))
    assert len(module._tried_with(patterns)._known) <= 200


def test_only_the_candidates_of_whom_something_changed_are_worked_out_anew():
    measured: list[str] = []

    def measure(load: BrokerLoadData) -> float:
        measured.append(load.broker.name)
        return load.cpu_percent / 100

    table, roster = OwnershipTable(1), Roster()
    peers = [Peer(broker, Registration()) for broker in BROKERS]
    loads = {broker.name: BrokerLoadData(broker, 1, 30.0) for broker in BROKERS}
    assert len(roster.candidates(peers, loads, table, measure)) == len(measured) == 1_000
    measured.clear()
    loads[BROKERS[7].name] = BrokerLoadData(BROKERS[7], 2, 60.0)
    found = roster.candidates(peers[5:], loads, table, measure)
    assert measured == [BROKERS[7].name]
    assert [each.usage for each in found[:4]] == [0.3, 0.3, 0.6, 0.3]
    measured.clear()
    roster.candidates(peers[5:], loads, table, lambda load: measure(load))
    assert len(measured) == 995, "by another measure all are"


@virtually
async def test_look_goes_through_given_bundles_in_parts_and_through_all_in_time(
    world: World,
):
    asked = 0
    get = OwnershipTable.get

    def counting(self: OwnershipTable, bundle):
        nonlocal asked
        asked += 1
        return get(self, bundle)

    async with replica(world) as channel:
        hand = Hand(channel)
        bundles = await hand.create(2 * PENDING_AT_ONCE)
        one = placing(world, hand, A, B, C)
        entries = [hand.entry(bundle) for bundle in bundles]
        one.place_all(entries)
        for begin in range(0, len(entries), 500):
            subjects = tuple(Subject(e.bundle, e.revision) for e in entries[begin : begin + 500])
            record = Record("", Action.OWN, A, Role.BROKER, subjects=subjects, to=B)
            assert isinstance(await channel.publish(record), Change)
        peers = one._membership.eligible()
        one._placed_since = one._cost
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OwnershipTable, "get", counting)
            one._look(peers)
        assert asked == PENDING_AT_ONCE
        one._placed_since, one._seen = one._cost, []
        one._look(peers)
        assert not one._given
        assert not any(one._pending.values())


def _partition(offset: int, namespaces: int = 20) -> PartitionState:
    found: list[NamespaceState] = []
    names = (f"shop/ns-{number:03d}" for number in range(10 * namespaces))
    for name in islice((name for name in names if OwnershipTable(2).partition_of(name) == 0), namespaces):
        entries = [
            Ownership(
                bundle, State.REVOKING if row % 9 == 0 else State.ASSIGNED, owner, None, 2, 1, Action.RETURN, owner
            )
            for row, bundle in enumerate(tile(name, even_boundaries(100)))
            for owner in [BROKERS[(row + offset) % 30]]
        ]
        found.append(NamespaceState(name, 2, entries))
    return PartitionState(0, offset, None, Lead(1, A), None, (), tuple(found), (), ())


def test_snapshot_is_taken_in_steps_and_shows_at_once_after_the_last():
    table = OwnershipTable(2)
    table.restore(_partition(10))
    before, held = table.digest(0), {broker: table.count_held_by(broker) for broker in BROKERS[:30]}
    later = _partition(20, 15)
    steps = 0
    for _ in table.restoring(later):
        steps += 1
        assert table.digest(0) == before
        assert {broker: table.count_held_by(broker) for broker in BROKERS[:30]} == held
        assert table.next_offset(0) == 10
    assert steps >= 15 + 20 + 15
    assert table.cut(0) == later
    table.check_invariants()


def test_a_snapshot_is_not_put_over_what_was_replayed_while_it_was_taken_in():
    table = OwnershipTable(2)
    table.restore(_partition(10))
    restoring = table.restoring(_partition(20))
    next(restoring)
    table.skip(1, 0)
    with pytest.raises(InvariantError):
        for _ in restoring:
            pass
    assert table.next_offset(0) == 10
    table.check_invariants()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The indices of the entries that were made."""
    found: list[int] = []
    entry = Created.entry

    def counting(self: Created, bounds, index: int) -> Ownership:
        found.append(index)
        return entry(self, bounds, index)

    monkeypatch.setattr(Created, "entry", counting)
    return found


def test_who_goes_through_a_large_namespace_makes_its_entries_some_at_a_time(made: list[int]):
    namespace = Namespace.created("big/one", 1, even_boundaries(BIG), A)
    assert len(list(islice(namespace.share(), 10))) == 10
    assert len(made) <= MADE_AT_ONCE
    state = NamespaceState("big/one", 1, namespace.share())
    made.clear()
    chunks = packed(PartitionState(0, 2, None, Lead(), None, (), (state,), (), ()))
    last = 0
    for _ in chunks:
        assert len(made) - last <= 5 * CHUNK_BUNDLES
        last = len(made)


async def test_a_page_of_bundles_makes_the_entries_of_that_page(made: list[int]):
    table = OwnershipTable(1)
    record = Record("n", Action.CREATE_NAMESPACE, A, Role.ADMIN, namespace="big/one", seen_namespace=NEVER,
                    boundaries=even_boundaries(BIG))  # fmt: skip
    assert isinstance(table.replay(0, 1, record), Change)
    made.clear()
    node = SimpleNamespace(channel=SimpleNamespace(table=table))
    found = await bundles_after(node, None, None, None, None, 10)  # type: ignore[arg-type]
    assert [entry.bundle for entry in found] == list(tile("big/one", even_boundaries(BIG)))[:10]
    assert len(made) <= 2_000
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    assert await bundles_after(node, None, None, State.ASSIGNED, None, 10) == []  # type: ignore[arg-type]
    counting.cancel()
    assert turns >= BIG // 2_000


def test_planned_moves_of_a_deleted_namespace_are_hidden_and_stay_gone():
    def moved(namespace: str, action: Action, state: State) -> list[Transition]:
        return [
            Transition(
                Ownership(bundle, State.ASSIGNED, A, None, 1, 1, Action.RETURN, A),
                Ownership(bundle, state, B, None, 2, 1, action, A),
            )
            for bundle in tile(namespace, even_boundaries(4))
        ]

    moves = Moves()
    planned = Record("r", Action.TRANSFER, A, Role.LEADER)
    for namespace in ("big/one", "big/two"):
        moves.observe(planned, moved(namespace, Action.TRANSFER, State.TRANSFERRING))
    moves.forget("big/one")
    shown = moves.copy().leaving
    assert shown == moves.leaving
    assert {bundle.namespace for bundle, _ in shown} == {"big/two"}
    moves.forget("big/two")
    moves.observe(Record("r", Action.RETURN, B), moved("big/two", Action.RETURN, State.ASSIGNED))
    assert moves.arrived == (), "that namespace is another one, and nobody planned a move of its bundles"
    assert moves.leaving == ()
