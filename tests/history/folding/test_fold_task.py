"""The fold of a log in batches: however it is cut, shuffled and repeated, what it says is what a replica says."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.errors import Invalid
from loadmanager.history import tasks
from loadmanager.history.schemas import CHANNEL_STATE
from loadmanager.history.verdicts import SEEDED, packed
from statechannel.law import codec
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.verdict import Change, Refusal
from statechannel.ports import LogEntry
from statechannel.runtime.core import ChannelCore
from tests.loadmanager.small_world import A, B, Hand, replica, virtually
from tests.simulator.world import World
from tests.statechannel.test_service import TOPIC, foreign

from .tasks import APPENDED_US, Entry, Table, history, numbered, of_format

NEWER = codec.NEWEST_VERSION + 1
STATE_NAMES = tuple(CHANNEL_STATE.names)


def noop(offset: int, partition: int = 0, **more: Any) -> Entry:
    record = Record(f"r{offset}", Action.NOOP, BrokerId("a:1", 1), **more)
    return Entry(partition, offset, codec.encode(record))


def cut(entries: list[Entry], cuts: list[int]) -> list[list[Entry]]:
    edges = [0, *sorted(c % (len(entries) + 1) for c in cuts), len(entries)]
    return [entries[a:b] for a, b in itertools.pairwise(edges)]


def judged_by_a_core(entries: list[Entry]) -> tuple[ChannelCore, dict[tuple[int, int], str], int]:
    core, verdicts, transitions = ChannelCore(2), dict[tuple[int, int], str](), 0
    for entry in entries:
        verdict = core.apply(LogEntry(entry.partition, entry.offset, None, entry.value, 0)).verdict
        if isinstance(verdict, Change):
            transitions += len(verdict.transitions)
        if verdict is not None:
            said = verdict.reason.value if isinstance(verdict, Refusal) else "accepted"
            verdicts[entry.partition, entry.offset] = said
    return core, verdicts, transitions


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 120), st.lists(st.integers(0, 120), max_size=5), st.integers(1, 50))
def test_any_cutting_into_batches_says_what_one_pass_and_a_replica_say(seed, steps, cuts, arrow_rows):
    entries, rng = history(seed, steps), Random(seed)
    whole, pieces = Table().fold(entries, 0), Table()
    for number, piece in enumerate(cut(entries, cuts)):
        again = rng.sample(entries[: entries.index(piece[0])], 1) if piece and entries.index(piece[0]) else []
        doubled = [*piece, *rng.sample(piece, len(piece) // 3), *again]
        rng.shuffle(doubled)
        pieces.fold(doubled, number, arrow_rows=arrow_rows)
    assert numbered(pieces.channel) == numbered(whole.channel)
    assert numbered(pieces.transition) == numbered(whole.transition)
    assert numbered(pieces.unreadable) == numbered(whole.unreadable)
    core, verdicts, transitions = judged_by_a_core(entries)
    assert {(r["partition"], r["offset"]): r["refusal"] or r["verdict"] for r in pieces.channel} == verdicts
    assert len(pieces.channel) == len(verdicts)
    assert len(pieces.transition) == transitions
    for partition in {entry.partition for entry in entries}:
        assert pieces.of(partition).digest() == whole.of(partition).digest() == core.table.digest(partition)
        assert pieces.of(partition).next_offset == core.table.next_offset(partition)


@virtually
async def test_a_real_replica_that_read_the_same_log_has_the_same_digest_and_the_same_counts(world: World):
    async with replica(world) as channel:
        await channel.claim_cluster("c", A)
        hand = Hand(channel)
        x, y, *_ = await hand.create(4)
        foreign(world, b"no record")
        for bundle in (x, y):
            await hand.write(Action.OWN, bundle, A, A)
            await hand.write(Action.RETURN, bundle, A)
        await hand.write(Action.TRANSFER, x, A, B)
        await hand.write(Action.RETURN, x, B)  # illegal
        await hand.write(Action.READY, x, B)
        entries = [Entry(0, e.offset, e.value) async for batch in channel.replica.log.read(TOPIC, 0, 0) for e in batch]
        folded = Table()
        for number, entry in enumerate(entries):
            folded.fold([entry], number, partitions=1)
        assert folded.of(0).digest() == channel.table.digest(0)
        counts = channel.replica.counts
        assert [row["verdict"] for row in folded.channel].count("accepted") == counts["accepted"]
        assert [row["refusal"] for row in folded.channel].count("illegal") == counts["refused illegal"] == 1
        assert len(folded.unreadable) == counts["skipped"] == 1


# --- what is passed over


def test_an_offset_counts_once_however_often_and_late_it_comes():
    entries = [noop(0), noop(1), noop(2)]
    table = Table().fold([*entries, *entries], 0).fold([*entries, noop(3)], 1)
    assert [row["offset"] for row in table.channel] == [0, 1, 2, 3]
    assert table.fold(entries, 2).positions()[0].batch == 1, "nothing new: no new state"


def test_behind_a_hole_nothing_is_judged_until_a_state_covers_it():
    table = Table().fold([noop(0), noop(1), noop(3)], 0).fold([noop(7)], 1)
    assert [row["verdict"] for row in table.channel] == ["accepted", "accepted", "unknown", "unknown"]
    assert table.positions()[0].next_offset == 2, "from here a snapshot has to say what was there"
    later = Table().fold([noop(offset) for offset in range(9)], 0).of(0)
    table.state += [dict(zip(STATE_NAMES, row, strict=True)) for row in packed(later, SEEDED, 0)]
    table.fold([noop(8), noop(9)], 2)
    assert [row["verdict"] for row in table.channel[-2:]] == ["unknown", "accepted"]


def test_a_corrupt_record_goes_to_quarantine_and_the_fold_goes_on():
    table = Table().fold([noop(0), Entry(0, 1, b"dust"), Entry(0, 2, None), noop(3)], 0)
    assert [(r["offset"], r["kind"], r["value"]) for r in table.unreadable] == [
        (1, "corrupt", b"dust"),
        (2, "corrupt", None),
    ]
    assert table.unreadable[0]["topic"] == TOPIC
    assert "not a record" in table.unreadable[0]["reason"]
    assert [row["offset"] for row in table.channel] == [0, 3]
    assert table.positions()[0].next_offset == 4


# --- a newer record


def test_before_a_newer_record_the_partition_is_held_and_the_others_go_on():
    table = Table().fold([noop(0), Entry(0, 1, of_format(NEWER)), noop(2), noop(0, 1)], 0)
    assert [(r["partition"], r["offset"]) for r in table.channel] == [(0, 0), (1, 0)]
    assert [(r["offset"], r["kind"]) for r in table.unreadable] == [(1, "newer")]
    at = table.positions()[0]
    assert (at.next_offset, at.held) == (1, NEWER)
    assert table.positions()[1].held is None
    before = len(table.state)
    table.fold([noop(3), Entry(0, 4, b"dust"), noop(1, 1)], 1)
    assert [(r["partition"], r["offset"]) for r in numbered(table.channel)] == [(0, 0), (1, 0), (1, 1)]
    assert len(table.unreadable) == 1, "what waits is in bronze, and nowhere else"
    assert table.positions()[0] == at
    assert len(table.state) - before == 2, "of partition 1 alone"


def test_a_first_record_of_a_newer_format_holds_its_partition_too():
    table = Table().fold([Entry(0, 0, of_format(NEWER))], 0).fold([noop(1)], 1)
    assert (table.channel, table.positions()[0].next_offset, table.positions()[0].held) == ([], 0, NEWER)


def held_by_an_older_release(held: int) -> Table:
    """One that folded offset 0 and stands before offset 1."""
    table = Table().fold([noop(0)], 0)
    for row in table.state:
        row["held"] = held
    return table


def test_after_an_upgrade_it_goes_on_from_the_record_that_held_it_and_only_from_there():
    table = held_by_an_older_release(codec.NEWEST_VERSION)
    table.fold([noop(5)], 1)
    assert [row["offset"] for row in table.channel] == [0], "1 to 4 have not come: it stays where it is"
    table.fold([noop(offset) for offset in range(1, 6)], 2)
    assert [row["offset"] for row in table.channel] == [0, 1, 2, 3, 4, 5]
    assert (table.positions()[0].next_offset, table.positions()[0].held) == (6, None)
    assert table.of(0).digest() == Table().fold([noop(offset) for offset in range(6)], 0).of(0).digest()


def test_an_upgrade_to_a_release_that_cannot_read_it_either_changes_nothing():
    table = held_by_an_older_release(NEWER)
    assert [row["offset"] for row in table.fold([noop(1), noop(2)], 1).channel] == [0]


# --- a log whose beginning is gone


def test_without_its_beginning_nothing_is_judged_and_nothing_is_lost():
    table = Table().fold([noop(5), Entry(0, 6, b"dust"), Entry(0, 7, of_format(NEWER)), noop(8)], 0)
    assert [(r["offset"], r["verdict"]) for r in table.channel] == [(5, "unknown"), (8, "unknown")]
    assert [(r["offset"], r["kind"]) for r in table.unreadable] == [(6, "corrupt"), (7, "newer")]
    assert table.state == []


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(0, 60))
def test_from_a_seed_on_verdicts_are_those_of_the_whole_log(seed: int, first: int, beyond: int):
    entries = [entry for entry in history(seed, 100) if entry.partition == 0]
    first, seeded_at = min(first, len(entries)), min(first + beyond, len(entries))
    whole, seeded = Table().fold(entries, 0), Table()
    state = msgspec.structs.replace(Table().fold(entries[:seeded_at], 0).of(0)) if seeded_at else None
    if state is not None:
        seeded.state = [dict(zip(STATE_NAMES, row, strict=True)) for row in packed(state, SEEDED, 0)]
    rest = entries[first:]
    seeded.fold(rest[: len(rest) // 2], 0).fold(rest[len(rest) // 2 :], 1)
    expected = [r for r in whole.channel if r["offset"] >= first]
    assert [r["offset"] for r in seeded.channel] == [r["offset"] for r in expected]
    assert [r for r in seeded.channel if r["offset"] >= seeded_at] == [r for r in expected if r["offset"] >= seeded_at]
    assert all(r["verdict"] == "unknown" for r in seeded.channel if r["offset"] < seeded_at)
    if rest:
        assert seeded.of(0).digest() == whole.of(0).digest()


# --- rows


def test_a_row_says_all_of_its_record():
    entries = history(3, 200)
    table = Table().fold(entries, 0)
    for row in table.channel:
        entry = next(e for e in entries if (e.partition, e.offset) == (row["partition"], row["offset"]))
        assert entry.value is not None
        record = codec.decode(entry.value)
        assert (row["id"], row["action"], row["role"], row["epoch"]) == (
            record.id,
            record.action,
            record.role,
            record.epoch,
        )
        assert (row["actor"], row["actor_incarnation"]) == (record.actor.name, record.actor.incarnation)
        assert (row["to"], row["to_incarnation"]) == (
            (record.to.name, record.to.incarnation) if record.to else (None, None)
        )
        assert row["bundles"] == [str(subject.bundle) for subject in record.subjects]
        assert row["seen"] == [subject.seen for subject in record.subjects]
        assert row["format"] == int(entry.value[2:4], 16)
        assert row["day"] == row["at"].date()
        assert (row["detail"] is not None) >= (row["verdict"] == "refused")


@pytest.mark.parametrize("at_ms", [0, -5, 10**15, 10**30])
def test_of_a_record_without_a_possible_time_the_time_is_the_logs(at_ms: int):
    row = Table().fold([noop(0, at_ms=at_ms)], 0).channel[0]
    assert row["at"] == row["appended_at"] == datetime.fromtimestamp(APPENDED_US / 1e6, UTC)
    assert Table().fold([noop(0, at_ms=5_000)], 0).channel[0]["at"] == datetime.fromtimestamp(5, UTC)


def test_rows_become_arrow_before_they_are_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "ROWS_AT_ONCE", 10)
    table = Table().fold([noop(offset) for offset in range(100)], 0)
    assert (len(table.channel), table.most_at_once) == (100, 10)


def test_a_partition_beyond_those_of_the_channel_is_an_error():
    with pytest.raises(Invalid, match="partition 2"):
        Table().fold([Entry(2, 0, b"")], 0, partitions=2)


def test_a_namespace_that_is_made_and_unmade_has_rows_without_before_and_after():
    names, edges = "shop/orders", (0, 2**31, 2**32 - 1)
    admin = {"role": Role.ADMIN, "namespace": names}
    made = Record("m", Action.CREATE_NAMESPACE, A, boundaries=edges, **admin)
    gone = Record("d", Action.DELETE_NAMESPACE, A, seen_namespace=0, seen_latest=0, **admin)
    table = Table().fold([Entry(0, n, codec.encode(r)) for n, r in enumerate((made, gone))], 0, partitions=1)
    rows = [(r["ordinal"], r["state_before"], r["state"], r["revision_before"], r["token"]) for r in table.transition]
    assert rows == [
        (0, None, "unassigned", None, 0),
        (1, None, "unassigned", None, 0),
        (0, "unassigned", None, 0, None),
        (1, "unassigned", None, 0, None),
    ]
