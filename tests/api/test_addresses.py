"""A broker that listens everywhere is reached by IPv4 and by IPv6, at its probes' port too, and names its clients."""

from __future__ import annotations

import socket
from pathlib import Path

import aiohttp
import pytest

from loadmanager import Broker
from loadmanager.embedding.endpoints import listen
from loadmanager_api.cli.broker import Idle
from loadmanager_api.server import attach
from stack.servers import free_port

HOSTS = ("127.0.0.1", "[::1]")
EVERYWHERE = ("", "[::]")


@pytest.mark.parametrize("everywhere", EVERYWHERE)
async def test_broker_answers_both_families(everywhere: str, tmp_path: Path):
    port, probes = free_port(), free_port()
    broker = Broker(
        Idle(), log=f"sqlite:{tmp_path / 'log.db'}", advertised=f"127.0.0.1:{port}", bind=f"{everywhere}:{port}",
        endpoint=attach, insecure=True, http_probe_port=probes,
    )  # fmt: skip
    async with broker, aiohttp.ClientSession() as session:
        for host in HOSTS:
            for each in (port, probes):
                async with session.get(f"http://{host}:{each}/admin/v2/brokers/live") as answer:
                    assert answer.status == 200
            name = f"t{HOSTS.index(host)}/n"
            async with session.put(f"http://{host}:{port}/admin/v2/namespaces/{name}", json={}) as answer:
                assert answer.status < 300, await answer.text()
        async with session.get(f"http://127.0.0.1:{port}/v1/audit") as answer:
            told = str(await answer.json())
    assert "somebody at 127.0.0.1'" in told
    assert "somebody at ::1'" in told
    assert "::ffff:" not in told


def test_without_ipv6_it_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch):
    """As on a machine whose kernel was started without it."""
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listen(":0") as found:
        assert found.family == socket.AF_INET
        assert found.getsockname()[0] == "0.0.0.0"


def test_one_address_stays_one_address():
    for host, family in zip(HOSTS, (socket.AF_INET, socket.AF_INET6), strict=True):
        with listen(f"{host}:0") as found:
            assert (found.family, found.getsockname()[0]) == (family, host.strip("[]"))
