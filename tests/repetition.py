"""Finds what makes the matching of a regular expression of `re` take more than linear time.

`re` backtracks. Two repetitions without a bound that can share a run of characters try each way of sharing it, and a
pattern that is searched for starts again at each character. The rules are stricter than necessary, and simple:

* Two repetitions that follow each other, or stand in a third one, have no character in common, or something between
  them has none in common with both, or the first is possessive (`*+`) or atomic.
* Alternatives within a repetition begin with different characters, or the repetition is possessive or atomic.
* A repetition in a pattern that is searched for cannot fail at its end, or follows something that has no character in
  common with it, or a look-behind (`(?<!…)`, `^`, `\\b`) that only lets it begin at the first of its characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from re import _constants as op  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue, reportUnknownVariableType]
from typing import Any, NamedTuple

UNBOUNDED = 256
"""A repetition that may be longer counts as one without a bound."""

ALPHABET = frozenset(map(chr, [*range(0x180), 0x2028, 0x212A, 0x1F600]))
REPEATS = {op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT}
Characters = frozenset[str]


class One(NamedTuple):
    """One character of a set."""

    of: Characters


class Loop(NamedTuple):
    """A repetition without a bound."""

    of: Characters
    body: Sequence
    at_least: int
    kept: bool = False
    """It gives nothing back."""
    looking: bool = False
    """It stands in a look-ahead, whose characters are read again."""


class Either(NamedTuple):
    """Alternatives; what may be left out has an empty one."""

    branches: tuple[Sequence, ...]


class After(NamedTuple):
    """Matches nothing, and only where the character before is none of these."""

    none_of: Characters


class End(NamedTuple):
    """Matches nothing, and may fail."""


Item = One | Loop | Either | After | End
Sequence = tuple[Item, ...]


class _Refused(Exception):
    pass


def complaint(pattern: str | bytes, flags: int = 0, *, searched: bool = True) -> str | None:
    """Why matching the pattern may take more than linear time; None if it does not.

    A pattern that is not searched for is matched at one place only, as `fullmatch` does.
    """
    tree = parser.parse(pattern, flags)
    try:
        items = _items(tree, tree.state.flags)
    except _Refused as refused:
        return str(refused)
    if found := _inside(items):
        return found
    for before, loop, after in _loops(items) if searched else ():
        if not (_separated(before, loop.of) or _begins_once(before, loop.of) or (_cannot_fail(after, loop))):
            return f"starts again within a run of {_shown(loop.of)}"
    return None


def _inside(items: Sequence) -> str | None:
    for _, first, after in _loops(items):
        for between, second, _ in () if first.kept else _loops(after):
            common = first.of & second.of
            if common and not _separated(between, common):
                return f"two repetitions share {_shown(common)}"
    for _, loop, _ in _loops(items):
        if found := _inside(loop.body) if loop.kept else _inside(loop.body * 2) or _ambiguous(loop.body, loop.body):
            return found
    return None


def _ambiguous(items: Sequence, after: Sequence) -> str | None:
    """Why the body of a repetition, behind which it begins again, can match one text in two ways."""
    if all(_empty(item) for item in items):
        return "a repetition of what may be empty"
    for index, item in enumerate(items):
        if isinstance(item, Either):
            rest = items[index + 1 :] + after
            seen: Characters = frozenset()
            for branch in item.branches:
                begins = _first(branch + rest)
                if begins & seen:
                    return f"alternatives of a repetition begin with {_shown(begins & seen)}"
                seen |= begins
                if branch and (found := _ambiguous(branch, rest)):
                    return found
    return None


def _loops(items: Sequence) -> Iterator[tuple[Sequence, Loop, Sequence]]:
    """Each repetition that is not within another, with what comes before and after it."""
    for index, item in enumerate(items):
        before, after = items[:index], items[index + 1 :]
        match item:
            case Loop():
                yield before, item, after
            case Either(branches):
                for branch in branches:
                    yield from ((before + b, loop, a + after) for b, loop, a in _loops(branch))
            case _:
                pass


def _separated(items: Sequence, common: Characters) -> bool:
    """Whether every way through the items has a character that is none of these."""
    for item in items:
        match item:
            case One(of) if not of & common:
                return True
            case Loop(body=body, at_least=n) if n and _separated(body, common):
                return True
            case Either(branches) if all(_separated(branch, common) for branch in branches):
                return True
            case _:
                pass
    return False


def _begins_once(items: Sequence, of: Characters) -> bool:
    """Whether a match cannot begin behind a character of these."""
    return any(
        (isinstance(item, After) and of <= item.none_of)
        or (isinstance(item, Either) and all(_begins_once(branch, of) for branch in item.branches))
        for item in items
    )


def _cannot_fail(after: Sequence, loop: Loop) -> bool:
    return not loop.looking and all(_empty(item) for item in after)


def _empty(item: Item) -> bool:
    match item:
        case Loop(at_least=n):
            return n == 0
        case Either(branches):
            return any(all(_empty(each) for each in branch) for branch in branches)
        case _:
            return False


def _first(items: Sequence) -> Characters:
    found: Characters = frozenset()
    for item in items:
        match item:
            case One(of):
                found |= of
            case Loop(body=body):
                found |= _first(body)
            case Either(branches):
                found = found.union(*map(_first, branches))
            case _:
                continue
        if not _empty(item):
            break
    return found


def _all(items: Iterable[Item]) -> Characters:
    found: Characters = frozenset()
    for item in items:
        match item:
            case One(of) | Loop(of=of):
                found |= of
            case Either(branches):
                found = found.union(*map(_all, branches))
            case _:
                pass
    return found


def _items(tree: Any, flags: int) -> Sequence:
    found: list[Item] = []
    for code, given in tree:
        match code:
            case op.SUBPATTERN:
                _, more, fewer, body = given
                found += _items(body, (flags | more) & ~fewer)
            case op.ATOMIC_GROUP:
                found += _kept(_items(given, flags))
            case op.BRANCH:
                found.append(Either(tuple(_items(branch, flags) for branch in given[1])))
            case op.ASSERT | op.ASSERT_NOT if given[0] > 0:
                found += (*_kept(_items(given[1], flags), looking=True), End())
            case _ if code in REPEATS:
                least, most, body = given
                found += _repeated(_items(body, flags), least, most, kept=code is op.POSSESSIVE_REPEAT)
            case op.AT if given in {op.AT_BEGINNING, op.AT_BEGINNING_STRING}:
                found.append(After(ALPHABET - {"\n"} if flags & re.MULTILINE else ALPHABET))
            case op.AT if given is op.AT_BOUNDARY:
                found.append(After(_class(op.IN, [(op.CATEGORY, op.CATEGORY_WORD)], flags)))
            case op.ASSERT | op.ASSERT_NOT if given[0] < 0 and [One] == [*map(type, behind := _items(given[1], flags))]:
                found.append(After(_all(behind) if code is op.ASSERT_NOT else ALPHABET - _all(behind)))
            case op.GROUPREF | op.GROUPREF_EXISTS:
                raise _Refused("what a reference to a group matches is not known")
            case op.AT | op.ASSERT | op.ASSERT_NOT:
                found.append(End())
            case _:
                found.append(One(_class(code, given, flags)))
    return tuple(found)


def _kept(items: Sequence, *, looking: bool = False) -> Sequence:
    """The items, which are matched once and then as they are."""
    if found := _inside(items):
        raise _Refused(found)
    return tuple(
        item._replace(kept=True, looking=looking or item.looking)
        if isinstance(item, Loop)
        else Either(tuple(_kept(branch, looking=looking) for branch in item.branches))
        if isinstance(item, Either)
        else item
        for item in items
    )


def _repeated(body: Sequence, least: int, most: Any, *, kept: bool) -> Sequence:
    """The repetition. A possessive one keeps each turn of its body; one with a bound counts as if it did not."""
    if most is op.MAXREPEAT or most > UNBOUNDED:
        return (Loop(_all(body), body, least, kept),)
    if most > 1 and not kept and (found := _ambiguous(body, body)):
        raise _Refused(found)
    maybe = (Either((body, ())),)
    if not least:
        return (Either((body + maybe * (most > 1), ())),)
    return body * min(least, 2 if any(_loops(body)) else 1) + maybe * (most > least)


def _class(code: Any, given: Any, flags: int) -> Characters:
    if code is op.LITERAL and not flags & re.IGNORECASE:
        return frozenset(chr(given)) & ALPHABET
    return _matched(code, tuple(given) if isinstance(given, list) else given, flags)


@cache
def _matched(code: Any, given: Any, flags: int) -> Characters:
    """The characters of the alphabet that this matches, as `re` itself says."""
    source = parser.State()
    source.flags = flags
    source.str = ""
    tree = parser.SubPattern(source, [(code, list(given) if isinstance(given, tuple) else given)])
    compiled = re._compiler.compile(tree, flags & ~re.TEMPLATE)  # pyright: ignore
    return frozenset(c for c in ALPHABET if compiled.fullmatch(c))


def _shown(characters: Characters) -> str:
    return repr("".join(sorted(characters)[:8]))
