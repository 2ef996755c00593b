"""Names and positions: namespaces, keys, bundles, and where in the 32-bit hash space a key falls.

A namespace `tenant/ns` covers the hash space 0x00000000..0xffffffff. A bundle `tenant/ns/0x40000000_0x80000000` is a
half-open range of it; the last one ends in 0xffffffff and includes it. The position of a key is the CRC-32 of its full
name, so it falls into the same bundle as in Pulsar (`NamespaceBundleFactory`, Guava's `Hashing.crc32()`).
"""

from __future__ import annotations

import itertools
import operator
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Annotated
from zlib import crc32

import msgspec

from statechannel.errors import InvalidName

FULL_LOWER = 0x00000000
FULL_UPPER = 0xFFFFFFFF
DEFAULT_BUNDLES = 4
MAX_BUNDLES_AT_CREATION = 65_536

Position = Annotated[int, msgspec.Meta(ge=FULL_LOWER, le=FULL_UPPER)]
"""A position in the hash space; decoding refuses any other number."""

DOTS = frozenset({".", ".."})
_NAMESPACE = re.compile(r"[\w.=:-]+/[\w.=:-]+", re.ASCII)
_BUNDLE = re.compile(r"(?P<namespace>[\w.=:-]+/[\w.=:-]+)/(?P<range>0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8})", re.ASCII)
_RANGE = re.compile(r"0x(?P<lo>[0-9a-fA-F]{8})_0x(?P<hi>[0-9a-fA-F]{8})")
_TOPIC = re.compile(
    r"(?:(?P<domain>persistent|non-persistent)://)?(?P<namespace>[\w.=:-]+/[\w.=:-]+)/(?P<name>.+)",
    re.DOTALL | re.ASCII,
)


