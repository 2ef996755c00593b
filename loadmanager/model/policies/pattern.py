"""Users' regular expressions in RE2's syntax: matching takes time linear in the name, whatever the expression. Pure.

Every broker's loop matches them, so with a backtracking matcher one policy could stop the cluster. What RE2 lacks
(look-around, backreferences, atomic groups, more than 1,000 repetitions) is refused, and so is what is too large.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from typing import Any

import re2

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
    """The text is no expression that can be matched here; the message says why."""


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
