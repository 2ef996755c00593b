"""One partition's snapshots and trimming, by owners that follow each other, on a log that damages things."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any

import msgspec
import pytest

from loadmanager.channel.owner.election import lease_of
from loadmanager.channel.owner.keeper import Counts, Keeper, KeeperDependencies, KeeperSettings
from loadmanager.channel.owner.retention import ScheduleSettings
from statechannel.errors import BadSnapshot, LogUnavailable, WriterFenced
from statechannel.law.record import Action
from statechannel.law.snapshot import INDEX_KEY, Chunk, Index, chunk_key, sealed
from statechannel.ports import ExclusiveWriter, Log, LogEntry, Payload
from statechannel.runtime.channel import Channel
from tests.loadmanager.channel.owner.watching import CHANNEL, SNAPSHOTS, Watch
from tests.loadmanager.small_world import ADMIN, A, Hand, process, replica, virtually
from tests.simulator.world import World

HOUR_S = 3_600.0
PROMPT = KeeperSettings(ScheduleSettings(records=1, interval_s=HOUR_S), retention_s=0.0, timeout_s=5.0)


class Damaging:
    """A log whose `read` passes through `seen`, which may change or drop what is read."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.before_exclusive: Callable[[], Awaitable[object]] | None = None
        self.seen: Callable[[LogEntry], LogEntry | None] = lambda entry: entry

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def exclusive(self, writer_id: str) -> ExclusiveWriter:
        if self.before_exclusive is not None:
            await self.before_exclusive()
        return await self._log.exclusive(writer_id)

    async def read(self, topic: str, partition: int, start: int) -> AsyncGenerator[Sequence[LogEntry]]:
        async for batch in self._log.read(topic, partition, start):
            yield [kept for entry in batch if (kept := self.seen(entry)) is not None]


class Owner:
    """A keeper of partition 0, on a replica of its own."""

    def __init__(self, world: World, channel: Channel, name: str, settings: KeeperSettings) -> None:
        self.world, self.channel, self.hand = world, channel, Hand(channel)
        self.log = Damaging(world.log_client(process(world, f"{name}/keeper"), request_timeout_s=0.5))
        self.notes: list[str] = []
        self.wanted: list[int] = []
        self.counts = Counts()
        self._name, self._named = name, 0
        deps = KeeperDependencies(
            log=self.log,  # type: ignore[arg-type]
            topic=CHANNEL,
            snapshots_topic=SNAPSHOTS,
            table=channel.table,
            log_bytes=channel.replica.core.log_bytes,
            wanted=lambda _: self.wanted,
            name=self._next_name,
            clock_s=lambda: world.now_s,
            wall_ms=world.wall_ms,
            now_ms=world.wall_ms,
            note=self.notes.append,
        )
        self.keeper = Keeper(0, deps, settings, self.counts)

    def _next_name(self) -> str:
        self._named += 1
        return f"{self._name}-{self._named}"

    async def write(self, records: int = 1) -> None:
        """So many accepted records."""
        for _ in range(records):
            assert await self.channel.read_back(0, A)

    @property
    def begin(self) -> int:
        return self.world.log.begins(CHANNEL)[0]

    @property
    def listed(self) -> list[str]:
        return [info.snapshot_id for info in self.keeper.listed]


@asynccontextmanager
async def owner(world: World, name: str, settings: KeeperSettings = PROMPT) -> AsyncGenerator[Owner]:
    async with replica(world, name) as channel:
        await channel.catch_up(5.0)
        await channel.claim_cluster("test", ADMIN)
        yield Owner(world, channel, name, settings)


def changed(settings: KeeperSettings, **changes: Any) -> KeeperSettings:
    return msgspec.structs.replace(settings, **changes)


def chunk_of(snapshot_id: str, entry: LogEntry) -> bool:
    return (entry.key or b"").startswith(f"{snapshot_id}/".encode())


# --- writing


