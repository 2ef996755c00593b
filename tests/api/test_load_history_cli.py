"""`loadmanager history …` before any Spark: times, wrong use, and what is missing on this machine, said in a line."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from api.cli.load_history.group import COMMANDS
from api.cli.load_history.windows import Moment, check_order
from api.cli.main import main

SECOND = timedelta(seconds=5)


def history(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["history", *arguments])


def apart(*arguments: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, where nobody has begun a session."""
    code = f"import sys; {before}\nfrom api.cli.main import main; main(['history', *sys.argv[1:]])"
    env = {**os.environ, **environment}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """A folder that looks like a lake from outside."""
    (tmp_path / "lake" / "tables").mkdir(parents=True)
    return str(tmp_path / "lake")


def test_the_help_of_every_command_needs_no_spark():
    loop = "[CliRunner().invoke(main, ['history', name, '--help']) for name in COMMANDS]"
    code = (
        "import sys; from click.testing import CliRunner; from api.cli.main import main; "
        f"from api.cli.load_history.group import COMMANDS; found = {loop}; "
        "print({each.exit_code for each in found}, {'pyspark', 'pandas', 'altair'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "{0} set()"
    assert set(COMMANDS) == {"jars", "ingest", "analyse", "audit", "replay", "advise", "report", "maintain"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2030-01-31", datetime(2030, 1, 31, tzinfo=UTC)),
        ("2030-01-31T12:00", datetime(2030, 1, 31, 12, tzinfo=UTC)),
        ("2030-01-31T12:00+02:00", datetime(2030, 1, 31, 10, tzinfo=UTC)),
    ],
)
def test_a_time_is_utc_unless_it_says_otherwise(text: str, expected: datetime):
    assert Moment().convert(text, None, None) == expected


@pytest.mark.parametrize(
    ("text", "ago"), [("-7d", timedelta(7)), ("90m", timedelta(minutes=90)), ("now", timedelta(0))]
)
def test_a_time_may_be_relative(text: str, ago: timedelta):
    assert abs(datetime.now(UTC) - ago - Moment().convert(text, None, None)) < SECOND


@pytest.mark.parametrize("text", ["yesterday", "-7y", "99999999d", "2030-13-01", ""])
def test_what_is_no_time_is_refused_with_what_to_write(text: str):
    with pytest.raises(click.BadParameter, match="write -7d"):
        Moment().convert(text, None, None)


def test_a_window_must_have_a_beginning_before_its_end():
    check_order(None, datetime.now(UTC))
    with pytest.raises(click.UsageError, match="is not before"):
        check_order(datetime(2030, 1, 2, tzinfo=UTC), datetime(2030, 1, 2, tzinfo=UTC))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--from", "-1d", "--to", "-2d"], "is not before --to"),
        (["--remote", "sc://h:1", "--master", "local"], "leave --master"),
        (["--remote", "http://h:1"], "write sc://host:port"),
        (["--conf", "spark.x"], "write name=value"),
        (["--rows", "0"], "--rows"),
    ],
)
def test_wrong_use_is_told_before_anything_starts(lake: str, arguments: list[str], says: str):
    result = history("analyse", "--lake", lake, *arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_a_lake_must_be_named_and_there(tmp_path: Path):
    assert history("audit").exit_code == 2
    missing = history("audit", "--lake", str(tmp_path / "nowhere"))
    assert (missing.exit_code, "history ingest --lake" in missing.output) == (1, True)
    (tmp_path / "file").touch()
    assert "that is a file" in history("analyse", "--lake", str(tmp_path / "file")).output


def test_a_log_that_is_not_there_is_not_made(tmp_path: Path):
    result = history("ingest", "--lake", str(tmp_path / "lake"), "--log", f"sqlite:{tmp_path / 'no.db'}")
    assert (result.exit_code, "there is no file" in result.output) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_what_is_for_following_needs_follow(tmp_path: Path):
    (tmp_path / "log.db").touch()
    log = f"sqlite:{tmp_path / 'log.db'}"
    result = history("ingest", "--lake", str(tmp_path / "lake"), "--log", log, "--metrics-port", "9100")
    assert (result.exit_code, "are for --follow" in result.output) == (2, True)


def test_a_proposal_needs_a_place(lake: str):
    assert "say where" in history("advise", "--lake", lake, "--propose").output


def test_without_the_extra_it_says_which(lake: str):
    run = apart("analyse", "--lake", lake, before="sys.modules['pyspark'] = None")
    assert (run.returncode, "pip install 'loadmanager[history]'" in run.stderr) == (1, True)


def test_without_jars_it_says_which_command_brings_them(lake: str, tmp_path: Path):
    run = apart("analyse", "--lake", lake, LOADMANAGER_HISTORY_JARS=str(tmp_path / "empty"))
    assert (run.returncode, "run `loadmanager history jars` once" in run.stderr) == (1, True)


def test_without_java_it_says_what_to_install(lake: str, tmp_path: Path):
    run = apart("analyse", "--lake", lake, before="import os; os.environ.pop('JAVA_HOME', None)", PATH=str(tmp_path))
    assert (run.returncode, "install a JDK 17" in run.stderr) == (1, True)


def test_without_maven_jars_says_what_to_install(tmp_path: Path):
    run = apart("jars", PATH=str(tmp_path), LOADMANAGER_HISTORY_JARS=str(tmp_path / "empty"))
    assert (run.returncode, "install Maven" in run.stderr) == (1, True)
