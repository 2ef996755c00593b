"""Splits, merges and cancellations as an administrator asks for them: done, or refused with a reason and nothing
written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from loadmanager.channel.operations import Operations
from loadmanager.errors import Conflict, Invalid, LoadManagerError, NotFound, Unavailable
from loadmanager.model.boundaries import MOST_PARTS
from loadmanager.settings.choices import Algorithm
from statechannel.law.bundle import FULL_UPPER, Bundle
from statechannel.law.record import Action, Record, Role, Subject
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership
from tests.loadmanager.small_world import ADMIN, NAMESPACE, A, B, Hand, membership_of, replica, virtually
from tests.simulator.world import World

Q = tuple(Bundle(NAMESPACE, i << 30, min((i + 1) << 30, FULL_UPPER)) for i in range(4))
"""The quarters of the namespace."""
HALF = Bundle(NAMESPACE, 0, 0x80000000)
MIDDLE = 0x20000000
Holder = Callable[["AdminWriter", Ownership], Awaitable[object]]


class AdminWriter:
    """Operations on one replica. `holder` is what brokers do with a bundle in Splitting."""

    def __init__(self, operations: Operations, hand: Hand) -> None:
        self.operations, self.hand = operations, hand
        self.holder: Holder = cuts
        self.splits: list[Record] = []
        hand.channel.listen(
            lambda change: self.splits.append(change.record) if change.record.action is Action.SPLIT else None
        )

    @property
    def offset(self) -> int:
        return self.hand.channel.table.next_offset(0)

    def bundles(self) -> tuple[Bundle, ...]:
        return self.operations.namespace(NAMESPACE).bundles

    async def obey(self) -> None:
        """Do for every broker what it has to do, for ever."""
        while True:
            for entry in list(self.hand.channel.table.in_flight()):
                match entry.state:
                    case State.SPLITTING:
                        await self.holder(self, entry)
                    case State.RELEASING if entry.holder is not None:
                        await self.hand.write(Action.RELEASE, entry.bundle, entry.holder)
                    case _:
                        pass
            await asyncio.sleep(0.005)

    async def publish(self, action: Action, entry: Ownership, *boundaries: int, **more: Any) -> None:
        record = Record("", action, A, subjects=(Subject(entry.bundle, entry.revision),), boundaries=boundaries)
        await self.hand.channel.publish(msgspec.structs.replace(record, **more))


async def cuts(writer: AdminWriter, entry: Ownership) -> None:
    await writer.publish(Action.CREATE, entry, *(entry.boundaries or (MIDDLE,)))


async def refuses(writer: AdminWriter, entry: Ownership) -> None:
    await writer.publish(Action.CANCEL, entry, reason="only one key")


async def does_nothing(writer: AdminWriter, entry: Ownership) -> None:
    await asyncio.sleep(0.01)


@asynccontextmanager
async def writer(world: World, holder: Holder = cuts, write_version: int = 2) -> AsyncGenerator[AdminWriter]:
    """Four quarters: the first two are a's, the third b's, the fourth nobody's."""
    async with replica(world) as channel:
        channel.write_version = write_version
        hand = Hand(channel)
        one = AdminWriter(Operations(ADMIN, channel, membership_of(A, B), world.loop.time, 3.0), hand)
        one.holder = holder
        await hand.create(4)
        for bundle, owner in zip(Q, (A, A, B), strict=False):
            await hand.assign(bundle, owner)
        brokers = asyncio.ensure_future(one.obey())
        yield one
        brokers.cancel()


# --- what works


@virtually
async def test_a_split_returns_when_the_children_are_there(world: World):
    async with writer(world) as one:
        children = await one.operations.split(Q[0])
        assert children == (Bundle(NAMESPACE, 0, MIDDLE), Bundle(NAMESPACE, MIDDLE, Q[0].hi))
        assert one.bundles() == (*children, *Q[1:])