@virtually
async def test_a_snapshot_is_the_replay_and_a_new_replica_begins_with_it(world: World):
    watch = Watch(world)
    async with owner(world, "a:1") as a:
        bundles = await a.hand.create(8)
        await a.hand.assign(bundles[3], A)
        await a.keeper.open()
        assert await a.keeper.attend() is not None
        assert a.counts.written == 1
        async with owner(world, "b:1") as b:
            assert [info.snapshot_id for info in b.channel.loaded if info] == ["a:1-1"]
            assert b.channel.table.digest(0) == a.channel.table.digest(0)
    assert (watch.lists, watch.complaints) == (1, [])


@virtually
async def test_nothing_is_written_as_long_as_nothing_is_due(world: World):
    settings = changed(PROMPT, schedule=ScheduleSettings(10, HOUR_S), retention_s=10 * HOUR_S)
    async with owner(world, "a:1", settings) as a:
        await a.keeper.open()
        assert await a.keeper.attend() is None
        await a.write(8)
        assert await a.keeper.attend() is None
        await a.write(2)
        assert await a.keeper.attend() == "11 entries"
        assert await a.keeper.attend() is None
        await a.write()
        await asyncio.sleep(HOUR_S)
        assert await a.keeper.attend() == "1 entry in 3600 s"
        await asyncio.sleep(2 * HOUR_S)
        assert await a.keeper.attend() is None, "nothing has changed"


@virtually
async def test_few_large_records_make_a_snapshot_due_as_many_small_ones_do(world: World):
    settings = changed(PROMPT, schedule=ScheduleSettings(100, HOUR_S), retention_s=10 * HOUR_S)
    async with owner(world, "a:1", settings) as a:
        await a.keeper.open()
        await a.hand.create(8)
        assert await a.keeper.attend() is None
        await a.hand.create(5_000, "shop/large")
        assert await a.keeper.attend() is not None
        assert await a.keeper.attend() is None


@virtually
async def test_a_clock_that_was_ahead_does_not_put_off_the_next_snapshot_for_long(world: World):
    async with owner(world, "a:1", changed(PROMPT, schedule=ScheduleSettings(100, HOUR_S), retention_s=60.0)) as a:
        await a.keeper.open()
        await asyncio.sleep(HOUR_S)
        ahead = msgspec.structs.replace(
            a.keeper._deps, wall_ms=lambda: world.wall_ms() + 10**9, now_ms=lambda: world.wall_ms() + 10**9
        )
        a.keeper._deps, own = ahead, a.keeper._deps
        assert await a.keeper.attend() is not None
        a.keeper._deps = own
        await a.write()
        await asyncio.sleep(HOUR_S)
        assert await a.keeper.attend() is not None


# --- one after the other


@virtually
async def test_a_deposed_owner_writes_nothing_more(world: World):
    watch = Watch(world)
    async with owner(world, "a:1") as a, owner(world, "b:1") as b:
        await a.keeper.open()
        await a.keeper.attend()
        await b.keeper.open()
        await a.write()
        with pytest.raises(WriterFenced):
            await a.keeper.attend()
        assert watch.lists == 1
        await b.channel.catch_up(1.0)
        assert await b.keeper.attend() is not None
        assert b.listed == ["a:1-1", "b:1-1"]
    assert watch.complaints == []


@virtually
async def test_owner_paused_in_a_snapshot_does_not_replace_a_later_one(world: World):
    watch = Watch(world)
    async with owner(world, "a:1") as a, owner(world, "b:1") as b:
        await a.hand.create(8)
        await a.keeper.open()
        await a.keeper.attend()
        await a.write()
        held, go_on = asyncio.Event(), asyncio.Event()
        commit = a.keeper._writer.commit  # type: ignore[union-attr]

        async def late(*args: Any) -> None:
            held.set()
            await go_on.wait()
            await commit(*args)

        a.keeper._writer.commit = late  # type: ignore[union-attr, method-assign]
        attending = asyncio.get_running_loop().create_task(a.keeper.attend())
        await held.wait()
        for _ in range(3):
            await b.write(5)
            if not b.keeper.is_open:
                await b.keeper.open()
            await b.keeper.attend()
        trimmed_to, listed = b.begin, b.listed
        assert trimmed_to > 3
        go_on.set()
        with pytest.raises(WriterFenced):
            await attending
        await a.keeper.open()
        assert (a.begin, a.listed) == (trimmed_to, listed)
    assert watch.complaints == []


