"""The `loadmanager` command: against a running cluster in this process, and as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from loadmanager_api.cli.contexts import resolved
from loadmanager_api.cli.main import ALIASES, COMMANDS, SECTIONS, main
from loadmanager_api.cli.remote import Typed
from tests.api.access.issuing import Certificates, Issuer, jwks
from tests.api.conftest import WAIT_S, Cluster
from tests.api.forks import run_each

ROOT = Path(__file__).parents[2]


async def loadmanager(cluster: Cluster, *arguments: str, at: int = 0) -> Result:
    """Run the command in a thread: its own loop asks this one."""
    url = cluster.brokers[at].url
    return await asyncio.to_thread(CliRunner().invoke, main, arguments, None, {"LOADMANAGER_ADMIN_URL": url})


async def as_json(cluster: Cluster, *arguments: str) -> Any:
    result = await loadmanager(cluster, *arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# --- for people and programs


async def test_namespaces_are_created_listed_and_deleted(cluster: Cluster) -> None:
    await cluster.start()
    assert (await loadmanager(cluster, "namespaces", "create", "t/n", "--bundles", "8")).stdout == "created t/n\n"
    assert (await loadmanager(cluster, "namespaces", "create", "u/n", "--boundary", "0x10000000")).exit_code == 0
    assert await as_json(cluster, "namespaces", "list") == ["t/n", "u/n"]
    assert await as_json(cluster, "namespaces", "list", "u") == ["u/n"]
    assert (await as_json(cluster, "namespaces", "bundles", "t/n"))["numBundles"] == 8
    listed = await loadmanager(cluster, "namespaces", "bundles", "u/n")
    assert "0x00000000_0x10000000" in listed.stdout
    assert "0x10000000_0xffffffff" in listed.stdout
    assert (await loadmanager(cluster, "namespaces", "delete", "t/n")).exit_code == 0
    assert await as_json(cluster, "namespaces", "list") == ["u/n"]


async def test_topics_are_looked_up_and_moved(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    answers = await as_json(cluster, "topics", "lookup", "t/n/a", "t/n/b")
    assert [answer["topic"] for answer in answers] == ["persistent://t/n/a", "persistent://t/n/b"]
    owner = answers[0]["broker"]
    table = (await loadmanager(cluster, "topics", "lookup", "t/n/a")).stdout
    assert owner in table
    assert f"http://{owner}" in table
    to = cluster.other(owner).name
    assert (await loadmanager(cluster, "topics", "unload", "t/n/a", "--dest", to)).exit_code == 0
    assert (await as_json(cluster, "topics", "lookup", "t/n/a"))[0]["broker"] == to
    bundle = await cluster.assign("t/n/a")
    assert (await loadmanager(cluster, "topics", "bundle-range", "t/n/a")).stdout == f"{bundle.range}\n"
    move = ("namespaces", "unload", "t/n", "-b", bundle.range, "--destinationBroker", owner)
    assert (await loadmanager(cluster, *move)).exit_code == 0
    assert cluster.owner(bundle) == owner
    assert (await loadmanager(cluster, "namespaces", "unload", "t/n")).exit_code == 0
    assert cluster.owner(bundle) is None


@pytest.mark.parametrize("verb", ["move", "transfer"])
async def test_a_bundle_is_moved_to_a_broker(cluster: Cluster, verb: str) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    to = cluster.other(cluster.owner(bundle) or "").name
    planned = await loadmanager(cluster, "bundles", verb, str(bundle), to, "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert cluster.owner(bundle) != to
    moved = await loadmanager(cluster, "bundles", verb, str(bundle), to)
    assert moved.stdout == f"{bundle} was moved to {to}\n"
    assert cluster.owner(bundle) == to
    nowhere = await loadmanager(cluster, "bundles", verb, str(bundle), "127.0.0.1:1")
    assert (nowhere.exit_code, "no broker 127.0.0.1:1" in nowhere.stderr) == (1, True)


async def test_a_topic_with_slashes_and_blanks_in_its_name_is_one_topic(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 64)
    bundle = await cluster.assign("t/n/a b/ü?#%/bundle")
    found = await loadmanager(cluster, "topics", "bundle-range", "t/n/a b/ü?#%/bundle")
    assert found.stdout == f"{bundle.range}\n"
    assert (await loadmanager(cluster, "topics", "unload", "t/n/a b/ü?#%/bundle")).exit_code == 0
    assert cluster.owner(bundle) is None


async def test_brokers_are_listed_and_drained(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n", 8)
    for i in range(30):
        await cluster.assign(f"t/n/topic-{i}")
    listed = await loadmanager(cluster, "brokers", "list")
    assert all(broker.name in listed.stdout for broker in cluster.brokers)
    assert "leader" in listed.stdout
    name = cluster.brokers[0].node.settings.cluster
    named = (await loadmanager(cluster, "brokers", "list", name)).stdout
    assert all(broker.name in named for broker in cluster.brokers)
    elsewhere = await loadmanager(cluster, "brokers", "list", "elsewhere")
    assert elsewhere.exit_code == 1
    assert "'elsewhere'" in elsewhere.stderr
    leader = (await as_json(cluster, "brokers", "leader"))["brokerId"]
    assert leader in (await loadmanager(cluster, "brokers", "leader")).stdout
    assert (await loadmanager(cluster, "brokers", "health")).stdout == "ok\n"

    drained = cluster.brokers[1].name  # not the one that is asked: it is sent on
    result = await loadmanager(cluster, "brokers", "drain", drained)
    assert result.exit_code == 0, result.output
    assert "is drained" in result.stdout
    assert not cluster.brokers[1].host.held
    peers = cluster.brokers[0].node.membership.peers
    await cluster.until(lambda: peers[drained].registration.draining)
    assert "draining" in (await loadmanager(cluster, "brokers", "list")).stdout
    assert (await as_json(cluster, "brokers", "drain", drained, "--status"))["done"]
    assert "again" in (await loadmanager(cluster, "brokers", "drain", drained, "--cancel")).stdout
    assert "not draining" in (await loadmanager(cluster, "brokers", "drain", drained, "--status")).stdout


async def test_health_names_what_is_wrong_with_its_remedy_and_errors_have_an_exit_code(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    healthy = await loadmanager(cluster, "health")
    assert (healthy.exit_code, healthy.stdout, healthy.stderr) == (0, "", "nothing is wrong\n")
    assert await as_json(cluster, "health") == []
    assert (await loadmanager(cluster, "pause", "--reason", "release night")).exit_code == 0
    paused = await loadmanager(cluster, "health")
    assert paused.exit_code == 0
    head, _, line = paused.stdout.splitlines()
    assert head.split() == ["severity", "what", "since", "remedy"]
    severity, what, since, remedy = re.split(r"  +", line)
    assert (severity, what, remedy) == ("warning", "balancing of the cluster is paused", "loadmanager resume")
    assert re.fullmatch(r"\d+s ago", since)
    quarantine = ("bundles", "quarantine", str(bundle), "--reason", "it killed three")
    assert (await loadmanager(cluster, *quarantine)).exit_code == 0
    wrong = await loadmanager(cluster, "health", "-o", "wide")
    assert wrong.exit_code == 1
    head, _, error, warning = wrong.stdout.splitlines()
    assert head.split()[-1] == "why"
    assert re.split(r"  +", error)[3:] == [f"loadmanager bundles release-quarantine {bundle}", "it killed three"]
    assert warning.startswith("warning")
    answer = await loadmanager(cluster, "health", "-o", "json")
    assert answer.exit_code == 1
    assert [(each["severity"], each["names"]) for each in json.loads(answer.stdout)] == [
        ("error", [str(bundle)]),
        ("warning", []),
    ]


async def test_bundles_and_the_channel_are_shown(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    assert len(await as_json(cluster, "bundles", "list")) == 4
    assert [b["bundle"] for b in await as_json(cluster, "bundles", "list", "--state", "assigned")] == [str(bundle)]
    limited = await loadmanager(cluster, "bundles", "list", "--limit", "2")
    assert "there are more" in limited.stderr
    assert limited.stdout.count("t/n/") == 2
    shown = await loadmanager(cluster, "bundles", "show", str(bundle))
    assert cluster.brokers[0].name in shown.stdout
    assert (await as_json(cluster, "bundles", "show", str(bundle)))["state"] == "assigned"
    status = await loadmanager(cluster, "channel", "status", "--digest")
    assert "standalone" in status.stdout
    assert cluster.brokers[0].node.channel.table.digest(3) in status.stdout
    assert len((await as_json(cluster, "channel", "status"))["partitions"]) == 4


# --- exit codes


REFUSED: list[tuple[int, str, tuple[str, ...]]] = [
    (1, "no namespace t/none", ("topics", "lookup", "t/none/a")),
    (1, "exists", ("namespaces", "create", "t/n")),
    (1, "no broker 127.0.0.1:1", ("topics", "unload", "t/n/a", "--dest", "127.0.0.1:1")),
    (1, "no broker 127.0.0.1:1", ("brokers", "drain", "127.0.0.1:1")),
    (1, "no bundle", ("bundles", "show", "t/n/0x00000000_0x10000000")),
    (2, "tenant/namespace", ("namespaces", "create", "nonsense")),
    (2, "not a topic", ("topics", "lookup", "nonsense")),
    (2, "0x00000000_0x40000000", ("bundles", "show", "t/n/nonsense")),
    (2, "0x00000000_0x40000000", ("namespaces", "unload", "t/n", "-b", "0x4_0x5")),
    (2, "--bundle", ("namespaces", "unload", "t/n", "-d", "127.0.0.1:1")),
    (2, "not both", ("namespaces", "create", "t/m", "--bundles", "2", "--boundary", "0x10000000")),
    (2, "No such command", ("nonsense",)),
]


async def test_exit_codes_tell_refused_from_wrongly_asked(cluster: Cluster, subtests: pytest.Subtests) -> None:
    await cluster.start()
    await cluster.create("t/n")
    before = cluster.history()
    for code, says, arguments in REFUSED:
        with subtests.test(arguments=arguments):
            result = await loadmanager(cluster, *arguments)
            assert result.exit_code == code, result.output
            assert says in result.stderr
            assert result.stdout == ""
            assert cluster.history() == before


async def test_a_lookup_without_an_owner_in_time_is_unavailable(cluster: Cluster) -> None:
    await cluster.start(lookup_timeout_s=0.1)
    await cluster.create("t/n")
    cluster.brokers[0].host.gate.clear()
    result = await loadmanager(cluster, "topics", "lookup", "t/n/a")
    assert result.exit_code == 3
    assert "no owner" in result.stderr


def test_nobody_there_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and not listening
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        result = CliRunner().invoke(main, ["--admin-url", url, "brokers", "list"])
    assert result.exit_code == 3
    assert url in result.stderr
    assert "--admin-url" in result.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:8080", "broker-1.example:80", "[::1]:8080"])
def test_an_address_without_a_scheme_is_asked_over_http(address: str) -> None:
    assert resolved(Typed(admin_url=address)).admin_url == f"http://{address}"


def test_a_command_that_is_almost_one_names_it() -> None:
    result = CliRunner().invoke(main, ["broekrs"])
    assert result.exit_code == 2
    assert "Did you mean 'brokers'" in result.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("move", "t/n/0x00000000_0x40000000", "a:1"), "'bundles move'"),
        (("transfer",), "'bundles transfer'"),
        (("drain",), "'brokers drain'"),
        (("brokers", "lsit"), "'list'"),
        (("history", "reprot"), "'report'"),
    ],
)
def test_a_command_of_a_group_is_named_with_its_group(typed: tuple[str, ...], meant: str) -> None:
    result = CliRunner().invoke(main, typed)
    assert result.exit_code == 2
    assert result.stderr.count("Did you mean") == 1
    assert f"Did you mean {meant}?" in result.stderr


def test_aliases_work_and_stand_in_no_list() -> None:
    assert not ALIASES.keys() & COMMANDS.keys()
    shown = CliRunner().invoke(main, ["--help"]).stdout
    for alias, name in ALIASES.items():
        assert f"  {alias} " not in shown
        assert main.get_command(click.Context(main), alias) is main.get_command(click.Context(main), name)


def test_a_url_that_is_none_is_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["brokers", "list", "--admin-url", "nonsense"]).exit_code == 2


def test_a_negative_number_is_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["playground", "--seeds", "-1"]).exit_code == 2


def test_help_lists_every_command_and_the_exit_codes() -> None:
    shown = CliRunner().invoke(main, ["--help"]).stdout
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert [title for title in SECTIONS if f"\n  {title}:\n" not in shown] == []
    assert "Exit codes" in shown


# --- as a process


async def test_the_command_imports_nothing_heavy_before_it_needs_it() -> None:
    heavy = {"aiohttp", "fastapi", "uvicorn", "rich", "pydantic", "prometheus_client", "loadmanager.broker.node"}
    names = "main audit brokers bundles channel config context diagnosis groups plans policies stores suggesting"
    modules = ", ".join(f"loadmanager_api.cli.{each}" for each in names.split())
    code = f"import sys, {modules}; print(sorted({heavy!r} & set(sys.modules)))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    assert (await process.communicate())[0].decode().strip() == "[]"


@asynccontextmanager
async def broker_process(
    tmp_path: Path, *arguments: str, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from loadmanager_api.cli.main import main; main()", "broker"),
        *("--log", f"sqlite:{tmp_path / 'lm.db'}", *arguments),
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await asyncio.wait_for(process.communicate(), WAIT_S)


async def said(process: asyncio.subprocess.Process, *texts: str) -> str:
    """The first line on stderr with one of the texts."""
    assert process.stderr is not None
    async with asyncio.timeout(WAIT_S):
        async for line in process.stderr:
            if any(text in line.decode() for text in texts):
                return line.decode().strip()
    raise AssertionError(f"it never said {texts}")


async def ready_name(process: asyncio.subprocess.Process) -> str:
    """The broker's name, once it says that it is ready."""
    return (await said(process, " is ready: http://")).split()[1]


