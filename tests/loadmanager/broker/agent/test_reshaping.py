"""Splits and merges through the agent's shell: the order of the host's hooks over overlapping ranges, cuts by the
number of keys, and what comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import msgspec
import pytest

from loadmanager.broker.agent import Agent, HookTimeouts
from loadmanager.broker.hooks import HostRunner
from loadmanager.broker.serving import Serving
from loadmanager.model.host import BundleLoad, Destination
from loadmanager.settings.choices import Algorithm
from statechannel.law.bundle import FULL_UPPER, Bundle
from statechannel.law.record import Action, Record, Role, Subject, Token
from statechannel.law.transitions import State
from statechannel.law.verdict import Change
from statechannel.runtime.proofs import Proofs
from tests.loadmanager.small_world import ADMIN, NAMESPACE, A, B, Hand, replica, virtually
from tests.simulator.world import World

WHOLE = Bundle(NAMESPACE, 0, FULL_UPPER)
LOWER, UPPER = Bundle(NAMESPACE, 0, 0x80000000), Bundle(NAMESPACE, 0x80000000, FULL_UPPER)
NAMES = {WHOLE: "whole", LOWER: "lower", UPPER: "upper"}


class WriteBehind:
    """A service that keeps writes in memory, and a storage by halves of the ring that refuses old tokens.

    Every write that was taken must be in the storage when it is read again. `behave[hook]` is awaited in a hook.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.behave: dict[str, Callable[[], Awaitable[object]]] = {}
        self.memory: dict[Bundle, int] = {}
        self.tokens: dict[Bundle, Token] = {}
        self.stored = dict.fromkeys((LOWER, UPPER), 0)
        self.raised: dict[Bundle, Token] = {}
        self.refused = 0

    def write(self, serving: Serving) -> None:
        """One write into each half that is served, kept in memory only."""
        for claim in serving.claims():
            self.memory[claim.bundle] += 1

    async def prepare(self, bundle: Bundle) -> None:
        """Nothing to warm up."""

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        await self._note("acquire", bundle)
        self.raised |= dict.fromkeys(_halves(bundle), token)
        self.tokens[bundle], self.memory[bundle] = token, 0

    async def release(self, bundle: Bundle, to: object) -> None:
        await self._note("release", bundle)
        for half in _halves(bundle):
            if self.tokens[bundle] < self.raised[half]:
                self.refused += 1
            else:
                self.stored[half] += self.memory[bundle]
        del self.memory[bundle]

    async def abandon(self, bundle: Bundle) -> None:
        await self._note("abandon", bundle)
        self.memory.pop(bundle, None)

    async def load(self) -> dict[Bundle, BundleLoad]:
        return {}

    async def _note(self, hook: str, bundle: Bundle) -> None:
        self.calls.append(f"{hook} {NAMES.get(bundle, bundle.range)}")
        if hook in self.behave:
            await self.behave[hook]()
        self.calls.append(f"{hook} {NAMES.get(bundle, bundle.range)} ended")


class Knowing(WriteBehind):
    """It also tells where its keys are."""

    def __init__(self, answer: Callable[[], Iterable[int]]) -> None:
        super().__init__()
        self._answer = answer

    def positions(self, bundle: Bundle) -> Iterable[int]:
        return self._answer()


def _halves(bundle: Bundle) -> list[Bundle]:
    return [half for half in (LOWER, UPPER) if bundle in (half, WHOLE)]


