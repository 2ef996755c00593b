"""Finds a key for a position: CRC-32 is linear, so the digits of a name follow from the position."""

from __future__ import annotations

from functools import cache
from zlib import crc32

from statechannel.law.bundle import Key

_DIGITS = 14
_BITS = 3
"""An octal digit `0` to `7` differs from `0` in its three lowest bits only: each is a free choice."""


def key_at(namespace: str, position: int) -> Key:
    """The key of this namespace, named by octal digits, that lies at the position (0 ≤ position < 2**32)."""
    prefix = f"persistent://{namespace}/"
    bits, left = 0, position ^ crc32(f"{prefix}{'0' * _DIGITS}".encode())
    for leading, (change, choice) in _basis().items():
        if left >> leading & 1:
            left ^= change
            bits ^= choice
    assert left == 0, "the free bits of the digits reach every position"
    return Key.parse(f"{prefix}{bits:0{_DIGITS}o}")


@cache
def _basis() -> dict[int, tuple[int, int]]:
    """By its leading bit, from the highest: a change of the CRC, and the free bits that make it."""
    found: dict[int, tuple[int, int]] = {}
    none = crc32(bytes(_DIGITS))
    for bit in range(_DIGITS * _BITS):
        place, shift = divmod(bit, _BITS)
        change, choice = crc32(bytes(_DIGITS - 1 - place) + bytes([1 << shift]) + bytes(place)) ^ none, 1 << bit
        while change and (known := found.get(change.bit_length() - 1)) is not None:
            change, choice = change ^ known[0], choice ^ known[1]
        if change:
            found[change.bit_length() - 1] = (change, choice)
    return dict(sorted(found.items(), reverse=True))
