"""Puts each of a few keys into a task of its own.

Spark hashes the column of a repartition, so with ten keys in ten tasks some tasks get three and some none. Here each
task gets a number that hashes to it. If Spark's hash ever changes, tasks are uneven again, and nothing else changes.
"""

from __future__ import annotations

from functools import lru_cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

_WORD = 0xFFFFFFFF
_SEED = 42


def spread(rows: DataFrame, key: Column, tasks: int) -> DataFrame:
    """The rows in `tasks` tasks: equal `key`s (whole numbers from 0) together, neighbouring keys in different tasks."""
    numbers = f.array(*(f.lit(number) for number in numbers_of(tasks)))
    return rows.repartition(tasks, f.element_at(numbers, (key % tasks + 1).cast("int")))


@lru_cache(maxsize=16)
def numbers_of(tasks: int) -> tuple[int, ...]:
    """For every task the lowest number that Spark's hash puts there."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < tasks:
        found.setdefault(_murmur3(number) % tasks, number)
        number += 1
    return tuple(found[task] for task in range(tasks))


def _murmur3(number: int) -> int:
    """Spark's `hash` of a 32-bit number: signed; its remainder is taken as Python does."""
    mixed = _rotated(number * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
    hashed = _rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64 & _WORD
    hashed ^= 4
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _WORD
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _WORD
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _WORD
