"""Material for a report as a week of a busy cluster would give it: made up, the same each time."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from loadmanager.history.published import Provenance, Published
from loadmanager.history.report.material import Found, Material, Rows, Span, bucket_s

BEGIN = datetime(2030, 1, 28, tzinfo=UTC)
END = BEGIN + timedelta(days=7)
NAMES = [f"broker-{number}.example:8080" for number in range(12)]
MADE = Provenance(
    job="report", at=END, begin=BEGIN, end=END, lake="lakes/east", lake_versions={"decision": 41}, release="1"
)


def interval(mean: float, apart: float) -> dict[str, float]:
    return {"mean": mean, "low": mean - apart, "high": mean + apart}


def replay() -> Published:
    """Five candidates; `plan` is the best, and what was recorded the third."""
    names = ["plan:balancing_tolerance=tight", "plan", "recorded", "transfer", "threshold"]
    rows = [
        {
            "rank": rank,
            "candidate": name,
            "regret": interval(0.02 + 0.035 * rank, 0.008 + 0.006 * rank),
            "violations": 0,
            "moves": 12.0 * rank,
            "max_over_mean": interval(1.05 + 0.06 * rank, 0.02),
        }
        for rank, name in enumerate(names, 1)
    ]
    commands = ["loadmanager config set balancing_tolerance tight"]
    facts = {
        "verdict": "plan:balancing_tolerance=tight costs least, and surely less than what was",
        "config": {"commands": commands},
    }
    return Published("replay", MADE, rows, facts)


def advice() -> Published:
    rows = [
        {
            "id": "5f0c",
            "kind": "settings",
            "title": "balancing_tolerance: default to tight",
            "reason": "In 31 of 42 windows <plan> with tight kept brokers closer together and moved less.",
            "expected": {"measure": "spread", "before": 0.21, "after": 0.12, "low": 0.05, "high": 0.11},
        }
    ]
    return Published("advice", MADE, rows)


def found() -> Found:
    return Found(replay=replay(), audit=Published("audit", MADE, [], {"violations": 0}), advice=advice())


def _usage(number: int, at: datetime, dice: random.Random) -> float:
    hour = at.hour + at.minute / 60
    day = 0.5 + 0.28 * math.sin((hour - 8) / 24 * 2 * math.pi) + 0.03 * number - 0.15
    return max(
        0.02, min(1.1, day + dice.gauss(0, 0.02) + (0.3 if number == 7 and at.day == 30 and 9 < hour < 14 else 0))
    )


def material(**changed: Any) -> Material:
    """A week of twelve brokers; one of them was away on the fourth day."""
    dice = random.Random(7)
    span = Span(BEGIN, END, bucket_s(BEGIN, END))
    times = [BEGIN + timedelta(seconds=span.bucket_s * step) for step in range(int(span.seconds / span.bucket_s))]
    cells = [
        {"at": at, "broker": name, "usage": _usage(number, at, dice)}
        for at in times
        for number, name in enumerate(NAMES)
        if not (number == 3 and at.day == 31 and 10 <= at.hour < 14)
    ]
    levels = [_level(at, [cell for cell in cells if cell["at"] == at]) for at in times]
    values: dict[str, Any] = {
        "span": span,
        "tolerance": 0.1,
        "brokers": len(NAMES),
        "cells": cells,
        "levels": levels,
        "rounds": [{"at": at, "rounds": 1, "moves": dice.randint(1, 9), "strategy": "plan"} for at in times[::5]],
        "moves": [{"at": at, "how": "transfer", "moves": dice.randint(1, 9)} for at in times[::5]]
        + [{"at": times[87], "how": "failover", "moves": 83}],
        "gap_shares": _shares(dice),
        "gaps": _gaps(),
        "failovers": [_failover(times[87])],
        "lost": 1,
        "history": _series(BEGIN, 72, "load"),
        "forecast": [
            row | {"low": row["predicted"] * 0.8, "high": row["predicted"] * 1.25, "mape": 0.12}
            for row in _series(END, 24, "predicted")
        ],
        "measure": "cpu",
        "capacity": _capacity(),
        "kinds": 2,
        "found": found(),
    }
    return Material(**(values | changed))


def _level(at: datetime, cells: Rows) -> dict[str, Any]:
    usages = [cell["usage"] for cell in cells]
    mean = sum(usages) / len(usages)
    top = max(cells, key=lambda cell: cell["usage"])
    return {"at": at, "mean": mean, "max": top["usage"], "std": 0.05, "broker": top["broker"], "brokers": len(cells)}


def _shares(dice: random.Random) -> Rows:
    return [
        {"how": how, "low_s": 10 ** (step / 4), "high_s": 10 ** ((step + 1) / 4), "moves": dice.randint(3, 80)}
        for how, steps in (("transfer", range(-9, -3)), ("failover", range(1, 4)))
        for step in steps
    ]


def _gaps() -> Rows:
    figures = {"p50_s": 0.024, "p90_s": 0.08, "p99_s": 0.31, "max_s": 0.34, "sum_s": 9.1}
    slow = {"p50_s": 2.4, "p90_s": 3.1, "p99_s": 3.9, "max_s": 4.0, "sum_s": 190.0}
    return [
        {"how": "transfer", "why": "balance", "moves": 231, "bundles": 80, "returned": 2, **figures},
        {"how": "failover", "why": "failover", "moves": 83, "bundles": 83, "returned": 0, **slow},
    ]


def _failover(at: datetime) -> dict[str, Any]:
    return {
        "revoked_at": at, "broker": NAMES[3], "incarnation": 1, "bundles": 83, "served": 83, "p50_s": 2.4, "max_s": 4.0,
        "back_at": at + timedelta(hours=4),
    }  # fmt: skip


def _series(begin: datetime, hours: int, column: str) -> Rows:
    first = begin if column == "predicted" else END - timedelta(hours=hours)
    return [
        {"bundle": f"shop/carts/0x{index}0000000_0x{index + 1}0000000", "at": first + timedelta(hours=hour),
         column: 1.5 + index + math.sin((hour % 24) / 24 * 2 * math.pi)}
        for index in range(3) for hour in range(hours)
    ]  # fmt: skip


def _capacity() -> Rows:
    terms = (
        ("base", "cores", 0.12),
        ("messages in", "cores per 1000 messages/s", 0.31),
        ("bundles", "cores per bundle", 0.002),
    )
    return [
        {
            "kind": kind,
            "term": term,
            "unit": unit,
            "coefficient": value * factor,
            "standard_error": value / 12,
            "alone": None if term == "base" else 0.6,
            "r2": 0.91,
        }
        for kind, factor in (("4 cores, 16 GiB", 1.0), ("8 cores, 32 GiB", 0.9))
        for term, unit, value in terms
    ]
