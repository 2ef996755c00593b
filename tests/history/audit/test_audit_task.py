"""The audit of a log: nothing is found where all is well, and what is broken is found where it stands."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.history.audit.segments import Extent
from statechannel.law import codec
from statechannel.law.partition import PartitionState
from statechannel.law.record import BrokerId
from statechannel.law.transitions import State
from statechannel.ports import LogEntry
from statechannel.runtime.core import ChannelCore
from tests.history.folding.tasks import Entry, Table, of_format

from .tasks import audited, honest, recorded, states_of

SEED, STEPS = 11, 150
EVERYWHERE = [(partition, offset) for partition in (0, 1) for offset in range(0, STEPS, 12)]


def first_of(entries: list[Entry], fits: Callable[[dict[str, Any]], bool]) -> tuple[dict[str, Any], Table]:
    silver = recorded(entries)
    return next(row for row in silver.channel if fits(row)), silver


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 150), st.integers(5, 40))
def test_of_a_log_that_is_well_nothing_is_found_however_it_is_cut(seed: int, steps: int, apart: int):
    entries, rng = honest(seed, steps), Random(seed)
    at = [(rng.randrange(2), rng.randrange(steps)) for _ in range(rng.randrange(6))]
    found = audited(entries, states_of(entries, at), recorded(entries), apart=apart)
    assert found.violation == []
    core, verdicts = ChannelCore(2), dict.fromkeys(("accepted", "refused", "corrupt"), 0)
    for entry in entries:
        said = core.apply(LogEntry(entry.partition, entry.offset, None, entry.value, 0))
        name = "corrupt" if said.record is None else "accepted" if hasattr(said.verdict, "transitions") else "refused"
        verdicts[name] += 1
    assert {name: sum(row[name] for row in found.counted) for name in verdicts} == verdicts
    for partition in {entry.partition for entry in entries}:
        last = max((r for r in found.counted if r["partition"] == partition), key=lambda row: row["segment"])
        assert last["digest"] == core.table.digest(partition)


def test_one_partition_is_audited_in_pieces_that_hang_together():
    entries = honest(SEED, STEPS)
    found = audited(entries, states_of(entries, EVERYWHERE), apart=12)
    assert len(found.counted) > 6
    assert sum(row["compared"] for row in found.counted) > 8
    assert sum(row["records"] for row in found.counted) == len(entries)


# --- the log


def test_an_entry_that_was_taken_out_is_missed_by_the_next_author():
    entries = honest(SEED, STEPS)
    caught = 0
    silver = recorded(entries)
    for row in (r for r in silver.channel if r["verdict"] == "accepted" and r["action"] in ("own", "transfer")):
        without = [e for e in entries if (e.partition, e.offset) != (row["partition"], row["offset"])]
        lost = [
            v for v in audited(without).violation if v["invariant"] == "entry" and "entries were lost" in v["detail"]
        ]
        if lost:
            caught += 1
            assert min(v["offset"] for v in lost) > row["offset"]
            assert all(v["record"] and v["id"] for v in lost)
    assert caught > 3


def test_an_offset_that_is_passed_over_is_found_whatever_stood_there():
    entries = honest(SEED, STEPS)
    for lost in range(5, 60, 9):
        without = [e for e in entries if (e.partition, e.offset) not in {(0, lost), (0, lost + 1)}]
        found = audited(without).violation
        assert f"offsets {lost} to {lost + 1} are not there" in found[0]["detail"]
        assert (found[0]["partition"], found[0]["offset"], found[0]["invariant"]) == (0, lost, "log")


@pytest.mark.parametrize("lost", [23, 24])
def test_a_hole_at_the_seam_of_two_pieces_is_found(lost: int):
    entries = honest(SEED, STEPS)
    without = [e for e in entries if (e.partition, e.offset) != (0, lost)]
    found = audited(without, states_of(entries, [(0, 24)]), apart=12)
    assert len([row for row in found.counted if row["partition"] == 0]) == 2
    assert (lost, "log") in found.broken()


def test_behind_a_hole_that_is_known_it_goes_on_with_the_next_state():
    entries = honest(SEED, STEPS)
    without = [e for e in entries if not 20 <= e.offset < 30]
    states = states_of(entries, [(0, 20), (0, 36), (1, 30), (1, 48)])
    found = audited(without, states, recorded(entries), apart=1_000, known_hole=Extent(20, 30))
    assert found.violation == []
    assert [row["unjudged"] for row in found.counted] == [0, 6, 0, 0, 0]
    assert sum(row["compared"] for row in found.counted) == 2
    assert audited(without, states, apart=1_000).violation


def test_two_different_records_at_one_offset_are_found_and_a_copy_is_not():
    entries = honest(SEED, STEPS)
    assert audited([*entries, entries[20]]).violation == []
    other = Entry(entries[20].partition, entries[20].offset, entries[21].value)
    found = audited([*entries, other])
    assert (other.offset, "log") in found.broken()


def test_a_record_of_a_newer_format_is_no_violation_and_what_follows_is_not_judged():
    entries = [e for e in honest(SEED, STEPS) if e.partition == 0]
    entries[30] = Entry(0, 30, of_format(codec.NEWEST_VERSION + 1))
    (row,) = audited(entries, apart=1_000).counted
    assert (row["newer"], row["unjudged"], row["digest"]) == (1, len(entries) - 31, None)
    assert audited(entries, apart=1_000).violation == []


def test_of_a_trimmed_log_what_precedes_the_oldest_state_is_counted_and_not_judged():
    entries = honest(SEED, STEPS)
    states = states_of(entries, [(0, 30), (1, 30)])
    found = audited([e for e in entries if e.offset >= 20], states)
    assert found.violation == []
    assert sum(row["unjudged"] for row in found.counted) == 20
    assert sum(row["unjudged"] for row in audited([e for e in entries if e.offset >= 20]).counted) == len(
        [e for e in entries if e.offset >= 20]
    )


# --- snapshots


def stolen(state: PartitionState) -> PartitionState:
    """A state in which one bundle is another's."""
    name, entries = next((n, list(ns.entries)) for n, ns in enumerate(state.namespaces) if ns.entries)
    entries[0] = msgspec.structs.replace(entries[0], holder=BrokerId("thief:1", 9), state=State.ASSIGNED)
    changed = msgspec.structs.replace(state.namespaces[name], entries=entries)
    return msgspec.structs.replace(state, namespaces=(*state.namespaces[:name], changed, *state.namespaces[name + 1 :]))


