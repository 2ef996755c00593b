"""A cluster to lose things of: its own Kafka and ZooKeeper, counter services as processes, and the commands of
`docs/disaster-recovery.md`, run as they stand there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import shutil
import sqlite3
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from confluent_kafka.admin import AdminClient

from loadmanager.client import HttpRouter, Router
from loadmanager.demo.counter.load import Load
from loadmanager.demo.counter.traffic import Traffic
from stack.servers import KafkaServer, ZooKeeperServer, free_port
from statechannel.law.bundle import Key
from tests.servers import TICK_MS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "disaster-recovery.md"
NAMESPACE = "demo/counters"
BROKERS, BUNDLES = 2, 8
RATE_S, TOPICS = 10, 60
CALLERS = 40
"""So many requests are under way at most: they wait while there is no broker."""
PATIENCE_S = 600.0
"""What a request may take: it waits until the cluster is whole again, so that none fails."""
LIMIT_S = 240.0
"""For each thing that is waited for: long, because machines that run tests are busy."""


class Service:
    """One counter service. `ended` holds the exit code and the errors once its process has ended by itself."""

    def __init__(self, name: str, errors: Path) -> None:
        self.name = name
        self.errors = errors
        self.process: Process | None = None

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.returncode is not None

    def said(self) -> str:
        """What it wrote to its standard error since it was started first."""
        return self.errors.read_text(errors="replace")


class Rehearsal:
    """`settings` are those of all services; `load` sends increments all the time."""

    load: Load

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store, self.backup = directory / "counters.db", directory / "backup"
        self.kafka = KafkaServer(directory / "kafka")
        self.zookeeper = ZooKeeperServer(directory / "zookeeper", tick_ms=TICK_MS)
        self.services = [self._service(f"127.0.0.1:{free_port()}") for _ in range(BROKERS)]
        self.settings: dict[str, str] = {}
        self._began_s = time.monotonic()

    def _service(self, name: str) -> Service:
        return Service(name, self.directory / f"{name.replace(':', '-')}.err")

    def note(self, text: str) -> None:
        """For whoever has to find out what went wrong, and how long what took."""
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}; {self.load.ok} answered", flush=True)

    # --- servers

    async def up(self) -> None:
        """Start both servers."""
        await asyncio.gather(*(asyncio.to_thread(each.start) for each in (self.kafka, self.zookeeper)))

    def down(self) -> None:
        self.kafka.kill()
        self.zookeeper.kill()

    async def set_up_anew(self) -> None:
        """Start both, empty, at their former addresses."""
        await asyncio.to_thread(self.kafka._prepare)  # pyright: ignore[reportPrivateUsage]
        await self.up()

    def lose_topics(self) -> None:
        """Delete every topic of the load manager."""
        admin = AdminClient({"bootstrap.servers": self.kafka.address})
        ours = [name for name in self.topics(admin) if name.startswith("loadmanager")]
        for deleted in admin.delete_topics(ours).values():
            deleted.result()

    def topics(self, admin: AdminClient | None = None) -> list[str]:
        admin = admin or AdminClient({"bootstrap.servers": self.kafka.address})
        return sorted(admin.list_topics(timeout=LIMIT_S).topics)

    @property
    def kafka_data(self) -> Path:
        return self.kafka.data_dir / "log"

    async def copy_kafka(self, to: Path) -> None:
        """A copy of Kafka's data, taken while it is down for a moment."""
        self.kafka.stop()
        await asyncio.to_thread(shutil.copytree, self.kafka_data, to)
        await asyncio.to_thread(self.kafka.start)

    # --- services

    async def start(self) -> None:
        """Start all services at once under their names, and return when all are ready."""
        for service in self.services:
            await self.launch(service)
        async with aiohttp.ClientSession() as session:
            for service in self.services:
                await self.until(
                    lambda s=service: s.ended or None, f"{service.name} is ready", _ready(session, service)
                )
                assert not service.ended, service.said()[-2000:]

    async def launch(self, service: Service) -> None:
        options = ["--advertised", service.name, "--store", str(self.store), "--bundles", str(BUNDLES)]
        addresses = [f"--{each}={self.settings[each]}" for each in ("log", "coordination")]
        with service.errors.open("ab") as errors:
            service.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "loadmanager.demo.counter", *options, *addresses),
                cwd=ROOT, env=self.environment(), stdout=DEVNULL, stderr=errors,
            )  # fmt: skip

    async def kill(self) -> None:
        """SIGKILL to all services."""
        for service in self.services:
            if service.process is not None and service.process.returncode is None:
                service.process.kill()
        await asyncio.gather(*(service.process.wait() for service in self.services if service.process is not None))

    async def refused(self) -> str:
        """Start one more service, which must end by itself; what it said."""
        stranger = self._service(f"127.0.0.1:{free_port()}")
        await self.launch(stranger)
        try:
            await self.until(lambda: stranger.ended, f"{stranger.name} ends")
        finally:
            if stranger.process is not None and not stranger.ended:
                stranger.process.kill()
                await stranger.process.wait()
        return stranger.said()

    # --- commands

    def environment(self) -> dict[str, str]:
        """That of a broker, and of whoever follows the page."""
        said = {f"LOADMANAGER_{name.upper()}": value for name, value in self.settings.items()}
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        return {**os.environ, "PATH": path, **said, "LOADMANAGER_ADMIN_URL": self.admin_url, "BACKUP": str(self.backup)}

    @property
    def admin_url(self) -> str:
        return ",".join(f"http://{service.name}" for service in self.services)

    async def follow(self, title: str, **more: str) -> str:
        """Run the commands of the page under this title; `more` goes into their environment."""
        return await self.shell(commands(title), **more)

    async def shell(self, script: str, **more: str) -> str:
        """Run it; what it printed. Raises AssertionError if a command fails."""
        began_s = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euc", script), cwd=ROOT, env={**self.environment(), **more},
            stdin=DEVNULL, stdout=PIPE, stderr=STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(LIMIT_S):
                told = (await process.communicate())[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0, f"{script}\nended with {process.returncode}:\n{told}"
        self.note(f"`{script.strip().splitlines()[0][:70]}` took {time.monotonic() - began_s:.1f} s")
        return told

    # --- waiting

    async def until(self, holds: Callable[[], object], what: str, look: Callable[[], object] | None = None) -> None:
        """Return once `holds()`, or `await look()`, is true."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while not holds() and not (look is not None and await look()):  # type: ignore[misc]
                    await asyncio.sleep(0.1)
        except TimeoutError:
            said = "\n".join(service.said()[-500:] for service in self.services)
            raise AssertionError(f"not within {LIMIT_S:g} s: {what}\n{said}") from None

    async def counted(self, more: int, what: str) -> None:
        """Return when so many more increments were acknowledged."""
        wanted = self.load.ok + more
        await self.until(lambda: self.load.ok >= wanted, f"{more} more requests are answered {what}")
        self.note(what)

    async def whole(self) -> None:
        """Return when a request was answered in each of the namespace's first bundles."""
        before = len(self.load.acknowledged)

        def served() -> set[int]:
            return {Key.parse(each.topic).position * BUNDLES >> 32 for each in self.load.acknowledged[before:]}

        await self.until(lambda: len(served()) == BUNDLES, "every bundle is served")
        self.note("every bundle is served")


@asynccontextmanager
async def rehearsal(directory: Path, *, forgets: bool = False) -> AsyncGenerator[Rehearsal]:
    """A cluster under load. In the end no request has failed, and no increment is lost or doubled.

    A cluster that `forgets` its namespaces answers 404 until a service has created its own again.
    """
    cluster = Rehearsal(directory)
    try:
        await cluster.up()
        cluster.settings = {
            "cluster": "rehearsal",
            "log": f"kafka://{cluster.kafka.address}",
            "coordination": f"zookeeper://{cluster.zookeeper.address}/first",
            "development": "true",
            "balancing": "false",
            "partitions": "2",
            "snapshot_records": "20",
            "snapshot_interval_s": "2",
            "session_timeout_s": "4",
        }
        async with HttpRouter(Router(f"http://{each.name}" for each in cluster.services)) as http:
            traffic = Traffic(NAMESPACE, rate_s=RATE_S, topics=TOPICS)
            cluster.load = Load(http, traffic, PATIENCE_S, CALLERS)
            await cluster.start()
            sending = asyncio.create_task(cluster.load.run())
            try:
                await cluster.counted(2 * TOPICS, "the cluster runs")
                yield cluster
                cluster.load.stop()
                await sending
            finally:
                sending.cancel()
                await asyncio.wait([sending])
    finally:
        await cluster.kill()
        cluster.down()
    found = cluster.load.settle(cluster.store)
    print(f"ok {found.ok}  failed {found.failed}  stored {found.stored}  lost {found.lost}  doubled {found.doubled}")
    assert (found.lost, found.doubled) == (0, 0), found
    assert forgets or not found.failed, found
    assert tokens_that_went_back(cluster.store) == []


def tokens_that_went_back(store: Path) -> list[tuple[str, int]]:
    """Increments that were stored under an older token than an earlier one of the same key."""
    with contextlib.closing(sqlite3.connect(store)) as db:
        rows = db.execute("SELECT topic, value, token FROM increment ORDER BY topic, value").fetchall()
    pairs = itertools.pairwise(rows)
    return [(topic, value) for (before, _, old), (topic, value, new) in pairs if before == topic and new < old]


def commands(title: str) -> str:
    """The commands of the page in the section of this title: its blocks of `sh`, in their order."""
    text = PAGE.read_text(encoding="utf-8")
    section = re.search(rf"^##+ {re.escape(title)}$(.*?)(?=^##+ |\Z)", text, re.M | re.S)
    assert section, f"{PAGE.name} has no section {title!r}"
    blocks = re.findall(r"^ *```sh\n(.*?)^ *```$", section[1], re.M | re.S)
    assert blocks, f"the section {title!r} of {PAGE.name} has no commands"
    return "\n".join(line.strip() for block in blocks for line in block.splitlines())


def _ready(session: aiohttp.ClientSession, service: Service) -> Callable[[], object]:
    """Whether its broker is, and the service has made sure of its namespace."""

    async def look() -> bool:
        try:
            async with session.get(f"http://{service.name}/lookup/v2/topic/persistent/{NAMESPACE}/any") as answer:
                return answer.status == 200
        except aiohttp.ClientError:
            return False

    return look