class Bundle(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A range `[lo, hi)` of one namespace's hash space; `hi == 0xffffffff` includes it."""

    namespace: str
    lo: Position
    hi: Position

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"

    @property
    def range(self) -> str:
        """`0x40000000_0x80000000`, as Pulsar prints it."""
        return f"0x{self.lo:08x}_0x{self.hi:08x}"

    @property
    def bounds(self) -> tuple[int, int]:
        """The range as `[lo, end)` with `end` exclusive for the last bundle as well, where it is 2**32."""
        return self.lo, self.hi + (self.hi == FULL_UPPER)

    def __contains__(self, key: int | str | Key) -> bool:
        """Whether a position, or a key of this namespace, falls into the bundle. Raises InvalidName."""
        if not isinstance(key, int):
            key = Key.parse(key) if isinstance(key, str) else key
            return key.namespace == self.namespace and key.position in self
        return self.lo <= key < self.hi or key == self.hi == FULL_UPPER

    @classmethod
    def parse(cls, name: str) -> Bundle:
        """`tenant/ns/0x40000000_0x80000000`. Raises InvalidName."""
        match = _BUNDLE.fullmatch(name)
        if match is None:
            raise InvalidName(f"{name!r} is not a bundle; write tenant/namespace/0x00000000_0x40000000")
        return cls.of(match["namespace"], match["range"])

    @classmethod
    def of(cls, namespace: str, hash_range: str) -> Bundle:
        """A bundle from a namespace and a range as in `0x40000000_0x80000000`. Raises InvalidName."""
        match = _RANGE.fullmatch(hash_range)
        if match is None:
            raise InvalidName(f"{hash_range!r} is not a hash range; write 0x00000000_0x40000000")
        lo, hi = int(match["lo"], 16), int(match["hi"], 16)
        if lo >= hi:
            raise InvalidName(f"{hash_range!r} is empty: its lower bound must be below its upper bound")
        return cls(check_namespace(namespace), lo, hi)


class Key(msgspec.Struct, frozen=True, gc=False):
    """A key's full name and its position, the CRC-32 of the full name."""

    namespace: str
    full_name: str
    position: int

    def __str__(self) -> str:
        return self.full_name

    @classmethod
    def parse(cls, name: str) -> Key:
        """`persistent://tenant/ns/name`, or the short form `tenant/ns/name`. Raises InvalidName."""
        match = _TOPIC.fullmatch(name)
        if match is None:
            raise InvalidName(f"{name!r} is not a topic; write persistent://tenant/namespace/name")
        if not DOTS.isdisjoint(match["name"].split("/")):
            raise InvalidName(f"{name!r} is not a valid topic; its parts must not be . or .., which URLs drop")
        full_name = name if match["domain"] else f"persistent://{name}"
        try:
            return cls(match["namespace"], full_name, position_of(full_name))
        except UnicodeEncodeError:
            raise InvalidName(f"{name!r} is not a valid topic; its name must be valid Unicode") from None


KEYS_KEPT = 100_000
KEPT_CHARACTERS = 200
_kept = lru_cache(KEYS_KEPT)(Key.parse)


def parse_key(name: str) -> Key:
    """`Key.parse` with a cache. Longer names, and those that take more than a byte a character, are not kept: clients
    choose them. Raises InvalidName.
    """
    return _kept(name) if len(name) <= KEPT_CHARACTERS and name.isascii() else Key.parse(name)


def position_of(full_name: str) -> int:
    """The position of a full key name (or of any other text, taken as it is): its CRC-32."""
    return crc32(full_name.encode())


def check_namespace(name: str) -> str:
    """The name itself if it has the form `tenant/namespace`. Raises InvalidName."""
    if _NAMESPACE.fullmatch(name) is None:
        raise InvalidName(f"{name!r} is not a namespace; write tenant/namespace (letters, digits, and _ - = : .)")
    return name


def check_new_namespace(name: str) -> str:
    """As `check_namespace`, for a new one: neither part may be `.` or `..`. Raises InvalidName.

    URLs and file systems give these two another meaning. The law accepts them, for older logs may have them.
    """
    if not DOTS.isdisjoint(check_namespace(name).split("/")):
        raise InvalidName(f"{name!r} is not a valid name for a namespace; neither part may be . or .., which URLs drop")
    return name


def even_boundaries(bundles: int) -> tuple[int, ...]:
    """`bundles + 1` boundaries that cut the hash space evenly, rounded down as in Pulsar. Raises InvalidName."""
    if not 1 <= bundles <= MAX_BUNDLES_AT_CREATION:
        raise InvalidName(f"a namespace starts with 1 to {MAX_BUNDLES_AT_CREATION} bundles, not {bundles}")
    size = (1 << 32) // bundles
    return (*range(0, bundles * size, size), FULL_UPPER)


def check_tiling(boundaries: Sequence[int]) -> tuple[int, ...]:
    """The boundaries themselves if they run strictly upwards from 0x00000000 to 0xffffffff. Raises InvalidName."""
    if len(boundaries) < 2 or boundaries[0] != FULL_LOWER or boundaries[-1] != FULL_UPPER:
        raise InvalidName("boundaries must begin with 0x00000000 and end with 0xffffffff")
    edges = tuple(boundaries)
    if not all(map(operator.lt, edges, edges[1:])):
        raise InvalidName("boundaries must be strictly increasing")
    return edges


def tile(namespace: str, boundaries: Sequence[int]) -> tuple[Bundle, ...]:
    """The bundles between neighbouring boundaries, lowest first."""
    return tuple(Bundle(namespace, lo, hi) for lo, hi in itertools.pairwise(boundaries))


def tiles_exactly(bundles: Iterable[Bundle], lo: int = FULL_LOWER, hi: int = FULL_UPPER) -> bool:
    """Whether the bundles cover `[lo, hi)` without a gap or an overlap."""
    edge = lo
    for bundle in sorted(bundles):
        if bundle.lo != edge:
            return False
        edge = bundle.hi
    return edge == hi


def index_of(lower_bounds: Sequence[int], position: int) -> int:
    """The index of the range that holds a position, given the ranges' sorted lower bounds (the first is 0)."""
    return bisect_right(lower_bounds, position) - 1
