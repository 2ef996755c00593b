"""The example services beside sidecars, under load: moved, killed, paused, drained; nothing is lost or doubled.

Kafka, ZooKeeper and PostgreSQL are real, and so are all processes.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from stack.servers import KafkaServer, ZooKeeperServer
from stack.stores import PostgresServer
from tests.servers import coordination_root, topic_prefix
from tests.sidecar.building import SERVICES
from tests.sidecar.stage import BUNDLES, Load, Pair, Stage, loaded, staged, took

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.zookeeper,
    pytest.mark.postgresql,
    pytest.mark.timeout(600),
    pytest.mark.release,
    pytest.mark.go,
]


class Setting:
    """Real servers, and the command of a service."""

    def __init__(self, command: Sequence[str], options: Sequence[str], store: str, directory: Path) -> None:
        self.command, self.options, self.store, self.directory = command, options, store, directory

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[tuple[Stage, Load]]:
        """Pairs under load; at the end no request has failed, and nothing was lost, doubled, or served too late."""
        async with (
            staged(self.directory, self.command, self.options, self.store) as stage,
            loaded(stage, self.store, self.directory) as load,
        ):
            await load.goes_on()
            yield stage, load
            await load.goes_on()
            await stage.all_served(stage.pairs)
            found = await load.settle()
            told = (found.examples, *(pair.tail() for pair in stage.pairs))
            assert (found.failed, found.lost, found.doubled) == (0, 0, 0), told
            assert found.stored is not None
            assert found.stored >= found.ok > 0
            assert not stage.too_late


@pytest.fixture(scope="module", params=sorted(SERVICES))
def command(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sequence[str]:
    """What starts the example service in this language."""
    return SERVICES[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture
def setting(
    command: Sequence[str],
    kafka_server: KafkaServer,
    zookeeper_server: ZooKeeperServer,
    postgres_server: PostgresServer,
    tmp_path: Path,
) -> Setting:
    name = topic_prefix("sidecar").rstrip(".").replace("-", "_")
    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    root = coordination_root("sidecar")
    options = [
        *("--log", f"kafka://{kafka_server.address}", "--set", f"topic_prefix={name}.", "--set", "partitions=2"),
        *("--coordination", f"zookeeper://{zookeeper_server.address}{root}", "--development"),
    ]
    return Setting(command, options, postgres_server.url.rpartition("/")[0] + f"/{name}", tmp_path)


def others(stage: Stage, pair: Pair) -> list[Pair]:
    return [each for each in stage.pairs if each is not pair]


async def move_everything(stage: Stage) -> None:
    begun_s = time.monotonic()
    for bundle, owner in (await stage.owners(stage.pairs)).items():
        assert owner is not None
        await stage.move(bundle, stage.pairs[(stage.pairs.index(owner) + 1) % len(stage.pairs)])
    took(f"{len(BUNDLES)} moves", begun_s)


async def drain(stage: Stage, pair: Pair) -> None:
    before, begun_s = await stage.held_by(pair), time.monotonic()
    pair.children["service"].signal(signal.SIGTERM)
    await stage.replaced(pair, "service")
    took("SIGTERM of a service, until it has left", begun_s)
    await stage.all_served(stage.pairs, before)


async def kill(stage: Stage, pair: Pair, *parts: str) -> None:
    before, begun_s = await stage.held_by(pair), time.monotonic()
    await stage.kill(pair, *parts)
    await stage.all_served(stage.pairs, before)
    took(f"SIGKILL of {' and '.join(parts)}, until all is served", begun_s)


async def pause(stage: Stage, pair: Pair, part: str, load: Load) -> None:
    before, begun_s = await stage.held_by(pair), time.monotonic()
    pair.children[part].suspend()
    await stage.all_served(others(stage, pair), before)
    took(f"SIGSTOP of a {part}, until others serve all", begun_s)
    await load.goes_on()
    if part == "sidecar":
        served = await asyncio.gather(*(stage.serves(pair, bundle) for bundle in before))
        assert not any(served), "its service has stopped by itself"
    pair.children[part].signal(signal.SIGCONT)


async def takes_bundles_again(stage: Stage, pair: Pair) -> None:
    """It is a member again, and serves what moves to it."""
    begun_s = time.monotonic()
    await stage.move(BUNDLES[0], pair, asked=others(stage, pair)[0])
    took("until it serves again", begun_s)


async def test_no_request_fails_while_bundles_move_and_a_service_drains(setting: Setting):
    async with setting.running() as (stage, load):
        await move_everything(stage)
        await load.goes_on()
        await drain(stage, stage.pairs[0])
        await takes_bundles_again(stage, stage.pairs[0])


async def test_bundles_of_killed_processes_are_served_again(setting: Setting):
    async with setting.running() as (stage, load):
        for pair, parts in zip(stage.pairs, (["sidecar"], ["service"], ["sidecar", "service"]), strict=True):
            await kill(stage, pair, *parts)
            await load.goes_on()
            await takes_bundles_again(stage, pair)


async def test_bundles_of_paused_processes_are_served_by_others(setting: Setting):
    async with setting.running() as (stage, load):
        for pair, part in zip(stage.pairs, ("service", "sidecar"), strict=False):
            await pause(stage, pair, part, load)
            await takes_bundles_again(stage, pair)
