"""Takes one check out of the code, so that a test can show that it would notice."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType

import msgspec

from statechannel.law import table, transitions
from statechannel.law.transitions import Row

PLACES: dict[str, tuple[ModuleType, ...]] = {
    "relations": (transitions, table),
}
"""Functions that other modules import by name."""


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
