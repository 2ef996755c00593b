"""The command and its pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadmanager.errors import Invalid
from loadmanager.settings import Settings
from loadmanager.strategies.playground.measures import games, summaries
from loadmanager.strategies.playground.pictures import draw
from loadmanager.strategies.playground.scenario import Size
from loadmanager_api.cli.main import main

TRACE = str(Path(__file__).parents[3] / "examples" / "traces" / "us-departures-2001.csv")
SMALL = ("--brokers", "4", "--bundles", "40", "--rounds", "24")


def playground(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["playground", *SMALL, *arguments])


def test_the_table_has_a_row_for_each_strategy_and_workload():
    result = playground("--strategies", "transfer,avg", "--workload", "heavy,big", "--seeds", "2")
    assert result.exit_code == 0, result.output
    rows = [line.split()[:2] for line in result.stdout.splitlines()[2:]]
    assert rows == [["heavy", "transfer"], ["heavy", "avg"], ["big", "transfer"], ["big", "avg"]]
    assert "of 2" in result.stdout


def test_programs_get_json_without_infinities():
    result = playground("--strategies", "uniform", "--workload", "mixed", "-o", "json")
    assert result.exit_code == 0, result.output
    [row] = json.loads(result.stdout)
    assert (row["workload"], row["strategy"], row["seeds"]) == ("mixed", "uniform", 1)
    assert row["over_hindsight"] is None


def test_the_same_command_says_the_same_again():
    arguments = ("--strategies", "threshold", "--workload", "zipf", "-o", "json")
    assert playground(*arguments).stdout == playground(*arguments).stdout


def test_a_recorded_trace_is_a_workload():
    result = playground("--strategies", "avg", "--trace", TRACE, "-o", "json")
    assert result.exit_code == 0, result.output
    assert [row["workload"] for row in json.loads(result.stdout)] == ["trace"]


def test_settings_steer_the_strategies():
    def moves(*more: str) -> float:
        result = playground("--strategies", "overload", "--workload", "unequal", "-o", "json", *more)
        return json.loads(result.stdout)[0]["moves"]

    assert moves("--set", "overloaded_percent=100") < moves()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("--strategies", "magic"), 1, "no strategy is called 'magic'; there are: avg"),
        (("--workload", "tsunami"), 1, "no workload is called 'tsunami'; there are: zipf"),
        (("--workload", ""), 1, "give at least one workload"),
        (("--workload", "trace"), 1, "give it with --trace"),
        (("--trace", "nowhere.csv"), 1, "nowhere.csv: "),
        (("--bundles", "3"), 2, "give at least one for each of 4 brokers"),
        (("--seeds", "0"), 2, "--seeds"),
        (("--set", "bundle_rest=1"), 2, "did you mean bundle_rest_s"),
    ],
)
def test_bad_input_gets_a_clear_answer(arguments: tuple[str, ...], code: int, told: str):
    result = playground(*arguments)
    assert result.exit_code == code
    assert told in result.output
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_pictures_are_drawn_and_the_page_needs_no_network(tmp_path: Path):
    result = playground("--strategies", "transfer,avg", "--workload", "steps", "--out", str(tmp_path / "new"))
    assert result.exit_code == 0, result.output
    picture, page = tmp_path / "new" / "steps.png", tmp_path / "new" / "steps.html"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(picture.read_bytes()) > 10_000
    text = page.read_text()
    assert "transfer" in text
    assert "<script src=" not in text
    assert '<link rel="stylesheet" href=' not in text


def test_without_the_extra_it_says_which_one_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    played = list(games(["avg"], ["heavy"], [1], Size(3, 30, 12), Settings()))
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(Invalid, match=r"drawing needs .* not installed: pip install 'loadmanager\[playground\]'"):
        draw(played, tmp_path)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    played = list(games(["avg"], ["heavy"], [1], Size(3, 30, 12), Settings()))
    with pytest.raises(Invalid, match="file"):
        draw(played, tmp_path / "file")


def test_seeds_are_summed_up_in_one_row():
    played = [game.measures for game in games(["plan"], ["zipf"], [1, 2, 3], Size(4, 60, 24), Settings())]
    [row] = summaries(played)
    assert row.seeds == 3
    assert row.moved_percent == pytest.approx(sum(each.moved_percent for each in played) / 3)
    assert row.max_over_mean_worst == max(each.max_over_mean_worst for each in played)
    assert row.certificate_ratio == pytest.approx(sum(each.certificate_ratio for each in played) / 3)
    assert row.certificate_ratio_worst == max(each.certificate_ratio for each in played)
