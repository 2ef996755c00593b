"""What a rebalance moved, why, and how long its partitions paused: with members that take their time."""

from __future__ import annotations

import pytest

from loadmanager.consumers.coordinator.group import Group
from loadmanager.consumers.coordinator.measures import KEPT, STORED, named
from loadmanager.consumers.coordinator.messages import Answer, Beat
from loadmanager.consumers.coordinator.records import Mode, Rebalance, Record, Settings, Subscription, decoded, parsed
from statechannel.law.record import Token

WALL_MS = 1_900_000_000_000
SESSION_MS = 10_000


class World:
    """Members that are told something only if the test says so, on a clock that the test moves."""

    def __init__(self, partitions: int = 6, settings: Settings | None = None) -> None:
        self.now_ms = 0
        self.group = Group("persistent://t/n/g", settings, wall_offset_ms=WALL_MS)
        self.group.set_topics({"orders": partitions}, 0)
        self.last: dict[str, Answer] = {}
        self.sequence = 0

    def beat(self, name: str, after_ms: int = 0) -> None:
        """A heartbeat after some time; its member does at once what the answer says."""
        self.now_ms += after_ms
        self.sequence += 1
        last = self.last.get(name)
        epoch, revision, generation = (last.epoch, last.revision, last.generation) if last else (0, 0, 0)
        beat = Beat(Subscription(("orders",)), epoch, revision, self.sequence, generation)
        answer = self.group.heartbeat(name, beat, self.now_ms)
        assert isinstance(answer, Answer)
        self.last[name] = answer
        self.group.told(name, answer, self.now_ms)

    def newest(self) -> Rebalance:
        return self.group.measures.rebalances()[0]

    def records(self) -> dict[str, Record]:
        again = Group.restored("persistent://t/n/g", {}, 0)
        assert again.members == {}
        written = {key: value for key, value in self.group.written(Token(1, 0, 1)) if value is not None}
        return {parsed(key)[2]: decoded(key, value) for key, value in written.items()}


def test_a_join_moves_half_and_pauses_what_moves() -> None:
    world = World()
    world.beat("a")
    assert (world.newest().why, world.newest().moved, world.newest().kept) == ("a joined", 0, 0)
    assert (world.newest().settled_ms, world.newest().pause_max_ms) == (0, None), "nobody read them before"
    world.beat("b", after_ms=100)
    began = world.newest()
    assert (began.why, began.at_ms, began.members, began.partitions) == ("b joined", WALL_MS + 100, 2, 6)
    assert (began.moved, began.kept, began.settled_ms) == (3, 3, None)
    world.beat("a", after_ms=50)  # hears of it
    world.beat("a", after_ms=30)  # has given them up
    world.beat("b", after_ms=20)  # is told to go on
    ended = world.newest()
    assert (ended.settled_ms, ended.pause_max_ms, ended.pause_mean_ms) == (100, 20, 20.0)
    assert ended.worst is not None
    assert ended.worst[0] == "orders"
    assert ended.balance_degree == 0.0


