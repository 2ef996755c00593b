"""`loadmanager history …` before any Spark: times, wrong use, and what is missing on this machine, said in a line."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from loadmanager.errors import Unavailable
from loadmanager.history.replay.candidates import spelled
from loadmanager.history.replay.ranking import Config, Fidelity, ReplayResult
from loadmanager_api.cli.client import Failed, NotNow
from loadmanager_api.cli.load_history.audit import verdict_of
from loadmanager_api.cli.load_history.group import COMMANDS
from loadmanager_api.cli.load_history.jobs import MASTER, Moment, check_order, failing
from loadmanager_api.cli.load_history.replay import checked, length_of, to_set
from loadmanager_api.cli.main import main

SECOND = timedelta(seconds=5)
PROPOSE = {"advise": ["--propose"]}


PAGES = ("docs/replay.md", "docs/history.md", "docs/lakehouse.md", "docs/analyses.md", "docs/how-to")
BLOCK = re.compile(r"^ *```\w*[^\n]*\n(.*?)^ *```$", re.M | re.S)


def test_less_than_a_day_of_load_gives_no_command():
    config = Config("plan", {"balancing_strategy": "plan"}, ("loadmanager config set balancing_strategy plan",))
    six, day = (
        ReplayResult("", "", 60.0, 3600.0, windows, {}, (), (), config, "", {}, {}, "", 1) for windows in (6, 24)
    )
    assert to_set(six) == ("no command follows from 6 hours of load: replay a day or more",)
    assert to_set(day) == config.commands


def commands(page: Path) -> list[list[str]]:
    """The commands `loadmanager history …` in the blocks of a page: the words after that."""
    lines = "".join(BLOCK.findall(page.read_text())).replace("\\\n", " ").splitlines()
    told = (line.strip().removeprefix("$ ") for line in lines)
    return [shlex.split(line, comments=True)[2:] for line in told if line.startswith("loadmanager history ")]


def parsed(words: list[str]) -> click.Context:
    """The words after `loadmanager history`, as its command takes them. Raises UsageError if it does not."""
    jobs = main.get_command(click.Context(main), "history")
    assert isinstance(jobs, click.Group)
    command = jobs.get_command(click.Context(jobs), words[0])
    assert command is not None, f"there is no command {words[0]}"
    return command.make_context(words[0], words[1:])


def history(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["history", *arguments])


def apart(*arguments: str, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, where nobody has begun a session."""
    code = f"import sys; {before}\nfrom loadmanager_api.cli.main import main; main(['history', *sys.argv[1:]])"
    env = {**os.environ, **environment}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=env)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """A folder that looks like a lake from outside."""
    (tmp_path / "lake" / "tables").mkdir(parents=True)
    return str(tmp_path / "lake")


def test_the_help_of_every_command_needs_no_spark():
    loop = "[CliRunner().invoke(main, ['history', name, '--help']) for name in COMMANDS]"
    code = (
        "import sys; from click.testing import CliRunner; from loadmanager_api.cli.main import main; "
        f"from loadmanager_api.cli.load_history.group import COMMANDS; found = {loop}; "
        "print({each.exit_code for each in found}, {'pyspark', 'pandas', 'altair'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert run.stdout.strip() == "{0} set()"
    reading = {"analyse", "audit", "replay", "advise", "report", "sql"}
    assert set(COMMANDS) == reading | {"jars", "ingest", "serve", "maintain"}


@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_a_page_is_one_that_the_parser_takes(name: str):
    root = Path(__file__).parents[2] / name
    for page in sorted(root.glob("*.md")) if root.is_dir() else [root]:
        for words in commands(page):
            spelled(parsed(words).params.get("candidates") or ["recorded"])


def test_the_page_of_the_replay_shows_commands():
    found = commands(Path(__file__).parents[2] / "docs" / "replay.md")
    assert [words[0] for words in found] == ["replay"] * 2


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
        (["--remote", "sc://h:1", "--lake", "lake"], "give an absolute path or a URI"),
        (["--conf", "spark.x"], "write name=value"),
        (["--rows", "0"], "--rows"),
        (["--from", "yesterday"], "'yesterday' is not a time; write -7d"),
        (["--master", "foo"], "write local[2], spark://host:7077, yarn"),
        (["--master", "local[x]"], "write local[2]"),
        (["--memory", "much"], "write 2g"),
        (["--set", "nonsense=1"], "nonsense"),
    ],
)
def test_wrong_use_is_told_before_anything_starts(lake: str, arguments: list[str], says: str):
    result = history("analyse", "--lake", lake, *arguments)
    assert result.exit_code == 2
    assert says in result.output


