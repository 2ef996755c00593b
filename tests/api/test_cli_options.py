"""Options that all commands share: several brokers, time-outs, forms of output, `--watch`, `--dry-run`, `--yes`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from yarl import URL

from loadmanager.model.policies.model import BundlePolicy, Kind
from loadmanager_api.cli.main import main
from tests.api.conftest import WAIT_S, Cluster
from tests.api.test_cli import as_json, loadmanager

ROOT = Path(__file__).parents[2]
DEAD = "http://127.0.0.1:9"


@asynccontextmanager
async def listening(answer: bytes | None) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that reads a request, then answers so; or with None, closes the connection. Yields what it got."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append((await reader.readuntil(b"\r\n")).rstrip())
        if answer is not None:
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", got


async def at(urls: str, *arguments: str) -> Any:
    return await asyncio.to_thread(CliRunner().invoke, main, ["--admin-url", urls, *arguments])


# --- several brokers


async def test_a_dead_broker_is_skipped(cluster: Cluster) -> None:
    await cluster.start()
    url = cluster.brokers[0].url
    host_port = url.removeprefix("http://")
    assert (await at(f"{DEAD}, {host_port}", "namespaces", "create", "t/n")).exit_code == 0, "nothing was sent before"
    assert (await at(f"127.0.0.1:9,{url}", "namespaces", "list")).stdout.endswith("t/n\n")
    assert (await at(f"{DEAD},{url}", "channel", "watch", "--limit", "1")).exit_code == 0
    none = await at(f"{DEAD},http://127.0.0.1:1", "brokers", "list")
    assert none.exit_code == 3
    assert f"{DEAD}, nor at http://127.0.0.1:1" in none.stderr


async def test_a_change_whose_answer_was_lost_is_asked_again_and_done_once(cluster: Cluster) -> None:
    await cluster.start(2)
    done = asyncio.Event()

    async def pass_on(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        """Give a request to the first broker, and lose its answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", URL(cluster.brokers[0].url).port)
        try:
            request = await client.read(1 << 16)
            writer.write(request)
            if request and b" 204 " in await reader.readline():
                done.set()
        finally:
            for each in (writer, answers):
                each.close()

    async with await asyncio.start_server(pass_on, "127.0.0.1", 0) as losing:
        urls = f"http://127.0.0.1:{losing.sockets[0].getsockname()[1]},{cluster.brokers[1].url}"
        written = await at(urls, "namespaces", "create", "t/n")
    assert done.is_set()
    assert (written.exit_code, written.stderr) == (0, ""), "without a key: t/n exists already"
    (operation,) = (await cluster.ask("GET", "/v1/operations"))[1]
    assert (operation["action"], operation["status"]) == ("create_namespace", 204)


async def test_a_request_takes_no_longer_than_its_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        result = await asyncio.wait_for(at(url, "brokers", "list", "--timeout", "0.2"), WAIT_S)
    assert (result.exit_code, "did not answer in time" in result.stderr) == (3, True)


# --- forms of output


def settled(answer: Any) -> Any:
    """The answer without what brokers measure: it differs from one request to the next."""
    rows = answer if isinstance(answer, list) else [answer]
    return [{name: row[name] for name in row if name != "load" and not name.startswith("rate_")} for row in rows]