@virtually
async def test_late_trim_of_a_deposed_owner_stops_at_the_present_list(world: World):
    watch = Watch(world)
    async with owner(world, "a:1") as a, owner(world, "b:1") as b:
        await a.keeper.open()
        for _ in range(2):
            await a.write(3)
            await a.keeper._replace(a.keeper._plan())  # committed, not trimmed yet
        await b.keeper.open()
        await a.keeper._trim()
        assert watch.trims == 1
        await b.write(3)
        await b.keeper.attend()
    assert watch.complaints == []


@virtually
async def test_a_replica_that_has_not_read_as_far_as_the_snapshots_writes_none(world: World):
    watch = Watch(world)
    async with owner(world, "b:1") as b, owner(world, "a:1") as a:
        world.cut("b:1", "log")
        await a.write(5)
        await a.keeper.open()
        await a.keeper.attend()
        await b.keeper.open()
        assert await b.keeper.attend() is None
        assert watch.lists == 1
        world.heal("b:1", "log")
        await b.channel.catch_up(5.0)
    assert watch.complaints == []


@virtually
async def test_last_commit_of_a_fenced_owner_is_not_overlooked(world: World):
    watch = Watch(world)
    async with owner(world, "a:1") as a, owner(world, "b:1") as b:
        await b.keeper.open()
        await b.keeper.attend()
        world.cut("a:1", "log")

        async def at_the_last_moment() -> None:
            await b.write(5)
            await b.keeper.attend()

        a.log.before_exclusive = at_the_last_moment
        await a.keeper.open()
        assert a.listed == b.listed
        assert await a.keeper.attend() is None, "its replica has not read that far"
        world.heal("a:1", "log")
        await a.channel.catch_up(5.0)
        await a.write()
        assert await a.keeper.attend() is not None
    assert watch.complaints == []


# --- reading back


@virtually
async def test_nothing_is_trimmed_behind_a_snapshot_that_cannot_be_read_back(world: World):
    async with owner(world, "a:1") as a:
        await a.keeper.open()
        await a.keeper.attend()
        await a.write(3)
        before = a.begin
        a.log.seen = lambda entry: None if chunk_of("a:1-2", entry) else entry
        with pytest.raises(BadSnapshot):
            await a.keeper.attend()
        await a.keeper.open()
        assert [info.snapshot_id for info in a.keeper.good] == ["a:1-1"]
        assert a.begin == before < a.channel.table.next_offset(0)
        a.log.seen = lambda entry: entry
        await a.keeper.attend()
        assert a.listed == ["a:1-1", "a:1-3"], "another one was due at once, and the bad one is listed no more"


def damaged(entry: LogEntry) -> LogEntry:
    value = bytearray(entry.value or b"")
    value[-1] ^= 1
    return msgspec.structs.replace(entry, value=bytes(value))


@virtually
async def test_the_log_is_not_trimmed_to_a_base_that_has_been_damaged_since(world: World):
    watch = Watch(world)
    async with owner(world, "a:1", changed(PROMPT, retention_s=60.0)) as a:
        await a.keeper.open()
        for _ in range(2):
            await a.write(3)
            await a.keeper.attend()
        await asyncio.sleep(61)
        async with owner(world, "b:1", changed(PROMPT, retention_s=60.0)) as b:
            b.log.seen = lambda entry: damaged(entry) if chunk_of("a:1-2", entry) and entry.value else entry
            await b.keeper.open()
            await b.write(1)
            await b.keeper.attend()
            assert b.listed == ["a:1-1", "b:1-1"]
            assert b.begin == b.keeper.listed[0].next_offset
            assert any("a:1-2" in note for note in b.notes)
    assert watch.complaints == []


