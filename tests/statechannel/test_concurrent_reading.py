"""What another thread sees of a record that is being replayed: the table as before or after it, nothing between.

Threads of one interpreter change places between two instructions. Instead of waiting for the unlucky moment, the reader
here looks before each line that the table's code executes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from statechannel.law import indices, namespace, partition, table
from statechannel.law.bundle import FULL_UPPER, Bundle, Key
from statechannel.law.record import Action
from statechannel.law.verdict import Change

from .mutation import mutate

WATCHED = {module.__file__ for module in (table, indices, namespace, partition)}
TOPICS = [Key.parse(f"shop/orders/t{i}") for i in range(20)]
MIDDLE = 0x20000000


def seen_during(act: Callable[[], object], look: Callable[[], Any]) -> list[Any]:
    """What `look` gives before each line of the table's code while `act` runs, and after it; without repetitions."""
    seen: list[Any] = []

    def note() -> None:
        found = look()
        if not seen or seen[-1] != found:
            seen.append(found)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in WATCHED and not frame.f_code.co_filename.startswith("<mutant"):
            return None
        if event == "line":
            note()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    note()
    return seen


def accepted(verdict: object) -> None:
    assert isinstance(verdict, Change), f"refused: {verdict}"


@pytest.fixture
def assigned(ledger):
    """Two bundles, both Assigned(A), and nothing else of A's."""
    for bundle in ledger.begin():
        ledger.assign(bundle)
    return ledger


def reader(ledger, *bundles: Bundle) -> Callable[[], Any]:
    """Everything that may be asked from another thread, about these bundles."""
    return lambda: (
        tuple(ledger.table.locate(topic) for topic in TOPICS),
        tuple(ledger.table.get(bundle) for bundle in bundles),
        tuple(ledger.table.held_by(holder) for holder in (ledger.A, ledger.B)),
    )


Step = tuple[Callable[[], object], Callable[[], Any]]


def a_split_and_a_merge(ledger) -> Iterator[Step]:
    x, y = ledger.bundles()
    children = (Bundle(x.namespace, x.lo, MIDDLE), Bundle(x.namespace, MIDDLE, x.hi))
    look = reader(ledger, x, y, *children)
    yield lambda: accepted(ledger.write(Action.CREATE, x, boundaries=(MIDDLE,))), look
    yield lambda: accepted(ledger.write(Action.MERGE, children)), look


def the_only_bundle_of_a_broker(ledger) -> Iterator[Step]:
    """From nobody to B and back, by every kind of record that a holder writes."""
    ledger.create_namespace("shop/carts", (0, FULL_UPPER))
    [x] = ledger.bundles("shop/carts")
    look = reader(ledger, x)
    for action in (Action.OWN, Action.RETURN, Action.SPLIT, Action.CANCEL, Action.UNLOAD, Action.RELEASE):
        yield lambda action=action: accepted(ledger.write(action, x, ledger.B, to=ledger.B)), look


def a_split_of_the_only_bundle(ledger) -> Iterator[Step]:
    ledger.create_namespace("shop/carts", (0, FULL_UPPER))
    [x] = ledger.bundles("shop/carts")
    ledger.assign(x, ledger.B)
    yield lambda: accepted(ledger.write(Action.CREATE, x, ledger.B, boundaries=(MIDDLE,))), reader(ledger, x)


LIVES = (a_split_and_a_merge, a_split_of_the_only_bundle, the_only_bundle_of_a_broker)


def halves(ledger, life: Callable[[Any], Iterator[Step]]) -> list[Any]:
    """What a reader saw that was neither as before the record nor as after it."""
    found: list[Any] = []
    for act, look in life(ledger):
        before = look()
        seen = seen_during(act, look)
        assert len(seen) > 1, "the record changed nothing, or nobody looked"
        for answers in zip(before, look(), *seen, strict=True):
            old, new, *given = answers
            found += [answer for answer in given if answer not in (old, new)]
    return found


@pytest.mark.parametrize("life", LIVES)
def test_a_reader_on_another_thread_sees_each_record_as_a_whole(assigned, life):
    assert halves(assigned, life) == []


SWAP = "    part.namespaces[name] ="
IN_PLACE = "self._entries = np.concatenate([self._entries[:first], _side_by_side(entries), self._entries[last + 1 :]])"
SPLICE = "reshaped = Namespace(self.name, revision)"
COUNT = "    for entry in born:"
UNCOUNT = "    while gone:\n        self._indices.move(gone.pop(), None, partition)\n"
FORTH, BACK = "\n        self._count(before, -1)", "\n        self._count(before, 1)"
HALVES = {
    "a namespace is away for a moment": (
        (table.OwnershipTable, "_reshape", SWAP, "    del self._namespaces[name]\n" + SWAP),
        a_split_and_a_merge,
    ),
    "an entry is overwritten before the namespace is another": (
        (table.OwnershipTable, "_reshape", SWAP, "    known.put(born[0])\n" + SWAP),
        a_split_and_a_merge,
    ),
    "a namespace is cut in place": (
        (namespace.Namespace, "reshaped", SPLICE, IN_PLACE + "\n    " + SPLICE),
        a_split_and_a_merge,
    ),
    "the whole is taken from its holder before the parts are given": (
        (table.OwnershipTable, "_reshape", COUNT, UNCOUNT + COUNT),
        a_split_of_the_only_bundle,
    ),
    "a bundle is taken from its holder before it is given back": (
        (indices.Indices, "move", "self._leave(before, partition)", "self._leave(before, partition)" + FORTH + BACK),
        the_only_bundle_of_a_broker,
    ),
}


@pytest.mark.parametrize("half", HALVES)
def test_a_record_that_is_seen_half_done_is_noticed(assigned, monkeypatch, half: str):
    change, life = HALVES[half]
    mutate(monkeypatch, *change)
    try:
        noticed = halves(assigned, life) != []
    except IndexError:  # the reader's
        noticed = True
    assert noticed


def test_reader_on_another_thread_finds_bundles_before_or_after_a_record(assigned):
    x, y = assigned.bundles()
    seen = seen_during(
        lambda: accepted(assigned.write(Action.UNLOAD, (x, y))), lambda: (assigned.entry(x), assigned.entry(y))
    )
    assert len(seen) == 3, "neither bundle is ever without an entry, and each changes once"
