"""When brokers say that they don't get at the log: one that is cut off soon, all of them not all at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest

from loadmanager.broker.registrar import EACH_S, FEW, LogWatch, turn_s, worth_telling
from loadmanager.cluster.membership import Membership
from loadmanager.model.registration import Peer, Registration
from statechannel.law.record import BrokerId
from statechannel.runtime.channel import Channel
from tests.loadmanager.small_world import QUICK, membership_of, replica, virtually
from tests.simulator.simulated_log import LOG_SERVER
from tests.simulator.world import World

MANY = 400


def names(count: int) -> list[str]:
    return [f"10.0.{number // 250}.{number % 250}:8080" for number in range(count)]


def peers(count: int, behind: int) -> Sequence[Peer]:
    return [Peer(BrokerId(name, 1), Registration(behind=number < behind)) for number, name in enumerate(names(count))]


def test_of_those_that_tell_each_has_a_turn_of_its_own():
    turns = sorted(turn_s(name, names(1_000)) for name in names(1_000))
    assert turns == pytest.approx([number * EACH_S for number in range(1_000)])


def test_whoever_is_among_the_first_of_all_is_not_so_among_them():
    tellers = sorted(names(1_000), key=lambda name: turn_s(name, names(1_000)))[:100]
    assert max(turn_s(name, tellers) for name in tellers) == pytest.approx(99 * EACH_S)


@pytest.mark.parametrize(
    ("count", "behind", "worth"),
    [(3, 2, True), (FEW, FEW - 1, True), (MANY, MANY // 10 - 1, True), (MANY, MANY // 10, False), (60, FEW, False)],
)
def test_a_few_tell_in_any_case_and_of_many_a_tenth(count: int, behind: int, worth: bool):
    assert worth_telling(peers(count, behind)) is worth


class Crowd:
    """Many brokers that read one channel and know each other. Real watches of a real channel; registering is a note."""

    def __init__(self, world: World, channel: Channel) -> None:
        self.world = world
        self.brokers = [BrokerId(name, 1) for name in names(MANY)]
        self.membership: Membership = membership_of(*self.brokers)
        self.told: list[tuple[float, BrokerId, bool]] = []
        self.channel = channel

    async def watch(self, broker: BrokerId) -> None:
        async def tell(behind: bool) -> None:
            self.told.append((self.world.loop.time(), broker, behind))
            self.membership.peers[broker.name] = Peer(broker, Registration(behind=behind))

        watch = LogWatch(broker.name, self.channel, self.membership, lambda: QUICK)
        await watch.run(lambda: self.membership.peers[broker.name].registration.behind, tell)

    @property
    def behind(self) -> int:
        return sum(peer.registration.behind for peer in self.membership.peers.values())

    def most_in_a_second(self) -> int:
        times = [at_s for at_s, _, _ in self.told]
        return max(sum(at_s <= other_s < at_s + 1 for other_s in times) for at_s in times)


@asynccontextmanager
async def crowd_in(world: World) -> AsyncGenerator[Crowd]:
    async with replica(world) as channel:
        crowd = Crowd(world, channel)
        tasks = [asyncio.ensure_future(crowd.watch(broker)) for broker in crowd.brokers]
        yield crowd
        for task in tasks:
            task.cancel()


@virtually
async def test_while_the_log_is_away_a_tenth_say_so_in_turn_and_take_it_back(world: World):
    async with crowd_in(world) as crowd:
        world.set_down(LOG_SERVER, True)
        await asyncio.sleep(2 * MANY * EACH_S)
        assert 0 < crowd.behind <= MANY // 10
        world.set_down(LOG_SERVER, False)
        await world.until(lambda: crowd.behind == 0, 20, "all have taken it back")
        assert crowd.most_in_a_second() <= 1.5 / EACH_S


@virtually
async def test_an_outage_that_ends_before_our_turn_is_not_told(world: World):
    async with crowd_in(world) as crowd:
        world.set_down(LOG_SERVER, True)
        await asyncio.sleep(QUICK.monitor_interval_s + QUICK.publish_timeout_s + 1)
        world.set_down(LOG_SERVER, False)
        at_the_end = len(crowd.told)
        await asyncio.sleep(2 * MANY * EACH_S)
        assert sum(behind for _, _, behind in crowd.told[at_the_end:]) <= 2, "those whose turn was just then"
        assert crowd.behind == 0
