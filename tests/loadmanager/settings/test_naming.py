"""Names of settings: ours, Pulsar's with their units converted, and advice for what is neither."""

from __future__ import annotations

import pytest

from loadmanager.errors import Invalid, NotFound
from loadmanager.settings import Settings, descriptions
from loadmanager.settings.names import ELSEWHERE, Named, changeable, named, names_of
from loadmanager.settings.overlay import combined
from loadmanager.settings.removed import PULSARS, REMOVED, why_removed

POST_UPDATE = (
    "loadBalancerBrokerLoadTargetStd",
    "loadBalancerSheddingConditionHitCountThreshold",
    "loadBalancerTransferEnabled",
    "loadBalancerMaxNumberOfBrokerSheddingPerCycle",
    "loadBalanceSheddingDelayInSeconds",
    "loadBalancerBrokerLoadDataTTLInSeconds",
    "loadBalancerMaxNumberOfBundlesInBundleLoadReport",
    "loadBalancerSplitIntervalMinutes",
    "loadBalancerMaxNumberOfBundlesToSplitPerCycle",
    "loadBalancerNamespaceBundleSplitConditionHitCountThreshold",
    "loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds",
    "loadBalancerSheddingBundlesWithPoliciesEnabled",
    "loadBalancerInFlightServiceUnitStateWaitingTimeInMillis",
    "loadBalancerServiceUnitStateMonitorIntervalInSeconds",
)
"""What PIP-192 added to Pulsar's configuration (its debug mode is in `ELSEWHERE`)."""

PULSARS_DEFAULTS = {
    "loadBalancerSheddingConditionHitCountThreshold": 3,
    "loadBalanceSheddingDelayInSeconds": 180,
    "loadBalancerInFlightServiceUnitStateWaitingTimeInMillis": 30_000,
    "loadBalancerReportUpdateMaxIntervalMinutes": 15,
    "loadBalancerSheddingGracePeriodMinutes": 30,
    "loadBalancerNamespaceBundleMaxBandwidthMbytes": 100,
    "brokerShutdownTimeoutMs": 60_000,
}


@pytest.mark.parametrize("name", POST_UPDATE)
def test_everything_that_the_proposal_added_is_known_by_its_name(name: str) -> None:
    assert name in PULSARS or named(name).setting.pulsar


@pytest.mark.parametrize(("name", "theirs"), PULSARS_DEFAULTS.items())
def test_where_the_defaults_are_pulsars_they_are_the_same_in_its_unit(name: str, theirs: object) -> None:
    found = named(name)
    assert found.theirs(found.setting.default) == theirs
    assert found.ours(str(theirs)) == found.setting.default or found.factor == 1.0


@pytest.mark.parametrize(
    ("name", "given", "ours"),
    [
        ("loadBalancerReportUpdateMaxIntervalMinutes", "20", 1200.0),
        ("brokerShutdownTimeoutMs", 2500, 2.5),
        ("loadBalancerNamespaceBundleMaxBandwidthMbytes", "50", 50 * 2.0**20),
        ("load_window_s", "7200", "7200"),
        ("http_request_rate", "null", None),
        (
            "loadBalancerLoadSheddingStrategy",
            "org.apache.pulsar.broker.loadbalance.extensions.scheduler.TransferShedder",
            "transfer",
        ),
        ("loadBalancerLoadSheddingStrategy", "plan", "plan"),
    ],
)
def test_what_is_given_is_turned_into_our_unit_and_words(name: str, given: object, ours: object) -> None:
    assert named(name).ours(given) == ours


@pytest.mark.parametrize("setting", descriptions().values(), ids=lambda setting: setting.name)
def test_there_and_back_again_is_the_default(setting) -> None:
    for name in names_of(setting):
        if isinstance(setting.default, str | int | float | None):
            assert name.ours(name.theirs(setting.default)) == setting.default


def test_no_name_of_pulsars_means_two_settings() -> None:
    names = [name for setting in descriptions().values() for name in setting.pulsar]
    assert len(names) == len(set(names))
    assert not set(names) & {*ELSEWHERE, *descriptions(), *REMOVED, *PULSARS}
    assert not {*REMOVED, *PULSARS} & {*ELSEWHERE, *descriptions()}


def test_an_unknown_name_is_answered_with_what_might_be_meant() -> None:
    with pytest.raises(NotFound, match="did you mean load_window_s"):
        named("load_window")


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_has_no_counterpart_says_what_to_do_instead(name: str) -> None:
    with pytest.raises(NotFound, match="no counterpart here: "):
        named(name)


@pytest.mark.parametrize("name", [*REMOVED, *PULSARS])
def test_what_was_a_setting_says_what_holds_now(name: str) -> None:
    with pytest.raises(NotFound, match=f"^{name} cannot be set: "):
        named(name)
    with pytest.raises(NotFound, match=f"^{name} cannot be set: "):
        changeable(name)
    assert REMOVED[PULSARS.get(name, name)] in (why_removed(name) or "")


@pytest.mark.parametrize("name", ["proof_validity_s", "log", "loadBalancerInFlightServiceUnitStateWaitingTimeInMillis"])
def test_what_needs_a_restart_is_refused_with_the_place_where_to_set_it(name: str) -> None:
    with pytest.raises(Invalid, match=r"where the broker is started \(LOADMANAGER_"):
        changeable(name)


@pytest.mark.parametrize("given", [[1], {"a": 1}, b"1"])
def test_what_is_no_single_value_is_refused(given: object) -> None:
    with pytest.raises(Invalid, match="single value"):
        named("load_window_s").ours(given)


def test_a_word_where_a_number_is_to_be_converted_is_refused() -> None:
    with pytest.raises(Invalid, match="give a number"):
        named("loadBalancerSheddingIntervalMinutes").ours("often")


def test_every_setting_says_what_it_is() -> None:
    for setting in descriptions().values():
        assert setting.meaning
        assert isinstance(setting.default, bool) == (setting.type == "yes or no")
        assert Named(setting, setting.name).factor == 1.0


def test_yes_is_no_number_of_minutes() -> None:
    assert named("loadBalancerSheddingIntervalMinutes").ours(True) is True, "and what is no number is refused later"
    with pytest.raises(ValueError, match="takes a number, not true"):
        combined(Settings(), {"balancing_interval_s": named("loadBalancerSheddingIntervalMinutes").ours(True)})
