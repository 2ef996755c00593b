"""Positions are read where the hook runs: whatever a service gives instead ends in a reason, never in a dead broker."""

from __future__ import annotations

import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import pytest

from loadmanager.broker.hooks import POSITIONS_LOOKED_AT, Hooks, HookTimeouts, HostRunner, at_once, sampled
from loadmanager.model.boundaries import NoCuts
from loadmanager.model.host import Destination
from statechannel.law.bundle import Bundle

WHOLE = Bundle("t/n", 0, 0xFFFFFFFF)


class Service:
    """Tells where its keys are in one way or another."""

    def __init__(self, positions: Callable[[Bundle], Any]) -> None:
        self.positions = positions

    def prepare(self, bundle: Bundle) -> None: ...

    def acquire(self, bundle: Bundle, token: object, hand_off: bytes | None) -> None: ...

    def release(self, bundle: Bundle, to: Destination | None) -> None: ...

    def abandon(self, bundle: Bundle) -> None: ...

    def load(self) -> dict[Bundle, Any]:
        return {}


async def told(positions: Callable[[Bundle], Any], timeout_s: float = 5.0) -> list[int] | NoCuts:
    runner = HostRunner()
    hooks = Hooks(
        Service(positions),
        runner,
        HookTimeouts(timeout_s, timeout_s, timeout_s),
        lambda to: Destination(to.name, {}),
        lambda text: None,
    )
    try:
        return await hooks.positions(WHOLE)
    finally:
        runner.close()


def three(bundle: Bundle) -> Iterator[int]:
    yield from (bundle.lo + 1, bundle.lo + 2, bundle.lo + 3)


async def a_set(bundle: Bundle) -> set[int]:
    return {bundle.lo + 1, bundle.lo + 2, bundle.lo + 3}


def a_generator_of_a_coroutine(bundle: Bundle) -> Any:
    async def later() -> Iterable[int]:
        return three(bundle)

    return later()


@at_once
def a_tuple_at_once(bundle: Bundle) -> tuple[int, ...]:
    return tuple(three(bundle))


@pytest.mark.parametrize("positions", [three, a_set, a_generator_of_a_coroutine, a_tuple_at_once])
async def test_any_iterable_will_do(positions: Callable[[Bundle], Any]) -> None:
    found = await told(positions)
    assert isinstance(found, list)
    assert sorted(found) == [1, 2, 3]


def breaks_half_way(bundle: Bundle) -> Iterator[int]:
    yield bundle.lo
    raise OSError("the storage is gone")


async def breaks_later(bundle: Bundle) -> Iterator[int]:
    return breaks_half_way(bundle)


@at_once
def breaks_at_once(bundle: Bundle) -> Iterator[int]:
    return breaks_half_way(bundle)


async def asynchronous(bundle: Bundle) -> AsyncIterator[int]:
    yield bundle.lo


def giving(answer: Any) -> Callable[[Bundle], Any]:
    def positions(bundle: Bundle) -> Any:
        return answer

    return positions


@pytest.mark.parametrize(
    ("positions", "says"),
    [
        (breaks_half_way, "OSError: the storage is gone"),
        (breaks_later, "OSError: the storage is gone"),
        (breaks_at_once, "OSError: the storage is gone"),
        (asynchronous, "not iterable"),
        (giving(None), "not iterable"),
        (giving(["1"]), "Expected `int`"),
        (giving(iter(["1"])), "Expected `int`"),
        (giving(5), "not iterable"),
    ],
)
async def test_a_service_that_gives_none_is_a_reason_not_to_split(
    positions: Callable[[Bundle], Any], says: str
) -> None:
    found = await told(positions)
    assert isinstance(found, NoCuts)
    assert says in found.reason


async def test_positions_that_come_too_slowly_run_into_the_time_out() -> None:
    enough = threading.Event()

    def slow(bundle: Bundle) -> Iterator[int]:
        yield bundle.lo
        enough.wait(30)

    found = await told(slow, timeout_s=0.1)
    enough.set()
    assert isinstance(found, NoCuts)
    assert "did not return within 0.1 s" in found.reason


@pytest.mark.parametrize("count", [POSITIONS_LOOKED_AT, POSITIONS_LOOKED_AT + 1, 5 * POSITIONS_LOOKED_AT + 7])
@pytest.mark.parametrize("kind", [list[int], iter])
def test_of_many_positions_some_are_chosen_evenly(kind: Callable[[Iterable[int]], Iterable[int]], count: int) -> None:
    found = sampled(kind(range(count)))
    assert POSITIONS_LOOKED_AT / 2 <= len(found) <= POSITIONS_LOOKED_AT
    steps = {b - a for a, b in itertools.pairwise(found)}
    assert found[0] == 0
    assert len(steps) == 1
