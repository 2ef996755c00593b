"""`loadmanager doctor` against running brokers: what is in the bundle, and that no secret is."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from click.testing import CliRunner, Result

from loadmanager.diagnostics.support_bundle import OF_A_MEMBER, collect
from loadmanager.errors import Unavailable
from loadmanager_api.cli.main import main
from tests.api.conftest import Cluster, cluster

__all__ = ["cluster"]

SECRETS = [f"planted-{i:02}-{word}" for i, word in enumerate(("Kafka", "TLS", "Pem", "ZooKeeper", "Url", "Admin"))]
SECRETS += [f"planted-{i:02}-{word}" for i, word in enumerate(("Property", "Note", "Environment", "Query"), 6)]
KAFKA, TLS, PEM, ZOOKEEPER, URL, ADMIN, PROPERTY, NOTE, ENVIRONMENT, QUERY = SECRETS


async def doctor(url: str, *arguments: str, **environment: str) -> Result:
    given = {"LOADMANAGER_ADMIN_URL": url, **environment}
    return await asyncio.to_thread(CliRunner().invoke, main, ["doctor", *arguments], None, given)


def files_in(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        found: dict[str, str] = {}
        for member in tar.getmembers():
            content = tar.extractfile(member)
            assert content is not None
            found[member.name.partition("/")[2]] = content.read().decode()
    return found


async def test_it_holds_what_each_member_says_and_what_the_check_finds(cluster: Cluster, tmp_path: Path):
    await cluster.start(2)
    await cluster.create("t/n", 8)
    path = tmp_path / "bundle.tar.gz"
    result = await doctor(cluster.brokers[0].url, "-o", str(path), "--log", f"sqlite:{tmp_path / 'lm.db'}")
    assert result.exit_code == 0, result.output
    found = files_in(path)
    for number in (7001, 7002):
        assert {f"members/127.0.0.1_{number}/{file}" for file in OF_A_MEMBER} <= set(found)
        settings = json.loads(found[f"members/127.0.0.1_{number}/settings.json"])
        assert settings["advertised"] == f"127.0.0.1:{number}"
        assert "loadmanager_ready 1.0" in found[f"members/127.0.0.1_{number}/metrics.txt"]
    assert {broker["broker"] for broker in json.loads(found["cluster/brokers.json"])} == {
        "127.0.0.1:7001",
        "127.0.0.1:7002",
    }
    assert len(json.loads(found["cluster/bundles.json"])) == 8
    assert json.loads(found["cluster/namespaces.json"]) == ["t/n"]
    assert json.loads(found["cluster/leader.json"])["brokerId"].startswith("127.0.0.1:700")
    assert any(finding["subject"] == "log file" for finding in json.loads(found["check.json"]))
    about = json.loads(found["about.json"])
    assert about["missing"] == []
    assert set(about["files"]) == set(found) - {"README.txt", "about.json"}
    assert all(name in result.stdout for name in about["files"])
    assert path.stat().st_mode & 0o077 == 0


async def test_no_secret_is_in_it_wherever_one_was(cluster: Cluster, tmp_path: Path):
    await cluster.start(
        kafka={"sasl.password": KAFKA, "ssl.key.password": TLS, "ssl.key.pem": PEM, "sasl.username": "me"},
        zookeeper={"auth_data": f'[["digest", "me:{ZOOKEEPER}"]]'},
        properties={"motto": PROPERTY, "password": PROPERTY},
    )
    node = cluster.brokers[0].node
    urls = {"http": f"http://me:{URL}@127.0.0.1:1/?token={QUERY}", "pulsar": f"pulsar://me:{URL}@127.0.0.1:2"}
    node.registration = msgspec.structs.replace(node.registration, urls=urls)
    await node.world.coordination.register(node.current.me, node.registration.encode())
    await cluster.until(lambda: node.peers()[cluster.brokers[0].name].registration.urls == urls)
    node.note(f"acquire raised LoginFailed: sasl.password={NOTE} at http://me:{NOTE}@there/?key={NOTE}")
    node.note(f"it looked for {ENVIRONMENT}, which only the environment knows")
    environment = {
        "LOADMANAGER_KAFKA": json.dumps({"sasl.password": ENVIRONMENT}),
        "LOADMANAGER_ZOOKEEPER": json.dumps({"a": ENVIRONMENT}),
        "SOME_PASSWORD": ENVIRONMENT,
    }
    path = tmp_path / "bundle.tar.gz"
    url = cluster.brokers[0].url.replace("http://", f"http://me:{ADMIN}@")
    result = await doctor(url, "-o", str(path), **environment)
    assert result.exit_code == 0, result.output
    content = gzip.decompress(path.read_bytes()).decode()
    for secret in SECRETS:
        assert secret not in content
        assert secret not in result.output
    assert "LoginFailed" in content
    assert "sasl.password" in content, "the names of what is set are there"
    assert "motto" in content


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A port, and what was sent to it: an empty piece for each that only connected."""
    got: list[bytes] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(b"")
        got.append(await reader.read(1000))
        writer.close()

    async with await asyncio.start_server(take, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", got


@asynccontextmanager
async def lying(log: str, coordination: str) -> AsyncIterator[str]:
    """The URL of what answers as a broker with these stores."""

    async def answer(request: web.Request) -> web.Response:
        match request.path:
            case "/v1/brokers":
                return web.json_response([{"broker": "b:1", "admin_url": url}])
            case "/v1/settings":
                return web.json_response({"cluster": "theirs", "log": log, "coordination": coordination})
            case _:
                return web.Response(status=404)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield url
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("own", [False, True], ids=["nothing-configured", "own-stores-configured"])
async def test_stores_that_only_a_broker_names_are_not_connected_to(tmp_path: Path, own: bool):
    """It would be given the credentials of this environment."""
    environment = {
        "LOADMANAGER_KAFKA": json.dumps({"security.protocol": "SASL_PLAINTEXT", "sasl.password": KAFKA}),
        "LOADMANAGER_ZOOKEEPER": json.dumps({"auth_data": f'[["digest", "me:{ZOOKEEPER}"]]'}),
    }
    if own:
        environment["LOADMANAGER_LOG"] = f"sqlite:{tmp_path / 'lm.db'}"
    path = tmp_path / "bundle.tar.gz"
    async with (
        listening() as (kafka, to_kafka),
        listening() as (zookeeper, to_zookeeper),
        lying(f"kafka://{kafka}", f"zookeeper://{zookeeper}") as url,
    ):
        result = await doctor(url, "-o", str(path), **environment)
    assert result.exit_code == 0, result.output
    assert (to_kafka, to_zookeeper) == ([], [])
    found = files_in(path)
    missing = {lack["name"]: lack["reason"] for lack in json.loads(found["about.json"])["missing"]}
    if own:
        assert "log file" in found["check.json"]
        assert "Kafka" not in found["check.json"]
    else:
        assert "--log (or LOADMANAGER_LOG) and --coordination" in missing["check.json"]
        assert "--log (or LOADMANAGER_LOG) and --coordination" in result.stdout
        assert "check.json" not in found


async def test_of_stores_half_named_the_other_half_is_asked_for(tmp_path: Path):
    path = tmp_path / "bundle.tar.gz"
    async with listening() as (kafka, to_kafka), lying(f"kafka://{kafka}", f"zookeeper://{kafka}") as url:
        await doctor(url, "-o", str(path), "--log", f"kafka://{kafka}")
    assert to_kafka == []
    assert "with --coordination" in files_in(path)["about.json"]


async def test_a_member_that_does_not_answer_is_noted_and_holds_up_nobody(cluster: Cluster, tmp_path: Path):
    await cluster.start(2)
    node = cluster.brokers[1].node
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and not listening
        gone = f"http://127.0.0.1:{unused.getsockname()[1]}"
        node.registration = msgspec.structs.replace(node.registration, admin_url=gone)
        await node.world.coordination.register(node.current.me, node.registration.encode())
        asked = cluster.brokers[0].node
        await cluster.until(lambda: asked.peers()[cluster.brokers[1].name].registration.admin_url == gone)
        path = tmp_path / "bundle.tar.gz"
        result = await doctor(cluster.brokers[0].url, "-o", str(path), "--no-check")
    assert result.exit_code == 0, result.output
    found = files_in(path)
    missing = {lack["name"]: lack["reason"] for lack in json.loads(found["about.json"])["missing"]}
    assert missing["members/127.0.0.1_7002/settings.json"] == "connection refused"
    assert "members/127.0.0.1_7001/settings.json" in found
    assert "connection refused" in result.stdout
    assert "check.json" not in found


async def test_nobody_there_is_not_now(tmp_path: Path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and not listening
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        result = await doctor(url, "-o", str(tmp_path / "bundle.tar.gz"))
        with pytest.raises(Unavailable, match="connection refused"):
            await collect(url)
    assert result.exit_code == 3
    assert "--admin-url" in result.stderr
    assert not (tmp_path / "bundle.tar.gz").exists()


@pytest.mark.parametrize("answer", [b'{"a": 1}', b"<html>hello</html>", b"[]"])
async def test_what_is_no_broker_is_told(tmp_path: Path, answer: bytes):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(answer)}\r\n\r\n"
        writer.write(head.encode() + answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        result = await doctor(url, "-o", str(tmp_path / "bundle.tar.gz"), "--no-check")
    assert "Traceback" not in result.output
    if answer == b"[]":  # a broker that knows nobody; the rest of what it says makes no sense
        assert result.exit_code == 0, result.output
        assert "missing" in result.stdout
    else:
        assert result.exit_code == 3, result.output


async def test_what_a_member_refuses_is_noted_and_what_it_offers_besides_is_kept():
    async def answer(request: web.Request) -> web.Response:
        match request.path:
            case "/v1/brokers":
                members = [{"broker": "b:1", "admin_url": url}, {"broker": "gone:1", "admin_url": ""}]
                return web.json_response(members)
            case "/v1/tasks":
                return web.Response(text="task a\n")
            case "/admin/v2/brokers/health":
                return web.Response(status=503, text="not ready")
            case _:
                return web.Response(status=500, text="broken")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        collected = await collect(url)
    finally:
        await runner.cleanup()
    assert collected.files["members/b_1/tasks.txt"] == b"task a\n"
    assert collected.files["members/b_1/health.txt"] == b"HTTP 503: not ready"
    missing = {lack.name: lack.reason for lack in collected.missing}
    assert missing["members/b_1/settings.json"] == "HTTP 500: broken"
    assert missing["cluster/bundles.json"] == "HTTP 500: broken"
    assert "not registered" in missing["members/gone_1"]


async def test_a_url_that_is_none_is_wrong_usage(tmp_path: Path):
    result = await doctor("nonsense", "-o", str(tmp_path / "bundle.tar.gz"))
    assert result.exit_code == 2
    assert "--admin-url http://host:port" in result.stderr


async def test_a_file_that_exists_is_not_overwritten(cluster: Cluster, tmp_path: Path):
    await cluster.start()
    (tmp_path / "bundle.tar.gz").write_text("mine")
    result = await doctor(cluster.brokers[0].url, "-o", str(tmp_path / "bundle.tar.gz"), "--no-check")
    assert result.exit_code == 1
    assert "exists already" in result.stderr
    assert (tmp_path / "bundle.tar.gz").read_text() == "mine"
