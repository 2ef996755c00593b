"""The conformance suite: a correct service passes it, and each bug is found by the checks that name it, no others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loadmanager.sidecar.conformance.catalogue import CHECKS
from loadmanager.sidecar.conformance.checking import Outcome, Result
from loadmanager.sidecar.conformance.keys import key_at
from loadmanager.sidecar.conformance.runner import conform
from loadmanager.sidecar.conformance.stage import Options
from loadmanager_api.cli.main import main
from loadmanager_api.sidecar import application, served
from stack.stores import PostgresServer
from tests.sidecar.building import SERVICES
from tests.sidecar.reference import BUGS

REFERENCE = Path(__file__).with_name("reference.py")
PROBE, SLOW = "{http}/keys?key={key}", "{http}/slow?key={key}"
NAMESPACE = "demo/counters"
GROUP = 4
"""So many services are tried at once."""

FOUND_BY: dict[str, tuple[str, ...]] = {
    "asks without the secret": ("attach",),
    "attaches once": ("attach-again",),
    "polls twice": ("one-poll",),
    "counts from the answer": ("late-answer",),
    "one deadline": ("partitions", "newest-answer"),
    "keeps partitions": ("newest-answer",),
    "no deadline": (
        "sidecar-dies", "no-lease", "partitions", "runs-out", "late-answer", "newest-answer", "shared", "paused",
    ),
    "its clock stands": ("paused",),
    "ignores orders": ("abandon-in-lease",),
    "ignores sequences of orders": ("abandon-in-lease",),
    "declines late hooks": ("abandon-in-lease",),
    "ignores shared": ("shared",),
    "shared for ever": ("shared",),
    "keeps bundles": ("session-ended", "sidecar-dies"),
    "keeps bundles under a new secret": ("new-secret",),
    "reads the secret once": ("new-secret",),
    "ends with its sidecar": ("attach-again", "sidecar-dies", "new-secret"),
    "no signature": ("signature", "timestamp"),
    "body not signed": ("signature", "timestamp"),
    "any time": ("timestamp",),
    "ignores sequences": ("release-twice", "sequence", "acquire-meets-abandon"),
    "forgets sequences": ("release-twice", "sequence", "acquire-meets-abandon"),
    "ignores sessions": ("other-session",),
    "declines repeats": ("acquire-twice",),
    "releases anew": ("release-twice",),
    "late acquire": ("acquire-meets-abandon", "release-meets-acquire"),
    "declines unknown abandon": ("abandon", "acquire-meets-abandon"),
    "declines unknown release": ("release-unknown",),
    "keeps on abandon": ("abandon", "acquire-meets-abandon"),
    "keeps on release": (
        "sequence", "fence", "release-meets-acquire", "load", "release-waits", "after-release", "leave",
    ),
    "needs a hand_off": ("split",),
    "refuses hand_off": ("hand-off",),
    "no fence": ("fence",),
    "loads all": ("load",),
    "loads no field": ("load",),
    "positions elsewhere": ("positions",),
    "negative rates": ("rates",),
    "hi inclusive": ("edges",),
    "lo exclusive": ("split", "edges", "ends"),
    "last is short": ("ends",),
    "no redirect": ("moved", "not-serving", "another-cluster", "waits"),
    "no urls": ("moved",),
    "no retry-after": ("not-serving",),
    "does not wait": ("waits",),
    "any cluster": ("another-cluster",),
    "one identity": ("another-cluster",),
    "no token": ("token",),
    "first token": ("token",),
    "release does not wait": ("release-waits",),
    "prepare serves": ("prepare",),
    "stops at once": ("leave",),
    "no delete": ("leave",),
    "lingers": ("leave",),
    "exits with 1": ("leave",),
}  # fmt: skip
"""By bug the checks that find it. A bug that breaks much is found by more than one."""


def serve(sessions: Any, secret: Any, around: Any, listening: Any) -> Any:
    return served(around(application(sessions, secret)), listening)


def reference(bug: str) -> Options:
    return Options((sys.executable, str(REFERENCE), "--bug", bug), PROBE, NAMESPACE, SLOW)


async def tried(options: Options) -> list[Result]:
    return [result async for result in conform(options, serve, CHECKS)]


def failed(results: Sequence[Result]) -> tuple[str, ...]:
    return tuple(result.name for result in results if result.outcome is Outcome.FAILED)


@pytest.mark.slow
async def test_correct_service_passes_every_check() -> None:
    results = await tried(reference(""))
    assert not [result for result in results if result.outcome is not Outcome.PASSED]
    assert [result.name for result in results] == [check.name for check in CHECKS]


@pytest.mark.release
@pytest.mark.go
@pytest.mark.postgresql
@pytest.mark.parametrize("language", sorted(SERVICES))
async def test_example_services_pass_every_check(
    language: str, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    variables = (f"COUNTERS_STORE={postgres_server.url}", "LISTEN=127.0.0.1:0")
    command = ("env", *variables, *SERVICES[language](tmp_path))
    results = await tried(Options(command, "{http}/v1/counters?topic={key}", NAMESPACE))
    assert not [result for result in results if result.outcome is Outcome.FAILED]
    skipped = {result.name: result.why for result in results if result.outcome is Outcome.SKIPPED}
    assert {name for name, why in skipped.items() if "does not offer" not in why} == {"release-waits"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, len(FOUND_BY), GROUP), ids=lambda first: f"{list(FOUND_BY)[first]}…")
async def test_bugs_are_found_by_the_checks_that_name_them(first: int) -> None:
    bugs = list(FOUND_BY)[first : first + GROUP]
    results = await asyncio.gather(*(tried(reference(bug)) for bug in bugs))
    assert dict(zip(bugs, map(failed, results), strict=True)) == {bug: FOUND_BY[bug] for bug in bugs}


def test_every_bug_is_tried_and_every_check_finds_one() -> None:
    assert FOUND_BY.keys() == BUGS.keys()
    found = {name for names in FOUND_BY.values() for name in names}
    assert {check.name for check in CHECKS} - found == set()


@pytest.mark.parametrize("position", [0, 1, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF])
def test_keys_are_found_for_every_position(position: int) -> None:
    key = key_at(NAMESPACE, position)
    assert (key.position, key.namespace) == (position, NAMESPACE)


# --- the command


COMMAND = [sys.executable, "-c", "from loadmanager_api.cli.main import main; main()", "conformance"]


def conformance(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["conformance", *arguments])


def trying(check: str, bug: str = "") -> list[str]:
    return ["--probe", PROBE, "--only", check, "--", sys.executable, str(REFERENCE), "--bug", bug]


def test_command_exits_with_0_if_all_checks_passed() -> None:
    said = conformance(*trying("edges"))
    assert said.exit_code == 0, said
    assert said.stdout.split()[:2] == ["edges", "passed"]
    assert said.stdout.endswith("1 passed, 0 failed, 0 skipped\n")


def test_command_says_what_it_did_expected_and_got() -> None:
    said = conformance(*trying("edges", "hi inclusive"))
    assert said.exit_code == 1, said
    assert said.stdout.split()[:2] == ["edges", "failed"]
    _, *lines = said.stdout.splitlines()
    told = " ".join(" ".join(lines).split())
    for part in ("promise A bundle has the keys", "did", "sent the hook acquire", "expected another status than 200",
                 "got 200 mine"):  # fmt: skip
        assert part in told


def test_command_prints_results_for_programs() -> None:
    said = conformance("--json", "--skip", "edges", *trying("edges"))
    assert said.exit_code == 0, said
    [result] = json.loads(said.stdout)
    assert (result["name"], result["outcome"], result["why"]) == ("edges", "skipped", "--skip")


def test_command_lists_its_checks() -> None:
    said = conformance("--list")
    assert [line.split()[0] for line in said.stdout.splitlines()] == [check.name for check in CHECKS]
    assert len({check.name for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--skip", "edge", *trying("ends")], "Did you mean 'edges'"),
        (["--probe", "http://127.0.0.1:9/keys", "--", "true"], "{key}"),
        (["--probe", PROBE], "after --"),
        (["--namespace", "demo", *trying("ends")], "tenant/namespace"),
        (["--probe", PROBE, "--", "./no-such-command"], "no-such-command"),
    ],
)
def test_command_says_what_is_wrong_with_its_arguments(arguments: list[str], message: str) -> None:
    said = conformance(*arguments)
    assert said.exit_code in (1, 2)
    assert message in said.stderr
    assert "Traceback" not in said.stderr


def test_service_that_never_attaches_fails_one_check() -> None:
    said = conformance("--json", "--probe", PROBE, "--start-timeout", "1", "--", "sleep", "60")
    results = json.loads(said.stdout)
    assert said.exit_code == 1
    assert [result["name"] for result in results if result["outcome"] == "failed"] == ["attach"]
    assert {result["why"] for result in results[1:]} == {"the service has never attached"}


@pytest.mark.slow
def test_service_ends_with_the_command(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    script = f"echo $$ > {file}.new; mv {file}.new {file}; exec sleep 100"
    command = [*COMMAND, "--probe", PROBE, "--", "sh", "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        deadline_s = time.monotonic() + 60
        while not file.exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text()), 0)