class Acting:
    """Broker a's agent, its service, and a hand for everybody else's records."""

    def __init__(self, world: World, hand: Hand, host: WriteBehind) -> None:
        proofs = Proofs(1, 1e9)
        proofs.coordination_proved(world.now_s)
        self.world, self.hand, self.host = world, hand, host
        self.serving = Serving(hand.channel.table, proofs, world.loop.time)
        self.notes: list[str] = []
        self.cancelled: list[str] = []
        hand.channel.listen(self._heard)
        self.agent = Agent(
            A, hand.channel, self.serving, host, HostRunner(), HookTimeouts(1.0, 1.0, 1.0),
            lambda b: Destination(b.name, {}), self.notes.append,
        )  # fmt: skip

    def _heard(self, change: Change) -> None:
        if change.record.action is Action.CANCEL:
            self.cancelled.append(change.record.reason)

    def served(self) -> set[Bundle]:
        return {claim.bundle for claim in self.serving.claims()}

    async def until_served(self, *bundles: Bundle) -> None:
        await self.world.until(lambda: self.served() == set(bundles), 3, f"{bundles} are served")

    async def split(self, *cuts: int, algorithm: str = "", parts: int = 0) -> None:
        seen = self.hand.entry(WHOLE).revision
        record = Record("", Action.SPLIT, ADMIN, Role.ADMIN, subjects=(Subject(WHOLE, seen),), boundaries=cuts)
        verdict = await self.hand.channel.publish(msgspec.structs.replace(record, algorithm=algorithm, parts=parts))
        assert isinstance(verdict, Change), verdict

    async def until_split(self) -> None:
        await self.world.until(lambda: self.hand.channel.table.get(WHOLE) is None, 1, "it is split")

    async def create(self) -> None:
        """The owner's own record, without any agent's doing."""
        subject = Subject(WHOLE, self.hand.entry(WHOLE).revision)
        verdict = await self.hand.channel.publish(
            Record("", Action.CREATE, A, subjects=(subject,), boundaries=(LOWER.hi,))
        )
        assert isinstance(verdict, Change), verdict

    async def merge(self) -> None:
        subjects = tuple(Subject(half, self.hand.entry(half).revision) for half in (LOWER, UPPER))
        verdict = await self.hand.channel.publish(Record("", Action.MERGE, ADMIN, Role.ADMIN, subjects=subjects))
        assert isinstance(verdict, Change), verdict

    async def lead(self) -> None:
        verdict = await self.hand.channel.publish(Record("", Action.LEAD, B, Role.LEADER, epoch=1), 0)
        assert isinstance(verdict, Change), verdict


@asynccontextmanager
async def owning(world: World, host: WriteBehind | None = None) -> AsyncGenerator[Acting]:
    """Broker a serves one bundle, the whole ring."""
    async with replica(world) as channel:
        channel.write_version = 2
        hand = Hand(channel)
        await hand.create()
        one = Acting(world, hand, host or WriteBehind())
        async with one.agent.running():
            await hand.accept(Action.OWN, WHOLE, B, A)
            await world.until(lambda: hand.entry(WHOLE).state is State.ASSIGNED, 1, "a owns it")
            one.host.calls.clear()
            yield one


@virtually
async def test_a_split_and_a_merge_flush_everything_before_anything_is_read_again(world: World):
    async with owning(world) as one:
        one.host.behave = {hook: lambda: asyncio.sleep(0.1) for hook in ("acquire", "release")}
        one.host.write(one.serving)
        await one.split()
        await one.until_served(LOWER, UPPER)
        one.host.write(one.serving)
        await one.merge()
        await one.until_served(WHOLE)
        assert one.host.refused == 0
        assert one.host.stored == {LOWER: 2, UPPER: 2}
        assert [call for call in one.host.calls if "whole" in call] == [
            "release whole", "release whole ended", "acquire whole", "acquire whole ended",
        ]  # fmt: skip
        assert one.host.calls.index("release whole ended") < one.host.calls.index("acquire lower")
        assert one.host.calls.index("release upper ended") < one.host.calls.index("acquire whole")


@virtually
async def test_parent_stops_serving_the_instant_its_children_are_read(world: World):
    async with owning(world) as one:
        served_at: list[set[Bundle]] = []
        one.hand.channel.listen(lambda change: served_at.append(one.served()))
        await one.split()
        await one.until_served(LOWER, UPPER)
        assert served_at == [{WHOLE}, set()], "it serves on while it is split, and not after it is gone"


