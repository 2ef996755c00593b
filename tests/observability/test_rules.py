"""Each alert fires on series that call for it, not on others, and has a runbook: judged by promtool."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from loadmanager_api.cli.main import main
from stack.prometheus import promtool
from tests.observability.cases import CASES, MINUTES
from tests.observability.rules import ROOT, RULES, alerts, quick

pytestmark = pytest.mark.prometheus


def judged(alert: str, series: list[dict[str, str]], *, fires: bool) -> dict[str, Any]:
    """A test for promtool. It compares labels and annotations as well, so it asks for the number of alerts instead."""
    asked = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
    expected = {"labels": "{}", "value": int(fires)}
    test = {"expr": f"({asked}) > bool 0", "eval_time": f"{MINUTES}m", "exp_samples": [expected]}
    return {"name": f"{alert}, {fires}", "interval": "1m", "input_series": series, "promql_expr_test": [test]}


def test_the_rules_are_well_formed() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES))
    promtool("check", "config", str(RULES.with_name("prometheus.yml")))


@pytest.mark.slow
def test_each_alert_fires_when_it_should_and_only_then(tmp_path: Path) -> None:
    assert CASES.keys() == alerts().keys()
    tests = [judged(name, firing, fires=True) for name, (firing, _) in CASES.items()]
    tests += [judged(name, quiet, fires=False) for name, (_, quiet) in CASES.items()]
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(file))


def test_the_short_rules_differ_in_their_times_only() -> None:
    def without_times(text: str) -> list[dict[str, Any]]:
        found = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
        return [{**rule, "for": "", "expr": re.sub(r"\[\d+[smh]\]", "[]", rule["expr"])} for rule in found]

    assert without_times(quick()) == without_times(RULES.read_text())
    assert set(re.findall(r"\[\w+\]", quick())) == {"[20s]"}
    assert "for:" not in quick()


def test_each_command_of_a_runbook_can_be_given() -> None:
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "runbooks.md").read_text())
    commands = re.findall(r"`loadmanager ([^`]+)`", page)
    assert len(commands) >= 10
    for command in commands:
        result = CliRunner().invoke(main, [*command.split(), "--help"])
        assert result.output.startswith("Usage: "), command
        assert "COMMAND [ARGS]" not in result.output, f"{command} is a group of commands"


def test_each_alert_has_a_runbook_and_each_runbook_an_alert() -> None:
    page = (ROOT / "docs" / "runbooks.md").read_text()
    assert set(re.findall(r"^### (\w+)$", page, re.MULTILINE)) == alerts().keys()
    for name, alert in alerts().items():
        assert alert["labels"]["severity"] in ("critical", "warning"), name
        assert {"summary", "description"} <= alert["annotations"].keys(), name
        assert alert["annotations"]["runbook"] == f"docs/runbooks.md#{name.lower()}", name
