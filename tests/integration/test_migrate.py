"""Counters move from SQLite to Kafka and ZooKeeper under load: nothing lost or doubled, the same owners by name, later
tokens."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import aiohttp
import pytest

from loadmanager.broker.wiring import open_log
from loadmanager.channel.migration.offline_log import FoldedLog
from loadmanager.client import HttpRouter, Router
from loadmanager.demo.counter.load import Load
from loadmanager.demo.counter.traffic import Traffic
from loadmanager.settings import Settings
from stack.servers import KafkaServer, ZooKeeperServer
from statechannel.errors import LogUnavailable
from statechannel.law.bundle import Bundle
from statechannel.law.record import Token
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State
from tests.loadmanager.embedded import until
from tests.servers import coordination_root, topic_prefix

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-c", "from loadmanager_api.cli.main import main; main()")
NAMESPACE = "demo/counters"
BUNDLES = 12
BROKERS = 3
LIMIT_S = 60
PATIENCE_S = 30.0
"""What a request may take on a busy machine; those that come while there is no broker may fail."""
LATE_S = 8.0
"""The `proof_validity_s` of the new cluster: its first broker keeps the others' bundles for them for twice as long."""

Owners = dict[Bundle, tuple[str, Token]]


class Cluster:
    """Counter services as processes, on the stores that the settings name."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.directory = directory
        self.store = directory / "counters.db"
        self.settings = {"cluster": "move", "development": "true", "balancing": "false", **settings}
        self.names: list[str] = []
        self.processes: list[Process] = []

    async def start(self, names: Sequence[str]) -> None:
        """All at once, as an orchestrator does; returns when all are ready and know each other."""
        self.names = list(await asyncio.gather(*(self._start(name) for name in names)))
        async with aiohttp.ClientSession() as session, asyncio.timeout(LIMIT_S):
            for name in self.names:
                while await _members(session, name) != set(self.names):
                    await asyncio.sleep(0.1)

    async def _start(self, name: str) -> str:
        environment = {f"LOADMANAGER_{key.upper()}": value for key, value in self.settings.items()}
        options = ["--advertised", name, "--store", str(self.store), "--bundles", str(BUNDLES)]
        addresses = [f"--{key}={self.settings[key]}" for key in ("log", "coordination") if key in self.settings]
        with (self.directory / "errors").open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "loadmanager.demo.counter", *options, *addresses),
                cwd=ROOT, env={**os.environ, **environment}, stdout=PIPE, stderr=errors,
            )  # fmt: skip
        self.processes.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            url = (await process.stdout.readline()).decode().strip()
        assert url, (self.directory / "errors").read_text()
        return url.removeprefix("http://")

    async def kill(self) -> None:
        """All at once: nobody moves anything away."""
        for process in self.processes:
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in self.processes))
        self.processes.clear()

    @asynccontextmanager
    async def seen(self) -> AsyncGenerator[FoldedLog]:
        """What stands in the log."""
        log = open_log(Settings(**self.settings))  # type: ignore[arg-type] # as from the environment
        await log.start(LIMIT_S)
        try:
            folded = FoldedLog(log, self.settings["log"])
            await answered(folded.open)
            yield folded
        finally:
            await log.close()

    async def owners(self) -> Owners:
        """Once every bundle is with somebody."""
        async with self.seen() as folded, asyncio.timeout(LIMIT_S):
            while (found := _owners(folded.table, self.names)) is None:
                await asyncio.sleep(0.1)
                await answered(folded.read_on)
            return found


async def answered(read: Callable[[], Awaitable[None]]) -> None:
    """Read a log until it answers: brokers that start keep the machine busy for longer than a read waits."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            try:
                return await read()
            except LogUnavailable:
                await asyncio.sleep(0.1)


async def _members(session: aiohttp.ClientSession, asked: str) -> set[str]:
    """Who is there, as one broker knows; empty as long as it does not answer."""
    try:
        async with session.get(f"http://{asked}/admin/v2/brokers") as answer:
            return set(await answer.json()) if answer.status == 200 else set()
    except aiohttp.ClientError:
        return set()


def _owners(table: OwnershipTable, names: Sequence[str]) -> Owners | None:
    """With whom each bundle is, under which token; None unless all are with the present processes of these names."""
    present = {(name, table.highest_incarnation(name)) for name in names}
    found: Owners = {}
    for entry in table:
        holder = entry.holder
        if entry.state is not State.ASSIGNED or holder is None or (holder.name, holder.incarnation) not in present:
            return None
        found[entry.bundle] = (holder.name, table.token(entry))
    return found if len(found) == BUNDLES else None


