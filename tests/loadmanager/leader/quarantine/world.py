"""A cluster on a virtual clock, reduced to what the evidence sees: brokers that are lost, and bundles given out again.

The evidence is the real one. Orphans go to the broker with the fewest bundles, drawn bundles to one at random.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable

from loadmanager.leader.quarantine.evidence import LEAST, LOCKED_ABOVE, End, Quarantine
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.record import BrokerId

WINDOW_S = 60.0
DETECTED_S = 1.5
"""From a crash until the leader gives the broker's bundles to others."""


class World:
    """`kills(bundle)` says how many seconds after it got a bundle a broker crashes; None: it does not."""

    def __init__(
        self, seed: int, brokers: int, bundles: int, kills: Callable[[Bundle], float | None] = lambda _: None
    ) -> None:
        self.dice = random.Random(seed)
        self.now_s = 0.0
        self.names = [f"b{number}:1" for number in range(brokers)]
        self.incarnation = dict.fromkeys(self.names, 1)
        self.up = set(self.names)
        self.owner: dict[Bundle, BrokerId] = {}
        self.unserved: set[Bundle] = set()
        self.locked: dict[Bundle, int] = {}
        """The locked bundles, each with the number of crashes that it had caused."""
        self.crashes_of: dict[Bundle, int] = {}
        self.suspects = 0
        self.quarantine = Quarantine(lambda bundle, broker: self.owner.get(bundle) == broker)
        self._kills = kills
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self.bundles = tile("t/n", even_boundaries(bundles))
        for bundle in self.bundles:
            self._place(bundle)
        self.run(2 * WINDOW_S)

    def makes_deadly(self, bundle: Bundle, least_s: float, most_s: float) -> None:
        """From now on each broker that gets the bundle crashes after such a time. It is given out now."""
        self._kills = lambda each: self.dice.uniform(least_s, most_s) if each == bundle else None
        self.move(bundle)

    # --- time

    def later(self, after_s: float, event: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now_s + after_s, self._number, event))

    def run(self, for_s: float) -> None:
        until_s = self.now_s + for_s
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, event = heapq.heappop(self._events)
            event()
        self.now_s = until_s

    def run_until_served(self, most_s: float = 300.0) -> None:
        until_s = self.now_s + most_s
        while self.unserved and self.now_s < until_s and self._events:
            self.run(self._events[0][0] - self.now_s)

    # --- faults

    def broker(self, name: str) -> BrokerId:
        return BrokerId(name, self.incarnation[name])

    def kill(self, names: Iterable[str], back_after_s: float, end: End = End.CRASHED) -> None:
        """These brokers are lost at once; they come back under their names, as other processes or (LIVES) the same."""
        lost = [self.broker(name) for name in names if name in self.up]
        self.up -= {broker.name for broker in lost}
        for broker in lost:
            self.later(DETECTED_S, lambda broker=broker: self._detect(broker))
            self.later(back_after_s, lambda broker=broker: self._return(broker.name))
            self.later(max(back_after_s, DETECTED_S + 1), lambda broker=broker: self.quarantine.tell(broker, end))

    def move(self, bundle: Bundle) -> None:
        """A planned move."""
        if bundle in self.owner and self.owner[bundle].name in self.up:
            self.quarantine.live_with(bundle)
            self._place(bundle)

    def _detect(self, broker: BrokerId) -> None:
        now_ms = self._now_ms()
        self.quarantine.lose(broker, now_ms, WINDOW_S)
        self._judge()
        for bundle, owner in self.owner.items():
            if owner == broker:
                self.unserved.add(bundle)
        for bundle in sorted(self.unserved):
            self._place(bundle)

    def _return(self, name: str) -> None:
        self.incarnation[name] += 1
        self.up.add(name)
        for bundle in sorted(self.unserved):
            self._place(bundle)

    def _now_ms(self) -> int:
        return int(self.now_s * 1000)

    def _judge(self) -> None:
        rows = [found for found in self.quarantine.rows() if found.is_suspected(LEAST)]
        self.suspects = max(self.suspects, len(rows))
        for found in rows:
            crashed = sum(self.quarantine.end_of(death.broker) is End.CRASHED for death in found.deaths)
            if found.odds > LOCKED_ABOVE and crashed >= LEAST and found.bundle not in self.locked:
                self.locked[found.bundle] = self.crashes_of.get(found.bundle, 0)

    def _place(self, bundle: Bundle) -> None:
        """Give a bundle to a broker; a locked one to none."""
        if not self.up or bundle in self.locked:
            return
        up = sorted(self.up)
        if self.quarantine.is_drawn(bundle):
            name, drawn_from = self.dice.choice(up), len(up)
        else:
            counts = dict.fromkeys(up, 0)
            for owner in self.owner.values():
                if owner.name in counts:
                    counts[owner.name] += 1
            self.dice.shuffle(up)
            name, drawn_from = min(up, key=counts.__getitem__), 1
        broker = self.owner[bundle] = self.broker(name)
        self.unserved.discard(bundle)
        self.quarantine.give(bundle, broker, self._now_ms(), drawn_from)
        dies_s = self._kills(bundle)
        if dies_s is not None:
            self.later(dies_s, lambda: self._crash(bundle, broker))

    def _crash(self, bundle: Bundle, broker: BrokerId) -> None:
        if broker.name in self.up and self.broker(broker.name) == broker and self.owner.get(bundle) == broker:
            self.crashes_of[bundle] = self.crashes_of.get(bundle, 0) + 1
            self.kill([broker.name], self.dice.uniform(0.5, 5))


