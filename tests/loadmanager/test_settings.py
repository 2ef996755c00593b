"""Settings: bounds that belong together are checked together, and each says what to do."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from loadmanager.settings import Settings


def test_the_defaults_are_valid_and_frozen():
    settings = Settings()
    with pytest.raises(ValidationError):
        settings.cluster = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"load_ttl_s": 100.0}, "at least twice load_report_max_interval_s"),
        ({"load_report_min_interval_s": 901.0}, "must not be below load_report_min_interval_s"),
        ({"session_timeout_s": 1.0}, "must not be below proof_validity_s"),
        ({"proof_validity_s": 0.1}, "greater than 0.2"),
        ({"cluster": "a b"}, "pattern"),
        ({"replicas": 3}, "Extra inputs are not permitted"),
        ({"publish_limit": 0}, "greater than or equal to 1"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(given: dict[str, object], says: str):
    with pytest.raises(ValidationError, match=says):
        Settings(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("validity_s", "margin_s"), [(1.0, 0.1), (2.0, 0.1), (4.0, 0.2), (60.0, 3.0)])
def test_the_margin_is_a_share_of_the_validity_and_at_least_a_tenth_of_a_second(validity_s: float, margin_s: float):
    assert Settings(proof_validity_s=validity_s, session_timeout_s=60.0).margin_s == pytest.approx(margin_s)


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOADMANAGER_CLUSTER", "blue")
    assert Settings().cluster == "blue"
