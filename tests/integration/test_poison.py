"""A bundle that really kills the processes that take it: locked up within its bound, tried again, served when it is
harmless, all without a person."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from pathlib import Path

import pytest

from loadmanager import Broker
from loadmanager.errors import Unavailable
from loadmanager.model.policies.model import BundlePolicy
from loadmanager.settings import Settings
from stack.servers import free_port
from statechannel.law.bundle import Bundle, Key
from tests.integration.poisoned import SETTINGS

ROOT = Path(__file__).parents[2]
NAMESPACE, KEY = "test/service", "test/service/poison"
BROKERS = 4
DEATHS_AT_MOST = 25


class Supervisor:
    """Starts each process again when it ends; counts those that ended by themselves."""

    def __init__(self, directory: Path) -> None:
        self.deaths = 0
        self._directory = directory
        self._processes: dict[str, Process] = {}

    async def keep(self, name: str) -> None:
        while True:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.integration.poisoned", str(self._directory), name, KEY),
                cwd=ROOT, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL,
            )  # fmt: skip
            self._processes[name] = process
            try:
                self.deaths += await process.wait() == 1
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()


@pytest.mark.release
async def test_bundle_that_kills_is_locked_retried_and_served_once_harmless(
    tmp_path: Path,
):
    watcher = Broker(None, Settings(log=f"sqlite:{tmp_path / 'cluster.db'}", **SETTINGS))
    supervisor = Supervisor(tmp_path)
    async with asyncio.TaskGroup() as tasks:
        await watcher.start()
        kept = [tasks.create_task(supervisor.keep(f"127.0.0.1:{free_port()}")) for _ in range(BROKERS)]
        await _until(lambda: len(watcher.node.membership.peers) == BROKERS + 1)
        await watcher.drain()
        await watcher.ensure_namespace(NAMESPACE, 6)
        poison = bundle_of(watcher)
        (tmp_path / "poison").touch()
        while (locked := _policy(watcher, poison)) is None:
            await look_up(watcher)
            assert supervisor.deaths <= DEATHS_AT_MOST
        deaths = supervisor.deaths
        assert deaths >= 3
        assert "brokers were lost one after the other" in locked.quarantined
        await _until(lambda: "tried again 1 times" in (_policy(watcher, poison) or BundlePolicy()).quarantined)
        assert supervisor.deaths <= deaths + 2, "a trial costs one broker; another may have acquired it before the lock"
        (tmp_path / "poison").unlink()
        await _until(lambda: _policy(watcher, poison) is None)
        assert await look_up(watcher) == ""
        for each in kept:
            each.cancel()
    await watcher.stop()


async def _until(holds: Callable[[], bool], timeout_s: float = 300.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not holds():
            await asyncio.sleep(0.05)


async def look_up(broker: Broker) -> str:
    try:
        await broker.ask(lambda node: node.current.lookup.locate(Key.parse(KEY), 0.3))
    except Unavailable as error:
        return str(error)
    return ""


def bundle_of(broker: Broker) -> Bundle:
    entry = broker.node.channel.table.locate(Key.parse(KEY))
    assert entry is not None
    return entry.bundle


def _policy(broker: Broker, bundle: Bundle) -> BundlePolicy | None:
    return broker.node.policies.current().bundles.get(bundle)
