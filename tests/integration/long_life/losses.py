"""The channel owner dies in the middle of something, is started again, and the cluster is as if nothing had been.

That it was in the middle is shown each time: by the process's last words, and by what lay in the log at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from statechannel.law.record import Action
from statechannel.law.snapshot import SnapshotInfo
from tests.integration.long_life.churn import AGAIN_S, Range
from tests.integration.long_life.cluster import Cluster, Member
from tests.integration.long_life.onlooker import Onlooker
from tests.integration.long_life.points import Order, Point
from tests.integration.long_life.waiting import until_told


class Losses:
    """Of the owner of one partition. `place` is a range that nobody else reshapes, one bundle when this begins."""

    def __init__(self, cluster: Cluster, onlooker: Onlooker, partition: int, place: Range) -> None:
        self._cluster = cluster
        self._onlooker = onlooker
        self._partition = partition
        self._place = place

    # --- while it reshapes a bundle that it owns

    async def split(self, point: Point) -> None:
        """It was told to split a bundle and dies at `point`: before there are cuts, or after."""
        owner = await self._owning_the_place()
        since = await self._onlooker.now()
        await self._loses(owner, point, self._by_keys)
        expected = [Action.SPLIT] if point is Point.ASK_KEYS else [Action.SPLIT, Action.CREATE]
        await self._was_taken_from_it(since, expected)

    async def merge(self, point: Point) -> None:
        """The merge is in the log, and it dies before what is gone is flushed, or what came is loaded."""
        owner = await self._owning_the_place()
        parts = await self._place.into(5)
        since = await self._onlooker.now()
        await self._loses(owner, point, lambda: self._place.merge(parts))
        await self._was_taken_from_it(since, [Action.MERGE])

    async def _by_keys(self) -> object:
        return await self._place.split(3, algorithm="topic_count_equally_divide")

    async def _was_taken_from_it(self, since: int, expected: list[Action]) -> None:
        """Nothing came between what was under way and the revocation of what a dead broker holds."""
        await self._onlooker.until_then(
            since, self._place.whole, lambda then: Action.REVOKE in then, "what the dead owner held is revoked"
        )
        then = self._onlooker.then(since, self._place.whole)
        assert then[: then.index(Action.REVOKE)] == expected, then
        await self._until_back()

    async def _owning_the_place(self) -> Member:
        """The channel owner, the owner of the place as well, in one bundle."""
        owner = await self._channel_owner()

        async def is_there() -> bool:
            bundles = await self._place.bundles()
            if len(bundles) == 1 and bundles[0]["owner"] == owner.name and bundles[0]["state"] == "assigned":
                return True
            if len(bundles) == 1 and bundles[0]["owner"] not in (None, owner.name):
                await self._place.transfer(bundles[0]["range"], owner.name)
            elif len(bundles) > 1:
                await self._place.step(2)
            return False

        await until_told(is_there, f"{owner} owns {self._place.whole} in one bundle")
        return owner

    # --- while it looks after the log

    async def snapshot(self, point: Point) -> None:
        """It dies in the transaction that writes a snapshot, or before it has read back what it wrote."""
        owner, earlier = await self._channel_owner(), await self._newest()
        await self._cluster.arm(owner, Order(point, partition=self._partition))
        before = await self._newest()  # from here on nobody can complete another one
        await self._cluster.until_dead(owner, point)
        after = await self._newest()
        if point is Point.SNAPSHOT_OPEN:
            assert after == before, "something of a snapshot that was never committed is there"
        else:
            assert after.next_offset > earlier.next_offset, "a committed snapshot is not there"
        await self._until_back(owner)
        await until_told(lambda: self._covers_more_than(after.next_offset), "the next owner writes snapshots")

    async def trim(self, point: Point) -> None:
        """It dies when it has let go of the snapshots that only the old log needs, and the log is still there."""
        owner = await self._channel_owner()
        await self._cluster.arm(owner, Order(point, partition=self._partition))
        await self._cluster.until_dead(owner, point)
        begin, oldest = await self._onlooker.begin(self._partition), (await self._oldest())
        assert begin < oldest if point is Point.TRIM_ASKED else begin == oldest
        await self._until_back(owner)
        await until_told(lambda: self._begins_beyond(oldest), "the next owner trims the log")

    async def pause_and_succession(self) -> None:
        """It pauses in the transaction until somebody else has written a snapshot, and may not finish its own then."""
        owner = await self._channel_owner()
        await self._own_nothing(owner)
        await self._cluster.arm(owner, Order(Point.SNAPSHOT_OPEN, partition=self._partition, pause=True))
        await self._write_something()
        await self._cluster.until_paused(owner, Point.SNAPSHOT_OPEN)
        before = await self._newest()
        await self._write_something()
        await until_told(lambda: self._covers_more_than(before.next_offset), "the next owner writes a snapshot")
        self._cluster.go_on(owner)
        await until_told(lambda: self._came_to_nothing(owner), f"{owner} gives up the snapshot that it had begun")
        assert await self._covers_more_than(before.next_offset), "an older snapshot took the place of a newer one"
        await self._until_back()

    async def _came_to_nothing(self, member: Member) -> bool:
        """Kafka's client hears that it was fenced, or, after a pause, sometimes no answer at all: both end its try."""
        begin = f"snapshots of channel partition {self._partition}: "
        return any(note.startswith(begin) for note in await self._cluster.notes(member))

    async def _own_nothing(self, member: Member) -> None:
        """So that nobody's request waits for it while it pauses."""

        async def owns_nothing() -> bool:
            held = [b for b in await self._cluster.bundles(self._place.whole.namespace) if b["owner"] == member.name]
            other = next(each for each in self._cluster.up() if each is not member)
            for shown in held:
                await self._place.transfer(shown["range"], other.name)
            return not held

        await until_told(owns_nothing, f"{member} owns nothing")

    async def _write_something(self) -> None:
        """So that a snapshot is due."""
        await self._place.into(2)
        await self._place.into(1)

    async def _covers_more_than(self, offset: int) -> bool:
        return (await self._newest()).next_offset > offset

    async def _begins_beyond(self, offset: int) -> bool:
        begin = await self._onlooker.begin(self._partition)
        assert begin <= await self._oldest(), "the log was trimmed beyond what its snapshots say"
        return begin > offset

    async def _newest(self) -> SnapshotInfo:
        return (await self._onlooker.snapshots(self._partition))[-1]

    async def _oldest(self) -> int:
        return (await self._onlooker.snapshots(self._partition))[0].next_offset

    # --- all of them

    async def _channel_owner(self) -> Member:
        found: list[Member] = []

        async def look() -> bool:
            owner = await self._cluster.channel_owner(self._partition)
            found[:] = [owner] if owner is not None else []
            return bool(found)

        await until_told(look, f"somebody owns partition {self._partition} of the channel")
        return found[0]

    async def _loses(self, owner: Member, point: Point, asked: Callable[[], Awaitable[object]]) -> None:
        await self._cluster.arm(owner, Order(point, bundle=str(self._place.whole)))
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_asked_until(over, asked))
            await self._cluster.until_dead(owner, point)
            over.set()
            await self._cluster.start(owner)

    async def _until_back(self, *dead: Member) -> None:
        for member in dead:
            await self._cluster.start(member)
        namespace = self._place.whole.namespace
        await until_told(lambda: self._cluster.is_whole(namespace), "every bundle has a living owner")
        await self._channel_owner()


async def _asked_until(over: asyncio.Event, asked: Callable[[], Awaitable[object]]) -> None:
    """Again and again: who asks one that has read less than the others, or the one that dies, may hear anything."""
    while not over.is_set():
        await asked()
        await asyncio.sleep(AGAIN_S)