@pytest.mark.parametrize("apart", [10, 1_000])
def test_a_snapshot_that_says_otherwise_is_found_at_its_offset(apart: int):
    entries = honest(SEED, STEPS)
    states = states_of(entries, EVERYWHERE)
    where = next(w for w, s in sorted(states.items()) if w[1] > 20 and s.bundles)
    states[where] = stolen(states[where])
    violation = next(v for v in audited(entries, states, apart=apart).violation if v["invariant"] == "snapshot")
    assert (violation["partition"], violation["offset"]) == where
    assert "thief:1#9" in violation["detail"]
    assert f"state {where[1]}" in violation["detail"]


def test_a_snapshot_that_differs_in_what_is_no_bundle_is_found_too():
    entries = honest(SEED, STEPS)
    states = states_of(entries, [(0, 40)])
    states[0, 40] = msgspec.structs.replace(states[0, 40], incarnations=(("ghost", 4),))
    found = audited(entries, states, apart=1_000)
    assert found.broken() == {(40, "snapshot")}
    assert "incarnations" in found.violation[0]["detail"]


# --- the lakehouse


TAMPERINGS: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "a verdict": ("channel", lambda row: {"verdict": "refused", "refusal": "stale"}),
    "an actor": ("channel", lambda row: {"actor": "thief:1"}),
    "a seen revision": ("channel", lambda row: {"seen": [7_777]}),
    "an offset": ("channel", lambda row: {"offset": 100_000}),
    "a new holder": ("transition", lambda row: {"holder": "thief:1", "holder_incarnation": 1}),
    "a token": ("transition", lambda row: {"token": 7_777}),
    "a state": ("transition", lambda row: {"state": "revoking"}),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_a_row_of_the_lakehouse_that_was_tampered_with_is_found(what: str):
    table, change = TAMPERINGS[what]
    entries = honest(SEED, STEPS)
    row, silver = first_of(entries, lambda r: r["offset"] > 30 and r["action"] == "own" and r["verdict"] == "accepted")
    rows = getattr(silver, table)
    index = next(n for n, r in enumerate(rows) if (r["partition"], r["offset"]) == (row["partition"], row["offset"]))
    rows[index] = {**rows[index], **change(rows[index])}
    found = audited(entries, silver=silver)
    assert found.broken() == {(row["offset"], "recorded")}
    (violation, *_) = found.violation
    assert (violation["id"], violation["partition"]) == (row["id"], row["partition"])
    assert "own" in violation["record"]
    if what == "a verdict":
        assert "verdict is 'refused', not 'accepted'" in violation["detail"]


@pytest.mark.parametrize("table", ["channel", "transition"])
@pytest.mark.parametrize("twice", [True, False])
def test_a_row_that_is_missing_or_there_twice_is_found(table: str, twice: bool):
    entries = honest(SEED, STEPS)
    row, silver = first_of(entries, lambda r: r["offset"] > 30 and r["action"] == "own" and r["verdict"] == "accepted")
    rows = getattr(silver, table)
    there = [r for r in rows if (r["partition"], r["offset"]) == (row["partition"], row["offset"])]
    rows[:] = [*rows, *there] if twice else [r for r in rows if r not in there]
    assert audited(entries, silver=silver).broken() == {(row["offset"], "recorded")}


def test_a_row_without_a_record_is_found():
    entries = honest(SEED, STEPS)
    corrupt = next(e for e in entries if e.value == b"dust" and e.offset > 30)
    silver = recorded(entries)
    invented = next(row for row in silver.channel if row["partition"] == corrupt.partition)
    silver.channel.append({**invented, "offset": corrupt.offset})
    assert audited(entries, silver=silver).broken() == {(corrupt.offset, "recorded")}
    gone = [e for e in entries if e is not entries[40]]
    assert (entries[40].offset, "recorded") in audited(gone, silver=recorded(entries)).broken()


def test_a_lakehouse_that_is_behind_or_that_knows_no_verdict_is_not_at_fault():
    entries = honest(SEED, STEPS)
    behind = recorded([e for e in entries if e.offset < 40])
    assert audited(entries, silver=behind, until={0: 40, 1: 40}).violation == []
    assert audited(entries, silver=behind, until={0: 41, 1: 40}).broken() == {(40, "recorded")}
    silver = recorded(entries)
    silver.channel[10] |= {"verdict": "unknown"}
    assert audited(entries, silver=silver).violation == []
