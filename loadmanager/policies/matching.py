"""Patterns of policies against the names of namespaces and brokers; each is compiled once. Pure.

A pattern matches a broker if it matches its whole name `host:port`, or its host alone, as Pulsar's do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from loadmanager.policies.repetition import literal_beginning

PATTERNS_KEPT = 4_096
FLEETS_KEPT = 4_096
"""Lookups ask the same again and again: patterns and brokers change far less often than the table."""


@lru_cache(PATTERNS_KEPT)
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern. Raises re.error."""
    return re.compile(pattern)


@lru_cache(PATTERNS_KEPT)
def tenant_of(pattern: str) -> str | None:
    """The tenant of every namespace that the pattern matches; None if it may match those of several."""
    if compiled(pattern).flags & re.IGNORECASE:
        return None
    tenant, slash, _ = literal_beginning(pattern).partition("/")
    return tenant if slash else None


def host_of(broker: str) -> str:
    """`host` of `host:port`; of `[::1]:6650` the address without brackets."""
    return broker.rpartition(":")[0].strip("[]") or broker


def matches_namespace(patterns: Iterable[str], namespace: str) -> bool:
    """Whether any pattern matches the whole of `tenant/namespace`."""
    return any(compiled(pattern).fullmatch(namespace) for pattern in patterns)


def matches_broker(patterns: Iterable[str], broker: str) -> bool:
    """Whether any pattern matches the broker's name or host as a whole."""
    host = host_of(broker)
    return any(compiled(p).fullmatch(broker) or compiled(p).fullmatch(host) for p in patterns)


@lru_cache(FLEETS_KEPT)
def matching_brokers(patterns: tuple[str, ...], brokers: tuple[str, ...]) -> NDArray[np.bool_]:
    """(n,): which of the brokers any pattern matches. Not to be written to: it is remembered."""
    matching = np.fromiter((matches_broker(patterns, broker) for broker in brokers), np.bool_, len(brokers))
    matching.setflags(write=False)
    return matching
