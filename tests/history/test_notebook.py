"""The notebook: its cells run one after the other, as a reader runs them, and it is committed without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.generating import World, write

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "history" / "week.ipynb"
WORLD = World(brokers=3, bundles=6, days=2)


def cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_it_is_committed_without_outputs():
    assert [(cell["outputs"], cell["execution_count"]) for cell in cells()] == [([], None)] * len(cells())


def test_its_cells_run_and_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert dict(write(tmp_path / "lake", WORLD))["move"] > 0
    monkeypatch.setenv("LOADMANAGER_LAKE", str(tmp_path / "lake"))
    monkeypatch.chdir(NOTEBOOK.parent)
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells()):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    assert "who_owns_what_now" in capsys.readouterr().out
    for chart, fewest in (("fullness", 48 * WORLD.brokers - 3), ("season", 24), ("gaps", 5)):
        [rows] = names[chart].to_dict()["datasets"].values()
        assert len(rows) >= fewest
    assert len(names["decisions"]) > 0
