"""The window: means over time that don't lie after a bundle came or went."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager.model.host import BundleLoad
from loadmanager.model.load import Figures, IoRates
from loadmanager.model.load_report import SAMPLES_KEPT, LoadWindow, Means, Sample
from statechannel.law.bundle import Bundle, even_boundaries, tile

BUNDLES = tile("public/default", even_boundaries(4))
HOT, WARM, COLD = BUNDLES[:3]
WINDOW_MS = 30_000
FOREIGN = 10.0


def sample(rates: Mapping[Bundle, float], foreign: float = FOREIGN) -> Sample:
    """Each bundle costs a point of CPU per message a second, on one core, and says so."""
    loads = {bundle: BundleLoad(in_rate_msg_s=rate, cpu_percent=rate) for bundle, rate in rates.items()}
    return Sample(0, Figures(foreign + sum(rates.values()), 50.0, 1.0, 1 << 30, 0.0, 0.0), loads)


def window(*samples: Sample, step_ms: int = 5_000) -> LoadWindow:
    made = LoadWindow(WINDOW_MS)
    for number, each in enumerate(samples):
        made.observe(each, number * step_ms)
    return made


def seen(means: Means) -> tuple[float, float]:
    return means.figures.cpu_percent, means.total.in_rate_msg_s


def test_it_is_the_mean_of_the_window_and_of_nothing_older() -> None:
    noisy = window(*(sample({HOT: rate}) for rate in (90, 20, 30, 40, 20, 30, 40, 30)))
    assert seen(noisy.means()) == pytest.approx((40.0, 30.0))
    assert noisy.mean_of(HOT).in_rate_msg_s == pytest.approx(30.0)


def test_a_bundle_that_went_is_gone_at_once() -> None:
    left = window(*[sample({HOT: 60, WARM: 20})] * 4, sample({WARM: 20}))
    assert seen(left.means()) == pytest.approx((30.0, 20.0))


def test_a_bundle_that_came_counts_in_full_at_once() -> None:
    came = window(*[sample({WARM: 20})] * 4, sample({WARM: 20, HOT: 60}))
    assert seen(came.means()) == pytest.approx((90.0, 80.0))
    assert came.mean_of(HOT).in_rate_msg_s == 60


def test_keys_are_of_the_samples_of_their_bundle_and_never_exceed_it() -> None:
    seconds = [(("a", 90.0), ("b", 10.0)), (("a", 80.0), ("c", 40.0)), (), (("a", float("nan")), ("b", -5.0))]
    rates = [100.0, 120.0, 0.0, 20.0]
    loads = [
        {HOT: BundleLoad(in_rate_msg_s=rate, hottest_keys=keys)} for rate, keys in zip(rates, seconds, strict=True)
    ]
    figures = Figures(1.0, 1.0, 1.0, 1 << 30, 0.0, 0.0)
    hot = window(*(Sample(0, figures, each) for each in loads))
    assert hot.mean_of(HOT).rate_msg_s == pytest.approx(60.0)
    assert dict(hot.hottest_keys_of(HOT)) == pytest.approx({"a": 42.5, "c": 10.0, "b": 2.5})
    assert [name for name, _ in hot.hottest_keys_of(HOT)] == ["a", "c", "b"]


def test_io_is_the_mean_of_the_window_in_whole_bytes() -> None:
    rates = [IoRates(1, 20, 300, 4_000), IoRates(2, 20, 500, 0)]
    figures = [Figures(1.0, 1.0, 1.0, 1 << 30, 0.0, 0.0, each) for each in rates]
    assert window(*(Sample(0, each, {}) for each in figures)).means().figures.io == IoRates(2, 20, 400, 2_000)
    assert window(sample({HOT: 1})).means().figures.io == IoRates()


def test_one_came_while_another_went() -> None:
    swapped = window(*[sample({HOT: 60, WARM: 20})] * 3, sample({COLD: 5, WARM: 20}))
    assert seen(swapped.means()) == pytest.approx((35.0, 25.0))


def test_foreign_load_stays() -> None:
    left = window(*[sample({HOT: 60}, foreign=30.0)] * 3, sample({}, foreign=30.0))
    assert seen(left.means()) == pytest.approx((30.0, 0.0))


def test_it_keeps_few_samples_and_always_the_newest() -> None:
    many = window(*(sample({HOT: rate}) for rate in range(100)), step_ms=1_000)
    assert len(many._measured) <= SAMPLES_KEPT + 2
    assert many.last is not None
    assert many.last.sample.loads[HOT].in_rate_msg_s == 99


def test_figures_that_no_service_can_mean_spoil_nothing() -> None:
    spoiled = window(sample({HOT: 10}), Sample(0, sample({}).figures, {HOT: BundleLoad(in_rate_msg_s=float("nan"))}))
    assert spoiled.means().total.in_rate_msg_s == pytest.approx(5.0)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sets(st.sampled_from(BUNDLES)), min_size=1, max_size=8),
    st.lists(st.floats(1, 25), min_size=4, max_size=4),
)
def test_with_steady_loads_no_coming_and_going_shows(holdings: list[set[Bundle]], rates: list[float]) -> None:
    """Whatever the broker held before: the estimate is what the present bundles and the foreign load cost."""
    cost = dict(zip(BUNDLES, rates, strict=True))
    means = window(*(sample({bundle: cost[bundle] for bundle in held}) for held in holdings)).means()
    expected = sum(cost[bundle] for bundle in holdings[-1])
    assert seen(means) == pytest.approx((FOREIGN + expected, expected))
