"""The agent's shell: what the host is told and when, in which order, whatever its hooks do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from loadmanager.broker.agent import Agent, HookTimeouts
from loadmanager.broker.hooks import HostRunner
from loadmanager.broker.serving import Serving
from loadmanager.model.host import Destination
from statechannel.law.bundle import Bundle
from statechannel.law.record import MAX_HAND_OFF_BYTES, Action, Role
from statechannel.law.transitions import State
from statechannel.law.verdict import Change
from statechannel.runtime.proofs import Proofs
from tests.loadmanager.small_world import ADMIN, A, B, Hand, Service, replica, virtually
from tests.simulator.world import World

TIMEOUTS = HookTimeouts(1.0, 1.0, 1.0)


async def hangs() -> None:
    await asyncio.Event().wait()


async def raises() -> None:
    raise LookupError("no room")


class Acting:
    """Broker a's agent, its service, and a hand for everybody else's records."""

    def __init__(self, hand: Hand, bundle: Bundle, agent: Agent, serving: Serving, service: Service) -> None:
        self.hand, self.bundle, self.agent = hand, bundle, agent
        self.serving, self.service = serving, service
        self.notes: list[str] = []

    @property
    def calls(self) -> list[str]:
        return self.service.calls

    def serves(self) -> bool:
        return self.serving.serving(self.bundle)

    def state(self) -> State:
        return self.hand.entry(self.bundle).state


def make(world: World, hand: Hand, bundle: Bundle) -> Acting:
    proofs = Proofs(1, 1e9)
    proofs.coordination_proved(world.now_s)
    serving = Serving(hand.channel.table, proofs, world.loop.time)
    service = Service()
    notes: list[str] = []
    agent = Agent(
        A, hand.channel, serving, service, HostRunner(), TIMEOUTS, lambda b: Destination(b.name, {}), notes.append
    )
    acting = Acting(hand, bundle, agent, serving, service)
    acting.notes = notes
    return acting


@asynccontextmanager
async def acting(world: World) -> AsyncGenerator[Acting]:
    async with replica(world) as channel:
        hand = Hand(channel)
        (bundle,) = await hand.create()
        one = make(world, hand, bundle)
        async with one.agent.running():
            yield one


async def owning(world: World, one: Acting) -> None:
    await one.hand.accept(Action.OWN, one.bundle, B, A)
    await world.until(lambda: one.state() is State.ASSIGNED, 1, "a owns it")


@virtually
async def test_a_bundle_is_served_when_it_was_acquired_and_not_before(world: World):
    async with acting(world) as one:
        go_on = asyncio.Event()
        one.service.behave["acquire"] = go_on.wait
        await one.hand.accept(Action.OWN, one.bundle, B, A)
        await asyncio.sleep(0.5)
        assert not one.serves()
        assert one.state() is State.ASSIGNING
        go_on.set()
        await world.until(lambda: one.state() is State.ASSIGNED, 0.1, "it is returned")
        assert one.serves()


@virtually
async def test_serving_stops_in_the_instant_in_which_the_record_is_read(world: World):
    async with acting(world) as one:
        await owning(world, one)
        served_at: list[bool] = []
        one.hand.channel.listen(lambda _: served_at.append(one.serves()))
        await one.hand.accept(Action.UNLOAD, one.bundle, ADMIN, role=Role.ADMIN)
        assert served_at[0] is False
        await world.until(lambda: one.state() is State.UNASSIGNED, 1, "it is given back")
        assert one.calls == ["acquire", "release"]


@pytest.mark.parametrize("hook", [hangs, raises])
def test_a_bundle_that_cannot_be_acquired_is_abandoned_and_given_back(hook):
    async def story(world: World) -> None:
        async with acting(world) as one:
            one.service.behave["acquire"] = hook
            await one.hand.accept(Action.OWN, one.bundle, B, A)
            await world.until(lambda: one.state() is State.UNASSIGNED, 1.2, "it is given back")
            assert one.calls == ["acquire", "abandon"]
            assert not one.serves()
            assert one.notes

    virtually(story)()


@pytest.mark.parametrize("hook", [hangs, raises])
def test_a_bundle_that_cannot_be_prepared_stays_where_it_is(hook):
    async def story(world: World) -> None:
        async with acting(world) as one:
            one.service.behave["prepare"] = hook
            await one.hand.assign(one.bundle, B)
            await one.hand.accept(Action.TRANSFER, one.bundle, B, A)
            await world.until(lambda: one.state() is State.ASSIGNED, 1.2, "the move is cancelled")
            assert one.hand.entry(one.bundle).holder == B
            assert one.calls == ["prepare", "abandon"]

    virtually(story)()


@pytest.mark.parametrize("hook", [hangs, raises])
def test_a_release_that_fails_holds_nothing_up_and_hands_on_nothing(hook):
    async def story(world: World) -> None:
        async with acting(world) as one:
            await owning(world, one)
            one.service.behave["release"] = hook
            await one.hand.accept(Action.TRANSFER, one.bundle, A, B)
            await one.hand.accept(Action.READY, one.bundle, B)
            await world.until(lambda: one.state() is State.ASSIGNING, 1.2, "b's turn")
            assert one.hand.entry(one.bundle).hand_off is None
            assert one.calls == ["acquire", "release", "abandon"]

    virtually(story)()


@pytest.mark.parametrize(
    ("answer", "handed"),
    [(b"state", b"state"), (None, None), ("text", None), (b"x" * (MAX_HAND_OFF_BYTES + 1), None)],
    ids=["bytes", "nothing", "no bytes", "too much"],
)
def test_what_release_returns_reaches_the_next_owner_if_it_can(answer: object, handed: bytes | None):
    async def story(world: World) -> None:
        async with acting(world) as one:
            await owning(world, one)

            async def release() -> object:
                return answer

            one.service.behave["release"] = release
            await one.hand.accept(Action.TRANSFER, one.bundle, A, B)
            await one.hand.accept(Action.READY, one.bundle, B)
            await world.until(lambda: one.state() is State.ASSIGNING, 1.2, "b's turn")
            assert one.hand.entry(one.bundle).hand_off == handed
            assert bool(one.notes) == (answer is not None and handed is None)

    virtually(story)()


@virtually
async def test_one_bundle_that_hangs_holds_up_no_other(world: World):
    async with acting(world) as one:
        (other,) = await one.hand.create(namespace="shop/carts")
        one.service.behave["acquire"] = hangs
        await one.hand.accept(Action.OWN, one.bundle, B, A)
        await world.until(lambda: one.calls == ["acquire"], 0.1, "it hangs")
        one.service.behave.clear()
        await one.hand.accept(Action.OWN, other, B, A)
        await world.until(lambda: one.serving.serving(other), 0.1, "the other is served")


@virtually
async def test_a_publish_without_a_verdict_is_repeated_until_the_bundle_moves_on(world: World):
    async with acting(world) as one:
        one.service.behave["acquire"] = lambda: asyncio.sleep(0.5)
        await one.hand.accept(Action.OWN, one.bundle, B, A)
        world.set_down("log", True)
        await asyncio.sleep(7)
        assert one.serves(), "acquired, the table says that it is ours, and proved"
        world.set_down("log", False)
        await world.until(lambda: one.state() is State.ASSIGNED, 2, "it is returned after all")
        end = one.hand.channel.table.next_offset(0)
        await asyncio.sleep(5)
        assert one.hand.channel.table.next_offset(0) == end, "and nothing more is written"


@virtually
async def test_at_start_it_acts_on_what_names_it_in_whichever_state(world: World):
    """Records that were written before anybody listened."""
    async with replica(world) as channel:
        hand = Hand(channel)
        bundles = await hand.create(5)
        assigning, transferring, releasing, assigned, revoking = bundles
        for bundle in bundles:
            await hand.accept(Action.OWN, bundle, B, A if bundle != transferring else B)
        for bundle in (releasing, assigned, revoking):
            await hand.accept(Action.RETURN, bundle, A)
        await hand.accept(Action.RETURN, transferring, B)
        await hand.accept(Action.TRANSFER, transferring, B, A)
        await hand.accept(Action.TRANSFER, releasing, A, B)
        await hand.accept(Action.READY, releasing, B)
        lead = await channel.publish(_lead(), 0)
        assert isinstance(lead, Change)
        await hand.accept(Action.REVOKE, revoking, B, role=Role.LEADER, epoch=1)
        one = make(world, hand, assigning)
        async with one.agent.running():
            states = {
                assigning: State.ASSIGNED, transferring: State.RELEASING, releasing: State.ASSIGNING,
                assigned: State.ASSIGNED, revoking: State.UNASSIGNED,
            }  # fmt: skip
            await world.until(lambda: {b: hand.entry(b).state for b in bundles} == states, 2, "all were moved on")
            assert {claim.bundle for claim in one.serving.claims()} == {assigning, assigned}


def _lead():
    from statechannel.law.record import Record

    return Record("", Action.LEAD, B, Role.LEADER, epoch=1)


@virtually
async def test_a_fence_serves_nothing_from_that_instant_and_tells_the_host(world: World):
    async with acting(world) as one:
        await owning(world, one)
        one.agent.fence()
        assert not one.serves()
    assert one.calls == ["acquire", "abandon"]


@virtually
async def test_an_acquire_that_ends_after_the_fence_serves_nothing(world: World):
    async with acting(world) as one:
        one.service.behave["acquire"] = lambda: asyncio.sleep(0.5)
        await one.hand.accept(Action.OWN, one.bundle, B, A)
        await world.until(lambda: one.calls == ["acquire"], 0.1, "it acquires")
        one.agent.fence()
        await asyncio.sleep(1)
        assert not one.serves()
    assert one.calls[-1] == "abandon"


@virtually
async def test_ending_agent_with_bundles_stops_serving_and_tells_the_host(world: World):
    async with acting(world) as one:
        await owning(world, one)
    assert not one.serves()
    assert one.calls == ["acquire", "abandon"]


@virtually
async def test_a_bundle_that_comes_back_is_acquired_when_its_abandon_has_ended(world: World):
    """An abandon that is still under way must not meet the new ownership."""
    async with acting(world) as one:
        await owning(world, one)
        assert isinstance(await one.hand.channel.publish(_lead(), 0), Change)
        one.service.behave["abandon"] = lambda: asyncio.sleep(0.3)
        await one.hand.accept(Action.REVOKE, one.bundle, B, role=Role.LEADER, epoch=1)
        await world.until(lambda: one.state() is State.UNASSIGNED, 0.1, "it is given up")
        await one.hand.accept(Action.OWN, one.bundle, B, A)
        await asyncio.sleep(0.2)
        assert one.calls == ["acquire", "abandon"]
        await world.until(lambda: one.state() is State.ASSIGNED, 0.2, "it is ours again")
        assert one.calls == ["acquire", "abandon", "acquire"]


@virtually
async def test_hook_that_abandon_overtook_is_abandoned_again_at_its_end(world: World):
    async with acting(world) as one:
        assert isinstance(await one.hand.channel.publish(_lead(), 0), Change)

        async def acquire() -> None:
            await asyncio.sleep(0.5)
            one.calls.append("has it")

        one.service.behave["acquire"] = acquire
        await one.hand.accept(Action.OWN, one.bundle, B, A)
        await one.hand.accept(Action.REVOKE, one.bundle, B, role=Role.LEADER, epoch=1)
        await asyncio.sleep(0.1)
        assert one.calls == ["acquire", "abandon"]
        await asyncio.sleep(1)
        assert one.calls == ["acquire", "abandon", "has it", "abandon"]


@virtually
async def test_hooks_of_one_bundle_never_overlap_but_for_abandon(world: World):
    async with acting(world) as one:
        busy: list[str] = []

        async def alone() -> None:
            assert not busy
            busy.append("x")
            await asyncio.sleep(0.2)
            busy.clear()

        for hook in ("prepare", "acquire", "release"):
            one.service.behave[hook] = alone
        assert isinstance(await one.hand.channel.publish(_lead(), 0), Change)
        for _ in range(4):
            await one.hand.accept(Action.OWN, one.bundle, B, A)
            await asyncio.sleep(0.05)
            await one.hand.accept(Action.REVOKE, one.bundle, B, role=Role.LEADER, epoch=1)
            await world.until(lambda: one.state() is State.UNASSIGNED, 0.1, "it is given up")
        await one.hand.accept(Action.OWN, one.bundle, B, A)
        await world.until(lambda: one.state() is State.ASSIGNED, 3, "it is served in the end")
        assert one.serves()
        assert not any("raised AssertionError" in note for note in one.notes)