def test_of_two_ingests_the_refused_one_is_told_what_to_do():
    said = "org.apache.spark.SparkConcurrentModificationException: Multiple streaming queries are concurrently using x"
    with pytest.raises(Failed, match=r"Multiple streaming queries.*; another ingest works on this lake"), failing():
        raise PySparkException(said)


@pytest.mark.parametrize(
    ("candidate", "says"),
    [("wat", "no strategy is called 'wat'"), ("plan:balancing_tolerance", "write balancing_tolerance=value")],
)
def test_a_candidate_is_read_before_a_lake_is_looked_for(tmp_path: Path, candidate: str, says: str):
    result = history("replay", "--lake", str(tmp_path / "nowhere"), "--candidate", candidate)
    assert (result.exit_code, says in result.output) == (1, True), result.output


def test_a_lake_must_be_named_and_there(tmp_path: Path):
    missing = history("audit", "--lake", str(tmp_path / "nowhere"))
    assert (missing.exit_code, "history ingest --lake" in missing.output) == (1, True)
    (tmp_path / "file").touch()
    assert "that is a file" in history("analyse", "--lake", str(tmp_path / "file")).output


def test_an_audit_needs_a_lake_or_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LOADMANAGER_LAKE", raising=False)
    neither = history("audit")
    assert (neither.exit_code, "a lake with --lake, or the log itself with --log" in neither.output) == (2, True)
    nowhere = history("audit", "--log", f"sqlite:{tmp_path / 'no.db'}")
    assert (nowhere.exit_code, "there is no file" in nowhere.output) == (1, True)


@pytest.mark.parametrize(
    ("violations", "unjudged", "says"),
    [
        (0, 0, "7 records, 0 violations: every invariant holds"),
        (2, 0, "7 records, 2 violations"),
        (0, 3, "7 records, 0 violations, 3 not judged (trimmed before the first state, or behind a newer format): "),
        (0, 7, "; nothing could be judged"),
    ],
)
def test_an_audit_claims_no_more_than_it_has_judged(violations: int, unjudged: int, says: str):
    said = verdict_of(records=7, violations=violations, unjudged=unjudged)
    assert says in said
    assert ("every invariant holds" in said) == (violations == 0 and unjudged < 7)


@pytest.mark.parametrize(
    ("ruled", "says"),
    [
        (5, "5 windows of 20 s, policies known in 5"),
        (3, "5 windows of 20 s, policies known in 3 (in the others nothing was forbidden)"),
    ],
)
def test_a_replay_says_in_how_many_windows_policies_were_known(ruled: int, says: str):
    assert length_of(5, 20.0, ruled) == says


@pytest.mark.parametrize(
    ("agrees", "says"), [(True, "the replay agrees with the record"), (False, "is not the record")]
)
def test_a_replay_says_what_its_own_settings_cost_beside_the_record(agrees: bool, says: str):
    said = checked(Fidelity("plan", 6, 7.78, 9.85, 1.14, 1.08, agrees=agrees))
    assert says in said
    assert "settings (plan) cost 9.85 in the replay, 7.78 in the record (max/mean 1.08 and 1.14)" in said


@pytest.mark.parametrize("command", ["ingest", "audit", "advise"])
def test_a_kafka_that_does_not_answer_is_told_before_anything_starts(tmp_path: Path, lake: str, command: str):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        log = f"kafka://127.0.0.1:{nobody.getsockname()[1]}"
        given = ["--lake", lake, "--log", log, "--set", "start_timeout_s=1", *PROPOSE.get(command, [])]
        result = history(command, *given)
    assert result.exit_code == 3
    assert result.output.startswith("Error: ")
    assert len(result.output.splitlines()) == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["lake", "tables"]


@pytest.mark.slow
def test_a_spark_server_that_does_not_answer_is_told_at_once(tmp_path: Path):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        remote = f"sc://127.0.0.1:{nobody.getsockname()[1]}"
        run = apart("analyse", "--lake", str(tmp_path), "--remote", remote)
    assert run.returncode == 3
    assert run.stderr == f"Error: no Spark Connect server answers at {remote}: Connection refused\n"