async def end_of(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    _, errors = await asyncio.wait_for(process.communicate(), WAIT_S)
    return process.returncode, errors.decode()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_broker_serves_until_it_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    async with broker_process(tmp_path, "--listen", "127.0.0.1:0", "--cluster", "here") as process:
        url = f"http://{await ready_name(process)}"
        shown = await asyncio.to_thread(CliRunner().invoke, main, ["--admin-url", url, "channel", "status"])
        assert shown.exit_code == 0, shown.output
        assert "here" in shown.stdout
        process.send_signal(number)
        code, errors = await end_of(process)
        assert code == 0, errors
        assert "leaving: this broker held no bundle" in errors


@pytest.mark.slow
async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "class Slow:\n"
        "    def prepare(self, bundle): pass\n"
        "    def acquire(self, bundle, token, hand_off): pass\n"
        "    def release(self, bundle, to):\n"
        f"        open({str(tmp_path / 'leaving')!r}, 'w').close()\n"
        "        time.sleep(60)\n"
        "    def abandon(self, bundle): time.sleep(60)\n"
        "    def load(self): return {}\n"
    )
    arguments = ("--listen", "127.0.0.1:0", "--host", "slow:Slow", "--set", "host_acquire_timeout_s=120")
    async with broker_process(tmp_path, *arguments, PYTHONPATH=f"{tmp_path}:{ROOT}") as process:
        ask = ["--admin-url", f"http://{await ready_name(process)}"]
        for more in (["namespaces", "create", "t/n"], ["topics", "lookup", "t/n/a"]):
            assert (await asyncio.to_thread(CliRunner().invoke, main, [*ask, *more])).exit_code == 0
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(WAIT_S):
            while not (tmp_path / "leaving").exists():  # until it has seen the first signal: two at once are one
                await asyncio.sleep(0.01)
        assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        assert (await end_of(process))[0] == 128 + signal.SIGTERM


