"""When reports are in force, and their means by the minute: one SQL text each, for Spark and DuckDB.

`in_force.sql` says which brokers are present and what their reports speak for. Gold, replays and pictures are made with
it. `ingest/gold.py` decides which minutes are made, and when.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

import msgspec

from loadmanager.history.texts import filled

MINUTE_US = 60_000_000
ENDLESS_US = 2**62
"""A horizon that cuts nothing."""
_BROKER_MEANS = (
    *("cpu_percent", "memory_percent", "in_rate_bytes_s", "out_rate_bytes_s", "in_rate_msg_s", "out_rate_msg_s"),
    "bundles",
)
_BUNDLE_MEANS = (
    *("in_rate_msg_s", "out_rate_msg_s", "in_rate_bytes_s", "out_rate_bytes_s", "cpu_percent"),
    *("keys", "sessions"),
)


class Span(msgspec.Struct, frozen=True, order=True):
    """Whole minutes, in microseconds since 1970: from `begin` to before `end`."""

    begin: int
    end: int


class Reach(msgspec.Struct, frozen=True):
    """How far a report reaches: `ttl_us` at most, and not beyond the horizon (microseconds since 1970)."""

    ttl_us: int
    horizon_us: int = ENDLESS_US


EVER = Span(-ENDLESS_US, ENDLESS_US)


def in_force(reach: Reach) -> str:
    """Reads `report` and `transition`."""
    return filled(_text("in_force"), ttl_us=reach.ttl_us, horizon_us=reach.horizon_us)


def broker_minutes(spans: Iterable[Span] = (EVER,)) -> str:
    """The rows of `broker_minute` in the spans. Reads `broker_load`, and `in_force` of its reports."""
    return filled(_text("broker_minute"), spans=_inside(spans), means=_means(_BROKER_MEANS))


def bundle_minutes(spans: Iterable[Span] = (EVER,)) -> str:
    """The rows of `bundle_minute` in the spans. Reads `bundle_load`, `transition`, and `in_force` of `bundle_total`
    and of the deletions in `broker_load`: with a broker's load its bundles' loads are gone.
    """
    return filled(_text("bundle_minute"), named=named(), spans=_inside(spans), means=_means(_BUNDLE_MEANS))


def named() -> str:
    """The changes that name a bundle's holder, each until the bundle's next one. Reads `transition`."""
    return filled(_text("named"))


def _text(name: str) -> str:
    return files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def _inside(spans: Iterable[Span]) -> str:
    return " OR ".join(f"(s.minute_us >= {span.begin} AND s.minute_us < {span.end})" for span in spans) or "false"


def _means(columns: Iterable[str]) -> str:
    """A report without the figure doesn't count in its mean."""
    return ",\n           ".join(
        f"sum(w.{name} * CAST(w.weight AS double)) / nullif(sum(CASE WHEN w.{name} IS NOT NULL THEN w.weight END), 0) "
        f"AS {name}"
        for name in columns
    )
