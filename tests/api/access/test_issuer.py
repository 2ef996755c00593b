"""Tokens of an issuer over HTTPS: discovery, new keys, and when it is away.

It is a real server with an authority of its own. Only its login is left out: a broker never sees that.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from loadmanager_api.access import access, tokens
from loadmanager_api.access.tokens import DISCOVERY, MAX_FILE_BYTES, fetched
from tests.api.access.conftest import Guarded
from tests.api.access.issuing import Certificates, Issuer, jwks
from tests.api.conftest import WAIT_S

KEYS = "/keys"


class Site:
    """A server on loopback, over TLS with `certificate` (paths of it and its key), plainly without one."""

    def __init__(self, certificate: tuple[str, str] | None) -> None:
        self.pages: dict[str, bytes | str] = {}
        """By path: a body, or the URL to which it redirects."""
        self.asked: list[str] = []
        self._certificate = certificate
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self._port}"

    def start(self) -> None:
        """On the same port as before."""
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                found = site.pages.get(self.path)
                self.send_response(404 if found is None else 302 if isinstance(found, str) else 200)
                if isinstance(found, str):
                    self.send_header("Location", found)
                self.end_headers()
                if isinstance(found, bytes):
                    self.wfile.write(found)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_port
        if self._certificate:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(*self._certificate)
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        """Nobody listens there until it starts again."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._end_waiting()
            self._server.server_close()

    def _end_waiting(self) -> None:
        """End connections that nobody accepted yet in order: `ssl` leaks the socket of one that is reset so early."""
        listening = self._server.socket
        listening.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                socket.socket.accept(listening)[0].close()  # without a handshake


class Provider(Site):
    """An issuer: its discovery document, and its present key."""

    def __init__(self, certificates: Certificates) -> None:
        super().__init__(certificates.issue("provider", "127.0.0.1"))
        about = {"issuer": self.url, "jwks_uri": self.url + KEYS}
        self.pages[DISCOVERY] = msgspec.json.encode(about)
        self._rotated = 0
        self.rotate()

    def rotate(self) -> None:
        """Another key takes the place of the present one."""
        self._rotated += 1
        self._issuer = Issuer(f"key {self._rotated}")
        self.pages[KEYS] = jwks(self._issuer)

    def token(self, subject: str, **claims: Any) -> str:
        return self._issuer.token(subject, iss=self.url, **claims)


@pytest.fixture
def provider(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """Its authority is one of this machine's. Keys are fetched ten times a second."""
    monkeypatch.setenv("SSL_CERT_FILE", guarded.certificates.ca)
    monkeypatch.setattr(tokens, "FETCH_EVERY_S", 0.1)
    monkeypatch.setattr(tokens, "FETCH_AGAIN_S", 0.1)
    monkeypatch.setattr(access, "LOOK_S", 0.1)
    provider = Provider(guarded.certificates)
    try:
        yield provider
    finally:
        provider.stop()


async def status_of(guarded: Guarded, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    return (await guarded.cluster.ask("GET", "/v1/config", headers=headers, ssl=guarded.context))[0]


async def until(guarded: Guarded, token: str, status: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while await status_of(guarded, token) != status:
            await asyncio.sleep(0.05)


async def test_tokens_of_a_provider_count_as_long_as_its_key(guarded: Guarded, provider: Provider) -> None:
    await guarded.start_with_tls(token_keys="", token_issuer=provider.url)
    root, ann = provider.token("root"), provider.token("ann")
    await until(guarded, root, 200)
    assert await status_of(guarded, ann) == 403, "it is known who that is"
    provider.rotate()
    await until(guarded, root, 401)
    await until(guarded, provider.token("root"), 200)


async def test_while_the_provider_is_away_its_last_keys_count(
    guarded: Guarded, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    await guarded.start_with_tls(token_keys="", token_issuer=provider.url)
    seen, new = provider.token("root"), provider.token("root", jti="new")
    await until(guarded, seen, 200)
    provider.stop()
    async with asyncio.timeout(WAIT_S):
        while caplog.text.count("tokens are verified with the earlier keys") < 3:
            assert await status_of(guarded, seen) == 200
            await asyncio.sleep(0.05)
    assert await status_of(guarded, new) == 200, "though it was never seen before"
    provider.rotate()
    provider.start()
    await until(guarded, provider.token("root"), 200)


async def test_a_broker_that_starts_before_its_provider_waits_for_its_keys(
    guarded: Guarded, provider: Provider
) -> None:
    provider.stop()
    await guarded.start_with_tls(token_keys="", token_issuer=provider.url)
    status, problem, _ = await guarded.ask("root", "GET", "/v1/config")
    assert status == 503, "401 would tell clients that their tokens are wrong"
    assert "no keys yet" in problem["detail"]
    assert (await guarded.ask(None, "GET", "/admin/v2/brokers/health"))[0] == 200
    status, problem, _ = await guarded.ask(None, "GET", "/admin/v2/brokers/ready")
    assert (status, "no keys yet" in problem["detail"]) == (503, True)
    provider.start()
    await until(guarded, provider.token("root"), 200)
    assert (await guarded.ask(None, "GET", "/admin/v2/brokers/ready"))[0] == 200


async def test_a_provider_whose_certificate_nobody_here_trusts_gives_no_keys(
    guarded: Guarded, provider: Provider, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", Certificates(guarded.keys.parent / "other").ca)
    await guarded.start_with_tls(token_keys="", token_issuer=provider.url)
    async with asyncio.timeout(WAIT_S):
        while "certificate verify failed" not in caplog.text:
            await asyncio.sleep(0.05)
    assert await status_of(guarded, provider.token("root")) == 503
    assert provider.asked == []


def test_a_redirect_that_leaves_https_is_not_followed(guarded: Guarded, provider: Provider) -> None:
    plain = Site(None)
    try:
        plain.pages[KEYS] = jwks(Issuer("evil"))
        provider.pages |= {"/moved": provider.url + KEYS, "/left": plain.url + KEYS}
        assert fetched(f"{provider.url}/moved") == provider.pages[KEYS]
        with pytest.raises(ValueError, match="not an https URL"):
            fetched(f"{provider.url}/left")
        assert plain.asked == []
    finally:
        plain.stop()


def test_a_document_that_is_too_large_is_not_read_to_its_end(guarded: Guarded, provider: Provider) -> None:
    provider.pages["/large"] = b" " * MAX_FILE_BYTES
    assert len(fetched(f"{provider.url}/large")) == MAX_FILE_BYTES
    provider.pages["/large"] = b" " * (MAX_FILE_BYTES + 1)
    with pytest.raises(ValueError, match="more than"):
        fetched(f"{provider.url}/large")
