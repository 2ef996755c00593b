"""What the addresses in the settings stand for."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from loadmanager.broker.wiring import coordination_address, dependencies, file_of, open_group_offsets
from loadmanager.errors import Invalid
from loadmanager.settings import Settings
from statechannel.errors import LogError


@pytest.mark.parametrize("name", ["real.db", "link.db", "sub/../real.db", "linked/real.db", "linked/link.db"])
def test_a_sqlite_log_has_one_coordination_file_whatever_it_is_called(tmp_path: Path, monkeypatch, name: str):
    (tmp_path / "sub").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path)
    (tmp_path / "link.db").symlink_to("real.db")
    real = tmp_path / "real.db"
    for given in (f"{tmp_path}/{name}", name):
        monkeypatch.chdir(tmp_path)
        settings = Settings(log=f"sqlite:{given}")
        assert file_of(settings.log) == real, "also before the file is there"
        assert coordination_address(settings) == f"sqlite:{real}.coordination"


def test_consumer_groups_are_on_the_kafka_of_the_log_with_its_settings():
    settings = Settings(log="kafka://127.0.0.1:9092", kafka={"client.rack": "r1"})
    groups = open_group_offsets(settings)
    assert groups._connection["bootstrap.servers"] == "127.0.0.1:9092"  # type: ignore[attr-defined]
    assert groups._connection["client.rack"] == "r1"  # type: ignore[attr-defined]
    with pytest.raises(LogError, match=r"enable\.auto\.commit"):
        open_group_offsets(Settings(log="kafka://127.0.0.1:9092", kafka={"enable.auto.commit": "true"}))
    with pytest.raises(LogError, match="refuses its settings"):
        open_group_offsets(Settings(log="kafka://127.0.0.1:9092", kafka={"no.such.setting": "1"}))


def test_a_log_on_sqlite_has_no_consumer_groups():
    with pytest.raises(Invalid, match="kafka://host:port"):
        open_group_offsets(Settings(log="sqlite:any.db"))


def test_a_process_with_too_few_descriptors_is_told_how_many_a_broker_needs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (127, 1024))
    with pytest.raises(ValueError, match=r"may have 127 .* at least 128: raise the limit"):
        dependencies(Settings(log="sqlite:any.db"))