async def test_every_form_says_the_same(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    for arguments in (("bundles", "list"), ("bundles", "show", str(bundle)), ("channel", "status")):
        shown = await loadmanager(cluster, *arguments, "-o", "yaml")
        assert shown.exit_code == 0, shown.output
        found, expected = yaml.safe_load(shown.stdout), await as_json(cluster, *arguments)
        assert type(found) is type(expected)
        if arguments[0] == "bundles":
            assert settled(found) == settled(expected)
    narrow = (await loadmanager(cluster, "bundles", "list")).stdout.splitlines()[0]
    wide = (await loadmanager(cluster, "bundles", "list", "-o", "wide")).stdout.splitlines()[0]
    assert narrow.split() == ["bundle", "state", "owner", "msg/s"]
    assert wide.startswith(" ".join(narrow.split())[:6])
    assert "last record" in wide
    assert "token" in wide
    brokers = (await loadmanager(cluster, "-o", "wide", "brokers", "list")).stdout
    assert cluster.brokers[0].url in brokers
    assert "pulsar://127.0.0.1:7001" in brokers
    made = await loadmanager(cluster, "namespaces", "create", "t/m", "-o", "yaml")
    assert made.stdout == "namespace: t/m\n"


# --- near matches


NEAR: list[tuple[tuple[str, ...], str | None]] = [
    (("broekrs",), "brokers"),
    (("brokers", "lst"), "list"),
    (("channel", "readers", "remov"), "remove"),
    (("brokers", "list", "--admin-ulr", "x"), "--admin-url"),
    (("bundles", "list", "--state", "asigned"), "assigned"),
    (("brokers", "list", "-o", "jsno"), "json"),
    (("topics", "unload", "t/n/a", "--dest", "127.0.0.1:7009"), "127.0.0.1:7001"),
    (("topics", "lookup", "t/m/a"), None),
    (("namespaces", "delete", "t/nn"), "t/n"),
    (("bundles", "show", "t/n/0x00000000_0x80000001"), "t/n/0x00000000_0x80000000"),
]


async def test_near_matches_are_named_at_every_level(cluster: Cluster, subtests: pytest.Subtests) -> None:
    await cluster.start()
    await cluster.create("t/n", 2)
    for arguments, near in NEAR:
        with subtests.test(arguments=arguments):
            result = await loadmanager(cluster, *arguments)
            assert result.exit_code in (1, 2)
            if near is not None:
                assert f"'{near}'" in result.stderr.partition("id you mean")[2], result.stderr


# --- watching


@asynccontextmanager
async def process(url: str, *arguments: str, **streams: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from loadmanager_api.cli.main import main; main()", *arguments),
        cwd=ROOT,
        env={**os.environ, "LOADMANAGER_ADMIN_URL": url, "COLUMNS": "40", "LINES": "6"},
        **{"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE, **streams},
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await asyncio.wait_for(started.communicate(), WAIT_S)


@pytest.mark.slow
async def test_a_watched_list_is_printed_when_it_changes_and_ends_cleanly(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    arguments = ("namespaces", "list", "--watch", "--interval", "0.1", "-o", "json")
    async with process(cluster.brokers[0].url, *arguments) as watching, asyncio.timeout(WAIT_S):
        assert watching.stdout is not None
        assert await watching.stdout.readuntil(b"]\n") == b'[\n  "t/n"\n]\n'
        await cluster.create("t/m")
        assert await watching.stdout.readuntil(b"]\n") == b'[\n  "t/m",\n  "t/n"\n]\n', "not before it changed"
        watching.send_signal(signal.SIGINT)
        out, errors = await watching.communicate()
    assert (watching.returncode, out, errors) == (0, b"", b"")


@pytest.mark.slow
async def test_a_watch_goes_on_after_an_answer_that_would_be_exit_code_1(cluster: Cluster) -> None:
    await cluster.start()
    bundle = (await cluster.create("t/n"))[0]
    policies = cluster.brokers[0].node.policies
    await policies.put(Kind.BUNDLE, str(bundle), BundlePolicy(quarantined="it killed three"), author="ann")
    watched = process(cluster.brokers[0].url, "health", "--watch", "--interval", "0.1")
    async with watched as watching, asyncio.timeout(WAIT_S):
        assert watching.stdout is not None
        await watching.stdout.readuntil(b"1 bundle is quarantined")
        await policies.put(Kind.BUNDLE, str(bundle), BundlePolicy(), author="ann")
        await watching.stdout.readuntil(b"nothing is wrong")


async def test_a_watch_waits_for_brokers_that_are_dead() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    async with process(url, "brokers", "list", "-w", "--interval", "0.1") as watching, asyncio.timeout(WAIT_S):
        assert watching.stdout is not None
        assert b"trying again" in await watching.stdout.readline()
        watching.send_signal(signal.SIGINT)
        await watching.communicate()
        assert watching.returncode == 0


class Terminal:
    """The other end of a process's terminal."""

    def __init__(self, ours: int) -> None:
        self._ours = ours
        self.shown = bytearray()
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(ours, self._read)

    def _read(self) -> None:
        try:
            self.shown += os.read(self._ours, 65_536)
        except OSError:  # the process has closed it
            asyncio.get_running_loop().remove_reader(self._ours)
        self._news.set()

    async def until(self, text: bytes) -> None:
        async with asyncio.timeout(WAIT_S):
            while text not in self.shown:
                self._news.clear()
                await self._news.wait()

    def type(self, text: bytes) -> None:
        os.write(self._ours, text)


@asynccontextmanager
async def on_a_terminal(
    cluster: Cluster, *arguments: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Terminal]]:
    ours, theirs = os.openpty()
    try:
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
        async with process(cluster.brokers[0].url, *arguments, **streams) as started:
            yield started, Terminal(ours)
    finally:
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)
        os.close(theirs)


@pytest.mark.slow
async def test_a_watched_list_fits_on_the_screen(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 16)
    async with on_a_terminal(cluster, "bundles", "list", "-w", "--interval", "0.1") as (watching, terminal):
        await terminal.until(b"more lines")
        await cluster.assign("t/n/a")
        await terminal.until(b"more lines\r\n\x1b[H\x1b[2J")
        watching.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(watching.wait(), WAIT_S) == 0
    screen = bytes(terminal.shown).split(b"\x1b[H\x1b[2J")[1].decode()
    assert screen.count("\n") <= 5
    assert all(len(line) <= 40 for line in screen.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines())


# --- confirmation


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "exists"), [(b"n\n", True), (b"y\n", False)])
async def test_a_terminal_is_asked_before_something_hurts(cluster: Cluster, answer: bytes, exists: bool) -> None:
    await cluster.start()
    await cluster.create("t/n")
    async with on_a_terminal(cluster, "namespaces", "delete", "t/n") as (deleting, terminal):
        await terminal.until(b"This deletes t/n with all its bundles. Are you sure? [y/N]:")
        assert "t/n" in cluster.brokers[0].node.channel.table.namespaces()
        terminal.type(answer)
        assert await asyncio.wait_for(deleting.wait(), WAIT_S) == (1 if exists else 0)
    assert ("t/n" in cluster.brokers[0].node.channel.table.namespaces()) is exists


