"""Real servers for tests: one of each kind for a whole run, started when the first test asks for it.

Registered as a plugin (`pytest_plugins = ("tests.servers",)` in `tests/conftest.py`), it gives the fixtures below;
without, `shared_kafka` and `shared_zookeeper` do. Tests that use them carry the marks in `GROUPS`; under pytest-xdist
(`--dist loadgroup`) those of one group run on one worker, so that there is one of each server, and whoever stops a
server disturbs nobody.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from stack.jars import STACK_DIR
from stack.process import Identity
from stack.servers import KafkaServer, Server, ZooKeeperServer
from stack.stores import PostgresServer, RedisServer

GROUPS = {"kafka": "servers", "zookeeper": "servers", "postgresql": "stores", "redis": "stores"}

TICK_MS = 500
SHORTEST_SESSION_S = 2 * TICK_MS / 1_000
"""What ZooKeeper grants at least: two ticks."""

_NOTES = STACK_DIR / "test-servers"
_KAFKA = pytest.StashKey[KafkaServer]()
_ZOOKEEPER = pytest.StashKey[ZooKeeperServer]()
_POSTGRES = pytest.StashKey[PostgresServer]()
_REDIS = pytest.StashKey[RedisServer]()
S = TypeVar("S", bound=Server)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with real servers share one worker."""
    for item in items:
        groups = [GROUPS[mark.name] for mark in item.iter_markers() if mark.name in GROUPS]
        if groups:
            item.add_marker(pytest.mark.xdist_group(min(groups)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse a pytest that pytest-xdist does not fit: each worker would get tests of every group."""
    apart = [item.nodeid for item in session.items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid]
    if getattr(session.config.option, "loadgroup", False) and apart:
        raise pytest.UsageError(f"pytest-xdist does not keep groups of tests together: {apart[0]}")


@pytest.fixture(scope="session")
def kafka_server(request: pytest.FixtureRequest) -> KafkaServer:
    return shared_kafka(request.config)


@pytest.fixture(scope="session")
def zookeeper_server(request: pytest.FixtureRequest) -> ZooKeeperServer:
    return shared_zookeeper(request.config)


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> PostgresServer:
    return _shared(request.config, _POSTGRES, lambda directory: PostgresServer(directory))


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> RedisServer:
    return _shared(request.config, _REDIS, lambda directory: RedisServer(directory))


def shared_kafka(config: pytest.Config) -> KafkaServer:
    """This run's Kafka; whoever stops it starts it again."""
    return _shared(config, _KAFKA, lambda directory: KafkaServer(directory))


def shared_zookeeper(config: pytest.Config) -> ZooKeeperServer:
    """This run's ZooKeeper, with sessions from one second; whoever stops it starts it again."""
    return _shared(config, _ZOOKEEPER, lambda directory: ZooKeeperServer(directory, tick_ms=TICK_MS))


def topic_prefix(name: str) -> str:
    """A prefix of topics that no other test uses."""
    return f"{name}-{uuid.uuid4().hex[:8]}."


def coordination_root(name: str) -> str:
    """A root node that no other test uses."""
    return f"/{name}-{uuid.uuid4().hex[:8]}"


def _shared(config: pytest.Config, key: pytest.StashKey[S], make: Callable[[Path], S]) -> S:
    if key not in config.stash:
        _sweep()
        directory = Path(tempfile.mkdtemp(prefix="loadmanager-server-"))
        server = make(directory)
        server.start()
        note = _note(server, directory)

        def end() -> None:
            server.kill()
            shutil.rmtree(directory, ignore_errors=True)
            note.unlink(missing_ok=True)

        config.add_cleanup(end)
        config.stash[key] = server
    return config.stash[key]


def _note(server: Server, directory: Path) -> Path:
    """Remember a server beside the run that owns it: a run that is killed cannot clean up."""
    owner, identity = Identity.of(os.getpid()), server.identity
    assert owner is not None
    assert identity is not None
    _NOTES.mkdir(parents=True, exist_ok=True)
    note = _NOTES / f"{identity.pid}.json"
    parts = [owner.pid, owner.started, identity.pid, identity.started, str(directory)]
    note.write_text(json.dumps(parts))
    return note


def _sweep() -> None:
    """End the servers of runs that are dead."""
    for note in _NOTES.glob("*.json"):
        owner_pid, owner_started, pid, started, directory = json.loads(note.read_text())
        if not Identity(owner_pid, owner_started).is_alive():
            Identity(pid, started).end(grace_s=0)
            shutil.rmtree(directory, ignore_errors=True)
            note.unlink(missing_ok=True)
