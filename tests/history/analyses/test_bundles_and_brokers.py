"""Imbalance, hot bundles, skew, capacity and bundle counts against plain Python, with figures that nobody can mean."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from typing import Any

import pytest
from pyspark.sql import SparkSession

from loadmanager.history.analyses import ANALYSES
from loadmanager.history.analyses.analysis import DEFAULTS, Options
from loadmanager.history.lake import Window
from loadmanager.model.load import RESOURCES, BrokerLoadData, Weights, capacity_row, usages
from loadmanager.strategies.splitting.splits import Limits
from statechannel.law.bundle import even_boundaries, tile
from statechannel.law.record import BrokerId
from tests.history.analyses.making import Chain, Row, answers, at, since, tables

NAN, INF = float("nan"), float("inf")
RATES = ("in_rate_msg_s", "out_rate_msg_s", "in_rate_bytes_s", "out_rate_bytes_s", "cpu_percent")


def options(**changed: Any) -> Options:
    fields = {name: getattr(DEFAULTS, name) for name in DEFAULTS.__struct_fields__}
    return Options(**{**fields, **changed})


def credible(value: float | None) -> float:
    return value if value is not None and 0 <= value < INF else 0.0


def broker_minute(minute: int, broker: str, **more: Any) -> Row:
    row: Row = dict.fromkeys(RATES, 0.0) | {"memory_percent": 0.0, "bundles": 1.0, "incarnation": 1}
    row |= {"minute": at(60 * minute), "broker": broker, "covered_s": 60.0, "reports": 1, "capacity": {"cpu": 4.0}}
    return row | more


def bundle_minute(minute: int, bundle: str, **more: Any) -> Row:
    row: Row = dict.fromkeys(RATES, 0.0) | {"keys": 1.0, "sessions": 1.0, "broker": "a", "covered_s": 60.0}
    return row | {"minute": at(60 * minute), "bundle": bundle, "namespace": bundle.rpartition("/")[0]} | more


def some_brokers(dice: random.Random) -> list[Row]:
    wild = [None, NAN, INF, -5.0, 0.0]
    rows = []
    for minute in range(6):
        for number in range(1 if minute == 3 else 4):
            capacity: dict[str, float] | None = {"cpu": float(2 + 2 * number), "rate_msg_s": 1000.0 * (number + 1)}
            if minute == 2:
                capacity = [None, {}, {"cpu": 0.0, "in_rate_bytes_s": 1e6}, {"cpu": NAN}][number]
            rates = {name: dice.uniform(0, 100 if name == "cpu_percent" else 900) for name in RATES}
            if minute in (1, 2) and number < 2:
                rates[dice.choice(RATES)] = dice.choice(wild)  # type: ignore[assignment]
            covered = 0.0 if (minute, number) == (4, 0) else dice.choice([60.0, 60.0, 12.5])
            rows.append(broker_minute(minute, f"b{number}", covered_s=covered, capacity=capacity, **rates))
    rows.append(broker_minute(5, "b1", incarnation=2, covered_s=20.0, cpu_percent=99.0))
    rows.append(broker_minute(7, "b0", cpu_percent=0.0))
    rows.append(broker_minute(8, "b0", cpu_percent=50.0, covered_s=None))
    return rows


def usage_of(row: Row, weights: Weights) -> list[float | None]:
    """By the production's own function; None where the broker declares no capacity, or nothing weighs."""
    rates: dict[str, Any] = {name: credible(row[name]) for name in RATES}
    capacity = {name: value for name, value in (row["capacity"] or {}).items() if credible(value)}
    load = BrokerLoadData(BrokerId(row["broker"], 1), 0, memory_percent=0.0, capacity=capacity, **rates)
    found = usages(load, weights)
    room = capacity_row(capacity)
    return [
        found[n] if weights.row[n] > 0 and room[n] < INF else None
        for n in range(len(RESOURCES))
    ]  # fmt: skip