@virtually
async def test_cuts_that_the_owner_need_not_find_stand_in_the_record_of_any_format(world: World):
    async with writer(world, write_version=1) as one:
        assert len(await one.operations.split(Q[0], parts=4)) == 4
        children = await one.operations.split(Q[1], positions=[Q[1].lo + 1, Q[1].lo + 7])
        assert [child.hi for child in children] == [Q[1].lo + 1, Q[1].lo + 7, Q[1].hi]
        assert [len(record.boundaries) for record in one.splits] == [3, 2]


@virtually
async def test_cuts_by_the_number_of_keys_are_the_owners_to_find(world: World):
    async with writer(world) as one:
        await one.operations.split(Q[0], parts=2, algorithm=Algorithm.TOPIC_COUNT)
        (record,) = one.splits
        assert (record.boundaries, record.algorithm, record.parts) == ((), Algorithm.TOPIC_COUNT, 2)


@virtually
async def test_with_unload_the_children_have_no_owner_in_the_end(world: World):
    async with writer(world) as one:
        children = await one.operations.split(Q[0], unload=True)
        assert {one.hand.entry(child).state for child in children} == {State.UNASSIGNED}


@virtually
async def test_neighbours_are_merged_in_whichever_order_they_are_given(world: World):
    async with writer(world) as one:
        assert await one.operations.merge([Q[1], Q[0]]) == HALF
        assert one.bundles() == (HALF, *Q[2:])
        assert one.hand.entry(HALF).holder == A
        parts = await one.operations.split(HALF, parts=5)
        assert await one.operations.merge(parts) == HALF


@virtually
async def test_a_split_and_a_merge_look_again_after_a_lost_race(world: World):
    async with writer(world) as one:
        for ask in (lambda: one.operations.split(Q[0]), lambda: one.operations.merge(one.bundles()[:2])):
            entry, meanwhile = one.hand.entry(one.bundles()[0]), one.offset
            moved = msgspec.structs.replace(entry, revision=meanwhile)
            refused = one.hand.channel.counts["refused stale"]
            await asyncio.gather(
                one.publish(Action.TRANSFER, entry, to=B), one.publish(Action.CANCEL, moved), ask()
            )  # fmt: skip
            assert one.hand.channel.counts["refused stale"] > refused, "somebody else came first"
        assert one.bundles() == Q


@virtually
async def test_of_two_concurrent_splits_one_succeeds_and_one_is_told_clearly(world: World):
    async with writer(world) as one:
        both = await asyncio.gather(*(one.operations.split(Q[0]) for _ in range(2)), return_exceptions=True)
        done = [each for each in both if isinstance(each, tuple)]
        refused = [each for each in both if isinstance(each, Conflict | NotFound)]
        assert (len(done), len(refused)) == (1, 1)
        assert len(one.bundles()) == 5


@virtually
async def test_a_transfer_is_called_off(world: World):
    async with writer(world) as one:
        await one.hand.accept(Action.TRANSFER, Q[0], A, B)
        await one.operations.cancel(Q[0])
        entry = one.hand.entry(Q[0])
        assert (entry.state, entry.holder) == (State.ASSIGNED, A)


@virtually
async def test_a_split_that_is_called_off_says_by_whom(world: World):
    async with writer(world, does_nothing) as one:
        splitting = asyncio.ensure_future(one.operations.split(Q[0]))
        await world.until(lambda: one.hand.entry(Q[0]).state is State.SPLITTING, 1, "it is being split")
        await one.operations.cancel(Q[0])
        with pytest.raises(Conflict, match=r"was not split: admin \(cancel by admin:1#1\)"):
            await splitting
        assert one.bundles() == Q


@virtually
async def test_changes_of_other_brokers_are_read_before_a_refusal(world: World):
    async with writer(world) as one, replica(world, "b:1") as behind:
        other = Operations(B, behind, membership_of(A, B), world.loop.time, 3.0)
        children = await one.operations.split(Q[0])
        assert await other.merge(children) == Q[0]
        assert (await one.operations.split(Q[0])) == children


