"""Advice made of recorded minutes: a namespace with one bundle that is too large, on two brokers, day and night."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from loadmanager.errors import Invalid
from loadmanager.history.advising import Options, consider, from_bundles, from_forecast, from_weights
from loadmanager.history.advising.origin import Origin
from loadmanager.history.analyses.analysis import Options as Analysing
from loadmanager.history.lake import Lake, Window
from loadmanager.leader.plans.advice import Advice, CutBundles, Measure, MoveBundles, check
from loadmanager.settings import Settings
from tests.history.analyses.making import tables as made

DAYS, EVERY_MIN = 3, 60
START = datetime(2026, 1, 5, tzinfo=UTC)
END = START + timedelta(days=DAYS)
END_MS = round(END.timestamp() * 1000)
CORES = 10.0
CORES_A_MESSAGE = 1e-3
RATES = {"0x00000000_0x40000000": 4000.0, "0x40000000_0x80000000": 500.0, "0x80000000_0xc0000000": 1000.0}
HOLDERS = dict(zip(RATES, ("a:1", "a:1", "b:1"), strict=True))
BASE = Settings.model_construct(None)
ANALYSING = Analysing.of(BASE)
ORIGIN = Origin("test", END_MS - DAYS * 86_400_000, END_MS, 86_400_000, {"bundle_minute": 4})
DECLARED = {"cpu": CORES, "rate_msg_s": 20_000.0}


def moments() -> list[datetime]:
    return [START + timedelta(minutes=EVERY_MIN * number) for number in range(DAYS * 24 * 60 // EVERY_MIN)]


def tide(at: datetime) -> float:
    """The afternoon's peak is nine times the night."""
    return 1 + 0.8 * math.sin(2 * math.pi * (at.hour - 9) / 24)


def loads(messages: float, at: datetime) -> dict[str, Any]:
    """In and out don't go together, so that their costs can be told apart."""
    share = 0.5 + 0.2 * math.sin(at.timestamp() / 5000)
    return {"in_rate_msg_s": messages * share, "out_rate_msg_s": messages * (1 - share)}


def bundle_minutes() -> Iterable[dict[str, Any]]:
    for at in moments():
        for bundle, rate in RATES.items():
            cores = rate * tide(at) * CORES_A_MESSAGE
            whole = {"bundle": f"t/n/{bundle}", "namespace": "t/n", "broker": HOLDERS[bundle], "covered_s": 60.0}
            measured = {"cpu_percent": 100 * cores, "in_rate_bytes_s": 0.0, "out_rate_bytes_s": 0.0}
            yield {"minute": at, "day": at.date(), **whole, **measured, **loads(rate * tide(at), at)}


def broker_minutes() -> Iterable[dict[str, Any]]:
    for at in moments():
        for broker in ("a:1", "b:1"):
            held = [bundle for bundle, holder in HOLDERS.items() if holder == broker]
            messages = sum(RATES[bundle] for bundle in held) * tide(at)
            percent = 100 * messages * CORES_A_MESSAGE / CORES
            whole = {"broker": broker, "incarnation": 1, "covered_s": 60.0, "reports": 1, "capacity": DECLARED}
            measured = {"cpu_percent": percent, "memory_percent": 10.0, "bundles": float(len(held))}
            bytes_s = {"in_rate_bytes_s": 0.0, "out_rate_bytes_s": 0.0}
            yield {"minute": at, "day": at.date(), **whole, **measured, **bytes_s, **loads(messages, at)}


@pytest.fixture(scope="module")
def tables(spark: SparkSession) -> Callable[[str], DataFrame]:
    """Three days."""
    return made(spark, bundle_minute=list(bundle_minutes()), broker_minute=list(broker_minutes()))


def test_a_bundle_that_is_too_large_is_to_be_cut(tables: Callable[[str], DataFrame]) -> None:
    [advice] = from_bundles.advised(tables, Window(), ANALYSING, BASE, ORIGIN)
    assert isinstance(advice, Advice)
    assert isinstance(advice.change, CutBundles)
    assert advice.change.namespace == "t/n"
    assert advice.change.cuts[0].bundle == "t/n/0x00000000_0x40000000"
    assert advice.expected.measure is Measure.ABOVE_TOLERANCE
    assert (advice.expected.before, advice.expected.after) == (pytest.approx(1.0), pytest.approx(0.0))
    assert dict(advice.provenance.tables) == {"bundle_minute": 4}
    check(advice, "test", END_MS + 1)


def test_the_peak_of_the_afternoon_is_relieved_before(tables: Callable[[str], DataFrame]) -> None:
    advice = from_forecast.advised(tables, Window(), ANALYSING, BASE, ORIGIN)
    assert isinstance(advice, Advice), advice
    assert isinstance(advice.change, MoveBundles)
    assert [(each.bundle, each.destination) for each in advice.change.moves] == [("t/n/0x40000000_0x80000000", "b:1")]
    assert datetime.fromtimestamp(advice.change.not_after_ms / 1000, UTC).hour in range(13, 18)
    assert advice.expected.before == pytest.approx(0.64, abs=0.1)
    check(advice, "test", END_MS + 1)


def test_a_weight_that_is_wrong_and_does_no_harm_stays(tables: Callable[[str], DataFrame]) -> None:
    found = from_weights.advised(tables, Window(), ANALYSING, BASE, ORIGIN)
    assert isinstance(found, str)
    assert "weight_message_rate should be 2" in found


def test_an_empty_lake_and_unknown_kinds_are_told(lake: Lake) -> None:
    found = consider(lake)
    assert found.advice == ()
    assert "history ingest" in found.left_out["forecast"]
    with pytest.raises(Invalid, match="replay, bundles, weights, forecast"):
        consider(lake, options=Options(kinds=("nonsense",)))