@pytest.mark.slow
async def test_a_plain_hook_that_hangs_for_ever_does_not_keep_the_process(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(
        "import time\n"
        "class Stuck:\n"
        "    def prepare(self, bundle): pass\n"
        "    def acquire(self, bundle, token, hand_off):\n"
        f"        open({str(tmp_path / 'begun')!r}, 'w').close()\n"
        "        time.sleep(3600)\n"
        "    def release(self, bundle, to): pass\n"
        "    def abandon(self, bundle): pass\n"
        "    def load(self): return {}\n"
    )
    arguments = ("--listen", "127.0.0.1:0", "--host", "stuck:Stuck")
    short = ("--set", "drain_timeout_s=0.5", "--set", "host_acquire_timeout_s=1", "--set", "lookup_timeout_s=0.5")
    async with broker_process(tmp_path, *arguments, *short, PYTHONPATH=f"{tmp_path}:{ROOT}") as process:
        ask = ["--admin-url", f"http://{await ready_name(process)}"]
        made = await asyncio.to_thread(CliRunner().invoke, main, [*ask, "namespaces", "create", "t/n"])
        assert made.exit_code == 0, made.output
        async with asyncio.timeout(WAIT_S):
            while not (tmp_path / "begun").exists():  # until the hook hangs
                await asyncio.to_thread(CliRunner().invoke, main, [*ask, "topics", "lookup", "t/n/a"])
        process.send_signal(signal.SIGTERM)
        assert (await end_of(process))[0] == 0


KEPT_FROM_STARTING: list[tuple[int, str, tuple[str, ...]]] = [
    (1, "127.0.0.1:1", ("--development", "--coordination", "zookeeper://127.0.0.1:1", "--set", "start_timeout_s=0.5")),
    (1, "--insecure", ("--coordination", "zookeeper://127.0.0.1:1")),
    (1, "127.0.0.1:1", ("--log", "kafka://127.0.0.1:1", "--coordination", "sqlite:x", "--set", "start_timeout_s=1")),
    (1, "nonsense", ("--log", "nonsense:x")),
    (1, "0 to 65535", ("--advertised", "127.0.0.1:99999")),
    (1, "0 to 65535", ("--listen", "127.0.0.1:99999")),
    (1, "write host:port", ("--listen", "127.0.0.1:0", "--advertised", "nonsense")),
    (1, "cannot listen on nohost.invalid:0: ", ("--listen", "nohost.invalid:0", "--insecure")),
    (1, "kafka://host:port", ("--log", "kafka://", "--coordination", "sqlite:x")),
    (1, "kafka://host:port", ("--log", "kafka://127.0.0.1:notaport", "--coordination", "sqlite:x")),
    (1, "zookeeper://host:port", ("--coordination", "zookeeper://127.0.0.1:1,:2181")),
    (1, "names no file", ("--log", "sqlite:")),
    (1, "names no file", ("--coordination", "sqlite:")),
    (1, "without prepare, acquire, release, abandon, load", ("--host", "os:getcwd")),
    (1, "TypeError", ("--host", "json:loads")),
    (1, "is not on Kafka", ("--host", "loadmanager.consumer.hosting:make_host")),
    (1, "--insecure", ("--listen", "0.0.0.0:0")),
    (1, "token_keys=absent: cannot read", ("--set", "token_keys=absent", "--set", "superusers=root")),
    (2, "belong together", ("--set", "tls_certificate=absent")),
    (1, "no_such_module", ("--host", "no_such_module:Host")),
    (2, "module:factory", ("--host", "nonsense")),
    (2, "proof_validity_s", ("--set", "proof_validity_s=never")),
    (2, "no_such_setting", ("--set", "no_such_setting=1")),
    (2, "name=value", ("--set", "nonsense")),
]
"""Exit code, what is said, options."""


@pytest.mark.slow
async def test_what_keeps_a_broker_from_starting_is_said_clearly(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.start(cluster="one")
    await cluster.create("t/n")
    before = cluster.history()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        cases = [
            *KEPT_FROM_STARTING,
            (1, f"Error: cannot listen on {address}: Address already in use\n", ("--listen", address)),
            (1, "belongs to cluster 'one'", ("--log", f"sqlite:{tmp_path / 'lm.db'}", "--cluster", "two")),
        ]
        found = await run_each(
            [("broker", "--log", "sqlite:lm.db", "--advertised", "127.0.0.1:0", *given) for _, _, given in cases],
            tmp_path,
            WAIT_S * 2,
        )
    bad = [
        f"{given}: exit code {code}, not {wanted} with {says!r}: {errors}"
        for (wanted, says, given), (code, errors) in zip(cases, found, strict=True)
        if code != wanted
        or says not in errors
        or "Traceback" in errors
        or "Unknown error" in errors
        or (code == 1 and not errors.strip().splitlines()[-1].startswith("Error: "))
    ]
    assert not bad, "\n".join(bad)
    assert found[-2][1].count("\n") == 1, "one clear line"
    await cluster.agree()
    assert cluster.history() == before, "the log of another cluster is left alone"


async def test_a_broker_that_is_told_nothing_is_where_the_other_commands_look(tmp_path: Path) -> None:
    """Another program may have the port; then its address is in the message, which tells as much."""
    async with broker_process(tmp_path) as process:
        says = await said(process, "Error: ", " is ready: ")
    asked = "127.0.0.1:8080"
    assert says in (
        f"broker {asked} is ready: http://{asked} (the dashboard, in a browser)",
        f"Error: cannot listen on {asked}: Address already in use",
    )


@pytest.mark.parametrize(
    ("server", "arguments"),
    [
        ("Kafka", ("--log", "kafka://127.0.0.1:1", "--coordination", "sqlite:x")),
        ("ZooKeeper", ("--development", "--coordination", "zookeeper://127.0.0.1:1")),
    ],
)
async def test_who_waits_for_an_absent_server_is_told_so_soon_and_sparingly(
    tmp_path: Path, server: str, arguments: tuple[str, ...]
) -> None:
    arguments = ("--listen", "127.0.0.1:0", *arguments, "--set", "start_timeout_s=6")
    async with broker_process(tmp_path, *arguments) as process:
        told = await said(process, f"{server} at 127.0.0.1:1 does not answer yet")
        code, errors = await end_of(process)
    assert "WARNING" in told
    assert "Connection refused" in told
    assert "trying for another" in told
    assert code == 1
    (line,) = errors.strip().splitlines()
    assert line.startswith("Error: ")
    assert "Connection refused" in line


@pytest.mark.slow
async def test_a_service_is_given_its_bundles_and_the_broker_to_ask(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(
        "import sys\n"
        "def say(line): sys.stderr.write(line + '\\n')\n"  # at once: the control thread logs between pieces of a print
        "class Service:\n"
        "    def attached(self, broker): self.broker = broker\n"
        "    async def prepare(self, bundle): pass\n"
        "    async def acquire(self, bundle, token, hand_off): say(f'acquired {bundle}')\n"
        "    async def release(self, bundle, to): say(f'serving {self.broker.serving(bundle)}')\n"
        "    async def abandon(self, bundle): pass\n"
        "    async def load(self): return {}\n"
    )
    arguments = ("--listen", "127.0.0.1:0", "--host", "service:Service", "--url", "http=http://service:1")
    async with broker_process(tmp_path, *arguments, PYTHONPATH=f"{tmp_path}:{ROOT}") as process:
        ask = ["--admin-url", f"http://{await ready_name(process)}", "-o", "json"]
        for more in (["namespaces", "create", "t/n", "-b", "1"], ["topics", "lookup", "t/n/a"]):
            result = await asyncio.to_thread(CliRunner().invoke, main, [*ask, *more])
            assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)[0]["urls"] == {"http": "http://service:1"}
        process.terminate()
        code, errors = await end_of(process)
    assert code == 0, errors
    assert "acquired t/n/0x00000000_0xffffffff" in errors
    assert "serving False" in errors, "released after it stopped serving"


async def test_audit_shows_who_changed_what(cluster: Cluster) -> None:
    await cluster.start()
    empty = await loadmanager(cluster, "audit")
    assert empty.output == "nothing was asked for, as far as these filters say\n"
    await cluster.ask("PUT", "/admin/v2/namespaces/t/n", json={}, headers={"X-Author": "ann"})
    await cluster.ask("PUT", "/admin/v2/namespaces/t/n", json={}, headers={"X-Author": "ben"})
    shown = (await loadmanager(cluster, "audit", "--since", "1h")).stdout
    assert "ann?" in shown, "nobody proved it"
    assert "create_namespace" in shown
    assert "refused 409" in shown
    assert [each["principal"] for each in (await as_json(cluster, "audit", "--by", "ann"))["entries"]] == ["ann"]
    assert (await as_json(cluster, "audit", "--since", "2999-01-01"))["entries"] == []
    wrong = await loadmanager(cluster, "audit", "--since", "yesterday")
    assert (wrong.exit_code, "write 15m, 12h, 7d" in wrong.output) == (2, True)
    first = await loadmanager(cluster, "audit", "--limit", "1")
    assert "older entries: --cursor" in first.stderr


async def test_the_command_line_shows_its_token_and_no_other_machine_sees_it(cluster: Cluster, tmp_path: Path) -> None:
    issuer, keys = Issuer("k"), tmp_path / "keys.json"
    keys.write_bytes(jwks(issuer))
    await cluster.start(2, token_keys=str(keys), superusers="root")
    first, second = cluster.brokers

    async def ask(*arguments: str, url: str = first.url, **variables: str) -> Result:
        environment = {"LOADMANAGER_ADMIN_URL": url, **variables}
        return await asyncio.to_thread(CliRunner().invoke, main, arguments, None, environment)

    token = {"LOADMANAGER_TOKEN": issuer.token("root")}
    refused = await ask("brokers", "list")
    assert (refused.exit_code, "say who you are" in refused.output) == (1, True)
    assert (await ask("brokers", "list", **token)).exit_code == 0
    drained = await ask("brokers", "drain", second.name, "--no-wait", **token)
    assert drained.exit_code == 0, drained.output  # sent on to the other broker, with the token
    leaked = await ask("brokers", "list", url="http://192.0.2.1:1", **token)
    assert (leaked.exit_code, "others could read it" in leaked.output) == (1, True)
    assert (await ask("brokers", "list", LOADMANAGER_TOKEN="")).exit_code == 1
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(issuer.token("root"))
    assert (await ask("bundles", "list", LOADMANAGER_TOKEN_FILE=str(file))).exit_code == 0
    both = await ask("bundles", "list", LOADMANAGER_TOKEN_FILE=str(file), **token)
    assert (both.exit_code, "not both" in both.output) == (1, True)


async def test_a_certificate_that_is_not_trusted_is_named_as_the_reason(cluster: Cluster, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    certificate, key = certificates.issue("broker", "127.0.0.1")
    await cluster.start(1, tls_certificate=certificate, tls_key=key)
    url = cluster.brokers[0].url

    async def ask(*arguments: str, **variables: str) -> Result:
        environment = {"LOADMANAGER_ADMIN_URL": url, **variables}
        return await asyncio.to_thread(CliRunner().invoke, main, arguments, None, environment)

    for command in (("brokers", "list"), ("channel", "watch", "--limit", "1")):
        refused = await ask(*command)
        assert (refused.exit_code, "LOADMANAGER_CA" in refused.output) == (1, True), refused.output
        assert (await ask(*command, LOADMANAGER_CA=certificates.ca)).exit_code == 0
    other = await ask("brokers", "list", LOADMANAGER_CA=str(tmp_path / "absent"))
    assert (other.exit_code, "absent" in other.output) == (1, True)
