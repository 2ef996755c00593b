"""The prover: proofs from before the request, two ways side by side, and an end at once when it is fenced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import asynccontextmanager

import pytest

from loadmanager.broker.proving import LOOK_S, Prover
from loadmanager.cluster.clocks import ProofClock
from statechannel.law.record import BrokerId
from statechannel.runtime.proofs import Proofs
from tests.loadmanager.small_world import replica, virtually
from tests.simulator.network import Latency
from tests.simulator.simulated_coordination import COORDINATION_SERVER
from tests.simulator.simulated_log import LOG_SERVER
from tests.simulator.world import World

V = 2.0


class Proving:
    """A prover at work."""

    def __init__(
        self, proofs: Proofs, me: BrokerId, boot_s: Callable[[], float], outside: dict[str, Callable[[], float]]
    ) -> None:
        self.proofs, self.me = proofs, me
        self.boot_s, self.outside = boot_s, outside
        self.fenced_s: list[float] = []
        self.lapsed: list[Collection[int]] = []
        self.renewed: list[Collection[int]] = []
        self.notes: list[str] = []
        self.prover: Prover
        self.task: asyncio.Task[None]


@asynccontextmanager
async def proving(world: World, outside: Callable[[], float] | None = None) -> AsyncGenerator[Proving]:
    async with replica(world) as channel:
        coordination = world.coordination_client(world.processes["a:1"], request_timeout_s=2.0)
        await coordination.start(5)
        await coordination.identify("shop", "log")
        me = await coordination.start_incarnation("a:1", 0)
        await coordination.register(me, b"{}")
        one = Proving(Proofs(1, V), me, world.loop.time, {"its host": outside} if outside is not None else {})
        prover = Prover(
            me, coordination, channel, one.proofs, ProofClock(one.boot_s, one.outside), lambda: [0],
            lambda: one.fenced_s.append(world.now_s), one.lapsed.append, one.renewed.append, one.notes.append,
        )  # fmt: skip
        one.prover = prover
        one.task = asyncio.ensure_future(prover.run())
        yield one
        one.task.cancel()
        await coordination.close()


def fresh(world: World, one: Proving) -> bool:
    return one.proofs.fresh(0, world.now_s)


@virtually
async def test_a_proof_is_always_fresh_while_coordination_answers(world: World):
    async with proving(world) as one:
        await asyncio.sleep(0.1)
        for _ in range(200):
            await asyncio.sleep(0.1)
            assert fresh(world, one)
        assert one.proofs.until_s[0] - world.now_s > V / 2
        assert one.prover.lapses == 0


@virtually
async def test_a_proof_counts_from_the_request_not_from_the_answer(world: World):
    async with proving(world) as one:
        await asyncio.sleep(0.1)
        world.network.latency = Latency(least_s=0.4, mean_s=0.0)
        proved: list[tuple[float, float]] = []
        take = one.proofs.coordination_proved
        one.proofs.coordination_proved = lambda asked_s: (proved.append((asked_s, world.now_s)), take(asked_s))[1]  # type: ignore[method-assign]
        await asyncio.sleep(5)
        assert len(proved) > 3
        assert all(now_s - asked_s > 0.79 for asked_s, now_s in proved[1:]), "there and back"


@virtually
async def test_a_coordination_that_hangs_holds_up_no_channel_proof(world: World):
    async with proving(world) as one:
        await asyncio.sleep(1)
        world.set_down(COORDINATION_SERVER, True)
        for _ in range(300):
            await asyncio.sleep(0.1)
            assert fresh(world, one)


@virtually
async def test_the_channel_is_not_written_to_while_coordination_answers(world: World):
    async with proving(world) as one:
        await asyncio.sleep(1)
        end = world.log.ends("bundle-state")
        await asyncio.sleep(20)
        assert world.log.ends("bundle-state") == end
        assert fresh(world, one)


@virtually
async def test_cut_off_from_both_no_proof_outlives_its_validity(world: World):
    async with proving(world) as one:
        await asyncio.sleep(1)
        world.set_down(COORDINATION_SERVER, True)
        await asyncio.sleep(10)
        world.set_down(LOG_SERVER, True)
        await asyncio.sleep(V)
        assert not fresh(world, one)
        await asyncio.sleep(V / 8)
        assert one.lapsed[-1] == {0}, "the agent was told"
        told = len(one.renewed)
        world.set_down(LOG_SERVER, False)
        assert one.prover.lapses == 0
        await world.until(lambda: fresh(world, one), 3, "it proves again")
        assert one.renewed[told:] == [{0}]
        assert one.prover.lapses == 1
        world.set_down(COORDINATION_SERVER, False)
        await asyncio.sleep(10)
        assert one.prover.lapses == 1


@virtually
async def test_a_fence_is_told_at_once_and_ends_the_prover(world: World):
    async with proving(world) as one:
        await asyncio.sleep(1)
        world.coordination.start_incarnation("a:1", 0)
        await world.until(one.task.done, V / 4 + 0.1, "the prover has ended")
        assert len(one.fenced_s) == 1
        assert one.task.exception() is None


@virtually
async def test_a_fence_during_an_outage_is_told_when_it_is_over(world: World):
    async with proving(world) as one:
        await asyncio.sleep(1)
        world.set_down(COORDINATION_SERVER, True)
        world.coordination.start_incarnation("a:1", 0)
        await asyncio.sleep(10)
        assert not one.fenced_s
        world.set_down(COORDINATION_SERVER, False)
        began_s = world.now_s
        await world.until(one.task.done, 1, "the prover has ended")
        assert one.fenced_s[0] - began_s == pytest.approx(0, abs=0.5)


@virtually
async def test_a_lost_root_is_noted_once_and_the_channel_proves_on(world: World):
    async with proving(world) as one:
        await asyncio.sleep(1)
        world.coordination.lose_everything()
        for _ in range(100):
            await asyncio.sleep(0.1)
            assert fresh(world, one)
        assert len(one.notes) == 1
        assert "has lost the data of coordination root" in one.notes[0]
        assert one.fenced_s == []


@virtually
async def test_a_coordination_that_does_not_answer_is_no_lost_root(world: World):
    async with proving(world) as one:
        await asyncio.sleep(1)
        world.set_down(COORDINATION_SERVER, True)
        await asyncio.sleep(10)
        assert one.notes == []


# --- a machine that was paused, or a clock that was set


@virtually
async def test_clock_that_was_set_costs_one_proof_at_once_and_no_word_to_the_host(world: World):
    set_by_s = [0.0]
    async with proving(world, lambda: world.now_s + set_by_s[0]) as one:
        await asyncio.sleep(1.2)  # in the middle between two proofs
        one.lapsed.clear()  # before the first one
        set_by_s[0] = 100.0
        await asyncio.sleep(LOOK_S + 0.01)
        assert one.proofs.fresh(0, world.now_s + 100), "proved again on the clock that went ahead"
        set_by_s[0] = -100.0
        await asyncio.sleep(1.0)
        assert (one.lapsed, one.fenced_s) == ([], [])
        assert len(one.notes) == 1
        assert "its host went 100.00 s ahead" in one.notes[0]


@virtually
async def test_after_a_pause_proofs_are_out_and_the_host_hears_if_none_follows(world: World):
    paused_s = [0.0]
    async with proving(world, lambda: world.now_s + paused_s[0]) as one:
        await asyncio.sleep(1.0)
        one.lapsed.clear()
        for server in (COORDINATION_SERVER, LOG_SERVER):
            world.cut("a:1", server)
        paused_s[0] = 15.0
        await asyncio.sleep(LOOK_S + 0.001)
        assert not one.proofs.fresh(0, world.now_s + 15)
        assert one.lapsed == []
        await world.until(lambda: bool(one.lapsed), V, "the host is told")


@virtually
async def test_an_answer_that_a_pause_held_up_proves_nothing(world: World):
    paused_s = [0.0]
    async with proving(world, lambda: world.now_s + paused_s[0]) as one:
        await asyncio.sleep(1.0)
        world.network.latency = Latency(least_s=0.2, mean_s=0.0)
        await asyncio.sleep(0.55)  # a request is on its way
        before_s = one.proofs.until_s[0]
        paused_s[0] = 15.0
        await asyncio.sleep(0.4)
        assert before_s < one.proofs.until_s[0] < world.now_s + 15, "it came, and counts from when it was asked for"
        await asyncio.sleep(0.5)
        assert one.proofs.fresh(0, world.now_s + 15), "the next one was asked for after the pause"
