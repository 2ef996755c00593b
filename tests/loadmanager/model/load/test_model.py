"""Load values: what they say on the wire, which bundles count as hottest, how full a broker and a bundle make it."""

from __future__ import annotations

from math import inf, nan

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.model.host import BundleLoad
from loadmanager.model.load import (
    BrokerLoadData,
    LoadedBundle,
    TopBundlesLoadData,
    Weights,
    broker_row,
    bundle_row,
    credible,
    decode_broker_load,
    decode_top_bundles,
    hottest,
    total_of,
    usage,
    usages,
)
from statechannel.law.bundle import Bundle, even_boundaries, tile
from statechannel.law.record import BrokerId

B1 = BrokerId("b1:6650", 7)
BUNDLES = tile("public/default", even_boundaries(8))

amounts = st.floats(0, 1e6)
bundle_loads = st.builds(
    BundleLoad,
    keys=st.integers(0, 1000),
    sessions=st.integers(0, 1000),
    in_rate_msg_s=amounts,
    out_rate_msg_s=amounts,
    in_rate_bytes_s=amounts,
    out_rate_bytes_s=amounts,
    cpu_percent=st.floats(0, 400),
)
capacities = st.dictionaries(
    st.sampled_from(["cpu", "memory_bytes", "in_rate_bytes_s", "out_rate_bytes_s", "rate_msg_s"]), st.floats(1, 1e6)
)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(BUNDLES), bundle_loads), st.floats(0, 100), capacities)
def test_both_values_survive_the_wire(loads: dict[Bundle, BundleLoad], cpu: float, capacity: dict[str, float]) -> None:
    total = total_of(loads.values())
    broker = BrokerLoadData(B1, 5, cpu_percent=cpu, bundles=len(loads), capacity=capacity)
    hot = tuple(LoadedBundle(bundle, loads[bundle]) for bundle in hottest(loads, 3, total))
    top = TopBundlesLoadData(B1, 5, hot, total, len(loads))
    assert decode_broker_load(msgspec.json.encode(broker)) == broker
    assert decode_top_bundles(msgspec.json.encode(top)) == top


def test_fields_of_a_newer_release_are_ignored() -> None:
    assert decode_broker_load(b'{"broker":["b1:6650",7],"sampled_ms":1,"gpu_percent":3}') == BrokerLoadData(B1, 1)


@pytest.mark.parametrize("data", [b"", b"{}", b"null", b'{"broker":"b1","sampled_ms":1}'])
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        decode_broker_load(data)


@pytest.mark.parametrize("wrong", [nan, inf, -1.0])
def test_figures_that_no_service_can_mean_count_as_nothing(wrong: float) -> None:
    load = BundleLoad(keys=3, in_rate_msg_s=wrong, cpu_percent=5.0, hottest_keys=(("k", 1.0),))
    assert credible(load) == BundleLoad(keys=3, cpu_percent=5.0, hottest_keys=(("k", 1.0),))


def test_bundle_heavy_in_one_respect_precedes_many_light_in_all() -> None:
    light = {bundle: BundleLoad(in_rate_msg_s=100, in_rate_bytes_s=1000) for bundle in BUNDLES[1:]}
    loads = light | {BUNDLES[0]: BundleLoad(in_rate_msg_s=1, cpu_percent=80)}
    assert hottest(loads, 2, total_of(loads.values()))[0] == BUNDLES[0]


def test_hottest_keeps_n_in_order() -> None:
    loads = {bundle: BundleLoad(in_rate_msg_s=i) for i, bundle in enumerate(BUNDLES)}
    assert hottest(loads, 3, total_of(loads.values())) == [BUNDLES[i] for i in (7, 6, 5)]


def test_usage_is_the_fullest_resource_and_memory_does_not_count() -> None:
    load = BrokerLoadData(B1, 0, cpu_percent=30, memory_percent=90, capacity={"memory_bytes": 100})
    assert usage(load) == pytest.approx(0.3)
    assert usage(load, Weights(memory=1.0)) == pytest.approx(0.9)


def test_bandwidth_counts_only_where_its_capacity_is_declared() -> None:
    silent = BrokerLoadData(B1, 0, cpu_percent=30, in_rate_bytes_s=9e9)
    declared = BrokerLoadData(B1, 0, cpu_percent=30, in_rate_bytes_s=60, capacity={"in_rate_bytes_s": 100})
    assert usage(silent) == pytest.approx(0.3)
    assert usage(declared) == pytest.approx(0.6)
    assert usages(declared) == pytest.approx((0.3, 0.0, 0.6, 0.0, 0.0))


def test_cpu_measured_per_bundle_counts_up_to_the_share_of_the_bundle() -> None:
    broker = BrokerLoadData(B1, 0, cpu_percent=50, capacity={"cpu": 2})
    total = BundleLoad(cpu_percent=60, in_rate_msg_s=100)
    part = BundleLoad(cpu_percent=30, in_rate_msg_s=99)
    assert bundle_row(part, total, broker)[0] == pytest.approx(0.3)  # of a core
    busy_less = msgspec.structs.replace(broker, cpu_percent=20)
    assert bundle_row(part, total, busy_less)[0] == pytest.approx(0.2)  # half of what the bundles claim


def test_without_cpu_per_bundle_messages_and_then_bytes_tell_the_share() -> None:
    broker = BrokerLoadData(B1, 0, cpu_percent=80)
    by_messages = bundle_row(BundleLoad(in_rate_msg_s=25), BundleLoad(in_rate_msg_s=50, out_rate_msg_s=50), broker)
    by_bytes = bundle_row(BundleLoad(out_rate_bytes_s=10), BundleLoad(in_rate_bytes_s=40), broker)
    assert (by_messages[0], by_bytes[0]) == (pytest.approx(0.2), pytest.approx(0.2))


@settings(deadline=None)
@given(st.lists(bundle_loads, min_size=1, max_size=6), st.floats(0, 100), capacities)
def test_the_bundles_never_make_up_more_than_their_broker(
    loads: list[BundleLoad], cpu: float, capacity: dict[str, float]
) -> None:
    total = total_of(loads)
    broker = BrokerLoadData(
        B1,
        0,
        cpu_percent=cpu,
        in_rate_bytes_s=total.in_rate_bytes_s,
        out_rate_bytes_s=total.out_rate_bytes_s,
        in_rate_msg_s=total.in_rate_msg_s,
        out_rate_msg_s=total.out_rate_msg_s,
        capacity=capacity,
    )
    rows = [bundle_row(load, total, broker) for load in loads]
    together = [sum(column) for column in zip(*rows, strict=True)]
    assert all(a <= b * 1.000001 + 1e-9 for a, b in zip(together, broker_row(broker), strict=True))
