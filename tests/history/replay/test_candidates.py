"""What is to be replayed, as somebody writes it, and the settings that make the cluster behave like it."""

from __future__ import annotations

import pytest

from loadmanager.errors import Invalid
from loadmanager.history.replay.candidates import DEFAULTS, Candidate, commands, parsed
from loadmanager.settings import Settings

BASE = Settings()


def names(*given: str) -> list[str]:
    return [each.name for each in parsed(given, BASE)]


def test_a_value_may_be_several_and_several_settings_a_grid():
    assert names("plan:balancing_tolerance=tight|0.2,bundle_rest_s=600|1800") == [
        "plan:balancing_tolerance=tight,bundle_rest_s=600",
        "plan:balancing_tolerance=tight,bundle_rest_s=1800",
        "plan:balancing_tolerance=0.2,bundle_rest_s=600",
        "plan:balancing_tolerance=0.2,bundle_rest_s=1800",
    ]


def test_each_candidate_is_played_once():
    assert names("plan", "transfer", "plan", "plan:bundle_rest_s=600", "plan:bundle_rest_s=600.0") == [
        "plan",
        "transfer",
        "plan:bundle_rest_s=600",
    ]


def test_pulsars_names_and_units_mean_the_same():
    [ours] = parsed(["threshold:loadBalancerSheddingGracePeriodMinutes=5"], BASE)
    assert ours.values == {"bundle_rest_s": 300.0}
    assert ours.settings(BASE).bundle_rest_s == 300
    assert ours.settings(BASE).balancing_strategy == "threshold"


def test_the_defaults_are_what_there_is():
    assert names(*DEFAULTS)[:4] == [
        "recorded",
        *(f"plan:balancing_tolerance={each}" for each in ("tight", "default", "loose")),
    ]


def test_a_name_makes_the_same_candidate_again():
    given = ("plan:shedder_hit_count=2|4,shedder_delay_s=7|9", "recorded")
    once = parsed(given, BASE)
    assert parsed([each.name for each in once], BASE) == once
    assert once[0].settings(BASE).shedder_delay_s == 7
    assert once[3].settings(BASE).shedder_hit_count == 4


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("plam", "no strategy is called 'plam'"),
        ("plan:tolerance", "write tolerance=value"),
        ("plan:bundle_rest=3", "did you mean bundle_rest_s"),
        ("plan:bundle_rest_s=-3", "bundle_rest_s=-3"),
        ("plan:partitions=3", "cannot change while a broker runs"),
        ("recorded:bundle_rest_s=3", "has no settings"),
        ("plan:balancing_interval_s=10|20", "the same for all candidates"),
        ("plan:drain_timeout_s=5", "changes nothing in a replay"),
        ("plan:moves_in_flight=5", "cannot be set: the same as balancing_moves_per_round"),
        ("plan:split_max_keys=5", "changes nothing in a replay"),
        ("plan:balancing_strategy=avg", "before the colon"),
        ("plan:bundle_rest_s=" + "|".join(str(each) for each in range(300)), "at most 200"),
    ],
)
def test_what_is_none_is_said_with_what_would_be(given, told):
    with pytest.raises(Invalid, match=told):
        parsed([given], BASE)
    with pytest.raises(Invalid, match="at least one"):
        parsed([], BASE)


def test_the_config_sets_only_what_differs():
    found = Candidate("transfer", {"bundle_rest_s": 1800.0, "balancing_tolerance": "tight"}).changes(BASE)
    assert commands(found) == (
        "loadmanager config set balancing_strategy transfer",
        "loadmanager config set balancing_tolerance tight",
    )
    assert not Candidate("plan").changes(BASE)
    assert not Candidate("recorded").changes(Settings(balancing_strategy="avg"))
