"""What can be said of a regular expression without matching it. Pure.

How any match begins; and how many ways it has to match a name, at most: it is every broker's loop that matches, and
`(a+)+` or `(a|aa)*` may take for ever. That number is a bound, not a count: repetitions in a row multiply, alternatives
add up, and what has several ways by itself and is repeated without end has no bound. So `(\\w+\\.)*` is found as
well, though it is harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from itertools import takewhile
from math import inf, prod
from typing import Any

NAME_CHARACTERS = 128
"""Of the names that patterns are matched against; longer ones are rare."""

MOST_WAYS = 2.2e6
"""Three free repetitions in a row: a few milliseconds where nothing matches in the end."""

_parse: Callable[[str], Iterable[tuple[Any, Any]]] = import_module("re._parser").parse


def takes_too_long(pattern: str) -> bool:
    """Whether matching a name may take for ever. Raises what `re.compile` raises."""
    return not _ways(_parse(pattern)) <= MOST_WAYS


def literal_beginning(pattern: str) -> str:
    """The characters with which every match begins, as far as they are plain. Raises what `re.compile` raises."""
    plain = takewhile(lambda item: str(item[0]) == "LITERAL", _parse(pattern))
    return "".join(chr(code) for _, code in plain)


def _ways(items: Iterable[tuple[Any, Any]]) -> float:
    return prod((_ways_of(str(kind), what) for kind, what in items), start=1.0)


def _ways_of(kind: str, what: Any) -> float:
    match kind:
        case "BRANCH":
            return _of_alternatives(what[1])
        case "SUBPATTERN":
            return _ways(what[-1])
        case "ATOMIC_GROUP":
            return _ways(what)
        case "ASSERT" | "ASSERT_NOT":
            return _ways(what[1])
        case "GROUPREF_EXISTS":
            return _ways(what[1]) + (_ways(what[2]) if what[2] is not None else 1.0)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _repeated(int(what[0]), int(what[1]), _ways(what[2]))
        case _:
            return 1.0


def _of_alternatives(alternatives: Sequence[Sequence[tuple[Any, Any]]]) -> float:
    """Those that begin with different characters exclude each other; an empty one goes with any."""
    first = {each[0][1] for each in alternatives if len(each) and str(each[0][0]) == "LITERAL"}
    ways = [_ways(each) for each in alternatives]
    return max(ways) if len(first) == len(alternatives) else sum(ways)


def _repeated(least: int, most: int, ways: float) -> float:
    most = max(least, min(most, NAME_CHARACTERS))
    lengths = most - least + 1
    try:
        return lengths if ways <= 1 else lengths * ways**most
    except OverflowError:
        return inf
