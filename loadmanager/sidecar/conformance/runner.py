"""A check, its result, and a run: one check after the other; after one that failed, the service is started again."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from loadmanager.sidecar.conformance.stage import Failure, Options, Serve, Skipped, Stage, expect

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


CHECK_S = 120.0
"""The longest time of one check, without the start of the service."""


async def conform(
    options: Options, serve: Serve, checks: Sequence[Check], skip: Collection[str] = ()
) -> AsyncGenerator[Result]:
    """Run the checks, and yield each result as soon as it is known. Raises OSError if there is no such command."""
    with tempfile.TemporaryDirectory(prefix="loadmanager-") as folder:
        async with Stage(options, serve, Path(folder)) as stage:
            why = ""
            for each in checks:
                if why or each.name in skip:
                    yield Result(each.name, Outcome.SKIPPED, each.promise, why=why or "--skip")
                    continue
                yield (result := await _run(each, stage))
                if result.outcome is Outcome.FAILED and not stage.script.attached:
                    why = "the service has never attached"


async def _run(check: Check, stage: Stage) -> Result:
    began_s = time.monotonic()
    stage.clear()
    try:
        await _ready(check, stage)
        async with asyncio.timeout(stage.options.start_s + CHECK_S):
            await check.run(stage)
        if not check.stops:
            expect(stage.runs, "the process goes on", stage.how_it_ended)
    except Skipped as skipped:
        return Result(check.name, Outcome.SKIPPED, check.promise, why=str(skipped))
    except (Failure, TimeoutError) as error:
        failure = error if isinstance(error, Failure) else Failure("an end of the check", f"none in {CHECK_S:g} s")
        wrote = stage.how_it_ended if not stage.runs else ""
        got = "; ".join(part for part in (failure.got, wrote if wrote not in failure.got else "") if part)
        did, took_s = tuple(stage.steps), time.monotonic() - began_s
        await stage.end_service()
        return Result(check.name, Outcome.FAILED, check.promise, took_s, "", did, failure.expected, got)
    return Result(check.name, Outcome.PASSED, check.promise, time.monotonic() - began_s)


async def _ready(check: Check, stage: Stage) -> None:
    """Have a service attached, unless the check tries just that."""
    if check.starts:
        await stage.end_service()
    elif not stage.runs or stage.script.session is None:
        await stage.open()
        before = stage.script.attached
        await stage.start()
        await stage.until_attached(before, stage.options.start_s)
