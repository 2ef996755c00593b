"""Members, a network that delays, doubles and loses, coordinators that die: no partition is ever read by two.

Members run the code of `loadmanager.consumer.assignment`, coordinators that of `coordinator.group`. A seed chooses what
happens next; the log keeps what was appended, and nothing is answered before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

import pytest

from loadmanager.consumer.assignment import Membership
from loadmanager.consumers.coordinator.group import LARGE, Division, Group
from loadmanager.consumers.coordinator.messages import Answer, Beat, Refusal
from loadmanager.consumers.coordinator.records import (
    Mode,
    Partition,
    Settings,
    Subscription,
    Written,
    decoded,
    parsed,
)
from loadmanager.consumers.coordinator.targets import STRATEGIES
from statechannel.law.record import Token

T = TypeVar("T")

NAME = "persistent://shop/orders/billing"
SEEDS, STEPS = 150, 500
SUBSCRIPTIONS = (("a",), ("b",), ("a", "b"), ("a", "b"))


class World:
    """One group. Time passes by `wait` alone; messages arrive by `deliver_…` alone."""

    def __init__(self, seed: int, large: float = LARGE) -> None:
        self.large = large
        self.plan: Callable[[], Division] | None = None
        self.random = Random(seed)
        self.now_ms = 0
        self.token = Token(1, 0, 1)
        self.log: dict[str, bytes] = {}
        self.withheld: set[Partition] = set()
        self.free: set[Partition] = set()
        """Those of them that nobody holds any more."""
        self.topics = {"a": 4, "b": 3}
        self.group = Group(NAME)
        self.group.large = large
        self.group.set_topics(dict(self.topics), 0)
        self.members: list[Membership] = []
        self.hanging: set[str] = set()
        self.silent: set[str] = set()
        """Members that never claim what to read, as consumers of another kind."""
        self.beats: list[tuple[Membership, Beat]] = []
        self.answers: list[tuple[Membership, int, Answer | Refusal]] = []
        self.seen = Counter[str]()
        self.append()
        self.actions: dict[Callable[[], None], float] = {
            self.beat: 24,
            self.deliver_beat: 28,
            self.deliver_answer: 28,
            self.give_up: 14,
            self.wait: 9,
            self.join: 4,
            self.lose: 2,
            self.hang: 0.7,
            self.wake: 1.5,
            self.leave: 0.7,
            self.subscribe: 0.5,
            self.claim: 1,
            self.twin: 0.5,
            self.take_over: 0.7,
            self.die_while_writing: 1,
            self.resize: 0.7,
            self.configure: 0.4,
            self.see_racks: 0.4,
            self.weigh: 0.5,
            self.withhold: 0.7,
            self.give_back: 1,
            self.begin_plan: 20 if large != LARGE else 0,
            self.take_plan: 20 if large != LARGE else 0,
            self.place: 20 if large != LARGE else 0,
        }

    def play(self, steps: int) -> None:
        actions, weights = list(self.actions), list(self.actions.values())
        for _ in range(steps):
            self.random.choices(actions, weights)[0]()
            self.append()
            self.check()

    def append(self) -> None:
        """What the shell does after every event, before it answers."""
        self.write(self.group.written(self.token))

    def write(self, entries: Sequence[Written]) -> None:
        for key, value in entries:
            if value is None:
                self.log.pop(key, None)
            else:
                self.log[key] = value

    def anyone(self) -> Membership | None:
        return self.random.choice(self.members) if self.members else None

    # --- members

    def join(self) -> None:
        if len(self.members) < 5:
            self.seen["join"] += 1
            subscription = Subscription(
                self.random.choice(SUBSCRIPTIONS),
                session_timeout_ms=self.random.choice((1_000, 2_000)),
                revoke_timeout_ms=2_500,
                capacity=self.random.choice((1.0, 1.0, 2.0)),
                rack=self.random.choice(("", "x", "y")),
                name=self.random.choice(("", "left", "right")),
            )
            self.members.append(Membership(f"m{self.seen['join']}", subscription))
            self.silent |= {f"m{self.seen['join']}"} if self.random.random() < 0.3 else set()

    def twin(self) -> None:
        """Another process with the id of a member."""
        member = self.anyone()
        if member and len(self.members) < 5:
            self.seen["twin"] += 1
            self.members.append(Membership(member.member, member.subscription))

    def beat(self) -> None:
        member = self.anyone()
        if member and member.member not in self.hanging:
            self.beats.append((member, member.beat(self.now_ms)))

    def give_up(self) -> None:
        member = self.anyone()
        if member:
            drained = member.holds(self.now_ms) - member.reads(self.now_ms)
            self.seen["given up"] += bool(drained)
            member.given_up(drained)

    def hang(self) -> None:
        """It sends nothing any more, but reads on as long as it may."""
        member = self.anyone()
        self.hanging |= {member.member} if member else set()

    def wake(self) -> None:
        self.hanging.clear()

    def leave(self) -> None:
        member = self.anyone()
        if member:
            self.members.remove(member)
            self.group.leave(member.member, self.now_ms, member.process)

    def subscribe(self) -> None:
        member = self.anyone()
        if member:
            topics = self.random.choice(SUBSCRIPTIONS)
            member.subscription = Subscription(topics, member.subscription.session_timeout_ms, 2_500)

    def claim(self) -> None:
        member = self.anyone()
        if member:
            every = [(topic, number) for topic in ("a", "b") for number in range(5)]
            member.claims = tuple(self.random.sample(every, 4))

    # --- the network

    def deliver_beat(self) -> None:
        if self.beats:
            member, beat = self.taken(self.beats)
            answer = self.group.heartbeat(member.member, beat, self.now_ms)
            self.append()
            self.answers.append((member, beat.sequence, answer))

    def deliver_answer(self) -> None:
        if self.answers:
            member, sequence, answer = self.taken(self.answers)
            change = member.answered(sequence, answer)
            if member.member in self.silent:
                member.claims = None
            self.seen.update(
                {"assigned": len(change.assigned), "revoked": len(change.revoked), "lost": len(change.lost)}
            )
            self.members = [each for each in self.members if not each.over]

    def taken(self, sent: list[T]) -> T:
        """Mostly the newest, so that there are very old ones; at times one that will come once more."""
        at = -1 if self.random.random() < 0.8 else self.random.randrange(len(sent))
        return sent[at] if self.random.random() < 0.1 else sent.pop(at)

    def lose(self) -> None:
        for sent in (self.beats, self.answers):
            if sent:
                sent.pop(self.random.randrange(len(sent)))

    def wait(self) -> None:
        self.now_ms += self.random.choice((1, 5, 5, 20, 20, 50, 50, 100, 300, 1_100))
        self.seen["expired"] += len(self.group.expire(self.now_ms))

    # --- the coordinator

    def take_over(self) -> None:
        """Its broker died, or the bundle moved: another one goes on from the log."""
        self.seen["taken over"] += 1
        records = {parsed(key)[2]: decoded(key, value) for key, value in self.log.items()}
        self.group = Group.restored(NAME, records, self.now_ms)
        self.group.large, self.plan = self.large, None
        self.group.set_topics(dict(self.topics), self.now_ms)
        self.token = Token(1, 0, self.token.offset + 1)
        self.log = {}
        self.withheld, self.free = set(), set()

    def die_while_writing(self) -> None:
        """Of what an event changed the log has a part, and nobody was answered."""
        if self.beats:
            self.seen["died"] += 1
            member, beat = self.taken(self.beats)
            self.group.heartbeat(member.member, beat, self.now_ms)
            entries = self.group.written(self.token)
            self.write(entries[: self.random.randint(0, len(entries))])
            self.take_over()

    def resize(self) -> None:
        self.topics[self.random.choice(("a", "b"))] = self.random.randrange(6)
        self.group.set_topics(dict(self.topics), self.now_ms)

    def configure(self) -> None:
        mode = self.random.choice((Mode.SERVER, Mode.SERVER, Mode.CLIENT))
        strategy = self.random.choice(STRATEGIES)
        config = {"left": {"a": (0, 2), "b": (1,)}, "right": {"a": (1,)}} if strategy == "CONFIG" else {}
        self.group.configure(Settings(mode, strategy, config), self.now_ms)

    def see_racks(self) -> None:
        racks = {topic: {each: self.random.choice("xyz") for each in range(5)} for topic in "ab"}
        self.group.set_racks(racks, self.now_ms)

    def weigh(self) -> None:
        weights = {("a", each): self.random.random() for each in range(5)}
        self.group.rebalance(weights, self.now_ms)

    def withhold(self) -> None:
        """A reset of offsets begins."""
        some = [
            (topic, each) for topic, size in self.topics.items() for each in range(size) if self.random.random() < 0.3
        ]
        self.seen["withheld"] += len(some)
        self.withheld.update(some)
        self.group.withhold(some, self.now_ms)

    def give_back(self) -> None:
        """It ends, or was given up: some of the partitions are still read."""
        self.group.give_back(self.withheld, self.now_ms)
        self.withheld, self.free = set(), set()

    def begin_plan(self) -> None:
        self.plan = self.plan or self.group.plan()

    def take_plan(self) -> None:
        if self.plan:
            self.seen["planned"] += 1
            self.group.take(self.plan(), self.now_ms)
            self.plan = None

    def place(self) -> None:
        self.group.place(self.random.randrange(1, 4), self.now_ms)

    # --- what holds

    def check(self) -> None:
        self.group.check_invariants()
        for each in self.free:
            assert each not in self.group.holders, f"{each} is withheld, and was free"
        self.free = {each for each in self.withheld if each not in self.group.holders}
        readers: dict[Partition, Membership] = {}
        for member in self.members:
            for partition in member.holds(self.now_ms):
                assert readers.setdefault(partition, member) is member, f"two read {partition}"
                assert self.group.holders.get(partition) == member.member, f"{member.member} is not known to read it"

    def settle(self, mode: Mode) -> None:
        """Everything works again, and everybody does what they are told: then all is read, by who should."""
        self.give_back()
        self.hanging.clear()
        strategy = self.group.settings.strategy
        settings = Settings(mode, "STICKY" if strategy == "CONFIG" else strategy)  # CONFIG leaves some to nobody
        self.group.configure(settings, self.now_ms)
        self.see_racks()
        for _ in range(16):
            self.take_plan()
            self.begin_plan()
            while self.group.place(3, self.now_ms):
                self.append()
            self.now_ms += 300
            self.group.expire(self.now_ms)
            for member in self.members:
                beat = member.beat(self.now_ms)
                answer = self.group.heartbeat(member.member, beat, self.now_ms)
                self.append()
                member.answered(beat.sequence, answer)
                if member.member in self.silent:
                    member.claims = None
                member.given_up(member.holds(self.now_ms) - member.reads(self.now_ms))
            self.members = [each for each in self.members if not each.over]
        reads = {each: member.member for member in self.members for each in member.reads(self.now_ms)}
        assert reads == {each: self.group.target(each) for each in reads}
        there = [member for member in self.members if member.epoch]  # a twin waits, as long as the first one lives
        subscribed = {topic for member in there for topic in member.subscription.topics}
        assert len(reads) == sum(size for topic, size in self.topics.items() if topic in subscribed)
        assert set(self.group.members) == {member.member for member in self.members}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_partition_is_read_by_two_and_all_are_read_in_the_end(seed: int) -> None:
    world = World(seed, -1 if seed % 3 == 0 else LARGE)
    world.play(STEPS)
    world.settle(Mode.CLIENT if seed % 2 else Mode.SERVER)


def test_worlds_are_eventful() -> None:
    seen = Counter[str]()
    for seed in range(20):
        world = World(seed, -1 if seed % 3 == 0 else LARGE)
        world.play(2 * STEPS)
        seen += world.seen
    assert all(
        seen[each] > 50
        for each in ("withheld", "assigned", "revoked", "given up", "lost", "expired", "taken over", "planned")
    ), seen
