"""Watches on virtual time: whatever a client misses, and whenever it comes back, it is told the table."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from loadmanager.channel import watch
from loadmanager.channel.replay_queue import TIMEOUT_S, ReplayQueue
from loadmanager.channel.revision import Revision
from loadmanager.channel.watch import BUNDLE_BYTES, CHANGE_BYTES, CHANGES_KEPT, Piece, RecentChanges, Reloaded, Watching
from loadmanager.errors import Conflict, Gone, Invalid
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, Record, Subject
from statechannel.law.verdict import Change, Ownership
from statechannel.runtime.channel import Channel
from tests.loadmanager.small_world import A, B, Hand, replica, virtually
from tests.simulator.world import World
from tests.statechannel.test_replica import claimed, late, snapshot, trim

MANY = 10_000_000


def watching_of(channel: Channel, kept: int = MANY) -> Watching:
    replays = ReplayQueue(channel.replica.log, channel.topic, TIMEOUT_S)
    return Watching(channel.replica, replays, recent=RecentChanges(channel.replica, kept))


class Reader:
    """Folds pieces as a client would."""

    def __init__(self) -> None:
        self.table: dict[Bundle, Ownership] = {}
        self.revision: Revision | None = None
        self.offsets: list[int] = []
        self.kinds: list[str | None] = []

    def take(self, piece: Piece) -> None:
        self.kinds.append(piece.kind)
        self.revision = piece.revision or piece.resume or self.revision
        match piece.kind:
            case "snapshot":
                self.table |= {entry.bundle: entry for entry in piece.entries}
            case "reload":
                self.table.clear()
            case "change":
                assert piece.change is not None
                self.offsets.append(piece.change.offset)
                for step in piece.transitions:
                    if step.before is not None:
                        assert self.table.pop(step.bundle) == step.before
                for step in piece.transitions:
                    if step.after is not None:
                        self.table[step.bundle] = step.after
            case _:
                pass

    async def read(self, watched: Watching, pieces: int) -> None:
        """Come back, take so many pieces, and hang up."""
        if self.revision is None:
            self.table.clear()
        stream = (await watched.begin(None, str(self.revision) if self.revision is not None else None)).pieces()
        try:
            while pieces > 0:
                async with asyncio.timeout(60):
                    piece = await anext(stream)
                self.take(piece)
                pieces -= 1
                if piece.kind == "end" or (piece.kind is None and watched.revision() == piece.revision):
                    return
        finally:
            await stream.aclose()


def table_of(channel: Channel) -> dict[Bundle, Ownership]:
    return {entry.bundle: entry for entry in channel.table}


async def write_at_random(channel: Channel, chance: Random, records: int) -> None:
    """Some are accepted, some refused."""
    for _ in range(records):
        entries = [chance.choice(list(channel.table)) for _ in range(chance.randrange(1, 3))]
        by = entries[0].holder or chance.choice((A, B))
        action = chance.choice((Action.OWN, Action.RETURN, Action.RELEASE, Action.UNLOAD, Action.TRANSFER, Action.NOOP))
        seen = {entry.bundle: entry.revision - (chance.random() < 0.2) for entry in entries}
        subjects = tuple(Subject(bundle, revision) for bundle, revision in seen.items())
        to = chance.choice((A, B)) if action in (Action.OWN, Action.TRANSFER) else None
        await channel.publish(Record("", action, by, subjects=() if action is Action.NOOP else subjects, to=to), 0)


@pytest.mark.parametrize("kept", [1, 5, MANY])
@pytest.mark.parametrize("seed", range(6))
def test_whoever_comes_back_at_random_folds_the_same_table(seed: int, kept: int) -> None:
    async def story(world: World) -> None:
        chance, reader = Random(seed), Reader()
        async with replica(world) as channel:
            await claimed(channel)
            watched = watching_of(channel, kept)
            for _ in range(60):
                await asyncio.gather(
                    write_at_random(channel, chance, chance.randrange(12)), reader.read(watched, chance.randrange(1, 9))
                )
            while reader.revision != watched.revision():
                await reader.read(watched, 1_000)
            assert reader.table == table_of(channel)
            assert len(reader.offsets) == len(set(reader.offsets)) > 20
            assert reader.offsets == sorted(reader.offsets)

    with World(seed) as world:
        world.run(story(world))


@virtually
async def test_a_replica_that_loads_anew_tells_its_watchers_the_partition_anew(world: World) -> None:
    async with replica(world) as channel:
        log, bundles = channel.replica.log, await claimed(channel)
        other = late(world)
        await other.open()
        async with other.running():
            await other.catch_up(5)
        before = watching_of(other).revision()
        await Hand(channel).write(Action.OWN, bundles[1], B, B)
        await snapshot(channel, log, "one")
        await trim(world, log)
        await Hand(channel).write(Action.OWN, bundles[2], B, B)
        watched, reader = watching_of(other), Reader()
        stream = (await watched.begin(None, str(before))).pieces()
        async with other.running():
            while reader.kinds[-1:] != ["change"]:
                async with asyncio.timeout(60):
                    reader.take(await anext(stream))
            await stream.aclose()
            assert [kind for kind in reader.kinds if kind] == ["reload", "snapshot", "snapshot-end", "change"]
            assert reader.table == table_of(channel)
            with pytest.raises(Gone, match="were trimmed"):
                await watched.begin(None, str(before))


@virtually
async def test_a_partial_snapshot_is_not_resumed(world: World) -> None:
    async with replica(world) as channel:
        await claimed(channel)
        watched = watching_of(channel)
        stream = (await watched.begin(None, None)).pieces()
        first = await anext(stream)
        assert (first.kind, first.revision) == ("snapshot", None)
        watched.close()
        *_, last = [piece async for piece in stream]
        assert last.kind == "end"


@virtually
async def test_a_watch_ends_with_the_replica(world: World) -> None:
    async with replica(world) as channel:
        await claimed(channel)
        watched = watching_of(channel)
        stream = (await watched.begin(None, None)).pieces()
        reading = asyncio.create_task(_last(stream))
        await asyncio.sleep(0.1)
        channel.replica.stop(Gone("x"))  # type: ignore[arg-type]
        async with asyncio.timeout(5):
            last = await reading
        assert last.kind == "end"
        assert last.resume == watched.revision()


async def _last(stream: Any) -> Piece:
    *_, last = [piece async for piece in stream]
    return last


@virtually
async def test_a_broker_that_is_behind_waits_for_the_revision_of_another(world: World) -> None:
    async with replica(world) as channel:
        bundles = await claimed(channel)
        other = late(world)
        await other.open()
        watched = watching_of(other)
        ahead = watching_of(channel).revision()
        beginning = asyncio.create_task(watched.begin(None, str(ahead)))
        await asyncio.sleep(0.1)
        assert not beginning.done()
        async with other.running():
            stream = (await beginning).pieces()
            await Hand(channel).write(Action.OWN, bundles[1], B, B)
            offsets: list[int] = []
            while not offsets:
                async with asyncio.timeout(60):
                    piece = await anext(stream)
                offsets += [piece.change.offset] if piece.change is not None else []
            assert offsets == [ahead.offsets[0]]
            await stream.aclose()


@virtually
async def test_revisions_of_elsewhere_are_refused(world: World) -> None:
    async with replica(world) as channel:
        await claimed(channel)
        watched = watching_of(channel)
        now = watched.revision()
        with pytest.raises(Conflict, match="beyond the log"):
            await watched.begin(None, str(now.at(0, now.offsets[0] + 1)))
        with pytest.raises(Conflict, match="generation"):
            await watched.begin(None, "1:0")
        for text in ("0:1.2", "", "0", "a:b", "0:1 "):
            with pytest.raises(Invalid, match="start without"):
                await watched.begin(None, text)


@virtually
async def test_what_is_remembered_is_bounded_by_size_too(world: World) -> None:
    async with replica(world) as channel:
        await claimed(channel)
        recent = RecentChanges(channel.replica, CHANGES_KEPT, bytes_kept=3 * (CHANGE_BYTES + BUNDLE_BYTES))
        for _ in range(5):
            await Hand(channel).create(1, f"t/n{recent.end}")
        events = recent.after(recent.end - 3, 10)
        assert events is not None
        assert len(events) == 3
        assert recent.after(recent.end - 4, 10) is None
        oldest = events[0]
        assert isinstance(oldest, Change)
        assert recent.known_from(0) <= oldest.offset
        assert recent.of_partition(0, recent.known_from(0)) == events
        await Hand(channel).create(64, "t/large")
        assert [e for e in recent.after(recent.end - 1, 10) or () if not isinstance(e, Reloaded)]
        assert recent.after(recent.end - 2, 10) is None, "the newest is kept, however large"


@virtually
async def test_a_change_of_many_bundles_comes_in_pieces_and_counts_with_the_last(world: World) -> None:
    async with replica(world) as channel:
        await claimed(channel)
        watched = watching_of(channel)
        begun = watched.revision()
        bundles = await Hand(channel).create(2 * watch.BUNDLES_A_PIECE + 1, "t/n")
        stream = (await watched.begin("t/n", str(begun))).pieces()
        pieces = [await anext(stream) for _ in range(3)]
        await stream.aclose()
        assert [(piece.more, piece.revision is None) for piece in pieces] == [
            (True, True),
            (True, True),
            (False, False),
        ]
        assert [t.bundle for piece in pieces for t in piece.transitions] == list(bundles)


@virtually
async def test_watch_of_one_namespace_reports_progress_on_news_of_others(
    world: World,
) -> None:
    async with replica(world) as channel:
        await claimed(channel)
        watched, chance = watching_of(channel), Random(1)
        stream = (await watched.begin("shop/elsewhere", None)).pieces()
        assert [(await anext(stream)).kind for _ in range(2)] == ["snapshot-end", None]
        begun = watched.revision()
        coming = asyncio.ensure_future(anext(stream))
        for _ in range(30):  # more often than a watch is quiet
            await write_at_random(channel, chance, 5)
            await asyncio.sleep(watch.KEEP_ALIVE_S / 10)
        assert coming.done()
        piece = coming.result()
        assert piece.kind is None
        assert piece.revision is not None
        assert piece.revision.offsets > begun.offsets
        await stream.aclose()