def write_nonsense(owner: Owner, snapshot_id: str) -> None:
    """Make this snapshot one that is whole and does not decode: it has no head."""
    log, genesis = owner.world.log, owner.channel.table.cluster_identity
    assert genesis is not None
    chunk = sealed(msgspec.msgpack.encode(Chunk(None, [], [])))
    checksum = blake2b(chunk, digest_size=16).hexdigest()
    infos = tuple(
        msgspec.structs.replace(info, chunks=1, size_bytes=len(chunk), checksum=checksum)
        if info.snapshot_id == snapshot_id
        else info
        for info in owner.keeper.listed
    )
    index = sealed(msgspec.msgpack.encode(Index(genesis, 0, infos)))
    watching, log.on_append = log.on_append, None
    payloads = [Payload(chunk_key(snapshot_id, 0), chunk), Payload(INDEX_KEY, index)]
    log.commit(lease_of(0), log.new_writer(lease_of(0)), 1, SNAPSHOTS, 0, payloads)
    log.on_append = watching


@pytest.mark.parametrize("bad", ["a:1-1", "a:1-2"])
def test_log_is_not_trimmed_to_an_intact_snapshot_without_sense(
    bad: str,
):
    async def story(world: World) -> None:
        watch, settings = Watch(world), changed(PROMPT, retention_s=60.0)
        async with owner(world, "a:1", settings) as a, owner(world, "b:1", settings) as b:
            await a.keeper.open()
            for _ in range(2):
                await a.write(3)
                await a.keeper.attend()
                await asyncio.sleep(30)
            write_nonsense(a, bad)
            trimmed_to: list[int] = []
            world.log.on_trim = lambda topic, _partition, before: trimmed_to.append(before)
            covered = {info.snapshot_id: info.next_offset for info in a.keeper.listed}
            await asyncio.sleep(1 if bad == "a:1-1" else 31)
            await b.channel.catch_up(5.0)
            await b.keeper.open()
            await b.write(1)
            await b.keeper.attend()
            assert b.listed == (["a:1-1", "a:1-2", "b:1-1"] if bad == "a:1-1" else ["a:1-1", "b:1-1"])
            for _ in range(3):
                await asyncio.sleep(31)
                await b.write(1)
                await b.keeper.attend()
            assert bad not in b.listed
            assert covered[bad] not in trimmed_to
            assert watch.complaints == []

    virtually(story)()


@virtually
async def test_unreadable_list_is_rewritten_at_once_if_the_log_was_trimmed(world: World):
    async with owner(world, "a:1") as a:
        await a.keeper.open()
        for _ in range(3):
            await a.write(3)
            await a.keeper.attend()
        assert a.begin > 0
        world.log.append(SNAPSHOTS, 0, [Payload(INDEX_KEY, None)])
        async with owner(world, "b:1", changed(PROMPT, schedule=ScheduleSettings(10_000, HOUR_S))) as b:
            b.log.seen = lambda entry: None if entry.key == INDEX_KEY and b"b:1" not in (entry.value or b"") else entry
            await b.keeper.open()
            assert b.keeper.good == ()
            assert await b.keeper.attend() is not None


@virtually
async def test_snapshots_of_another_log_are_left_alone(world: World):
    async with owner(world, "a:1") as a:
        await a.keeper.open()
        await a.keeper.attend()
        assert a.channel.table.cluster_identity is not None
        a.channel.table.cluster_identity = msgspec.structs.replace(a.channel.table.cluster_identity, identity="another")
        with pytest.raises(BadSnapshot, match="another"):
            await a.keeper.open()


# --- trimming


@virtually
async def test_without_retention_the_log_stays_short_over_many_rounds(world: World):
    watch = Watch(world)
    async with owner(world, "a:1") as a:
        await a.keeper.open()
        for _ in range(50):
            await a.write(4)
            await a.keeper.attend()
            assert a.channel.table.next_offset(0) - a.begin <= 8
            assert len(a.listed) == min(2, watch.lists)
        entries = world.log.read(SNAPSHOTS, 0, 0)
        world.log.compact(SNAPSHOTS, 0)
        assert len(entries) < 1_000
    assert watch.complaints == []
    assert watch.trims >= 48


