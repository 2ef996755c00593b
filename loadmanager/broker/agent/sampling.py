"""Reads the positions or rates that a service's hook gives, on the thread or loop of the hook.

The iterable may read a store, raise half-way or never end, and must not do that on the control loop.
"""

from __future__ import annotations

import functools
import heapq
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from loadmanager.model.host import KeyRate

POSITIONS_LOOKED_AT = 20_000
"""Of more positions an even sample is taken, because the cuts are computed on the control loop."""

MOST_POSITIONS = 100_000_000
"""An iterable with more is given up: nothing else would end its thread."""


def sampling(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, called in the same way, but returning a list.

    It raises what reading the positions raises, and ValidationError if they are no integers.
    """
    return _reading(hook, sampled)


def rating(hook: Callable[..., Any]) -> Callable[..., Any]:
    """As `sampling`, for a hook that gives rates of keys: the list has the busiest ones."""
    return _reading(hook, busiest)


def _reading(hook: Callable[..., Any], read: Callable[[Iterable[Any]], list[Any]]) -> Callable[..., Any]:
    @functools.wraps(hook)
    async def awaited(*args: Any) -> list[Any]:
        return read(await hook(*args))

    @functools.wraps(hook)
    def plain(*args: Any) -> Any:
        answer = hook(*args)
        return _read_later(answer, read) if inspect.isawaitable(answer) else read(answer)

    return awaited if inspect.iscoroutinefunction(hook) else plain


async def _read_later(answer: Awaitable[Iterable[Any]], read: Callable[[Iterable[Any]], list[Any]]) -> list[Any]:
    return read(await answer)


def busiest(keys: Iterable[Any]) -> list[KeyRate]:
    """At most POSITIONS_LOOKED_AT keys, those with the most messages and bytes.

    Raises ValidationError, or ValueError for more than MOST_POSITIONS.
    """
    rated = (msgspec.convert(key, KeyRate) for key in _bounded(keys))
    return heapq.nlargest(POSITIONS_LOOKED_AT, rated, key=lambda key: (key.rate_msg_s, key.rate_bytes_s))


def _bounded(keys: Iterable[Any]) -> Iterator[Any]:
    for number, key in enumerate(keys):
        if number >= MOST_POSITIONS:
            raise ValueError(f"more than {MOST_POSITIONS:,} keys; give only the busiest")
        yield key


def sampled(positions: Iterable[int]) -> list[int]:
    """At most POSITIONS_LOOKED_AT positions. Raises ValidationError, or ValueError for more than MOST_POSITIONS."""
    if isinstance(positions, Sequence):
        every = max(1, -(-len(positions) // POSITIONS_LOOKED_AT))
        return msgspec.convert(list(positions[::every]), list[int])
    return msgspec.convert(_thinned(positions), list[int])


def _thinned(positions: Iterable[int]) -> list[int]:
    """Every n-th position; n doubles whenever the list is full, since their number is known only at the end."""
    kept: list[int] = []
    every = 1
    for number, position in enumerate(positions):
        if number % every == 0:
            if len(kept) == POSITIONS_LOOKED_AT:
                del kept[1::2]
                every *= 2
                if number % every:
                    continue
            kept.append(position)
        if number >= MOST_POSITIONS:
            raise ValueError(f"more than {MOST_POSITIONS:,} positions; give a sample of them")
    return kept
