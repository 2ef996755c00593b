"""A snapshot is used whole or not at all: every damage is noticed, and what is intact is still used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b

import msgspec
import pytest

from statechannel.errors import BadSnapshot, NewerRecord
from statechannel.law import snapshot
from statechannel.law.bundle import FULL_UPPER
from statechannel.law.partition import Lead, PartitionState
from statechannel.law.snapshot import INDEX_KEY, Chunk, Head, Section, SnapshotInfo, chunk_key, closing, sealed
from statechannel.law.table import OwnershipTable
from statechannel.ports import Payload

from .snapshots import (
    GENESIS,
    A,
    B,
    Topic,
    chunks_of,
    newest,
)

# --- damage


def is_refused(topic: Topic, name: str = "new") -> None:
    table = OwnershipTable(1)
    with pytest.raises(BadSnapshot):
        table.restore(topic.read().state(name))
    assert (table.next_offset(0), list(table)) == (0, []), "nothing was restored"


Damage = Callable[[Topic, bytes], Iterator[bytes | None]]


def nothing(topic: Topic, key: bytes) -> Iterator[bytes | None]:
    yield None


def truncations(topic: Topic, key: bytes) -> Iterator[bytes | None]:
    value = topic.value(key)
    yield from (value[:length] for length in range(len(value)))


def flipped_bits(topic: Topic, key: bytes) -> Iterator[bytes | None]:
    value = topic.value(key)
    for bit in range(len(value) * 8):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << bit % 8
        yield bytes(damaged)


def chunks_of_another_place(topic: Topic, key: bytes) -> Iterator[bytes | None]:
    """Intact ones: of this snapshot, and of the other, under the same number and all others."""
    yield from (
        value
        for other in topic.keys
        if other not in (key, INDEX_KEY) and (value := topic.value(other)) != topic.value(key)
    )


def additions(topic: Topic, key: bytes) -> Iterator[bytes | None]:
    yield from (topic.value(key) + more for more in (b"\0", b"x", topic.value(key)))


DAMAGES: list[Damage] = [nothing, truncations, flipped_bits, chunks_of_another_place, additions]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_any_damage_to_a_chunk_is_noticed_and_the_other_snapshot_is_usable(topic: Topic, damage: Damage):
    whole, old = list(topic.entries), topic.read().state("old")
    for key in chunks_of(topic, "new"):
        for value in damage(topic, key):
            topic.replace(key, value)
            is_refused(topic)
            topic.entries = list(whole)
    topic.replace(chunk_key("new", 0), None)
    assert topic.read().state("old") == old


def test_a_deleted_chunk_is_missing(topic: Topic):
    topic.commit([Payload(chunk_key("new", 2), None)])
    with pytest.raises(BadSnapshot, match="lacks 1 of 4 chunks"):
        topic.read().state("new")


@pytest.mark.parametrize("damage", [nothing, truncations, flipped_bits])
def test_a_damaged_index_lists_nothing(topic: Topic, damage: Damage):
    topic.compact()
    whole = list(topic.entries)
    for value in damage(topic, INDEX_KEY):
        topic.replace(INDEX_KEY, value)
        assert topic.index() is None
        is_refused(topic)
        topic.entries = list(whole)


def test_older_index_counts_while_the_newest_is_damaged(topic: Topic):
    newest_index = max(number for number, entry in enumerate(topic.entries) if entry.key == INDEX_KEY)
    topic.entries[newest_index] = msgspec.structs.replace(topic.entries[newest_index], value=b"damaged")
    assert topic.known().newest.snapshot_id == "old"
    assert newest(topic).next_offset == topic.known().newest.next_offset


def test_strange_keys_are_passed_over(topic: Topic):
    before = topic.read().state("new")
    strange = [
        None,
        b"",
        b"/",
        b"new",
        b"new/",
        b"new/-1",
        b"new/x",
        "new/²".encode(),
        b"\xff/1",
        b"new/1/2",
        b"indexes",
    ]
    for key in strange:
        for value in (b"anything", None):
            topic.entries.append(msgspec.structs.replace(topic.entries[0], key=key, value=value))
    assert topic.read().state("new") == before


def test_a_snapshot_that_nobody_listed_is_none(topic: Topic):
    with pytest.raises(BadSnapshot, match="no snapshot 'newer'"):
        topic.read().state("newer")
    with pytest.raises(BadSnapshot, match="no snapshot 'any'"):
        Topic().read().state("any")


def test_an_index_of_another_partition_is_refused(topic: Topic):
    with pytest.raises(BadSnapshot, match="of partition 0, not of 1"):
        topic.read(partition=1).state("new")


def of_a_newer_format(value: bytes) -> bytes:
    return sealed(value[14:], snapshot.FORMAT + 1)


@pytest.mark.parametrize("key", [INDEX_KEY, chunk_key("new", 1)])
def test_a_newer_format_says_so_and_is_not_mistaken_for_damage(topic: Topic, key: bytes):
    newer = of_a_newer_format(topic.value(key))
    topic.replace(key, newer)
    if key != INDEX_KEY:  # the checksum is over the chunks as they stand in the topic
        made = made_of([topic.value(each) for each in chunks_of(topic, "new")])
        info = msgspec.structs.replace(topic.known().newest, checksum=made.checksum)
        topic.commit(closing(None, GENESIS, 0, info, ()))
    with pytest.raises(NewerRecord, match=r"format 03.*upgrade"):
        topic.read().state("new")


# --- intact, but nonsense: a writer that was wrong


def made_of(values: list[bytes]) -> SnapshotInfo:
    """What the index would say of these chunks."""
    checksum = blake2b(digest_size=16)
    for value in values:
        checksum.update(value)
    return SnapshotInfo("made", 9, 0, len(values), 1, 0, checksum.hexdigest())


HEAD = Head(GENESIS, Lead(), None)
FINE = Section("t/n", 7, 0, [9, FULL_UPPER], b"\0\0", [0, 0], [7, 7], [7, 7], b"\0\0", [1, 1])


def read_made(*chunks: object) -> PartitionState:
    values = [sealed(msgspec.msgpack.encode(chunk)) for chunk in chunks]
    topic, info = Topic(), made_of(values)
    topic.commit(
        [
            *(Payload(chunk_key("made", n), value) for n, value in enumerate(values)),
            *closing(None, GENESIS, 0, info, ()),
        ]
    )
    return topic.read().state("made")


def changed(**more: object) -> Section:
    return msgspec.structs.replace(FINE, **more)


def test_a_made_snapshot_reads():
    assert read_made(Chunk(HEAD, [A], [FINE])).bundles == 2


@pytest.mark.parametrize(
    "section",
    [
        changed(his=[9, 9], states=b"\0\0"),
        changed(his=[FULL_UPPER, 9]),
        changed(his=[9, 10]),
        changed(lo=5),
        changed(states=b"\0"),
        changed(states=b"\0\0\0"),
        changed(states=b"\0\x63"),
        changed(actions=b"\x63\0"),
        changed(actions=b"\0\0\0"),
        changed(holders=[0]),
        changed(holders=[0, 0, 0]),
        changed(holders=[0, 2]),
        changed(bys=[1, 1, 1]),
        changed(revisions=[7]),
        changed(tokens=[7, 7, 7]),
        changed(rare=[snapshot.Rare(2, B, None, None)]),
    ],
)
def test_columns_that_do_not_fit_are_refused(section: Section):
    with pytest.raises(BadSnapshot):
        read_made(Chunk(HEAD, [A], [section]))


def test_pieces_that_do_not_fit_are_refused():
    first, second = changed(his=[5, 9]), changed(lo=9, his=[10, FULL_UPPER])
    assert read_made(Chunk(HEAD, [A], [first]), Chunk(None, [A], [second])).bundles == 4
    wrong = [
        [Chunk(None, [A], [FINE])],
        [Chunk(HEAD, [A], [second]), Chunk(None, [A], [first])],
        [Chunk(HEAD, [A], [first]), Chunk(None, [A], [first])],
        [Chunk(HEAD, [A], [first]), Chunk(None, [A], [msgspec.structs.replace(second, revision=8)])],
        [Chunk(HEAD, [A], [FINE, FINE])],
        [Chunk(HEAD, [A], [FINE]), Chunk(msgspec.structs.replace(HEAD, retired="x"), [], [])],
        [Chunk(HEAD, [A], [FINE]), {"not": "a chunk"}],
    ]
    for chunks in wrong:
        with pytest.raises(BadSnapshot):
            read_made(*chunks)