@virtually
async def test_the_retention_keeps_what_is_younger(world: World):
    watch = Watch(world)
    async with owner(world, "a:1", changed(PROMPT, retention_s=400.0)) as a:
        await a.keeper.open()
        for _ in range(30):
            await asyncio.sleep(50)
            end = a.channel.table.next_offset(0)
            await a.write()
            await a.keeper.attend()
            assert world.log.offset_at(CHANNEL, 0, world.wall_ms() - 400_000) >= a.begin
            assert end - a.begin <= 1 + (400 + 100 + 100) / 50
            assert len(a.listed) <= 8
    assert watch.complaints == []
    assert watch.trims > 3


@virtually
async def test_what_a_reader_still_wants_is_kept(world: World):
    watch = Watch(world)
    async with owner(world, "a:1") as a:
        await a.keeper.open()
        for _ in range(3):
            await a.write(4)
            await a.keeper.attend()
        position = a.begin + 2
        a.wanted = [position, position + 100]
        for _ in range(30):
            await a.write(4)
            await a.keeper.attend()
            assert a.begin <= position
        assert len(a.listed) <= 10
        a.wanted = []
        await a.write(4)
        await a.keeper.attend()
        await a.write(4)
        await a.keeper.attend()
        assert a.begin > position + 50
    assert watch.complaints == []


@pytest.mark.slow
@virtually
async def test_a_quiet_partition_is_trimmed_too_once_its_log_is_old_enough(world: World):
    async with owner(world, "a:1", changed(PROMPT, retention_s=10 * HOUR_S)) as a:
        await a.keeper.open()
        await a.write(10)
        await a.keeper.attend()
        written = 0
        for _ in range(40):
            await asyncio.sleep(HOUR_S)
            written += await a.keeper.attend() is not None
        assert a.begin == a.channel.table.next_offset(0)
        assert written <= 1


# --- a log that does not answer


@virtually
async def test_a_log_that_does_not_answer_is_said_and_the_owner_begins_anew(world: World):
    watch = Watch(world)
    async with owner(world, "a:1") as a:
        await a.keeper.open()
        await a.keeper.attend()
        await a.write(3)
        world.cut("a:1/keeper", "log", requests=False)
        with pytest.raises(LogUnavailable):
            await a.keeper.attend()
        world.heal("a:1/keeper", "log")
        await a.keeper.open()
        await a.write(3)
        assert await a.keeper.attend() is not None
    assert watch.complaints == []


@pytest.mark.parametrize("seed", range(30))
def test_successive_owners_never_lose_or_restore_anything(seed: int):
    async def story(world: World) -> None:
        watch, dice = Watch(world), world.random
        async with owner(world, "a:1") as a, owner(world, "b:1") as b, owner(world, "c:1") as c:
            owners = (a, b, c)

            async def act(one: Owner) -> None:
                for _ in range(25):
                    await asyncio.sleep(dice.random() * 0.02)
                    try:
                        if not one.keeper.is_open or dice.random() < 0.1:
                            await one.keeper.open()
                        one.wanted = [one.begin] if dice.random() < 0.2 else []
                        await one.keeper.attend()
                    except (WriterFenced, LogUnavailable, BadSnapshot):
                        await one.keeper.close()

            async def write() -> None:
                bundles = await a.hand.create(4)
                for _ in range(40):
                    await asyncio.sleep(dice.random() * 0.02)
                    await a.hand.write(dice.choice((Action.OWN, Action.RETURN, Action.UNLOAD)), bundles[0], A, A)

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(write())
                for one in owners:
                    tasks.create_task(act(one))
            assert watch.complaints == []
            assert watch.lists > 3
            async with replica(world, "d:1") as late:
                await late.catch_up(5.0)
                await a.channel.catch_up(5.0)
                assert late.table.digest(0) == a.channel.table.digest(0)

    with World(seed) as world:
        world.run(story(world))
