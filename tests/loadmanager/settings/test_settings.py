"""Settings: bounds that belong together are checked together, and each says what to do."""

from __future__ import annotations

from typing import get_type_hints

import pytest
from pydantic import ValidationError

import loadmanager
from loadmanager import Broker, Error, Invalid, LoadManagerError, StateChannelError, SyncBroker
from loadmanager.broker.wiring import open_log
from loadmanager.settings import Settings, descriptions
from loadmanager.settings.by_name import Given
from loadmanager.settings.constants import Constants
from loadmanager.settings.removed import REMOVED
from statechannel.adapters.kafka.topics import _new_settings as new_settings
from statechannel.ports import TopicSpec


def test_the_defaults_are_valid_and_frozen():
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.cluster = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"load_window_s": 6_000.0}, "must not be below a sixth of load_window_s"),
        ({"in_flight_timeout_s": 3_600.0}, "in_flight_timeout_s must be below 3600"),
        ({"session_timeout_s": 1.0}, "must not be below proof_validity_s"),
        ({"proof_validity_s": 0.1}, "greater than 0.2"),
        ({"cluster": "a b"}, "pattern"),
        ({"replicas": 3}, "Extra inputs are not permitted"),
        ({"partitions": 0}, "greater than or equal to 1"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(given: dict[str, object], says: str):
    with pytest.raises(ValidationError, match=says):
        Settings(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("validity_s", "margin_s"), [(1.0, 0.1), (2.0, 0.1), (4.0, 0.2), (60.0, 3.0)])
def test_margin_is_a_share_of_the_validity_and_at_least_100_ms(validity_s: float, margin_s: float):
    assert Settings(proof_validity_s=validity_s, session_timeout_s=60.0).margin_s == pytest.approx(margin_s)


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOADMANAGER_CLUSTER", "blue")
    assert Settings().cluster == "blue"


def test_deletions_stay_for_an_hour_on_both_logs():
    sqlite = open_log(Settings(log="sqlite:any.db"))
    kafka = open_log(Settings(log="kafka://127.0.0.1:9092"))
    assert sqlite._keeping.tombstone_ms == 3_600_000  # type: ignore[attr-defined]
    policy = kafka._policy  # type: ignore[attr-defined]
    assert new_settings(TopicSpec("t", compacted=True), 2, policy)["delete.retention.ms"] == "3600000"
    assert "delete.retention.ms" not in new_settings(TopicSpec("t"), 2, policy)


def test_both_logs_keep_replaced_entries_of_followed_topics_for_a_day():
    sqlite = open_log(Settings(log="sqlite:any.db"))
    kafka = open_log(Settings(log="kafka://127.0.0.1:9092"))
    assert sqlite._keeping_followed.replaced_ms == 86_400_000  # type: ignore[attr-defined]
    policy = kafka._policy  # type: ignore[attr-defined]
    followed = TopicSpec("t", compacted=True, followed=True)
    assert new_settings(followed, 2, policy)["min.compaction.lag.ms"] == "86400000"
    assert "min.compaction.lag.ms" not in new_settings(TopicSpec("t", compacted=True), 2, policy)


@pytest.mark.parametrize("given", [{"balancing_budget": float("inf")}, {"load_window_s": float("nan")}])
def test_no_setting_is_infinite(given: dict[str, float]):
    with pytest.raises(ValidationError, match="finite"):
        Settings(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "fraction"), [("tight", 0.05), ("default", 0.1), ("loose", 0.25), ("0.3", 0.3)])
def test_the_tolerance_is_a_word_or_a_fraction(monkeypatch: pytest.MonkeyPatch, given: str, fraction: float):
    monkeypatch.setenv("LOADMANAGER_BALANCING_TOLERANCE", given)
    assert Settings().tolerance == fraction


def test_settings_by_name_are_complete_and_typed_as_the_fields_are():
    fields = {name: Settings.model_fields[name].annotation for name in descriptions()}
    assert get_type_hints(Given) == fields
    assert list(Given.__annotations__) == list(fields)


def test_a_broker_names_the_setting_that_was_meant_and_what_is_wrong():
    with pytest.raises(Invalid, match="there is no setting advertized; did you mean advertised"):
        Broker(advertized="a:1")  # type: ignore[call-arg]
    with pytest.raises(Invalid, match=r"cluster: .*pattern.*; partitions: .*greater than or equal to 1"):
        SyncBroker(cluster="a b", partitions=0)


@pytest.mark.parametrize("name", ["publish_limit", "monitor_interval_s", "split_hits", "load_ttl_s"])
def test_what_was_a_setting_is_refused_with_what_holds_now(monkeypatch: pytest.MonkeyPatch, name: str):
    with pytest.raises(Invalid, match=f"{name} cannot be set: {REMOVED[name]}"):
        Broker(**{name: 1})  # type: ignore[arg-type]
    monkeypatch.setenv(f"LOADMANAGER_{name.upper()}", "1")
    with pytest.raises(Invalid, match=f"LOADMANAGER_{name.upper()}: {name} cannot be set: {REMOVED[name]}"):
        Settings()


def test_no_constant_is_a_setting_and_each_says_its_value():
    for name, field in Constants.model_fields.items():
        assert name not in descriptions()
        if name not in ("properties", "weight_memory"):
            assert f"fixed at {field.default:,g}" in REMOVED[name]


def test_there_are_no_more_settings_than_a_person_can_know():
    assert len(descriptions()) <= 70


def test_every_error_of_ours_is_exported_and_has_one_base():
    for name in ("Conflict", "Gone", "Invalid", "NotFound", "Unavailable", "Moved", "FencedOut", "BudgetSpent"):
        assert issubclass(getattr(loadmanager, name), LoadManagerError), name
    assert issubclass(StateChannelError, Error)
    assert issubclass(LoadManagerError, Error)
    assert set(loadmanager.__all__) == {name for name in loadmanager.__all__ if hasattr(loadmanager, name)}