@virtually
async def test_children_wait_for_the_abandon_of_a_parent_whose_release_hung(world: World):
    async with owning(world) as one:
        one.host.behave = {"release": asyncio.Event().wait, "abandon": lambda: asyncio.sleep(0.5)}
        await one.split()
        await one.until_served(LOWER, UPPER)
        assert one.host.calls[:3] == ["release whole", "abandon whole", "abandon whole ended"]
        assert all("acquire" in call for call in one.host.calls[3:])
        assert any("release did not return" in note for note in one.notes)


@virtually
async def test_child_unloaded_at_once_is_given_up_after_its_parent_was_flushed(world: World):
    async with owning(world) as one:
        go_on = asyncio.Event()
        one.host.behave = {"release": go_on.wait}
        one.host.write(one.serving)
        await one.split()
        await one.until_split()
        await one.hand.accept(Action.UNLOAD, LOWER, ADMIN, role=Role.ADMIN)
        await asyncio.sleep(0.5)
        assert one.hand.entry(LOWER).state is State.RELEASING, "its next owner would read half of it"
        go_on.set()
        await world.until(lambda: one.hand.entry(LOWER).state is State.UNASSIGNED, 1, "it is given up")
        await one.until_served(UPPER)
        assert one.host.stored == {LOWER: 1, UPPER: 1}


@virtually
async def test_a_child_that_cannot_be_acquired_is_unloaded_and_the_other_is_served(world: World):
    async with owning(world) as one:

        async def only_once() -> None:
            one.host.behave.clear()
            raise LookupError("no room")

        one.host.behave = {"acquire": only_once}
        await one.split()
        await one.until_split()
        await world.until(lambda: one.hand.entry(LOWER).state is State.UNASSIGNED, 2, "it is given back")
        await one.until_served(UPPER)


@virtually
async def test_bundle_split_and_merged_before_the_flush_is_served_in_the_end(world: World):
    async with owning(world) as one:
        one.host.behave = {"release": lambda: asyncio.sleep(0.5)}
        one.host.write(one.serving)
        await one.split()
        await one.until_split()
        await one.merge()
        await one.until_served(WHOLE)
        assert one.host.calls == ["release whole", "release whole ended", "acquire whole", "acquire whole ended"]
        assert one.host.stored == {LOWER: 1, UPPER: 1}


@virtually
async def test_a_fence_while_the_parent_is_flushed_acquires_no_child(world: World):
    async with owning(world) as one:
        one.host.behave = {"release": lambda: asyncio.sleep(0.5)}
        await one.split()
        await world.until(lambda: one.host.calls == ["release whole"], 1, "it is being flushed")
        one.agent.fence()
        await asyncio.sleep(1)
        assert one.served() == set()
        assert not any("acquire" in call for call in one.host.calls)
        assert "abandon whole" in one.host.calls


@virtually
async def test_a_revoke_of_a_child_while_its_parent_is_flushed_is_answered_at_once(world: World):
    async with owning(world) as one:
        await one.lead()
        one.host.behave = {"release": lambda: asyncio.sleep(0.5)}
        await one.split()
        await one.until_split()
        await one.hand.accept(Action.REVOKE, LOWER, B, role=Role.LEADER, epoch=1)
        await world.until(lambda: one.hand.entry(LOWER).state is State.UNASSIGNED, 0.2, "it is given up")
        await one.until_served(UPPER)
        assert "acquire lower" not in one.host.calls


@virtually
async def test_a_restarted_agent_acquires_what_the_split_made_of_its_bundle(world: World):
    """The records were written before anybody listened."""
    async with owning(world) as one:
        one.agent.fence()
        await one.create()
        again = Acting(world, one.hand, one.host)
        async with again.agent.running():
            await again.until_served(LOWER, UPPER)


