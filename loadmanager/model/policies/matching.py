"""Matches patterns of policies against the names of namespaces and brokers. Pure.

A pattern matches a broker if it matches its whole name `host:port`, or its host alone, as in Pulsar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from loadmanager.model.policies.pattern import PATTERNS_KEPT, any_of

FLEETS_KEPT = 4_096
"""Lookups repeat the same questions: patterns and brokers change far less often than the table."""

NAMES_KEPT = 3
"""How many names are remembered, as a multiple of the fleet: a broker that returns need not be matched again."""


def host_of(broker: str) -> str:
    """`host` of `host:port`; of `[::1]:6650` the address without brackets."""
    return broker.rpartition(":")[0].strip("[]") or broker


def matches_namespace(patterns: Iterable[str], namespace: str) -> bool:
    """Whether any pattern matches the whole of `tenant/namespace`."""
    return any(pattern.matches(namespace) for pattern in any_of(tuple(patterns)))


def matches_broker(patterns: Iterable[str], broker: str) -> bool:
    """Whether any pattern matches the broker's name or host as a whole."""
    host = host_of(broker)
    return any(pattern.matches(broker) or pattern.matches(host) for pattern in any_of(tuple(patterns)))


@lru_cache(FLEETS_KEPT)
def matching_brokers(patterns: tuple[str, ...], brokers: tuple[str, ...]) -> NDArray[np.bool_]:
    """(n,): which brokers match any pattern. Cached and read-only.

    Names that the same patterns met before are not matched again: when one broker comes or goes, only its name is new.
    """
    tried, matching = _tried_with(patterns), np.zeros(len(brokers), np.bool_)
    for row, broker in enumerate(brokers):
        matching[row] = tried.matches(broker)
    tried.forget_others(brokers)
    matching.setflags(write=False)
    return matching


def try_names(patterns: tuple[str, ...], brokers: Iterable[str]) -> Iterator[None]:
    """Match names one by one, to prepare a later call of `matching_brokers`."""
    tried = _tried_with(patterns)
    for broker in brokers:
        tried.matches(broker)
        yield


class _Tried:
    """Results of matching some patterns. Safe on any thread: each step leaves the object consistent."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._patterns = patterns
        self._known: dict[str, bool] = {}

    def matches(self, broker: str) -> bool:
        found = self._known.get(broker)
        if found is None:
            found = self._known[broker] = matches_broker(self._patterns, broker)
        return found

    def forget_others(self, brokers: Sequence[str]) -> None:
        """Forget other names, if most of them are of brokers that are gone."""
        if len(self._known) > NAMES_KEPT * len(brokers) + NAMES_KEPT:
            self._known = {broker: self.matches(broker) for broker in brokers}


@lru_cache(PATTERNS_KEPT)
def _tried_with(patterns: tuple[str, ...]) -> _Tried:
    return _Tried(patterns)
