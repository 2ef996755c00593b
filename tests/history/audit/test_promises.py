"""The law with one check taken out: the audit, which does not know the law, finds what it lets through, and where."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadmanager.history.audit import Invariant
from statechannel.errors import InvariantError
from statechannel.law import codec, table, transitions
from statechannel.law.record import Action, BrokerId, Record
from statechannel.law.verdict import Change
from statechannel.ports import LogEntry
from statechannel.runtime.core import ChannelCore
from tests.history.folding.tasks import Entry
from tests.statechannel.mutation import mutate, reguard

from .tasks import Found, audited, honest

STEPS = 120
TABLE_OF = table.OwnershipTable

MUTANTS = {
    "no revision check": (Invariant.SEEN, (TABLE_OF, "_judge_one", "subject.seen != entry.revision", "False")),
    "a late create": (Invariant.SEEN, (table, "_create_namespace", "record.seen_namespace != ", "None is ")),
    "no epoch check": (
        Invariant.EPOCH,
        (TABLE_OF, "_check_lead", "record.epoch != lead.epoch or record.actor != lead.leader", "False"),
    ),
    "an epoch taken twice": (Invariant.EPOCH, (table, "take_lead", "record.epoch <=", "record.epoch <")),
    "anybody may": (Invariant.AUTHOR, (table, "find_row", "if not row.by.isdisjoint(who)", "")),
    "anybody may reshape": (Invariant.AUTHOR, (table, "_is_barred", "return row", "return False and row")),
    "anybody may close a log": (
        Invariant.AUTHOR,
        (table, "retire", "record.role is not Role.ADMIN", "False"),
    ),
    "a leader of another root": (
        Invariant.AUTHOR,
        (table, "take_lead", "record.root != agreement.root", "False"),
    ),
    "anybody may replace what is agreed on": (
        Invariant.AUTHOR,
        (table, "amend", "record.role is not Role.ADMIN", "False"),
    ),
    "what is agreed on is replaced without warning": (
        Invariant.PLACE,
        (table, "agree", "following is None and", "False and"),
    ),
    "anything counts while it is replaced": (
        Invariant.PLACE,
        (TABLE_OF, "replay", "part.agreed.following is not None and", "False and"),
    ),
    "a closed log goes on": (Invariant.PLACE, (TABLE_OF, "replay", "part.retired is not None", "False")),
    "any partition will do": (
        Invariant.PLACE,
        (table, "judge_reshaping", "table.partition_of(name) != partition", "False"),
    ),
    "the holder by name": (
        Invariant.OWNER,
        (transitions, "relations", "record.actor == holder", "NAMED(record.actor) == NAMED(holder)"),
    ),
    "a delete under the holder": (
        Invariant.OWNER,
        (table, "_delete_namespace", "table.is_held(name)", "False"),
    ),
    "the target is forgotten": (Invariant.OWNER, (table, "step", "target = entry.target", "target = None")),
    "reshaped on its way": (Invariant.OWNER, (table, "_present", "entry.state not in row.states", "False")),
    "no new token": (Invariant.TOKEN, (table, "step", "offset if row.fences else entry.token", "entry.token")),
    "children with their parent's token": (
        Invariant.TOKEN,
        (table, "_born", "token=offset", "token=parent.token if parent else offset"),
    ),
    "somewhere else than it says": (Invariant.OWNER, (table, "step", "holder = record.to", "holder = record.actor")),
    "aimed somewhere else": (Invariant.OWNER, (table, "step", "target = record.to", "target = record.actor")),
    "what is handed over goes to anybody": (
        Invariant.HAND_OFF,
        (
            table,
            "step",
            "hand_off=subject.hand_off if then is _HOLD_TARGET else None",
            "hand_off=subject.hand_off",
        ),
    ),
    "what is handed over is lost": (
        Invariant.HAND_OFF,
        (table, "step", "hand_off=subject.hand_off if then is _HOLD_TARGET else None", "hand_off=None"),
    ),
    "anybody may lead": (Invariant.AUTHOR, (table, "take_lead", "record.role is not Role.LEADER or ", "")),
    "a late delete": (
        Invariant.SEEN,
        (table, "_delete_namespace", "record.seen_namespace != known.revision", "False"),
    ),
    "a delete that saw less": (
        Invariant.SEEN,
        (table, "_delete_namespace", "record.seen_latest not in (UNSAID, known.latest)", "False"),
    ),
    "cut where nobody said": (
        Invariant.TILING,
        (table, "_create_children", "tile(name, cuts)", "tile(name, (cuts[0], cuts[1], cuts[-1]))"),
    ),
    "children in another state": (Invariant.ENTRY, (table, "_born", "State.ASSIGNED", "State.SPLITTING")),
    "a token that goes back": (Invariant.ENTRY, (table, "step", "offset if row.fences else entry.token", "0")),
    "a revision that is none": (Invariant.ENTRY, (table, "step", "revision=offset", "revision=offset + 1")),
    "a merge over a hole": (
        Invariant.TILING,
        (table, "_merge", "left.bundle.hi != right.bundle.lo", "False"),
    ),
    "cuts outside the parent": (
        Invariant.LOG,
        (table, "_create_children", "any(a >= b for a, b in itertools.pairwise(cuts))", "False"),
    ),
}


def digests(entries: list[Entry]) -> dict[tuple[int, int], str]:
    """Of each entry whether it counted, and of its partition what it was behind it; as far as the law goes."""
    core, found = ChannelCore(2), dict[tuple[int, int], str]()
    for entry in entries:
        try:
            applied = core.apply(LogEntry(entry.partition, entry.offset, None, entry.value, 0))
        except InvariantError:
            return found
        counted = "accepted" if isinstance(applied.verdict, Change) else "refused"
        found[entry.partition, entry.offset] = f"{counted} {core.table.digest(entry.partition)}"
    return found


def first_found(invariant: Invariant) -> tuple[list[Entry], Found]:
    """A log that the mutant accepts, and what the audit says of it."""
    for seed in range(200):
        entries = honest(seed, STEPS)
        found = audited(entries, apart=1_000)
        if any(v["invariant"] == invariant for v in found.violation):
            return entries, found
    raise AssertionError("no history breaks it")


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_law_that_lets_something_through_is_found_out_at_the_first_record(monkeypatch, mutant: str):
    invariant, change = MUTANTS[mutant]
    mutate(monkeypatch, *change)
    check_found_at_the_first_record(monkeypatch, invariant)


GUARDS = {
    "the revoked comes back": (transitions.to_is_not_the_revoked, transitions.to_is_given),
    "on its way to where it is": (transitions.to_is_another, transitions.to_is_given),
}


@pytest.mark.parametrize("mutant", GUARDS)
def test_a_guard_that_is_too_weak_is_found_out_at_the_first_record(monkeypatch, mutant: str):
    reguard(monkeypatch, *GUARDS[mutant])
    check_found_at_the_first_record(monkeypatch, Invariant.OWNER)


def check_found_at_the_first_record(monkeypatch, invariant: Invariant) -> None:
    entries, found = first_found(invariant)
    wrong = digests(entries)
    monkeypatch.undo()
    right = digests(entries)
    for partition in {v["partition"] for v in found.violation}:
        first = min(v["offset"] for v in found.violation if v["partition"] == partition)
        assert first == min(at for p, at in right if p == partition and right[p, at] != wrong.get((p, at)))
    written = {(entry.partition, entry.offset) for entry in entries}
    assert all(v["record"] for v in found.violation if (v["partition"], v["offset"]) in written)


def test_a_refused_record_that_changes_something_is_noticed_by_the_next_change(monkeypatch):
    put = "self._namespaces[outcome.winner.bundle.namespace].put"
    changed = f"outcome.winner and {put}(msgspec.structs.replace(outcome.winner, hand_off=b'x'))"
    mutate(monkeypatch, TABLE_OF, "_judge_many", "refused.append(outcome)", f"refused.append(outcome); {changed}")
    _, found = first_found(Invariant.OWNER)
    assert all("no accepted record" in v["detail"] for v in found.violation)


def test_a_log_of_two_clusters_is_found_at_the_second_genesis(monkeypatch):
    mutate(monkeypatch, TABLE_OF, "_begin", "self.cluster_identity is not None", "False")
    records = [Record(name, Action.GENESIS, BrokerId("a:1", 1), cluster=name) for name in ("north", "south")]
    found = audited(Entry(0, offset, codec.encode(record)) for offset, record in enumerate(records))
    assert found.broken() == {(1, "place")}
    assert "north's, and becomes south's" in found.violation[0]["detail"]


def test_every_invariant_is_in_the_docs_and_nothing_else_is():
    page = (Path(__file__).parents[3] / "docs" / "lakehouse.md").read_text()
    section = page.partition("## What the audit checks")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)) == sorted(Invariant)
