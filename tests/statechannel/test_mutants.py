"""The law with one guard taken out: the auditor must notice, or the property tests would prove nothing."""

from __future__ import annotations

import pytest

from statechannel.errors import InvariantError
from statechannel.law import table, transitions
from statechannel.law.indices import Indices
from statechannel.law.namespace import Created, Namespace
from statechannel.law.record import NEVER

from .auditor import Violation, audit
from .mutation import mutate, reguard

STEPS = 120
TABLE_OF = table.OwnershipTable

MUTANTS = {
    "no revision check": (TABLE_OF, "_judge_one", "subject.seen != entry.revision", "False"),
    "an older revision will do": (
        TABLE_OF,
        "_judge_one",
        "subject.seen != entry.revision",
        "subject.seen > entry.revision",
    ),
    "no revision check when reshaping": (table, "_present", "subject.seen != entry.revision", "False"),
    "no state check when reshaping": (table, "_present", "entry.state not in row.states", "False"),
    "no epoch check": (TABLE_OF, "_check_lead", "record.epoch != lead.epoch or record.actor != lead.leader", "False"),
    "a leader by epoch alone": (TABLE_OF, "_check_lead", "record.epoch != lead.epoch or ", ""),
    "a leader by name alone": (TABLE_OF, "_check_lead", " or record.actor != lead.leader", ""),
    "an epoch may go back": (table, "take_lead", "record.epoch <= part.lead.epoch", "False"),
    "an epoch may be taken twice": (table, "take_lead", "record.epoch <=", "record.epoch <"),
    "anybody may": (table, "find_row", "if not row.by.isdisjoint(who)", ""),
    "anybody may reshape": (table, "_is_barred", "return row", "return False and row"),
    "the holder by name": (transitions, "relations", "record.actor == holder", "NAMED(record.actor) == NAMED(holder)"),
    "the target by name": (transitions, "relations", "record.actor == target", "NAMED(record.actor) == NAMED(target)"),
    "no new token": (table, "step", "offset if row.fences else entry.token", "entry.token"),
    "a token anew in the middle of the ring": (
        table,
        "_born",
        "token=offset",
        "token=parent.token if parent else 0",
    ),
    "the target is forgotten": (table, "step", "target = entry.target", "target = None"),
    "any partition will do": (TABLE_OF, "_judge_one", "!= partition", "is None"),
    "any partition will do when reshaping": (
        table,
        "judge_reshaping",
        "table.partition_of(name) != partition",
        "False",
    ),
    "bundles of another namespace": (table, "judge_reshaping", "subject.bundle.namespace != name", "False"),
    "cuts outside the parent": (
        table,
        "_create_children",
        "any(a >= b for a, b in itertools.pairwise(cuts))",
        "False",
    ),
    "a merge over a hole": (table, "_merge", "left.bundle.hi != right.bundle.lo", "False"),
    "a merge of two holders": (table, "_merge", "part.holder != holder", "False"),
    "a delete under the holder": (
        table,
        "_delete_namespace",
        "table.is_held(name)",
        "False",
    ),
    "a late delete": (table, "_delete_namespace", "record.seen_latest not in (UNSAID, known.latest)", "False"),
    "a late create": (table, "_create_namespace", "record.seen_namespace != ", "None is "),
    "a namespace made twice": (table, "_create_namespace", "known is not None and known.exists", "False"),
    "a leader of another root": (table, "take_lead", "record.root != agreement.root", "False"),
    "a proof counts while a word is replaced": (
        TABLE_OF,
        "replay",
        "part.agreed.following is not None and",
        "False and",
    ),
    "anybody may replace a word": (table, "amend", "record.role is not Role.ADMIN", "False"),
    "a word is taken twice": (table, "agree", "following is None and", "False and"),
    "a late word": (table, "_check", "record.seen_agreement != agreed.revision", "False"),
    "anybody may close a log": (table, "retire", "record.role is not Role.ADMIN", "False"),
    "a closed log goes on": (TABLE_OF, "replay", "part.retired is not None", "False"),
    "a late record is noted in the wrong place": (Namespace, "put", "entry.bundle.lo", "entry.bundle.lo - 1"),
    "a neighbour is found": (Namespace, "get", "entry.bundle.lo == bundle.lo and ", ""),
    "a part is found": (Namespace, "get", " and entry.bundle.hi == bundle.hi", ""),
    "spliced one place too far": (Namespace, "reshaped", "_entries[last + 1 :", "_entries[last + 2 :"),
    "spliced one place too early": (Namespace, "reshaped", "_entries[:first]", "_entries[: max(0, first - 1)]"),
    "places spliced one too far": (Namespace, "reshaped", "bounds[last + 1 :", "bounds[last + 2 :"),
    "the last part stays": (Namespace, "reshaped", "_entries[last + 1 :", "_entries[last:"),
    "a snapshot goes on with its table": (Namespace, "put", "if self._shared:", "if False:"),
    "a namespace is not where its partition has it": (TABLE_OF, "_reshape", "part.namespaces[name] = ", ""),
    "a count by holder is not taken back": (Indices, "move", "self._count(before, -1)", "pass"),
    "a count by holder is not added": (Indices, "move", "self._count(after, 1)", "pass"),
    "a count by state is not taken back": (Indices, "_leave", "-= 1", "-= 0"),
    "a bundle at rest is still in flight": (
        Indices,
        "_leave",
        "self._land(entry, partition)",
        "pass",
    ),
    "a bundle in flight is not listed": (Indices, "_enter", "in IN_FLIGHT", "is None"),
    "a holder of nothing is still listed": (Indices, "_add", "if not held:", "if False:"),
    "merged bundles are still counted": (TABLE_OF, "_reshape", "self._indices.move(entry, None, partition)", "pass"),
    "what came with its namespace is not counted": (TABLE_OF, "_come_or_go", "now.count", "0"),
    "the last bundle ends too early": (Created, "bundle", "else FULL_UPPER", "else bounds[index] + 1"),
    "what was created has no token": (Created, "entry", "None, None, offset, offset", "None, None, offset, -1"),
    "children are not counted": (TABLE_OF, "_reshape", "self._indices.move(None, entry, partition)", "pass"),
}
GUARDS = {
    "a transfer to the holder": (transitions.to_is_another, transitions.to_is_given),
    "an unknown target": (transitions.target_is_known, None),
    "nowhere to go": (transitions.to_is_given, None),
}


def first_complaint(new_ledger) -> int:
    """The first seed whose history the auditor, or the table itself, objects to; NEVER if there is none."""
    for seed in range(400):
        try:
            audit(new_ledger(partitions=2), seed, STEPS)
        except (Violation, InvariantError, KeyError, IndexError):
            return seed
    return NEVER


def noticed(new_ledger, monkeypatch) -> bool:
    """Whether a history fails on the mutant that passes on the real law."""
    seed = first_complaint(new_ledger)
    monkeypatch.undo()
    audit(new_ledger(partitions=2), max(seed, 0), STEPS)
    return seed != NEVER


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_check_taken_out_is_noticed(new_ledger, monkeypatch, mutant: str):
    mutate(monkeypatch, *MUTANTS[mutant])
    assert noticed(new_ledger, monkeypatch)


@pytest.mark.parametrize("mutant", GUARDS)
def test_a_guard_of_the_table_taken_out_is_noticed(new_ledger, monkeypatch, mutant: str):
    reguard(monkeypatch, *GUARDS[mutant])
    assert noticed(new_ledger, monkeypatch)