# --- faults that no bundle is to blame for


def rolling_kills_each_after_all_is_served(world: World) -> None:
    for name in world.dice.sample(world.names, len(world.names)):
        world.run_until_served()
        world.run(world.dice.uniform(0, 3))
        world.kill([name], world.dice.uniform(0.5, 20))


def rolling_kills(world: World) -> None:
    every_s, back_s = world.dice.uniform(1, 60), world.dice.uniform(0.5, 30)
    for name in world.names * world.dice.randint(1, 3):
        world.kill([name], back_s)
        world.run(every_s)


def kills_at_random(world: World) -> None:
    mean_s = world.dice.choice([3, 10, 30, 120])
    for _ in range(world.dice.randint(3, 20)):
        world.run(world.dice.expovariate(1 / mean_s))
        world.kill([world.dice.choice(world.names)], world.dice.uniform(0.5, 30))


def racks_lose_power(world: World) -> None:
    racks = world.dice.randint(2, 4)
    for _ in range(world.dice.randint(1, 5)):
        world.kill(world.names[world.dice.randrange(racks) :: racks], world.dice.uniform(1, 60))
        world.run(world.dice.uniform(1, 60))


def whole_cluster_crashes(world: World) -> None:
    for _ in range(world.dice.randint(1, 5)):
        for name in world.names:
            world.kill([name], world.dice.uniform(0.5, 5))
            world.run(world.dice.choice([0.0, 0.0, 0.3]))
        world.run(world.dice.uniform(3, 120))


def one_broker_crashes_again_and_again(world: World) -> None:
    name, back_s = world.dice.choice(world.names), world.dice.uniform(0.3, 10)
    for _ in range(world.dice.randint(3, 20)):
        world.kill([name], back_s)
        world.run(back_s + world.dice.uniform(0.1, 10))


def two_brokers_crash_again_and_again(world: World) -> None:
    pair = world.dice.sample(world.names, min(2, len(world.names)))
    for _ in range(world.dice.randint(3, 20)):
        world.run_until_served()
        world.kill([world.dice.choice(pair)], world.dice.uniform(0.3, 5))
        world.run(world.dice.uniform(0.1, 10))


def the_emptiest_is_killed(world: World) -> None:
    """Somebody kills, as soon as all is served, the broker with the fewest bundles."""
    for _ in range(world.dice.randint(3, 12)):
        world.run_until_served()
        if world.up:
            held = [owner.name for owner in world.owner.values()]
            world.kill([min(sorted(world.up), key=held.count)], world.dice.uniform(0.5, 5))
        world.run(world.dice.uniform(0, 3))


def brokers_pause(world: World) -> None:
    for _ in range(world.dice.randint(1, 10)):
        world.kill([world.dice.choice(world.names)], world.dice.uniform(2, 30), End.LIVES)
        world.run(world.dice.uniform(1, 30))


def bundles_move(world: World) -> None:
    for _ in range(world.dice.randint(1, 10)):
        world.move(world.dice.choice(world.bundles))
        world.run(world.dice.uniform(0, 10))


FAULTS = (
    rolling_kills_each_after_all_is_served,
    rolling_kills,
    kills_at_random,
    racks_lose_power,
    whole_cluster_crashes,
    one_broker_crashes_again_and_again,
    two_brokers_crash_again_and_again,
    the_emptiest_is_killed,
    brokers_pause,
    bundles_move,
)


def history(seed: int, kills: Callable[[Bundle], float | None] = lambda _: None) -> World:
    """A world after one to three faults, and some minutes."""
    dice = random.Random(f"history {seed}")
    world = World(seed, dice.choice([1, 2, 3, 3, 4, 5, 6, 9, 15]), dice.choice([1, 4, 12, 40]), kills)
    for _ in range(dice.randint(1, 3)):
        dice.choice(FAULTS)(world)
        world.run(dice.choice([0, 1, 30]))
    world.run(2 * WINDOW_S)
    return world
