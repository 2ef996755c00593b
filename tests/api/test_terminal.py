"""What comes from outside and goes to a terminal: commands as processes, against brokers, and against what only says
that it is one."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from loadmanager_api.cli.broker import formatter
from loadmanager_api.cli.main import main
from tests.api.conftest import WAIT_S, Cluster

ROOT = Path(__file__).parents[2]
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x80-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
EVIL = "a\x1b]0;owned\x07\x1b[2J\rb\x9b31m\u202egnp\u2066\x08[red]c[/red]"
SHOWN = "a\\x1b]0;owned\\x07\\x1b[2J\\rb\\x9b31m\\u202egnp\\u2066\\x08[red]c[/red]"


async def command(*arguments: str, **environment: str) -> tuple[int | None, str, str]:
    """Exit code, output and errors of the command."""
    result = await asyncio.to_thread(CliRunner().invoke, main, arguments, None, environment)
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.stdout, result.stderr


async def process(*arguments: str, **environment: str) -> tuple[int | None, str, str]:
    """The same as a process of its own."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from loadmanager_api.cli.main import main; main()", *arguments),
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(child.communicate(), WAIT_S)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode, out.decode(), errors.decode()


@asynccontextmanager
async def liar(status: int, answers: dict[str, Any]) -> AsyncIterator[str]:
    """The URL of what answers as a broker, with these answers by path."""

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(answers.get(request.path, answers.get("*")), status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.slow
async def test_a_reason_that_a_terminal_would_obey_is_shown_as_it_is_written(cluster: Cluster):
    await cluster.start()
    url = cluster.brokers[0].url
    path = "/v1/policies/broker/a:1"
    written = await cluster.ask("PUT", path, params={"reason": EVIL}, json={"max_bundles": 3})
    assert written[0] == 200
    for arguments in (("policies", "history", "broker", "a:1"), ("policies", "show", "broker", "a:1")):
        code, out, errors = await process("--admin-url", url, *arguments)
        assert (code, errors) == (0, "")
        assert SHOWN in out
        assert OBEYED.search(out) is None
    code, out, errors = await command("--admin-url", url, "policies", "history", "broker", "a:1", "-o", "json")
    assert json.loads(out)[0]["reason"] == EVIL, "programs get what there is"
    assert OBEYED.search(out) is None


async def test_whatever_a_broker_says_is_shown_and_not_obeyed():
    broker = {
        "broker": EVIL,
        "incarnation": 1,
        "registered": True,
        "live": True,
        "leader": False,
        "draining": False,
        "suspected": EVIL,
        "bundles": 1,
        "admin_url": EVIL,
        "urls": {},
        "failure_domain": EVIL,
        "version": EVIL,
        "load": None,
        "started_ms": 0,
    }
    isolation = {EVIL: {"namespaces": [EVIL], "primary": [EVIL], "secondary": []}}
    answers = {
        "/v1/brokers": [broker],
        "/admin/v2/tenants": [EVIL],
        "*": [EVIL],
        "/admin/v2/clusters/c/namespaceIsolationPolicies": isolation,
    }
    async with liar(200, answers) as url:
        for arguments in (("brokers", "list"), ("namespaces", "list")):
            code, out, errors = await command("--admin-url", url, *arguments)
            assert code == 0, errors
            assert SHOWN in out
            assert OBEYED.search(out + errors) is None


async def test_what_a_broker_refuses_is_one_line_that_a_terminal_does_not_obey():
    async with liar(409, {"*": {"reason": f"{EVIL}\nError: nothing is wrong"}}) as url:
        code, out, errors = await command("--admin-url", url, "brokers", "list")
        assert (code, out) == (1, "")
        assert errors == f"Error: {SHOWN}\\nError: nothing is wrong\n"


def test_the_log_of_a_broker_is_lines_of_its_own_without_passwords():
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter("console"))
    record = logging.LogRecord("x", logging.INFO, "f", 1, "said %s", (f"{EVIL}\nINFO x: fine http://u:pw@h/",), None)
    handler.emit(record)
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert OBEYED.search(line) is None
    assert "http://***@h/" in line


# --- secrets


