"""`loadmanager check` as a command: its options, its two forms and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from loadmanager_api.cli.broker import broker
from loadmanager_api.cli.diagnosis import check
from loadmanager_api.cli.main import main


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, ["check", *arguments], env=environment)


def test_it_shows_each_finding_with_what_to_change(tmp_path: Path):
    result = run("--log", f"sqlite:{tmp_path / 'lm.db'}", "--set", "lookup_timeout_s=1")
    assert result.exit_code == 0, result.output
    assert "warning  settings: failover" in result.stdout
    assert "-> set lookup_timeout_s=1 above that" in result.stdout
    assert "0 errors, " in result.stdout
    assert not list(tmp_path.iterdir()), "nothing was created"


def test_errors_are_an_exit_code_and_json_is_for_programs(tmp_path: Path):
    result = run("--log", f"sqlite:{tmp_path / 'none' / 'lm.db'}", "-o", "json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert {"subject", "severity", "found", "advice"} == set(found[0])
    assert any(f["severity"] == "error" and "create it" in f["advice"] for f in found)


def test_the_environment_counts_as_for_a_broker(tmp_path: Path):
    result = run(LOADMANAGER_LOG=f"sqlite:{tmp_path / 'none' / 'lm.db'}")
    assert result.exit_code == 1
    assert "none is not a directory" in result.stdout


@pytest.mark.parametrize(
    ("code", "says", "arguments"),
    [
        (1, "zookeeper://host:port", ("--log", "kafka://127.0.0.1:1")),
        (1, "nonsense", ("--log", "nonsense:x", "--coordination", "sqlite:x")),
        (2, "no_such_setting", ("--set", "no_such_setting=1")),
        (2, "name=value", ("--set", "nonsense")),
        (2, "proof_validity_s", ("--set", "proof_validity_s=0")),
    ],
)
def test_what_cannot_be_looked_at_is_one_clear_line(code: int, says: str, arguments: tuple[str, ...]):
    result = run(*arguments)
    assert result.exit_code == code
    assert says in result.stderr
    assert "Traceback" not in result.output


def test_servers_that_are_not_there_are_errors_and_not_the_end():
    log, coordination = "kafka://127.0.0.1:1", "zookeeper://127.0.0.1:1"
    result = run("--log", log, "--coordination", coordination, "--timeout", "3")
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    assert "ok       versions" in result.stdout
    wrong = [line for line in result.stdout.splitlines() if line.startswith("error")]
    assert any("log" in line or "kafka" in line for line in wrong), result.stdout
    assert any("zookeeper" in line for line in wrong), result.stdout


def test_it_takes_the_settings_that_a_broker_takes():
    ours = {option: param.metavar for param in check.params for option in param.opts}
    theirs = {option: param.metavar for param in broker.params for option in param.opts}
    assert ours.items() - theirs.items() == {("-o", None), ("--output", None), ("--timeout", "SECONDS")}
    assert set(theirs) - set(ours) == {"--listen", "--host", "--url", "-v", "--verbose"}