# --- what does not


@virtually
async def test_a_split_for_which_the_owner_finds_no_cuts_says_why(world: World):
    async with writer(world, refuses) as one:
        with pytest.raises(Conflict, match=r"was not split: only one key \(cancel by a:1#1\)"):
            await one.operations.split(Q[0], algorithm=Algorithm.TOPIC_COUNT)
        assert one.bundles() == Q


@virtually
async def test_a_split_that_hangs_is_unavailable_and_may_still_happen(world: World):
    async with writer(world, does_nothing) as one:
        with pytest.raises(Unavailable, match=r"the split of .* within 3 s; it may still"):
            await one.operations.split(Q[0])
        assert not one.hand.channel.replica._watchers


@virtually
async def test_a_split_whose_end_was_skipped_by_a_snapshot_is_unavailable_at_once(world: World):
    async with writer(world, does_nothing) as one:
        splitting = asyncio.ensure_future(one.operations.split(Q[0]))
        await world.until(lambda: one.hand.entry(Q[0]).state is State.SPLITTING, 1, "it is being split")
        replica_ = one.hand.channel.replica
        listeners, replica_._on_change = replica_._on_change, []
        await refuses(one, one.hand.entry(Q[0]))
        replica_._on_change = listeners
        with pytest.raises(Unavailable, match="is not known here"):
            await splitting


@virtually
async def test_an_old_broker_that_could_not_read_the_record_is_a_conflict(world: World):
    async with writer(world, write_version=1) as one:
        with pytest.raises(Conflict, match="upgrade the others first"):
            await one.operations.split(Q[0], algorithm=Algorithm.TOPIC_COUNT)


@virtually
async def test_without_the_log_every_write_is_unavailable(world: World):
    async with writer(world) as one:
        await one.hand.accept(Action.TRANSFER, Q[1], A, B)
        world.set_down("log", True)
        for ask in (one.operations.split(Q[0]), one.operations.cancel(Q[1])):
            with pytest.raises(Unavailable, match="may still be done") as refused:
                await ask
            assert refused.value.record_id


Ask = Callable[[Operations], Coroutine[Any, Any, object]]
REFUSALS: list[tuple[str, Ask, type[LoadManagerError], str]] = [
    ("a cut outside", lambda o: o.split(Q[0], positions=[Q[1].lo + 1]), Invalid, "0x40000001 does not lie inside"),
    ("a cut at its end", lambda o: o.split(Q[1], positions=[Q[1].lo]), Invalid, "0x40000000 does not lie inside"),
    ("cuts that are unsorted", lambda o: o.split(Q[0], positions=[9, 5]), Invalid, "strictly upwards"),
    ("cuts that are equal", lambda o: o.split(Q[0], positions=[5, 5]), Invalid, "strictly upwards"),
    ("no cuts", lambda o: o.split(Q[0], positions=[]), Invalid, "at least one position"),
    ("specified, but none", lambda o: o.split(Q[0], algorithm=Algorithm.SPECIFIED), Invalid, "at least one position"),
    ("too many cuts", lambda o: o.split(Q[0], positions=range(1, 999)), Invalid, f"at most {MOST_PARTS - 1}"),
    ("too many parts", lambda o: o.split(Q[0], parts=MOST_PARTS + 1), Invalid, "2 to 256 parts, not 257"),
    ("one part", lambda o: o.split(Q[0], parts=1), Invalid, "2 to 256 parts, not 1"),
    ("no key in so many", lambda o: o.split(Q[0], parts=1, algorithm=Algorithm.TOPIC_COUNT), Invalid, "not 1"),
    ("parts that do not fit", lambda o: o.split(Q[0], parts=5, positions=[5]), Invalid, "make 2 parts, not 5"),
    ("positions for another", lambda o: o.split(Q[0], positions=[5], algorithm=Algorithm.RANGE), Invalid, "are for"),
    ("magic", lambda o: o.split(Q[0], algorithm="magic"), Invalid, "there are range_equally_divide, topic_count"),
    ("splitting what is not there", lambda o: o.split(HALF), NotFound, "no bundle .* has 0x00000000_0x40000000"),
    ("splitting nobody's", lambda o: o.split(Q[3]), Conflict, "no broker owns .* look up a topic of it"),
    ("merging one", lambda o: o.merge([Q[0]]), Invalid, "2 to 256 bundles, not 1"),
    ("merging too many", lambda o: o.merge([Q[0]] * 300), Invalid, "2 to 256 bundles, not 300"),
    ("merging one with itself", lambda o: o.merge([Q[0], Q[0]]), Invalid, "named twice"),
    ("merging what is apart", lambda o: o.merge([Q[0], Q[2]]), Invalid, "no neighbours"),
    ("merging two namespaces", lambda o: o.merge([Q[0], Bundle("t/x", Q[0].hi, Q[1].hi)]), Invalid, "of different"),
    ("merging what is not there", lambda o: o.merge([HALF, Q[2]]), NotFound, "no bundle"),
    (
        "merging of two owners",
        lambda o: o.merge(Q[:3]),
        Conflict,
        r"first transfer the others to a:1: .*0xc0000000 \(at b:1#1\)",
    ),
    ("merging nobody's", lambda o: o.merge(Q[2:]), Conflict, "no broker owns"),
    ("cancelling nothing", lambda o: o.cancel(Q[0]), Conflict, "is assigned, there is nothing to cancel: no transfer"),
    ("cancelling what is not there", lambda o: o.cancel(HALF), NotFound, "no bundle"),
]


