"""The law with one guard taken out: the auditor must notice, or the property tests would prove nothing."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType

import msgspec
import pytest

from statechannel import reshaping, table, transitions
from statechannel.errors import InvariantError
from statechannel.record import NEVER
from statechannel.transitions import Row

from .auditor import Violation, audit

STEPS = 120
TABLE_OF = table.OwnershipTable
PLACES: dict[str, tuple[ModuleType, ...]] = {"relations": (transitions, table, reshaping)}


def mutate(monkeypatch, owner: ModuleType | type, name: str, old: str, new: str) -> None:
    """Put a copy of a function, in which `old` reads `new`, in its place, wherever it was imported."""
    original = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(original))
    assert source.count(old) == 1, f"{name} does not read {old!r} once: mend this mutant"
    scope: dict[str, object] = {**original.__globals__, "NAMED": lambda broker: broker and broker.name}
    flags = __future__.annotations.compiler_flag
    exec(compile(source.replace(old, new), f"<mutant of {name}>", "exec", flags), scope)
    for place in PLACES.get(name, (owner,)):
        monkeypatch.setattr(place, name, scope[name])


def reguard(monkeypatch, old: Callable[..., bool], new: Callable[..., bool] | None) -> None:
    """Put another guard into each row that has `old`."""
    for key, known in transitions._ROWS.items():
        swapped: tuple[Row, ...] = tuple(msgspec.structs.replace(r, guard=new) if r.guard is old else r for r in known)
        monkeypatch.setitem(transitions._ROWS, key, swapped)


MUTANTS = {
    "no revision check": (TABLE_OF, "_judge_one", "subject.seen != entry.revision", "False"),
    "an older revision will do": (
        TABLE_OF,
        "_judge_one",
        "subject.seen != entry.revision",
        "subject.seen > entry.revision",
    ),
    "no revision check when reshaping": (reshaping, "_present", "subject.seen != entry.revision", "False"),
    "no state check when reshaping": (reshaping, "_present", "entry.state not in row.states", "False"),
    "no epoch check": (TABLE_OF, "_check_lead", "record.epoch != lead.epoch or record.actor != lead.leader", "False"),
    "a leader by epoch alone": (TABLE_OF, "_check_lead", "record.epoch != lead.epoch or ", ""),
    "a leader by name alone": (TABLE_OF, "_check_lead", " or record.actor != lead.leader", ""),
    "an epoch may go back": (TABLE_OF, "_take_lead", "record.epoch <= self._leads[partition].epoch", "False"),
    "an epoch may be taken twice": (TABLE_OF, "_take_lead", "record.epoch <=", "record.epoch <"),
    "anybody may": (table, "find_row", "if not row.by.isdisjoint(who)", ""),
    "anybody may reshape": (reshaping, "_is_barred", "return row", "return False and row"),
    "the holder by name": (transitions, "relations", "record.actor == holder", "NAMED(record.actor) == NAMED(holder)"),
    "the target by name": (transitions, "relations", "record.actor == target", "NAMED(record.actor) == NAMED(target)"),
    "no new token": (table, "step", "offset if row.fences else entry.token", "entry.token"),
    "a token anew in the middle of the ring": (
        reshaping,
        "_born",
        "token=offset",
        "token=parent.token if parent else 0",
    ),
    "the target is forgotten": (table, "step", "target = entry.target", "target = None"),
    "any partition will do": (TABLE_OF, "_judge_one", "!= partition", "is None"),
    "any partition will do when reshaping": (reshaping, "judge", "table.partition_of(name) != partition", "False"),
    "bundles of another namespace": (reshaping, "judge", "subject.bundle.namespace != name", "False"),
    "cuts outside the parent": (
        reshaping,
        "_create_children",
        "any(a >= b for a, b in itertools.pairwise(cuts))",
        "False",
    ),
    "a merge over a hole": (reshaping, "_merge", "left.bundle.hi != right.bundle.lo", "False"),
    "a merge of two holders": (reshaping, "_merge", "part.holder != holder", "False"),
    "a delete under the holder": (reshaping, "_delete_namespace", "e.state not in row.states", "False"),
    "a late create": (reshaping, "_create_namespace", "record.seen_namespace != ", "None is "),
    "a namespace made twice": (reshaping, "_create_namespace", "known is not None and known.exists", "False"),
    "a lost index": (TABLE_OF, "_unindex", "after.holder != before.holder", "False"),
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
        except (Violation, InvariantError, KeyError):
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
