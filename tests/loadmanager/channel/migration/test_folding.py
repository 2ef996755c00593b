"""A log is read to its end without a broker: from snapshots where it was trimmed, and also once it is closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from zlib import crc32

import pytest

from loadmanager.channel.migration.export import export_of
from loadmanager.channel.migration.offline_log import APPEND_RECORDS, ATTEMPTS, TOPIC, FoldedLog
from statechannel.errors import BadSnapshot, LogUnavailable, NewerRecord
from statechannel.law import codec, snapshot
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.snapshot import SNAPSHOTS, SnapshotInfo, closing
from statechannel.ports import LogEntry, Payload
from tests.loadmanager.channel.migration.channels import ADMIN, GENESIS, Book, Stores, book_of, owners, two_namespaces
from tests.loadmanager.small_world import virtually
from tests.simulator.world import World


async def snapshotted(stores: Stores, book: Book, partition: int, *, trim: bool = True) -> None:
    """What a channel owner does: a snapshot of all there is, then the log before it goes."""
    log = (await stores.place_opened(book.table.partitions)).log
    state = book.table.cut(partition)
    *chunks, info = snapshot.encode(state, f"s-{state.next_offset}", 0)
    assert isinstance(info, SnapshotInfo)
    payloads = [chunk for chunk in chunks if isinstance(chunk, Payload)]
    writer = await log.exclusive(f"owner-{partition}")
    await writer.commit(TOPIC + SNAPSHOTS, partition, [*payloads, *closing(None, GENESIS, partition, info, ())])
    if trim:
        await log.trim(TOPIC, partition, state.next_offset)


@virtually
async def test_a_trimmed_log_is_exported_from_its_snapshot_and_what_came_after(world: World):
    book, stores = two_namespaces(), Stores(world, "old")
    await stores.hold(book)
    for partition in range(2):
        await snapshotted(stores, book, partition)
    more = book.create("shop/later", (0, 0xFFFFFFFF))
    later = book.log[-1]
    folded = await stores.folded()
    await folded.append(later[0], [later[2]])
    await folded.read_on()
    assert owners(folded.table) == owners(book.table)
    assert folded.table.get(more[0]) is not None
    fresh = await stores.folded()
    assert [fresh.table.digest(p) for p in range(2)] == [book.table.digest(p) for p in range(2)]
    assert export_of(fresh.table, {}, "x", 5).cluster_identity == GENESIS


@virtually
async def test_log_trimmed_during_a_read_is_read_on_from_the_newer_snapshot(world: World):
    book, stores = two_namespaces(), Stores(world, "old")
    await stores.hold(book)
    place = await stores.place()
    read, trimmed = place.log.read, False

    async def late(topic: str, partition: int, start: int) -> AsyncGenerator[Sequence[LogEntry]]:
        nonlocal trimmed
        if topic == TOPIC and not trimmed:
            trimmed = True
            await snapshotted(stores, book, partition)
        async for batch in read(topic, partition, start):
            yield batch

    place.log.read = late  # type: ignore[method-assign]
    folded = FoldedLog(place.log, "log old")
    await folded.open()
    assert trimmed
    assert owners(folded.table) == owners(book.table)
    assert folded.foreign > 0


@virtually
async def test_log_trimmed_faster_than_it_is_read_is_not_exported_in_part(world: World):
    book, stores = two_namespaces(), Stores(world, "old")
    await stores.hold(book)
    place = await stores.place()
    read, asked = place.log.read, 0

    async def never(topic: str, partition: int, start: int) -> AsyncGenerator[Sequence[LogEntry]]:
        nonlocal asked
        if topic == TOPIC:
            asked += 1
            book.replay(Record(f"n{asked}", Action.NOOP, BrokerId("a:1", 4)), partition)
            payload = Payload(None, codec.encode(book.log[-1][2]))
            await place.log.append(TOPIC, partition, [payload])
            await snapshotted(stores, book, partition)
        async for batch in read(topic, partition, start):
            yield batch

    place.log.read = never  # type: ignore[method-assign]
    with pytest.raises(LogUnavailable, match="trimmed faster"):
        await FoldedLog(place.log, "log old").open()
    assert asked == ATTEMPTS


@virtually
async def test_a_trimmed_log_without_a_snapshot_is_not_exported_in_part(world: World):
    book, stores = two_namespaces(), Stores(world, "old")
    await stores.hold(book)
    await (await stores.place_opened(2)).log.trim(TOPIC, 0, 2)
    with pytest.raises(BadSnapshot, match="no snapshot says what came before"):
        await stores.folded()


@virtually
async def test_snapshots_of_another_log_are_refused(world: World):
    stores, other = Stores(world, "old"), Book(2, cluster_identity=None)
    other.replay(Record("x", Action.GENESIS, ADMIN, cluster="shed"), 0)
    await stores.hold(other)
    await snapshotted(stores, other, 0, trim=False)  # it says that it is of GENESIS
    with pytest.raises(BadSnapshot, match="belong to"):
        await stores.folded()


@virtually
async def test_a_record_of_a_later_format_ends_it(world: World):
    stores = Stores(world, "old")
    await stores.hold(two_namespaces())
    place = await stores.place_opened(2)
    await place.log.append(TOPIC, 1, [Payload(None, b"LM63 d9eb3b53 " + b"{}")])  # damaged: passed over
    assert len((await stores.folded()).table) == 11
    await place.log.append(TOPIC, 1, [Payload(None, b"LM63 %08x {}" % crc32(b"{}", crc32(b"LM63")))])
    with pytest.raises(NewerRecord):
        await stores.folded()


@virtually
async def test_a_closed_log_can_still_be_read(world: World):
    book, stores = book_of(5, 60), Stores(world, "old")
    for partition in range(2):
        book.replay(Record("r", Action.RETIRE, ADMIN, Role.ADMIN, moved_to="elsewhere"), partition)
    await stores.hold(book)
    folded = await stores.folded()
    assert {folded.table.retired(0), folded.table.retired(1)} <= {"elsewhere"}
    assert owners(folded.table) == owners(book.table)


@virtually
async def test_many_and_large_records_are_appended_in_order_and_in_pieces(world: World):
    stores = Stores(world, "new")
    folded = await stores.folded("mine", 1)
    sizes: list[int] = []
    append = folded.log.append

    async def counted(topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        sizes.append(len(payloads))
        await append(topic, partition, payloads)

    folded.log.append = counted  # type: ignore[method-assign]
    small = [Record(f"r{n}", Action.NOOP, BrokerId("a:1", n), cause="mine") for n in range(APPEND_RECORDS + 5)]
    await folded.append(0, small)
    large = [Record(f"l{n}", Action.NOOP, BrokerId("a:1", n), cause="mine", reason="x" * 900_000) for n in range(6)]
    await folded.append(0, large)
    await folded.append(0, [])
    assert sizes == [APPEND_RECORDS, 5, 4, 2]
    assert [record.id for record in stores.records()] == [record.id for record in (*small, *large)]
    await folded.read_on()
    assert folded.foreign == 0
    assert (await stores.folded("others")).foreign == len(small) + len(large)