@virtually
async def test_proofs_that_expire_in_a_split_do_not_forget_the_children(world: World):
    async with owning(world) as one:
        one.host.behave = {"release": lambda: asyncio.sleep(0.5)}
        one.host.write(one.serving)
        await one.split()
        await one.until_split()
        one.agent.lapsed({0})
        await one.until_served(LOWER, UPPER)
        assert one.host.stored == {LOWER: 1, UPPER: 1}, "what was taken before is flushed"
        one.agent.lapsed({0})
        assert one.served() == set()
        one.agent.renewed({0})
        await one.until_served(LOWER, UPPER)


@virtually
async def test_a_split_of_what_was_stopped_for_want_of_proofs_serves_the_children(world: World):
    async with owning(world) as one:
        one.agent.lapsed({0})
        await one.create()
        await one.until_served(LOWER, UPPER)
        assert one.host.calls[:2] == ["abandon whole", "abandon whole ended"]
        assert "release whole" not in one.host.calls


@virtually
async def test_replica_that_skipped_a_split_flushes_parent_and_serves_children(world: World):
    async with owning(world) as one:
        one.host.write(one.serving)
        one.hand.channel.unlisten(one.agent._changed)
        await one.create()
        assert one.served() == {WHOLE}, "nobody told the agent"
        one.hand.channel.replica.announce_reload(0)
        assert one.served() == set()
        await one.until_served(LOWER, UPPER)
        assert one.host.stored == {LOWER: 1, UPPER: 1}


# --- cuts by the number of keys


def spread() -> list[int]:
    return [10 * i for i in range(100)]


@virtually
async def test_cuts_by_the_number_of_keys_come_from_the_host(world: World):
    async with owning(world, Knowing(spread)) as one:
        await one.split(algorithm=Algorithm.TOPIC_COUNT, parts=4)
        await one.until_split()
        known = one.hand.channel.table.namespace(NAMESPACE)
        assert known is not None
        assert [child.hi for child in known.bundles] == [245, 495, 745, FULL_UPPER]
        await one.until_served(*known.bundles)


def fails() -> list[int]:
    raise LookupError("no index")


async def _never() -> list[int]:
    await asyncio.Event().wait()
    return []


@pytest.mark.parametrize(
    ("host", "says"),
    [
        (WriteBehind(), "has no `positions`"),
        (Knowing(fails), "no index"),
        (Knowing(_never), "did not return within 1 s"),  # type: ignore[arg-type]
        (Knowing(lambda: ["a"]), "Expected `int`"),  # type: ignore[list-item]
        (Knowing(lambda: None), "not iterable"),  # type: ignore[arg-type,return-value]
        (Knowing(list), "0 keys at 0 positions"),
    ],
    ids=["no hook", "raises", "hangs", "no numbers", "nothing", "no keys"],
)
def test_without_cuts_the_split_is_called_off_with_the_reason(host: WriteBehind, says: str):
    async def story(world: World) -> None:
        async with owning(world, host) as one:
            await one.split(algorithm=Algorithm.TOPIC_COUNT, parts=2)
            await world.until(lambda: one.hand.entry(WHOLE).state is State.ASSIGNED, 2, "it is called off")
            assert says in one.cancelled[0]
            assert one.served() == {WHOLE}

    virtually(story)()


@virtually
async def test_a_split_that_is_called_off_while_the_host_is_asked_stays_off(world: World):
    answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    async with owning(world, Knowing(lambda: answer)) as one:  # type: ignore[arg-type,return-value]
        await one.split(algorithm=Algorithm.TOPIC_COUNT, parts=2)
        await one.hand.accept(Action.CANCEL, WHOLE, ADMIN, role=Role.ADMIN)
        answer.set_result(spread())
        await asyncio.sleep(1)
        assert one.hand.entry(WHOLE).state is State.ASSIGNED
        assert one.host.calls == []
