"""Users' regular expressions in RE2's syntax, and the names of namespaces and brokers that they match. Pure.

Matching takes time linear in the name, whatever the expression. Every broker's loop matches them, so with a
backtracking matcher one policy could stop the cluster. What RE2 lacks (look-around, backreferences, atomic groups, more
than 1,000 repetitions) is refused, and so is what is too large. A pattern matches a broker if it matches its whole name
`host:port`, or its host alone, as in Pulsar.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import re2
from numpy.typing import NDArray

MEMORY_BYTES = 1 << 18
"""The memory limit of one expression: its program, and RE2's cache of matching it."""

STEPS = 1_500
"""The most instructions of an expression's program; a match costs at most this times the length of the name."""

PATTERNS_KEPT = 4_096
RANGE_BYTES = 256
QUOTED = r"\Q"
_NO_REPETITION = re.compile(r"\{(?:,\d*|\d{5,}(?:,\d*)?|\d*,\d{5,})\}", re.ASCII)
"""RE2 takes these for plain characters."""


class Unmatchable(ValueError):
    """The text is not an expression that can be matched here; the message says why."""


class Pattern:
    """One expression. Raises Unmatchable.

    `tenant`: the only tenant whose namespaces it can match, None if there may be several; `steps`: the instructions of
    its program.
    """

    __slots__ = ("_expression", "steps", "tenant")

    def __init__(self, text: str) -> None:
        if _NO_REPETITION.search(text):
            raise Unmatchable("write {0,n} in place of {,n}, and repeat 1,000 times at most")
        try:
            self._expression: Any = re2.compile(text.encode(), _OPTIONS)
        except re2.error as error:
            raise Unmatchable(_words(error)) from None
        except UnicodeEncodeError as error:
            raise Unmatchable(error.reason) from None
        self.steps: int = self._expression.programsize
        if self.steps > STEPS:
            raise Unmatchable("it is too large: repeat less often, or write several patterns")
        self.tenant = self._one_tenant()

    def matches(self, name: str) -> bool:
        """Whether it matches the whole name."""
        return self._expression.fullmatch(name.encode()) is not None

    def _one_tenant(self) -> str | None:
        try:
            low, high = self._expression.possiblematchrange(RANGE_BYTES)
        except re2.error:
            return None
        tenant, slash, _ = low.partition(b"/")
        return tenant.decode() if slash and high.startswith(tenant + slash) else None


@lru_cache(PATTERNS_KEPT)
def compiled(pattern: str) -> Pattern:
    """The pattern, compiled only once. Raises Unmatchable."""
    return Pattern(pattern)


@lru_cache(PATTERNS_KEPT)
def any_of(patterns: tuple[str, ...]) -> tuple[Pattern, ...]:
    """As few patterns as possible that together match the same names: fewer tries for each name.

    Raises Unmatchable.
    """
    groups: list[list[str]] = []
    room = 0
    for text in dict.fromkeys(patterns):
        steps = compiled(text).steps
        if not groups or steps > room:
            groups.append([])
            room = STEPS
        groups[-1].append(text)
        room -= steps
    return tuple(pattern for group in groups for pattern in _joined(group))


def _joined(texts: list[str]) -> tuple[Pattern, ...]:
    if len(texts) > 1 and not any(QUOTED in text for text in texts):  # an unclosed quote would include the next text
        with suppress(Unmatchable):  # two groups with the same name, or too large together
            return (Pattern("|".join(f"(?:{text})" for text in texts)),)
    return tuple(map(compiled, texts))


def _words(error: Exception) -> str:
    said = error.args[0] if error.args else error
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)


def _options() -> Any:
    options = re2.Options()
    options.max_mem = MEMORY_BYTES
    options.log_errors = False  # else RE2 writes errors to standard error
    options.never_capture = True
    return options


_OPTIONS = _options()


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