def test_a_dead_member_paused_its_partitions_since_its_last_heartbeat() -> None:
    world = World(5)
    for name in ("a", "b", "a", "a", "b"):
        world.beat(name)
    held = len(world.last["b"].partitions["orders"])
    world.beat("a", after_ms=SESSION_MS // 2)
    world.now_ms += SESSION_MS // 2 + 300
    assert world.group.expire(world.now_ms) == ["b"]
    world.beat("a", after_ms=7)
    found = world.newest()
    assert (found.why, found.moved, found.kept) == ("the session of b is over", held, 5 - held)
    assert (found.settled_ms, found.pause_max_ms) == (7, SESSION_MS + 307)


def test_who_leaves_stopped_when_it_said_so() -> None:
    world = World(4)
    for name in ("a", "b", "a", "a", "b"):
        world.beat(name)
    world.now_ms += 1_000
    world.group.leave("b", world.now_ms)
    world.beat("a", after_ms=5)
    assert (world.newest().why, world.newest().pause_max_ms) == ("b left", 5)


def test_a_later_rebalance_takes_over_what_it_decides_anew() -> None:
    world = World(6)
    world.beat("a")
    world.beat("b", after_ms=10)
    world.beat("c", after_ms=10)
    for _ in range(3):
        for name in "abc":
            world.beat(name, after_ms=10)
    joined_c, joined_b, joined_a = world.group.measures.rebalances()
    assert [each.settled_ms is not None for each in (joined_a, joined_b, joined_c)] == [True] * 3
    assert joined_c.moved > 0
    assert joined_c.number > joined_b.number > joined_a.number
    assert [len(each.partitions["orders"]) for each in world.last.values()] == [2, 2, 2]


def test_the_last_member_takes_its_pauses_with_it() -> None:
    world = World(3)
    world.beat("a")
    world.group.leave("a", 10)
    world.beat("b", after_ms=3_600_000)
    assert (world.newest().why, world.newest().moved, world.newest().pause_max_ms) == ("b joined", 0, None)


def test_uneven_groups_have_a_degree() -> None:
    world = World(3)
    for name in ("a", "b", "a", "a", "b"):
        world.beat(name)
    assert world.newest().balance_degree == 0.5, "one has two, one has one"


def test_a_change_that_moves_nothing_is_a_rebalance_too() -> None:
    world = World(2)
    world.beat("a")
    world.group.configure(Settings(strategy="AVG"), 5)
    assert (world.newest().why, world.newest().kept, world.newest().moved) == (
        "strategy AVG",
        2,
        0,
    )
    world.group.set_topics({"orders": 3}, 6)
    assert (world.newest().why, world.newest().settled_ms) == ("topic orders has 3 partitions", None)
    world.group.rebalance(None, 7)
    assert world.newest().why == "asked for"


def test_claims_of_members_are_rebalances_where_they_move_something() -> None:
    world = World(2, Settings(Mode.CLIENT))
    for name in ("a", "b", "a", "b"):
        world.beat(name)
    before = len(world.group.measures.rebalances())
    claims = (("orders", 0), ("orders", 1))
    for sequence in (50, 51):
        beat = Beat(Subscription(("orders",)), world.last["a"].epoch, 0, sequence, world.group.generation, claims)
        world.group.heartbeat("a", beat, 5)
    assert len(world.group.measures.rebalances()) == before + 1
    assert world.newest().why == "a claims"


def test_a_later_coordinator_knows_the_last_ones_and_adds_none_for_itself() -> None:
    world = World(4)
    for name in ("a", "b", "a", "a", "b"):
        world.beat(name)
    told = world.group.measures.rebalances()
    again = Group.restored("persistent://t/n/g", world.records(), 500, wall_offset_ms=WALL_MS)
    assert again.measures.rebalances() == told
    again.leave("b", 600)
    assert [each.number for each in again.measures.rebalances()] == [3, 2, 1]


def test_only_the_last_ones_are_kept() -> None:
    world = World(1)
    world.beat("a")
    for _ in range(KEPT + 5):
        world.group.rebalance(None, 1)
    assert len(world.group.measures.rebalances()) == KEPT
    assert len(world.group.measures.stored()) == STORED


@pytest.mark.parametrize(
    ("members", "said"), [(["a"], "a"), (["a", "b", "c"], "a and 2 more"), (["x" * 255], "x" * 39 + "…")]
)
def test_names_stay_short(members: list[str], said: str) -> None:
    assert named(members) == said


def test_what_is_granted_after_an_answer_was_made_is_not_told_by_it() -> None:
    world = World(4)
    for name in ("a", "b"):
        world.beat(name)
    world.beat("a")
    earlier = world.last["b"]
    world.beat("a", after_ms=10)  # gives up what is b's now
    world.group.told("b", earlier, world.now_ms + 500)
    assert world.newest().settled_ms is None
    world.beat("b", after_ms=20)
    assert world.newest().pause_max_ms == 20


def test_what_a_member_gives_up_before_it_was_told_of_it_is_not_told_to_it() -> None:
    world = World(0)
    world.beat("a")
    world.group.set_topics({"orders": 4}, 0)
    world.beat("b")
    world.beat("a", after_ms=10)
    world.beat("a", after_ms=10)
    assert (world.newest().why, world.newest().settled_ms) == ("b joined", None)
    world.beat("b", after_ms=5)
    assert (world.newest().settled_ms, world.newest().pause_max_ms) == (25, 5)