async def test_properties_are_names_to_others(cluster: Cluster):
    await cluster.start(properties={"rack-password": "hunter2", "motto": "hunter2"})
    _, shown, _ = await cluster.ask("GET", "/v1/brokers")
    assert shown[0]["properties"] == {"rack-password": "***", "motto": "***"}
    for path in ("/v1/brokers", f"/v1/brokers/{cluster.brokers[0].name}", "/v1/settings", "/v1/config"):
        assert "hunter2" not in json.dumps((await cluster.ask("GET", path))[1])


@pytest.mark.parametrize(
    "value", ['{"sasl.password": hunter2', "hunter2", '["hunter2"]', '{"sasl.password": ["hunter2"]}']
)
@pytest.mark.parametrize("name", ["LOADMANAGER_KAFKA", "LOADMANAGER_ZOOKEEPER"])
async def test_a_malformed_variable_is_told_in_one_line(tmp_path: Path, name: str, value: str):
    log = ("--log", f"sqlite:{tmp_path / 'lm.db'}")
    for arguments in (("check", *log), ("doctor", "--no-check")):
        code, out, errors = await command(*arguments, **{name: value})
        assert (code, out) == (2, "")
        told = [line for line in errors.splitlines() if line.startswith("Error: ")]
        assert len(told) == 1
        assert name.partition("_")[2].lower() in told[0].lower()
        assert "hunter2" not in errors
        assert "Traceback" not in errors


@pytest.mark.parametrize(
    "given",
    ['kafka={"sasl.password": "hunter2"}', 'zookeeper={"auth_data": "hunter2"}', 'kafka={"sasl.password": hunter2'],
)
async def test_a_secret_on_a_command_line_is_refused_and_not_repeated(tmp_path: Path, given: str):
    code, _, errors = await command("check", "--log", f"sqlite:{tmp_path / 'lm.db'}", "--set", given)
    assert code == 2
    assert "hunter2" not in errors
    assert "LOADMANAGER_" in errors or "not valid JSON" in errors


@pytest.mark.parametrize(
    "addresses",
    [
        ("--log", "kafka://me:hunter2@127.0.0.1:1", "--coordination", "zookeeper://127.0.0.1:1"),
        ("--log", "kafka://127.0.0.1:1,me:hunter2@127.0.0.1:2", "--coordination", "zookeeper://127.0.0.1:1"),
        ("--log", "sqlite:x.db", "--coordination", "zookeeper://me:hunter2@127.0.0.1:1/root"),
    ],
)
async def test_a_password_in_an_address_is_refused_and_not_repeated(addresses: tuple[str, ...]):
    code, out, errors = await command("check", *addresses)
    assert code == 1
    assert "an address must not contain a user or a password" in errors
    assert "hunter2" not in out + errors


@pytest.mark.slow
async def test_a_broker_refuses_a_password_in_an_address_without_repeating_it():
    log, coordination = "kafka://me:hunter2@127.0.0.1:1", "zookeeper://127.0.0.1:1"
    code, out, errors = await process("broker", "--log", log, "--coordination", coordination)
    assert code == 1
    assert "an address must not contain a user or a password" in errors
    assert "hunter2" not in out + errors


async def test_a_password_in_the_url_of_a_broker_is_not_repeated():
    for url in ("http://me:hunter2@127.0.0.1:1", "http://me:hunter2@127.0.0.1:x"):
        code, out, errors = await command("--admin-url", url, "brokers", "list")
        assert code in (2, 3)
        assert "***@127.0.0.1" in errors
        assert "hunter2" not in out + errors


async def test_a_password_in_a_note_or_refusal_is_hidden(cluster: Cluster):
    await cluster.start()
    cluster.brokers[0].node.note("acquire raised: no answer of http://me:hunter2@store/")
    _, notes, _ = await cluster.ask("GET", "/v1/notes")
    assert "hunter2" not in json.dumps(notes)
    assert "***@store" in json.dumps(notes)
    status, body, _ = await cluster.ask("GET", "/v1/config/http:%2F%2Fme:hunter2@store%2F")
    assert status >= 400
    assert "hunter2" not in json.dumps(body)