@pytest.mark.slow
async def test_yes_answers_before_a_terminal_asks(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    async with on_a_terminal(cluster, "namespaces", "delete", "t/n", "--yes") as (deleting, _):
        assert await asyncio.wait_for(deleting.wait(), WAIT_S) == 0
    assert "t/n" not in cluster.brokers[0].node.channel.table.namespaces()


# --- dry runs


@pytest.mark.slow
async def test_a_dry_run_changes_nothing_and_says_what_it_would_send(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n", 2)
    bundle = await cluster.assign("t/n/a")
    owner = cluster.owner(bundle)
    other = cluster.other(owner).name
    commands = [
        ("namespaces", "create", "t/new"),
        ("namespaces", "delete", "t/n"),
        ("namespaces", "unload", "t/n"),
        ("namespaces", "unload", "t/n", "-b", bundle.range, "-d", other),
        ("namespaces", "split-bundle", "t/n", "-b", bundle.range),
        ("namespaces", "split-bundle", "t/n", "-bt", "LARGEST"),
        ("namespaces", "merge-bundles", "t/n", "-b", "0x00000000_0x80000000,0x80000000_0xffffffff"),
        ("topics", "unload", "t/n/a", "-d", other),
        ("brokers", "drain", other),
        ("bundles", "cancel", str(bundle)),
        ("unload", "-n", "t/n", "--to", other),
        ("unload", "--broker", other),
        ("pause", "-n", "t/n"),
        ("resume",),
        ("config", "set", "balancing", "false"),
        ("config", "unset", "balancing"),
        ("brokers", "update-dynamic-config", "-c", "balancing", "-v", "false"),
        ("channel", "readers", "add", "me"),
    ]
    before = cluster.history()
    for arguments in commands:
        result = await loadmanager(cluster, *arguments, "--dry-run", "-o", "json")
        assert result.exit_code == 0, (arguments, result.output)
        said = json.loads(result.stdout)
        assert said["dry_run"]
        assert said["request"]["method"] in ("PUT", "POST", "DELETE")
        assert said["request"]["url"].startswith(cluster.brokers[0].url)
        told = await loadmanager(cluster, *arguments, "--dry-run")
        assert f"{said['request']['method']} {said['request']['url']}" in told.stdout
    assert cluster.history() == before
    assert (await as_json(cluster, "audit"))["entries"] == []
    assert cluster.owner(bundle) == owner


async def test_a_dry_run_is_refused_where_the_broker_would_refuse(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 2)
    for says, arguments in (
        ("exists", ("namespaces", "create", "t/n")),
        ("no namespace t/m", ("namespaces", "delete", "t/m")),
        ("no broker 127.0.0.1:1", ("topics", "unload", "t/n/a", "-d", "127.0.0.1:1")),
        ("no broker 127.0.0.1:1", ("brokers", "drain", "127.0.0.1:1")),
        ("no bundle", ("bundles", "cancel", "t/n/0x00000000_0x10000000")),
        ("while brokers run", ("config", "set", "partitions", "3")),
        ("plan", ("plans", "run", "absent")),
        ("reader", ("channel", "readers", "remove", "absent")),
    ):
        result = await loadmanager(cluster, *arguments, "--dry-run")
        assert (result.exit_code, says in result.stderr) == (1, True), (arguments, result.output)


@pytest.mark.slow
async def test_a_dry_run_of_a_policy_is_the_brokers_own(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n", 2)
    bundle = await cluster.assign("t/n/a")
    other = cluster.other(cluster.owner(bundle)).name
    name = cluster.brokers[0].node.settings.cluster
    isolation = ("ns-isolation-policy", "set", name, "p", "--namespaces", "t/n", "--primary", other)
    for arguments in (
        ("bundles", "pin", str(bundle), other),
        ("bundles", "exclude", str(bundle), cluster.owner(bundle) or ""),
        ("brokers", "drain", cluster.owner(bundle) or "", "--keep"),
        isolation,
        ("policies", "set", "bundle", str(bundle), json.dumps({"pin": other})),
    ):
        said = await as_json(cluster, *arguments, "--dry-run")
        assert said["dry_run"], arguments
        assert [each["bundle"] for each in said["preview"]["misplaced"]] == [str(bundle)], arguments
        assert "nothing was changed" in (await loadmanager(cluster, *arguments, "--dry-run")).stdout
    for arguments in (
        ("bundles", "quarantine", str(bundle), "--reason", "x"),
        ("bundles", "unpin", str(bundle)),
        ("clusters", "create-failure-domain", name, "--domain-name", "d", "--broker-list", other),
        ("namespaces", "set-anti-affinity-group", "t/n", "-g", "g"),
        ("namespaces", "delete-anti-affinity-group", "t/n"),
    ):
        assert (await as_json(cluster, *arguments, "--dry-run"))["dry_run"], arguments
    assert (await as_json(cluster, "policies", "list"))["policies"] == []
    elsewhere = await loadmanager(cluster, *isolation[:2], "elsewhere", *isolation[3:], "--dry-run")
    assert (elsewhere.exit_code, "elsewhere" in elsewhere.stderr) == (1, True)


async def test_a_dry_run_of_a_plan_shows_what_would_be_decided(cluster: Cluster) -> None:
    await cluster.start()
    found = await as_json(cluster, "plans", "propose", "--tolerance", "tight", "--dry-run")
    assert found["changed"]["decision"] is not None
    assert await as_json(cluster, "plans", "list") == []