@pytest.mark.parametrize(("ask", "error", "says"), [case[1:] for case in REFUSALS], ids=[c[0] for c in REFUSALS])
def test_what_cannot_be_done_is_refused_says_why_and_writes_nothing(ask: Ask, error: type[LoadManagerError], says: str):
    async def story(world: World) -> None:
        async with writer(world) as one:
            before = one.offset
            with pytest.raises(error, match=says):
                await ask(one.operations)
            assert one.offset == before
            assert not one.hand.channel.replica._watchers, "nobody waits for what cannot come"

    virtually(story)()


@virtually
async def test_what_is_on_its_way_is_neither_split_nor_merged_and_writes_nothing(world: World):
    async with writer(world, does_nothing) as one:
        await one.hand.accept(Action.TRANSFER, Q[0], A, B)
        await one.hand.accept(Action.SPLIT, Q[1], ADMIN, role=Role.ADMIN)
        before = one.offset
        for ask in (one.operations.split(Q[0]), one.operations.split(Q[1]), one.operations.merge(Q[:2])):
            with pytest.raises(Conflict, match=r"(transferring|splitting): wait until that is over, or cancel it"):
                await ask
        assert one.offset == before


@virtually
async def test_a_move_that_has_gone_too_far_is_not_called_off(world: World):
    async with writer(world) as one:
        await one.hand.accept(Action.TRANSFER, Q[0], A, B)
        await one.hand.accept(Action.READY, Q[0], B)
        with pytest.raises(
            Conflict, match="is releasing, there is nothing to cancel: its owner has stopped serving it already"
        ):
            await one.operations.cancel(Q[0])


@virtually
async def test_a_namespace_whose_bundles_are_split_while_it_is_unloaded_is_deleted(world: World):
    async with writer(world) as one:
        entry = one.hand.entry(Q[0])
        deleting = asyncio.ensure_future(one.operations.delete_namespace(NAMESPACE))
        verdict = await one.hand.channel.publish(
            Record("", Action.CREATE, A, subjects=(Subject(Q[0], entry.revision),), boundaries=(MIDDLE,))
        )
        assert isinstance(verdict, Change)
        await deleting
        assert one.hand.channel.table.namespaces() == []
