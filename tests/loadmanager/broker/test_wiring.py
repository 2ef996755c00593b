"""What the addresses in the settings stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadmanager.broker.wiring import coordination_address, file_of
from loadmanager.settings import Settings


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
