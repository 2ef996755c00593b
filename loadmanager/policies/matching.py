"""Patterns of policies against the names of namespaces and brokers. Pure.

A pattern matches a broker if it matches its whole name `host:port`, or its host alone, as Pulsar's do.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from loadmanager.policies.pattern import compiled

FLEETS_KEPT = 4_096
"""Lookups ask the same again and again: patterns and brokers change far less often than the table."""


def host_of(broker: str) -> str:
    """`host` of `host:port`; of `[::1]:6650` the address without brackets."""
    return broker.rpartition(":")[0].strip("[]") or broker


def matches_namespace(patterns: Iterable[str], namespace: str) -> bool:
    """Whether any pattern matches the whole of `tenant/namespace`."""
    return any(compiled(pattern).matches(namespace) for pattern in patterns)


def matches_broker(patterns: Iterable[str], broker: str) -> bool:
    """Whether any pattern matches the broker's name or host as a whole."""
    host = host_of(broker)
    return any(compiled(p).matches(broker) or compiled(p).matches(host) for p in patterns)


@lru_cache(FLEETS_KEPT)
def matching_brokers(patterns: tuple[str, ...], brokers: tuple[str, ...]) -> NDArray[np.bool_]:
    """(n,): which of the brokers any pattern matches. Not to be written to: it is remembered."""
    matching = np.fromiter((matches_broker(patterns, broker) for broker in brokers), np.bool_, len(brokers))
    matching.setflags(write=False)
    return matching