async def run(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(*COMMAND, *arguments, cwd=ROOT, stdout=PIPE, stderr=PIPE)
    out, errors = await process.communicate()
    return process.returncode, out.decode() + errors.decode()


def tokens_that_went_back(path: Path) -> list[tuple[str, int]]:
    """Increments that were stored under an older token than an earlier one of the same key."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT topic, value, token FROM increment ORDER BY topic, value").fetchall()
    pairs = itertools.pairwise(rows)
    return [(topic, value) for (before, _, old), (topic, value, new) in pairs if before == topic and new < old]


def generations_in(path: Path) -> set[int]:
    with closing(sqlite3.connect(path)) as db:
        return {Token.parse(text).generation for (text,) in db.execute("SELECT DISTINCT token FROM increment")}


async def counted(load: Load, more: int) -> None:
    done = len(load.acknowledged)
    await until(lambda: len(load.acknowledged) >= done + more, timeout_s=LIMIT_S)


@asynccontextmanager
async def ending(*clusters: Cluster) -> AsyncGenerator[None]:
    try:
        yield
    finally:
        for each in clusters:
            await each.kill()


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.zookeeper
@pytest.mark.timeout(600)
async def test_counters_move_to_kafka_and_zookeeper_under_load(
    tmp_path: Path, kafka_server: KafkaServer, zookeeper_server: ZooKeeperServer
):
    old = Cluster(tmp_path, log=f"sqlite:{tmp_path}/cluster.db", session_timeout_s="4")
    new = Cluster(
        tmp_path,
        log=f"kafka://{kafka_server.address}",
        coordination=f"zookeeper://{zookeeper_server.address}{coordination_root('move')}",
        topic_prefix=topic_prefix("move"),
        proof_validity_s=str(LATE_S),
        session_timeout_s="10",
    )
    moving = (
        "migrate", "--cluster", "move", "--development", "--wait", "60", "--from-log", old.settings["log"],
        "--log", new.settings["log"], "--coordination", new.settings["coordination"],
        "--set", f"topic_prefix={new.settings['topic_prefix']}",
        *("--set", f"proof_validity_s={new.settings['proof_validity_s']}"),  # else that of the old log goes along
        *("--set", f"session_timeout_s={new.settings['session_timeout_s']}"),
    )  # fmt: skip
    async with ending(old, new):
        await old.start(["127.0.0.1:0"] * BROKERS)
        async with HttpRouter(Router(f"http://{name}" for name in old.names)) as http, asyncio.TaskGroup() as tasks:
            load = Load(http, Traffic(NAMESPACE, rate_s=60, topics=60), PATIENCE_S)
            running = tasks.create_task(load.run())
            await counted(load, 200)
            before = await old.owners()
            assert {name for name, _ in before.values()} == set(old.names)
            assert load.failed == 0
            await old.kill()

            code, told = await run(*moving)
            assert code == 0, told
            await new.start(old.names)
            after = await new.owners()
            assert {bundle: name for bundle, (name, _) in after.items()} == {b: name for b, (name, _) in before.items()}
            assert all(after[bundle][1] > token for bundle, (_, token) in before.items())
            await counted(load, 200)
            await _backed_up_and_restored(new, {bundle: name for bundle, (name, _) in after.items()})
            load.stop()
            await running
        code, told = await run(*moving)
        assert (code, "an earlier run did this already" in told) == (0, True), told
    found = load.settle(tmp_path / "counters.db")
    assert (found.lost, found.doubled) == (0, 0), found.examples
    assert found.stored is not None
    assert found.stored >= found.ok > 400
    assert tokens_that_went_back(tmp_path / "counters.db") == []
    assert generations_in(tmp_path / "counters.db") == {0, 1}


async def _backed_up_and_restored(cluster: Cluster, owners: dict[Bundle, str]) -> None:
    """A backup of a log on Kafka while its brokers run, restored into a file."""
    backup, file = str(cluster.directory / "backup"), cluster.directory / "restored.db"
    where = ("--log", cluster.settings["log"], "--set", f"topic_prefix={cluster.settings['topic_prefix']}")
    code, told = await run("channel", "export", backup, "--development", *where)
    assert (code, "generation 1, 12 bundles" in told) == (0, True), told
    patient = ("--set", f"session_timeout_s={cluster.settings['session_timeout_s']}")  # its proof time comes along
    code, told = await run("channel", "import", backup, "--cluster", "move", "--log", f"sqlite:{file}", *patient)
    assert code == 0, told
    async with Cluster(cluster.directory, log=f"sqlite:{file}").seen() as folded:
        table = folded.table
        assert {e.bundle: e.holder.name for e in table if e.holder is not None} == owners
        assert {table.token(entry).generation for entry in table} == {2}


@pytest.mark.slow
async def test_a_broker_that_is_started_on_the_old_log_says_where_to_go(tmp_path: Path):
    old = Cluster(tmp_path, log=f"sqlite:{tmp_path}/cluster.db", session_timeout_s="4")
    log, new = old.settings["log"], f"sqlite:{tmp_path}/new.db"
    async with ending(old):
        await old.start(["127.0.0.1:0"])
        code, told = await run("migrate", "--cluster", "move", "--from-log", log, "--log", new)
        assert (code, f"{old.names[0]}. Stop these brokers" in told) == (1, True), told
    code, told = await run("migrate", "--cluster", "move", "--from-log", log, "--log", new, "--wait", "60")
    assert code == 0, told
    code, told = await run("broker", "--cluster", "move", "--advertised", "127.0.0.1:0", "--log", log)
    assert (code, f"start with --log {new}" in told) == (1, True), told