def test_imbalance_is_what_production_s_usages_say(spark: SparkSession) -> None:
    rows, weights = some_brokers(random.Random(1)), Weights(cpu=0.9)
    table = tables(spark, broker_minute=rows)
    found = answers(ANALYSES["imbalance"].run(table, Window(end=at(8 * 60)), options(weights=weights)),
                    "minute", "resource")  # fmt: skip
    found = {(since(minute) // 60, resource): row for (minute, resource), row in found.items()}
    expected = 0
    for minute in (0, 1, 2, 3, 4, 5, 7):
        present = [row for row in rows if row["minute"] == at(60 * minute) and (row["covered_s"] or 0) > 0]
        each = [(row, row["covered_s"], usage_of(row, weights)) for row in present]
        evens = [0.0]
        for number, resource in enumerate((*RESOURCES, "fullest")):
            fullest = resource == "fullest"
            pairs = [(max(x or 0.0 for x in u) if fullest else u[number], c, row) for row, c, u in each]
            pairs = [(u, c, row) for u, c, row in pairs if u is not None]
            if not pairs:
                assert (minute, resource) not in found
                continue
            expected += 1
            row = found[minute, resource]
            time = sum(c for _, c, _ in pairs)
            mean = sum(u * c for u, c, _ in pairs) / time
            top = max(u for u, _, _ in pairs)
            assert row["brokers"] == pytest.approx(time / 60)
            assert row["mean"] == pytest.approx(mean)
            assert row["std"] == pytest.approx(
                math.sqrt(sum(c * (u - mean) ** 2 for u, c, _ in pairs) / time), abs=1e-6
            )
            assert row["max"] == pytest.approx(top)
            assert row["max_over_mean"] == pytest.approx(top / mean if mean > 0 else 1.0)
            if fullest:
                even = max(evens)
            else:
                rooms = [
                    capacity_row({k: v for k, v in (r["capacity"] or {}).items() if credible(v)}) for _, _, r in pairs
                ]
                room = sum(c * w[number] for (_, c, _), w in zip(pairs, rooms, strict=True))
                load = sum(c * u / weights.row[number] * w[number] for (u, c, _), w in zip(pairs, rooms, strict=True))
                even = weights.row[number] * load / room
                evens.append(even)
            allowed = max(0.05, 1.1 * even)
            assert (row["even"], row["allowed"]) == pytest.approx((even, allowed))
            covered = max(c for u, c, _ in pairs if u == top)
            assert row["above_s"] == (covered if top > allowed else 0.0)
    assert len(found) == expected


def test_hot_bundles_and_skew_are_sums_and_ranks(spark: SparkSession) -> None:
    dice = random.Random(2)
    brokers = [broker_minute(minute, name, cpu_percent=50.0, in_rate_msg_s=4000.0, out_rate_msg_s=2000.0,
                             in_rate_bytes_s=5e5, out_rate_bytes_s=5e5, capacity={"cpu": cores})
               for minute in range(4) for name, cores in (("a", 4.0), ("b", 8.0))]  # fmt: skip
    names = [str(bundle) for bundle in tile("t/n", even_boundaries(13))]
    rows = [
        bundle_minute(minute, name, covered_s=dice.choice([60.0, 30.0, 0.0]),
                      **{rate: dice.choice([dice.paretovariate(1.2) * 10, None, NAN, -1.0, INF]) for rate in RATES})
        for minute in range(4) for name in names
    ]  # fmt: skip
    table = tables(spark, broker_minute=brokers, bundle_minute=rows)
    parts: dict[str, dict[str, float]] = {name: defaultdict(float) for name in names}
    for row in rows:
        s, mine = row["covered_s"], parts[row["bundle"]]
        value = {rate: credible(row[rate]) for rate in RATES}
        mine["covered"] += s
        mine["cpu"] += s * value["cpu_percent"] / 100
        mine["bandwidth in"] += s * value["in_rate_bytes_s"]
        mine["bandwidth out"] += s * value["out_rate_bytes_s"]
        mine["message rate"] += s * (value["in_rate_msg_s"] + value["out_rate_msg_s"])
    seen = {name: mine for name, mine in parts.items() if mine["covered"] > 0}
    whole = {"cpu": 240 * 6.0, "bandwidth in": 480 * 5e5, "bandwidth out": 480 * 5e5, "message rate": 480 * 6000.0}
    shares = {name: max((mine[r] / whole[r], r) for r in whole) for name, mine in seen.items()}
    order = sorted(seen, key=lambda name: (-shares[name][0], name))

    hot = ANALYSES["hot_bundles"].run(table, Window(), options(top=5)).collect()
    assert [row["bundle"] for row in hot] == order[:5]
    assert [row["rank"] for row in hot] == [1, 2, 3, 4, 5]
    for place, row in enumerate(hot):
        mine = seen[row["bundle"]]
        assert row["share"] == pytest.approx(shares[row["bundle"]][0])
        assert row["cumulative"] == pytest.approx(sum(shares[name][0] for name in order[: place + 1]))
        assert row["cores"] == pytest.approx(mine["cpu"] / mine["covered"])
        assert row["size"] == pytest.approx(mine["cpu"] / mine["covered"] / 6)

    skew = answers(ANALYSES["skew"].run(table, Window(), DEFAULTS), "resource")
    assert set(skew) == set(whole)
    for resource, row in skew.items():
        loads = [mine[resource] for mine in seen.values()]
        n, total = len(loads), sum(loads)
        gini = sum(abs(a - b) for a in loads for b in loads) / (2 * n * total)
        tops = sorted(loads, reverse=True)
        assert row["bundles"] == n
        assert row["gini"] == pytest.approx(gini)
        assert (row["top_1"], row["top_10"]) == pytest.approx((tops[0] / total, sum(tops[:10]) / total))
        assert row["top_1_percent"] == row["top_1"]


def test_without_measured_cpu_messages_tell_and_without_messages_bytes(spark: SparkSession) -> None:
    brokers = [broker_minute(0, "a", cpu_percent=50.0, in_rate_msg_s=100.0, in_rate_bytes_s=1000.0)]
    unmeasured = [{"at": at(30), "broker": "a", "cpu_percent": 0.0}]
    rows = [bundle_minute(0, "t/n/0x00000000_0x80000000", in_rate_msg_s=25.0, in_rate_bytes_s=900.0)]
    table = tables(spark, broker_minute=brokers, bundle_minute=rows, bundle_total=unmeasured)
    assert ANALYSES["hot_bundles"].run(table, Window(), DEFAULTS).collect()[0]["cores"] == pytest.approx(0.5)
    brokers[0]["in_rate_msg_s"] = rows[0]["in_rate_msg_s"] = 0.0
    table = tables(spark, broker_minute=brokers, bundle_minute=rows, bundle_total=unmeasured)
    assert ANALYSES["hot_bundles"].run(table, Window(), DEFAULTS).collect()[0]["cores"] == pytest.approx(1.8)


def test_the_capacity_model_finds_each_kind_s_costs(spark: SparkSession) -> None:
    dice = random.Random(3)
    truth = {4.0: (0.1, 0.05, 0.02, 0.001, 0.0, 0.01), 8.0: (0.3, 0.025, 0.01, 0.0, 0.002, 0.0)}
    rows = []
    for minute in range(60):
        for name, cores in (("a", 4.0), ("b", 8.0), ("c", 8.0)):
            x = (
                1.0,
                dice.uniform(0, 9),
                dice.uniform(0, 9),
                dice.uniform(0, 90),
                dice.uniform(0, 90),
                float(dice.randint(0, 9)),
            )
            used = sum(a * b for a, b in zip(truth[cores], x, strict=True))
            rates = {"in_rate_msg_s": 1000 * x[1], "out_rate_msg_s": 1000 * x[2]}
            rates |= {"in_rate_bytes_s": x[3] * 2**20, "out_rate_bytes_s": x[4] * 2**20}
            rates |= {"cpu_percent": 100 * used / cores, "bundles": x[5], "covered_s": dice.choice([60.0, 30.0])}
            rows.append(broker_minute(minute, name, capacity={"cpu": cores}, **rates))
            # what did not measure its CPU did not use none
            rows.append(broker_minute(minute, name, capacity={"cpu": cores}, **rates | {"cpu_percent": None}))
            rows.append(broker_minute(minute, name, capacity={"cpu": cores}, **rates | {"cpu_percent": NAN}))
    found = answers(ANALYSES["capacity"].run(tables(spark, broker_minute=rows), Window(), DEFAULTS), "kind", "term")
    terms = ("base", "messages in", "messages out", "bytes in", "bytes out", "bundles")
    for cores, costs in truth.items():
        for term, cost in zip(terms, costs, strict=True):
            row = found[f"{cores:g} cores", term]
            assert row["coefficient"] == pytest.approx(cost, abs=1e-6)
            assert row["r2"] == pytest.approx(1.0, abs=1e-6)
            assert (row["brokers"], row["minutes"]) == ((1, 60) if cores == 4 else (2, 120))
            assert row["alone"] is None if term == "base" else row["alone"] > 0.7


def test_bundle_counts(spark: SparkSession) -> None:
    limits = Limits(INF, INF, 1000.0, INF)
    brokers = [broker_minute(0, name, cpu_percent=50.0, capacity={"cpu": 4.0}) for name in ("a", "b")]
    big, cold, plain = ([str(b) for b in tile(f"t/{name}", even_boundaries(count))]
                        for name, count in (("big", 4), ("cold", 8), ("plain", 4)))  # fmt: skip
    # even is 0.5, so 0.05 of the mean broker (0.2 cores, 20 % of one) is what a bundle may take
    rows = [bundle_minute(0, big[0], cpu_percent=61.0), bundle_minute(0, big[1], cpu_percent=19.0)]
    rows += [bundle_minute(0, big[2], in_rate_msg_s=600.0, out_rate_msg_s=1000.0), bundle_minute(0, big[3])]
    rows += [bundle_minute(0, name, in_rate_msg_s=rate) for name, rate in
             zip(cold, (30.0, 30.0, 30.0, 30.0, 300.0, 99.0, 2.0, 1.0), strict=True)]  # fmt: skip
    rows += [bundle_minute(0, name, in_rate_msg_s=500.0) for name in plain]
    chain = Chain()
    for name in (*big, *cold, *plain, "t/big/0xf0000000_0xffffffff"):
        chain.born(0, name, "a")
    found = answers(
        ANALYSES["bundle_count"].run(
            tables(spark, broker_minute=brokers, bundle_minute=rows, transition=chain.rows),
            Window(),
            options(limits=limits, namespace_min_bundles=2),
        ),
        "namespace",
    )
    one = found["t/big"]
    assert (one["bundles"], one["measured"], one["bundle"]) == (5, 4, big[0])
    assert (one["largest"], one["allowed"]) == pytest.approx((0.61 / 4, 0.05))
    # 0.1525 / 0.05 is 4 parts, 1.6 of a limit at 0.75 each are 3
    assert (one["too_large"], one["over_limits"], one["parts"]) == (1, 1, 5)
    assert (one["advised"], one["advice"]) == (10, "split")
    # 120 of 100 in four make two, the hot one stays, 102 of 100 in three make two
    two = found["t/cold"]
    assert (two["merges"], two["advised"], two["advice"]) == (3, 5, "merge")
    three = found["t/plain"]
    assert (three["parts"], three["merges"], three["advice"]) == (0, 0, "keep")
