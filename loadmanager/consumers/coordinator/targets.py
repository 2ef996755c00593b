"""Says who should read what in a group: asks the strategy that the group has chosen, once for each change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from loadmanager.consumers.allocation.near import Reader, exchanges
from loadmanager.consumers.allocation.rocketmq import (
    Averagely,
    AveragelyByCircle,
    ConsistentHash,
    MachineRoomNearby,
    MessageQueue,
    Strategy,
    by_config,
)
from loadmanager.consumers.allocation.sticky import Sticky
from loadmanager.consumers.coordinator.messages import View, check_topic
from loadmanager.consumers.coordinator.records import (
    Config,
    Partition,
    Settings,
    Subscription,
    by_topic,
    flat,
    listed,
)
from loadmanager.errors import Invalid

if TYPE_CHECKING:
    from loadmanager.consumers.allocation.weighted import Consumer, Weighted

WEIGHTED = "WEIGHTED_STICKY"
FORGETFUL: Mapping[str, Callable[[], Strategy]] = {
    each.name: each for each in (Averagely, AveragelyByCircle, ConsistentHash)
}
"""Strategies without memory, which divide each topic by itself among those that subscribe to it."""
NEARBY: Mapping[str, Callable[[], Strategy]] = {f"MACHINE_ROOM_NEARBY-{name}": FORGETFUL[name] for name in FORGETFUL}
"""The same for each rack by itself."""
NEAR = (Sticky.name, WEIGHTED, *NEARBY)
"""To these it matters in which racks members are."""
CONFIG = "CONFIG"
STRATEGIES = (Sticky.name, WEIGHTED, *FORGETFUL, *NEARBY, CONFIG)
CONFIG_BYTES = 65_536
"""A configuration is a part of the group's record, which is written with each change."""


class Situation(msgspec.Struct, frozen=True):
    """What a target depends on. `topics`: numbers of partitions of those that exist. `weights`: rates or lags. `racks`:
    by topic, where partitions are led while all servers run, as far as known; None: not asked yet. `config`: for
    CONFIG.
    """

    members: Mapping[str, Subscription]
    topics: Mapping[str, int]
    weights: Mapping[Partition, float] | None = None
    racks: Mapping[str, Mapping[int, str]] | None = None
    config: Config = {}

    @property
    def are_racks_used(self) -> bool:
        """True if one member may be nearer to a partition than another one."""
        return bool(self.racks) and any(self.racks.values()) and any(each.rack for each in self.members.values())

    @property
    def is_alike(self) -> bool:
        """Whether all members subscribe to the same topics."""
        return len({frozenset(each.topics) for each in self.members.values()}) <= 1

    def sizes(self) -> dict[str, int]:
        """The number of partitions of each topic with a subscriber."""
        subscribed = {topic for each in self.members.values() for topic in each.topics}
        return {topic: size for topic, size in self.topics.items() if topic in subscribed}

    def partitions(self) -> list[Partition]:
        """All partitions of topics with a subscriber."""
        return [(topic, number) for topic, size in self.sizes().items() for number in range(size)]


def check_strategy(name: str) -> None:
    """Raise Invalid unless a group can have this strategy."""
    if name not in STRATEGIES:
        raise Invalid(f"no strategy is called {name[:100]!r}; there are {', '.join(STRATEGIES)}")


def check_settings(settings: Settings) -> None:
    """Raise Invalid unless a group can have these settings."""
    check_strategy(settings.strategy)
    config = settings.config
    if settings.strategy != CONFIG:
        if config:
            raise Invalid(f"config belongs to the strategy {CONFIG}, and this is {settings.strategy}: leave it out")
        return
    if not config:
        raise Invalid(f'{CONFIG} needs config: by name of a member and by topic its partitions, {{"a": {{"t": [0]}}}}')
    if len(msgspec.json.encode(config)) > CONFIG_BYTES:
        raise Invalid(f"config has more than {CONFIG_BYTES} bytes as JSON: let another strategy divide such a group")
    readers: dict[Partition, str] = {}
    for name, topics in config.items():
        if not name:
            raise Invalid("config names a member without a name: start it with one")
        for topic, numbers in topics.items():
            check_topic(topic)
            for number in numbers:
                if number < 0:
                    raise Invalid(f"config gives {name} partition {number} of {topic}: they are numbered from 0")
                if (topic, number) in readers:
                    other = readers[topic, number]
                    raise Invalid(f"config gives partition {number} of {topic} to {other} and to {name}: name one")
                readers[topic, number] = name


