"""The tool that finds changes of the code that no test notices."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest

from tests.mutation import AREAS, ROOT, Area, mutants_of, survivors

SOURCE = '''"""Text."""


def limited(value: int, most: int = 9) -> int:
    """Text … that is not changed."""
    if value > most and not (value is None):
        raise ValueError(f"at most {most + 1}")
    notes.append(value)
    return max(value, 0)
'''


def test_each_change_is_small_and_compiles():
    changed = {(mutant.line, mutant.before, mutant.after) for mutant in mutants_of(SOURCE)}
    assert changed == {
        (4, "9", "10"),
        (6, "value > most and not (value is None)", "((value > most) or (not value is None))"),
        (6, "value > most", "value >= most"),
        (6, "not (value is None)", "(value is None)"),
        (6, "value is None", "value is not None"),
        (8, "notes.append(value)", "pass"),
        (9, "return max(value, 0)", "return None"),
        (9, "max(value, 0)", "min(value, 0)"),
        (9, "0", "1"),
    }
    for mutant in mutants_of(SOURCE):
        mutated = mutant.applied(SOURCE)
        assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(SOURCE))
        assert len(mutated.splitlines()) == len(SOURCE.splitlines())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the tests of a change start without the plugins that are installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_change_that_no_test_asks_for_survives_and_the_file_is_as_before(tmp_path: Path):
    source = "def least(a, b):\n    return a if a < b else b\n\n\ndef more(a):\n    return a + 1\n"
    (tmp_path / "sums.py").write_text(source)
    (tmp_path / "test_sums.py").write_text("from sums import more\n\n\ndef test_more():\n    assert more(1) == 2\n")
    found = list(survivors(tmp_path, Area(("sums.py",), ("test_sums.py",)), count=99, seed=1))
    assert {(mutant.line, mutant.after) for _, mutant, survived in found if survived} == {
        (2, "a <= b"),
        (2, "return None"),
    }
    assert {mutant.after for _, mutant, survived in found if not survived} == {"a - 1", "2", "return None"}
    assert (tmp_path / "sums.py").read_text() == source


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_tests_that_fail_by_themselves_are_told(tmp_path: Path):
    (tmp_path / "test_no.py").write_text("def test_no():\n    assert False\n")
    with pytest.raises(RuntimeError, match=r"fail without a change: pytest test_no\.py"):
        next(survivors(tmp_path, Area((), ("test_no.py",)), count=1, seed=1))


@pytest.mark.parametrize("name", AREAS)
def test_every_file_of_an_area_is_there_and_has_something_to_change(name: str):
    area = AREAS[name]
    for file in area.files:
        source = (ROOT / file).read_text()
        found = mutants_of(source)
        assert found
        for mutant in random.Random(1).sample(found, min(10, len(found))):
            compile(mutant.applied(source), file, "exec")
    assert all((ROOT / each).exists() for each in area.tests if each.startswith("tests/"))
