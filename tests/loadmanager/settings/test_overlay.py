"""The cluster's settings over a broker's own: what does not fit is left out, the rest holds, and nothing raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.documents.fold import Version
from loadmanager.settings import Settings, descriptions
from loadmanager.settings.overlay import ClusterValue, combined, overlaid, values_after

START = Settings()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"load_report_max_interval_s": 1.0}, "must not be below a sixth of load_window_s"),
        ({"balancing_budget": 7.0}, "balancing_budget=7.0: input should be less than or equal to 1"),
        ({"balancing_budget": float("inf")}, "finite"),
        ({"balancing_budget": float("nan")}, "balancing_budget"),
        ({"balancing_interval_s": True}, "takes a number, not true"),
        ({"balancing": "perhaps"}, "boolean"),
        ({"split_max_keys": 2.5}, "integer"),
        ({"balancing_interval_s": None}, "number"),
        ({"balancing_strategy": "guess"}, "guess is not installed here; set it to one of: .*plan"),
        ({"placement": "guess"}, "not installed here; set it to one of: .*least-loaded"),
        ({"split_algorithm": "specified_positions_divide"}, "set it to one of: range_equally_divide"),
        ({"balancing_tolerance": 1.5}, "tight, default, loose, or a fraction"),
        ({"balancing_tolerance": "strict"}, "balancing_tolerance=strict"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason_and_left_out(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        combined(START, values)  # type: ignore[arg-type]
    overlay = overlaid(START, values)  # type: ignore[arg-type]
    assert overlay.settings == START
    assert list(overlay.ignored) == list(values)


def test_what_fits_holds_beside_what_does_not() -> None:
    overlay = overlaid(
        START, {"balancing": False, "of_tomorrow": 3, "proof_validity_s": 1.0, "split_hits": 5, "split": False}
    )
    assert overlay.applied == {"balancing": False, "split": False}
    assert overlay.settings == Settings(balancing=False, split=False)
    assert set(overlay.ignored) == {"of_tomorrow", "proof_validity_s", "split_hits"}
    assert "no such setting" in overlay.ignored["of_tomorrow"]
    assert "restart" in overlay.ignored["proof_validity_s"]
    assert overlay.ignored["split_hits"] == "split_hits cannot be set: fixed at 3, Pulsar's default"


def test_of_two_that_do_not_go_together_the_later_is_left_out() -> None:
    seldom, long = {"load_report_max_interval_s": 20.0}, {"load_window_s": 240.0}
    for first, second in ((seldom, long), (long, seldom)):
        overlay = overlaid(START, {**first, **second})
        assert overlay.applied == first
        assert list(overlay.ignored) == list(second)


def test_two_that_only_fit_together_hold_together() -> None:
    values = {"load_report_max_interval_s": 1.0, "load_window_s": 3.0}
    assert overlaid(START, values).ignored == {}


def test_a_broker_that_was_started_otherwise_judges_by_its_own_settings() -> None:
    own = Settings(load_report_max_interval_s=2_000.0)
    assert overlaid(own, {"load_window_s": 9_000.0}).settings.load_window_s == 9_000.0
    assert overlaid(START, {"load_window_s": 9_000.0}).settings.load_window_s == START.load_window_s


DESCRIPTIONS = descriptions()
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)


@given(st.dictionaries(st.sampled_from([*DESCRIPTIONS, "unknown"]), scalars, max_size=6))
def test_whatever_the_topic_holds_settings_come_out_that_would_be_accepted(values: dict[str, object]) -> None:
    overlay = overlaid(START, values)  # type: ignore[arg-type]
    assert set(overlay.applied) | set(overlay.ignored) == set(values)
    assert combined(START, overlay.applied) == overlay.settings
    for name in values:
        if name == "unknown" or not DESCRIPTIONS[name].live:
            assert name in overlay.ignored


def test_what_stood_is_told_in_the_order_of_the_changes() -> None:
    history = [
        Version("split", 1, ClusterValue(False), "ann", 1, "", 0),
        Version("merge", 1, ClusterValue(False), "ann", 1, "", 1),
        Version("split", 2, ClusterValue(True), "ann", 1, "", 2),
        Version[ClusterValue]("merge", 2, None, "ann", 1, "", 5),
    ]
    assert list(values_after(history).items()) == [("split", True)]
    assert list(values_after(history, 4).items()) == [("merge", False), ("split", True)]
    assert values_after(history, 1) == {"split": False, "merge": False}
    assert values_after(history, -1) == {}


def test_one_that_does_not_fit_takes_none_with_it_that_needs_a_later_one() -> None:
    both = {"load_report_max_interval_s": 1.0, "load_window_s": 3.0}
    overlay = overlaid(START, {**both, "balancing_strategy": "of-another-broker"})
    assert overlay.applied == both
    assert list(overlay.ignored) == ["balancing_strategy"]


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"balancing_moves_per_round": 10**30}, "balancing_moves_per_round must not be above"),
        ({"audit_retention_s": 1e300}, "audit_retention_s must not be above 1e\\+09"),
        ({"balancing_interval_s": 1e-9}, "greater than or equal to 0.01"),
    ],
)
def test_numbers_beyond_reason_are_refused(values: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        combined(START, values)