class Targets:
    """Who should read each partition of a group, renewed when the situation changes."""

    def __init__(self, strategy: str, held: Mapping[Partition, str]) -> None:
        """`held`: who reads what at present; the target continues from there."""
        self._strategy = strategy
        self._target = dict(held)
        self._sticky: Sticky[Partition] | None = None
        self._weighted: Weighted[Partition] | None = None
        self._known = Situation({}, {})

    def of(self, partition: Partition) -> str | None:
        """The member that should read it; None if its topic has no subscriber."""
        return self._target.get(partition)

    def all(self) -> Mapping[Partition, str]:
        """The member that should read each partition, without unassigned ones."""
        return self._target

    def by(self, strategy: str) -> Targets:
        """The same target, renewed by another strategy from now on."""
        return Targets(strategy, self._target)

    def renew(self, situation: Situation) -> set[Partition]:
        """Ask the strategy. Returns the partitions whose target changed to another member, or to none.

        With STICKY and one subscription for all, the work is in proportion to the change. So it is with WEIGHTED_STICKY
        if only members came and went. Else it is in proportion to the whole.
        """
        before = dict(self._target) if situation.are_racks_used else {}
        if _is_sticky(self._strategy, situation):
            changed = self._stepwise(situation)
        elif self._strategy in (Sticky.name, WEIGHTED):
            changed = self._by_weight(situation)
        else:
            changed = self._replace(_whole(self._strategy, situation, self._target))
        if self._strategy in (Sticky.name, WEIGHTED):
            moved = self.move(_exchanges(self._strategy, situation, self._target))
            if moved:
                changed = {each for each in changed | moved if before.get(each) != self._target.get(each)}
        self._known = situation
        return changed

    def fork(self) -> Targets:
        """The same, to be renewed on any thread while this one is only read. It takes the memory of the strategy along:
        only one of both may be renewed."""
        forked = Targets(self._strategy, self._target)
        forked._sticky, forked._weighted, forked._known = self._sticky, self._weighted, self._known
        return forked

    def replace(self, target: Mapping[Partition, str]) -> set[Partition]:
        """Take a target that was computed elsewhere. Returns the partitions that changed."""
        return self._replace(target)

    def move(self, readers: Mapping[Partition, str]) -> set[Partition]:
        """Assign these partitions to these readers. Returns those that changed."""
        if not readers:
            return set()
        self._sticky = self._weighted = None
        changed = {each for each, member in readers.items() if self._target.get(each) != member}
        self._target.update((each, readers[each]) for each in changed)
        return changed

    def _by_weight(self, situation: Situation) -> set[Partition]:
        before, weighted = self._known, self._weighted
        stay = situation.members.keys() & before.members.keys()
        same = (
            weighted is not None
            and situation.weights is before.weights
            and situation.sizes() == before.sizes()
            and all(_consumer(self._strategy, each, situation.members[each])
                    == _consumer(self._strategy, each, before.members[each]) for each in stay)
        )  # fmt: skip
        if weighted is None or not same:
            weighted = _weighted(self._strategy, situation, self._target)
            changed = self._replace(weighted.owners())
            self._weighted = weighted
            return changed
        joined = [_consumer(self._strategy, each, situation.members[each]) for each in situation.members.keys() - stay]
        moved = weighted.change(joined, before.members.keys() - stay)
        for partition, member in moved.items():
            if member is None:
                self._target.pop(partition, None)
            else:
                self._target[partition] = member
        return set(moved)

    def _replace(self, target: Mapping[Partition, str]) -> set[Partition]:
        self._sticky = self._weighted = None
        changed = {each for each, member in target.items() if self._target.get(each) != member}
        changed |= self._target.keys() - target.keys()
        self._target = dict(target)
        return changed

    def _stepwise(self, situation: Situation) -> set[Partition]:
        before = self._known
        if self._sticky is None:
            sticky = Sticky[Partition].of(_by_member(self._target), situation.partitions(), situation.members)
            made = sticky.allocation().items()
            changed = self._replace({partition: member for member, its in made for partition in its})
            self._sticky = sticky
            return changed
        sizes = situation.sizes()
        old_sizes = before.sizes()
        moved = self._sticky.change(
            joined=situation.members.keys() - before.members.keys(),
            left=before.members.keys() - situation.members.keys(),
            added=[(topic, each) for topic, size in sizes.items() for each in range(old_sizes.get(topic, 0), size)],
            removed=[(topic, each) for topic, size in old_sizes.items() for each in range(sizes.get(topic, 0), size)],
        )
        changed = {partition for its in moved.revoked.values() for partition in its}
        for partition in changed:
            self._target.pop(partition, None)
        for member, its in moved.assigned.items():
            changed.update(its)
            self._target.update((partition, member) for partition in its)
        return changed


def view_of(strategy: str, situation: Situation, held: Mapping[Partition, str]) -> View:
    """What members are told to divide the partitions by."""
    lists = {member: listed(its) for member, its in _by_member(held).items() if member in situation.members}
    weights = by_topic(situation.weights or {}) if strategy == WEIGHTED else {}
    is_near = strategy in NEARBY or (strategy in NEAR and situation.are_racks_used)
    racks = situation.racks if is_near else None
    return View(situation.members, situation.topics, strategy, lists, weights, racks, situation.config)


