"""SASL users and TLS certificates with `ZooKeeperCoordination`.

Where the stack's ZooKeeper comes without Netty, which it needs for both, the tests of the server's own SASL and TLS are
skipped; a terminator before the server stands in for TLS.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stack.servers import ZooKeeperServer, free_port
from statechannel.adapters.zookeeper.audit import Expected, audit_zookeeper
from statechannel.adapters.zookeeper.coordination import ZooKeeperCoordination
from statechannel.audit import Finding, Severity
from statechannel.errors import CoordinationUnavailable
from tests.servers import coordination_root, shared_zookeeper

pytestmark = pytest.mark.zookeeper

WAIT_S = 60
A = "broker-a:8080"
SAYS_WHAT_TO_DO = "give the credentials that the other brokers have"
EXPECTED = Expected("c")


@pytest.fixture
def server(pytestconfig) -> ZooKeeperServer:
    return shared_zookeeper(pytestconfig)


@pytest.fixture
def root() -> str:
    return coordination_root("identities")


@asynccontextmanager
async def started(address: str, root: str, settings: Mapping[str, Any]) -> AsyncGenerator[ZooKeeperCoordination]:
    client = ZooKeeperCoordination(address, root=root, client_settings=settings, request_timeout_s=30.0)
    try:
        await client.start(timeout_s=WAIT_S)
        yield client
    finally:
        await client.close()


async def used(client: ZooKeeperCoordination) -> None:
    """As a broker uses it."""
    broker = await client.start_incarnation(A, above=0)
    await client.register(broker, b"data")
    await client.prove(broker)
    assert await client.claim("a-lease", broker)


async def audited(address: str, root: str, settings: Mapping[str, Any]) -> dict[str, Finding]:
    return {finding.subject: finding async for finding in audit_zookeeper(address, root, EXPECTED, settings)}


class ServerWith(ZooKeeperServer):
    """A server with further properties in its configuration, and options of its JVM."""

    def __init__(self, data_dir: Path, properties: Mapping[str, object], options: tuple[str, ...] = ()) -> None:
        super().__init__(data_dir)
        self._properties = properties
        self._options = options

    def _prepare(self) -> None:
        super()._prepare()
        with self._config.open("a") as config:
            config.writelines(f"{name}={value}\n" for name, value in self._properties.items())

    def _java_options(self):
        return [*super()._java_options(), *self._options]


@asynccontextmanager
async def running(server: ZooKeeperServer) -> AsyncGenerator[ZooKeeperServer]:
    await asyncio.to_thread(server.start)
    try:
        yield server
    finally:
        await asyncio.to_thread(server.kill)


# --- SASL
def sasl_server(directory: Path) -> ServerWith:
    """A server that knows one user."""
    jaas = directory / "jaas.conf"
    module = "org.apache.zookeeper.server.auth.DigestLoginModule required"
    jaas.write_text(f'Server {{ {module} user_loadmanager="secret"; }};\n')
    provider = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    options = (f"-Djava.security.auth.login.config={jaas}", f"-Dzookeeper.authProvider.1={provider}")
    return ServerWith(directory / "server", {}, options)


@pytest.mark.slow
async def test_sasl_users_have_nodes_of_their_own(tmp_path, root):
    sasl = {"mechanism": "DIGEST-MD5", "username": "loadmanager", "password": "secret"}
    ours = {"sasl_options": sasl, "acl": "creator"}
    async with running(sasl_server(tmp_path)) as server:
        async with started(server.address, root, ours) as client:
            await used(client)
            found = await audited(server.address, root, ours)
        assert found["zookeeper: access"].severity is Severity.OK
        with pytest.raises(CoordinationUnavailable, match=SAYS_WHAT_TO_DO):
            async with started(server.address, root, {}):
                pass
        with pytest.raises(CoordinationUnavailable, match="rejected our credentials"):
            async with started(server.address, root, {"sasl_options": {**sasl, "password": "wrong"}}):
                pass


# --- TLS
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


def certificate(directory: Path, name: str, alternative: str) -> tuple[Path, Path]:
    """A key, and a certificate that it has signed itself."""
    key, cert = directory / f"{name}.key", directory / f"{name}.crt"
    kind = ("-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    openssl(
        "req", *kind, "-keyout", key, "-out", cert, "-subj", f"/CN={name}", "-addext", f"subjectAltName={alternative}"
    )
    return key, cert


@pytest.mark.slow
@needs_openssl
async def test_a_certificate_is_an_identity_on_a_server_with_tls(tmp_path, root):
    key, cert = certificate(tmp_path, "server", "IP:127.0.0.1")
    our_key, our_cert = certificate(tmp_path, "broker", "DNS:broker")
    store = tmp_path / "server.p12"
    openssl("pkcs12", "-export", "-inkey", key, "-in", cert, "-out", store, "-passout", "pass:secret")
    pem = tmp_path / "trusted.pem"
    pem.write_text(our_cert.read_text())
    port = free_port()
    properties = {
        "secureClientPort": port,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "authProvider.x509": "org.apache.zookeeper.server.auth.X509AuthenticationProvider",
        "ssl.keyStore.location": store, "ssl.keyStore.password": "secret", "ssl.keyStore.type": "PKCS12",
        "ssl.trustStore.location": pem, "ssl.trustStore.type": "PEM",
    }  # fmt: skip
    ours = {"use_ssl": True, "ca": str(cert), "certfile": str(our_cert), "keyfile": str(our_key), "acl": "creator"}
    address = f"127.0.0.1:{port}"
    async with running(ServerWith(tmp_path / "server", properties)) as server:
        async with started(address, root, ours) as client:
            await used(client)
            found = await audited(address, root, ours)
        assert found[f"zookeeper: {address}"].severity is Severity.OK
        assert found["zookeeper: access"].severity is Severity.OK
        with pytest.raises(CoordinationUnavailable, match=SAYS_WHAT_TO_DO):
            async with started(server.address, root, {}):  # the same server, without a certificate
                pass
        without = await audited(address, root, {})
        assert "use_ssl" in without[f"zookeeper: {address}"].found or "TLS" in without[f"zookeeper: {address}"].found


@asynccontextmanager
async def tls_before(target: str, key: Path, cert: Path, clients_of: Path | None = None) -> AsyncGenerator[str]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    if clients_of is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients_of)
    host, _, port = target.rpartition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    links: set[asyncio.Task[Any]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.current_task()
        assert link is not None
        links.add(link)
        behind_reader, behind_writer = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.gather(pump(reader, behind_writer), pump(behind_reader, writer))
        finally:
            for end in (writer, behind_writer):
                end.transport.abort()
            links.discard(link)

    listener = await asyncio.start_server(carry, "127.0.0.1", 0, ssl=context)
    async with listener:
        yield f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        listener.close()
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)


@pytest.mark.slow
@needs_openssl
async def test_tls_with_a_certificate_of_ours_and_the_servers_checked(server, root, tmp_path):
    key, cert = certificate(tmp_path, "server", "IP:127.0.0.1")
    our_key, our_cert = certificate(tmp_path, "broker", "DNS:broker")
    tls = {"use_ssl": True, "ca": str(cert), "certfile": str(our_cert), "keyfile": str(our_key)}
    tls["acl"] = "open"  # the certificate ends at what stands before the server, which knows no identity then
    async with tls_before(server.address, key, cert, clients_of=our_cert) as address:
        async with started(address, root, tls) as client:
            await used(client)
        found = await audited(address, root, tls)
        assert found[f"zookeeper: {address}"].severity is Severity.OK
        assert "zookeeper: writes" in found


@pytest.mark.slow
@needs_openssl
@pytest.mark.parametrize("fault", ["another authority", "another name"])
async def test_a_server_that_cannot_show_who_it_is_gets_nothing(server, root, tmp_path, fault):
    key, cert = certificate(tmp_path, "server", "IP:127.0.0.1" if fault == "another authority" else "DNS:elsewhere")
    _, other_cert = certificate(tmp_path, "other", "IP:127.0.0.1")
    tls = {"use_ssl": True, "ca": str(other_cert if fault == "another authority" else cert)}
    async with tls_before(server.address, key, cert) as address:
        client = ZooKeeperCoordination(address, root=root, client_settings=tls)
        with pytest.raises(CoordinationUnavailable, match=r"(?i)certificate"):
            await client.start(timeout_s=5)
        finding = (await audited(address, root, tls))[f"zookeeper: {address}"]
    assert finding.severity is Severity.ERROR
    assert "certificate" in finding.found.lower()
