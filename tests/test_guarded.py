"""What decides whether the tests that take minutes are run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests import guarded
from tests.guarded import GUARDED, ROOT, changed, digest, files_of


def digest_of(folder: Path) -> str:
    return digest(folder.rglob("*.*"))


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(guarded, "ROOT", tmp_path)
    file = tmp_path / "code.py"
    file.write_text('"""One."""\n\n\ndef one():\n    """Two."""\n    return 1  # three\n')
    return file


def test_other_comments_change_nothing(code: Path):
    before = digest_of(code.parent)
    code.write_text('"""Four."""\n\n\ndef one():\n    return 1\n')
    assert digest_of(code.parent) == before


@pytest.mark.parametrize("text", ["def one():\n    return 2\n", "def one(): ...\n", ""])
def test_other_code_changes_it(code: Path, text: str):
    before = digest_of(code.parent)
    code.write_text(text)
    assert digest_of(code.parent) != before


def test_a_file_more_a_file_less_and_another_name_change_it(code: Path):
    before = digest_of(code.parent)
    (code.parent / "more.txt").write_text("")
    assert digest_of(code.parent) != before
    (code.parent / "more.txt").unlink()
    assert digest_of(code.parent) == before
    code.rename(code.parent / "other.py")
    assert digest_of(code.parent) != before


def test_what_is_imported_by_way_of_others_is_guarded():
    found = {str(file.relative_to(ROOT)) for file in files_of("history")}
    assert "loadmanager/channel/audit/promises.py" in found
    assert "statechannel/law/transitions.py" in found
    assert "tests/history/conftest.py" in found
    assert "loadmanager/client/router.py" not in found


def test_what_only_the_jobs_import_is_guarded_where_they_run():
    ingest, published = "loadmanager/history/ingest/batches.py", "loadmanager/history/published.py"
    command = "api/loadmanager_api/cli/load_history/ingest.py"
    guarded_by = {name: {str(file.relative_to(ROOT)) for file in files_of(name)} for name in ("fuzz", "dashboard")}
    assert not {ingest, command} & guarded_by["fuzz"]
    assert published in guarded_by["fuzz"], "the endpoints read it"
    assert {ingest, command} <= guarded_by["dashboard"]


def test_what_never_passed_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guarded, "PASSED", tmp_path / "guarded.txt")
    assert changed() == set(GUARDED)
    guarded.PASSED.write_text(f"history {digest(files_of('history'))}\nsimulation 0\n")
    assert changed() == set(GUARDED) - {"history"}


def test_the_endpoints_are_guarded_with_all_that_they_import():
    found = {str(file.relative_to(ROOT)) for file in files_of("integration")}
    assert {"api/loadmanager_api/server.py", "loadmanager/client/router.py", "statechannel/law/table.py"} <= found


def test_the_tests_on_kubernetes_guard_the_chart_and_not_the_code():
    found = {str(file.relative_to(ROOT)) for file in files_of("kubernetes")}
    assert {"helm/loadmanager/values.yaml", "stack/kubernetes/cluster.py", "tests/kubernetes/conftest.py"} <= found
    assert not [each for each in found if each.startswith(("loadmanager/", "api/"))]


@pytest.mark.parametrize(
    ("given", "status", "written"),
    [
        ({}, 0, True),
        ({}, 1, False),
        ({"guarded": "none"}, 0, False),
        ({"collectonly": True}, 0, False),
        ({"keyword": "some"}, 0, False),
        ({"deselect": ["one"]}, 0, False),
    ],
)
def test_only_a_whole_run_that_passed_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, object], status: int, written: bool
):
    monkeypatch.setattr(guarded, "PASSED", tmp_path / "guarded.txt")
    monkeypatch.setattr(guarded, "_PASSED_HERE", {"history"})
    whole = {"guarded": "all", "collectonly": False, "keyword": "", "markexpr": "not slow", "deselect": None}
    config = SimpleNamespace(option=SimpleNamespace(**(whole | given)), args=["tests"])
    guarded.pytest_sessionfinish(cast("pytest.Session", SimpleNamespace(config=config)), status)
    assert guarded.PASSED.exists() == written


def test_where_all_tests_were_skipped_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guarded, "PASSED", tmp_path / "guarded.txt")
    monkeypatch.setattr(guarded, "_PASSED_HERE", set[str]())
    guarded.PASSED.write_text("kubernetes 0\n")
    for name, outcome in (("kubernetes", "skipped"), ("helm", "passed")):
        place = (f"tests/{name}/test_it.py", 1, "test_it")
        guarded.pytest_runtest_logreport(
            pytest.TestReport(f"{place[0]}::test_it", place, {}, outcome, None, "call")  # type: ignore[arg-type]
        )
    option = SimpleNamespace(guarded="all", collectonly=False, keyword="", markexpr="not slow", deselect=None)
    config = SimpleNamespace(option=option, args=["tests"])
    guarded.pytest_sessionfinish(cast("pytest.Session", SimpleNamespace(config=config)), 0)
    assert guarded.PASSED.read_text() == f"helm {digest(files_of('helm'))}\nkubernetes 0\n"