@pytest.mark.slow
def test_a_spark_master_that_does_not_answer_is_told_at_once(lake: str):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        master = f"spark://127.0.0.1:{nobody.getsockname()[1]}"
        run = apart("analyse", "--lake", lake, "--master", master)
    assert run.returncode == 3
    assert run.stderr == f"Error: no Spark master answers at {master}: Connection refused\n"


@pytest.mark.slow
def test_yarn_needs_its_configuration(lake: str):
    run = apart("analyse", "--lake", lake, "--master", "yarn", before="import os; os.environ.pop('HADOOP_CONF_DIR', 0)")
    assert (run.returncode, "set HADOOP_CONF_DIR" in run.stderr) == (2, True)


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[4]", "local[*,3]", "local[2, 3]", "yarn", "k8s://https://h:6443", "spark://h:1,i:2"],
)
def test_every_master_that_spark_knows_may_be_named(master: str):
    assert MASTER.fullmatch(master)


@pytest.mark.slow
@pytest.mark.parametrize("remote", ["sc://h:port", "sc://h:99999999"])
def test_a_port_that_is_none_is_wrong_use(tmp_path: Path, remote: str):
    run = apart("analyse", "--lake", str(tmp_path), "--remote", remote)
    assert (run.returncode, "write sc://host:port" in run.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ingest", "audit", "advise"])
def test_an_address_that_is_no_log_is_told_before_anything_starts(lake: str, command: str):
    run = apart(command, "--lake", lake, "--log", "nonsense", *PROPOSE.get(command, []))
    says = "Error: 'nonsense' is not a log; write sqlite:FILE or kafka://host:port\n"
    assert (run.returncode, run.stderr) == (1, says)


@pytest.mark.slow
def test_an_analysis_that_there_is_not_is_told_before_anything_starts(lake: str):
    run = apart("analyse", "--lake", lake, "--analysis", "horoscope")
    assert (run.returncode, len(run.stderr.splitlines())) == (1, 1)
    assert run.stderr.startswith("Error: there is no analysis horoscope; there are benefit, ")


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


@pytest.mark.slow
def test_without_jars_it_says_which_command_brings_them(lake: str, tmp_path: Path):
    run = apart("analyse", "--lake", lake, LOADMANAGER_HISTORY_JARS=str(tmp_path / "empty"))
    assert (run.returncode, "run `loadmanager history jars` once" in run.stderr) == (1, True)


@pytest.mark.slow
def test_without_java_it_says_what_to_install(lake: str, tmp_path: Path):
    run = apart("analyse", "--lake", lake, before="import os; os.environ.pop('JAVA_HOME', None)", PATH=str(tmp_path))
    assert (run.returncode, "install a JDK 17" in run.stderr) == (1, True)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            "An error occurred while calling o7.collectToPython.\n: org.apache.spark.SparkException: [FAILED_READ_FILE."
            "NO_HINT] Encountered error while reading file f.parquet.  SQLSTATE: KD001\n\tat org.apache.spark.x\n",
            "Spark gave up: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file f.parquet.; restore that "
            "file from a copy, or ingest into another lake",
        ),
        ("An error occurred while calling o7.x.\n: java.lang.OutOfMemoryError: heap\n\tat a.b", "heap"),
        ("", "Spark gave up: no reason"),
    ],
)
def test_what_spark_says_becomes_one_line(error: str, says: str):
    with pytest.raises(Failed) as failed, failing():
        raise Py4JError(error)
    assert says in failed.value.message
    assert "\n" not in failed.value.message


def test_a_stream_that_stopped_is_told_in_one_line_with_what_to_do():
    pages = "the stream stopped: [STREAM_FAILED] no answer\n=== Query ===\n\tat a.b\nState: OVER; start it again"
    with pytest.raises(NotNow) as stopped, failing():
        raise Unavailable(pages)
    assert stopped.value.message == "the stream stopped: [STREAM_FAILED] no answer; start it again"
    assert stopped.value.exit_code == 3


def test_a_jvm_that_went_is_told_in_a_line():
    with pytest.raises(Failed, match="start the job again"), failing():
        raise ConnectionRefusedError(111, "Connection refused")


def test_without_maven_jars_says_what_to_install(tmp_path: Path):
    run = apart("jars", PATH=str(tmp_path), LOADMANAGER_HISTORY_JARS=str(tmp_path / "empty"))
    assert (run.returncode, "install Maven" in run.stderr) == (1, True)
