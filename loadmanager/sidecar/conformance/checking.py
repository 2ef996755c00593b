"""What a check is, and how it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from loadmanager.sidecar.conformance.stage import Stage

Run = Callable[[Stage], Awaitable[None]]


@dataclass(frozen=True)
class Check:
    """One promise of a service, and how it is tried."""

    name: str
    promise: str
    run: Run
    starts: bool
    """Whether it starts the process itself. Other checks find a service that is attached."""
    stops: bool
    """Whether the process stops in it."""


def check(name: str, *, starts: bool = False, stops: bool = False) -> Callable[[Run], Check]:
    """Make a check of a function whose docstring begins with the promise."""

    def made(run: Run) -> Check:
        promise = " ".join((run.__doc__ or "").partition("\n\n")[0].split())
        return Check(name, promise, run, starts, stops)

    return made


class Outcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Result:
    """What a check found. `did`, `expected`, `got` are filled if it failed, `why` if it was skipped."""

    name: str
    outcome: Outcome
    promise: str
    took_s: float = 0.0
    why: str = ""
    did: tuple[str, ...] = ()
    expected: str = ""
    got: str = ""
