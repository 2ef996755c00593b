"""Checks that every acknowledged increment is stored once: reads the counters' store after the load has ended."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from loadmanager.fencing.fences import driver

EXAMPLES_SHOWN = 10


class Acknowledged(msgspec.Struct, frozen=True, gc=False):
    """A 2xx answer: this increment made the counter this value."""

    topic: str
    request_id: str
    value: int


class Audit(msgspec.Struct, frozen=True):
    """`lost` were acknowledged and not stored; `doubled` count twice, or differ from the acknowledged value."""

    stored: int
    lost: int
    doubled: int
    examples: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.lost and not self.doubled


def audit(store: Path | str, acknowledged: Iterable[Acknowledged]) -> Audit:
    """Compare what was acknowledged with what is stored, in a SQLite file or at `postgresql://…`.

    Raises sqlite3.Error or psycopg.Error.
    """
    with _opened(str(store)) as db:
        rows = db.execute("SELECT topic, request_id, value FROM increment").fetchall()
        counters = dict(db.execute("SELECT topic, value FROM counter").fetchall())
    stored = {(topic, request_id): value for topic, request_id, value in rows}
    lost, doubled = _missing(stored, acknowledged)
    doubled += _counted_twice(rows)
    increments = Counter(topic for topic, _, _ in rows)
    for topic in increments.keys() | counters.keys():
        counted, told = increments[topic], counters.get(topic, 0)
        doubled += [f"{topic}: counter {told}, increments {counted}"] * abs(counted - told)
    return Audit(len(stored), len(lost), len(doubled), (*lost[:EXAMPLES_SHOWN], *doubled[:EXAMPLES_SHOWN]))


def _opened(store: str) -> AbstractContextManager[Any]:
    if store.startswith("postgresql://"):
        return contextlib.closing(driver("psycopg", "postgresql").connect(store))
    return contextlib.closing(sqlite3.connect(f"file:{quote(store)}?mode=ro", uri=True, timeout=5))


def _missing(stored: dict[tuple[str, str], int], acknowledged: Iterable[Acknowledged]) -> tuple[list[str], list[str]]:
    lost: list[str] = []
    other: list[str] = []
    for answer in acknowledged:
        value = stored.get((answer.topic, answer.request_id))
        if value is None:
            lost.append(f"{answer.topic} {answer.request_id}: acknowledged as {answer.value}, not stored")
        elif value != answer.value:
            other.append(f"{answer.topic} {answer.request_id}: acknowledged as {answer.value}, stored as {value}")
    return lost, other


def _counted_twice(rows: Iterable[tuple[str, str, int]]) -> list[str]:
    """Values that two requests made: each increment of a topic must make a value of its own."""
    values = Counter((topic, value) for topic, _, value in rows)
    return [f"{topic}: {n} requests made {value}" for (topic, value), n in values.items() for _ in range(n - 1)]