def divided(view: View) -> dict[Partition, str]:
    """Who should read what: the same at the coordinator and at every member. Raises Invalid for an unknown strategy."""
    check_strategy(view.strategy)
    held = {(topic, each): member for member, its in view.held.items() for topic, all_ in its.items() for each in all_}
    situation = Situation(view.members, view.topics, flat(view.weights) or None, view.racks, view.config)
    return _whole(view.strategy, situation, held)


def claims_of(member: str, view: View) -> tuple[Partition, ...]:
    """What a member claims. Raises as `divided`."""
    return tuple(each for each, reader in divided(view).items() if reader == member)


def _whole(strategy: str, situation: Situation, held: Mapping[Partition, str]) -> dict[Partition, str]:
    if strategy in FORGETFUL:
        return _forgetful(FORGETFUL[strategy](), situation)
    if strategy in NEARBY:
        return _nearby(NEARBY[strategy](), situation, held)
    if strategy == CONFIG:
        return by_config(situation.config, situation.members, situation.sizes())
    if _is_sticky(strategy, situation):
        made = Sticky[Partition].of(_by_member(held), situation.partitions(), situation.members).allocation()
        found = {partition: member for member, its in made.items() for partition in its}
    else:
        found = dict(_weighted(strategy, situation, held).owners())
    return {**found, **_exchanges(strategy, situation, found)}


def _exchanges(strategy: str, situation: Situation, owners: Mapping[Partition, str]) -> dict[Partition, str]:
    """What members exchange for their racks."""
    if not situation.racks or not situation.are_racks_used:
        return {}
    weighs = strategy == WEIGHTED
    readers = {
        name: Reader(each.rack, frozenset(each.topics), each.capacity if weighs else 1.0)
        for name, each in situation.members.items()
    }
    return exchanges(owners, flat(situation.racks), readers, situation.weights if weighs else None)


def _forgetful(
    strategy: Strategy, situation: Situation, racks: Mapping[str, Mapping[int, str]] | None = None
) -> dict[Partition, str]:
    found: dict[Partition, str] = {}
    for topic, count in sorted(situation.topics.items()):
        readers = sorted(each for each, its in situation.members.items() if topic in its.topics)
        if readers and count:
            led = (racks or {}).get(topic, {})
            queues = [MessageQueue(topic, led.get(number, ""), number) for number in range(count)]
            for member, its in strategy.allocate_all(queues, readers).items():
                found.update(((topic, queue.queue_id), member) for queue in its)
    return found


def _nearby(inner: Strategy, situation: Situation, held: Mapping[Partition, str]) -> dict[Partition, str]:
    """Partitions without a rack are shared by all, and members without one read partitions that have no member near.
    While the racks are not known, because the coordinator has just begun, held partitions stay and the rest waits."""
    members = situation.members
    if situation.racks is None:
        there = set(situation.partitions())
        return {
            each: name for each, name in held.items()
            if each in there and name in members and each[0] in members[name].topics
        }  # fmt: skip
    near = MachineRoomNearby(inner, lambda rack: rack or "\0", lambda member: members[member].rack or "\0\0")
    return _forgetful(near, situation, situation.racks)


def _is_sticky(strategy: str, situation: Situation) -> bool:
    """Whether it is `Sticky`: all members subscribe to the same topics, and nothing is weighed."""
    unweighed = situation.weights is None and len({each.capacity for each in situation.members.values()}) <= 1
    return situation.is_alike and (strategy == Sticky.name or (strategy == WEIGHTED and unweighed))


def _weighted(strategy: str, situation: Situation, held: Mapping[Partition, str]) -> Weighted[Partition]:
    from loadmanager.consumers.allocation.weighted import Weighing  # needs NumPy
    from loadmanager.consumers.allocation.weighted import Weighted as Made

    consumers = [_consumer(strategy, name, each) for name, each in situation.members.items()]
    weights = situation.weights if strategy == WEIGHTED else None
    return Made(_by_member(held), situation.partitions(), consumers, Weighing(weights))


def _consumer(strategy: str, name: str, subscription: Subscription) -> Consumer:
    from loadmanager.consumers.allocation.weighted import Consumer as Made  # needs NumPy

    capacity = subscription.capacity if strategy == WEIGHTED else 1.0
    return Made(name, frozenset(subscription.topics), capacity)


def _by_member(held: Mapping[Partition, str]) -> dict[str, list[Partition]]:
    found: dict[str, list[Partition]] = {}
    for partition, member in held.items():
        found.setdefault(member, []).append(partition)
    return found
