"""A stream that breaks or falls silent, a log-in that ends: what the page says, and how it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import expect

from loadmanager.model.policies.model import AccessRole
from tests.api.access.conftest import Guarded
from tests.api.access.issuing import Issuer, jwks
from tests.api.conftest import Cluster
from tests.dashboard.conftest import Windows, as_role, assign_all

pytestmark = [pytest.mark.slow, pytest.mark.chromium, pytest.mark.xdist_group("dashboard")]

SILENCE_MS = 26_000


class Line:
    """A TCP line to a broker, that can be cut or fall silent."""

    def __init__(self) -> None:
        self.url = ""
        self.passes = asyncio.Event()
        self.passes.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._port = 0

    async def lay(self, port: int) -> None:
        """Listen, and connect to this port of this machine."""
        self._to = port
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def cut(self) -> None:
        """End all connections, and refuse new ones until it is laid again."""
        assert self._server is not None
        self._server.close()
        for each in list(self._open):
            each.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer, request = await asyncio.open_connection("127.0.0.1", self._to)
        self._open |= {writer, request}
        try:
            await asyncio.gather(self._copy(reader, request), self._copy(answer, writer))
        finally:
            self._open -= {writer, request}
            writer.transport.abort()
            request.transport.abort()

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self.passes.wait()
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        finally:
            sink.transport.abort()


@pytest_asyncio.fixture
async def line() -> AsyncIterator[Line]:
    line = Line()
    yield line
    await line.cut()


async def test_a_broken_stream_is_said_and_resumed(cluster: Cluster, windows: Windows, line: Line) -> None:
    await cluster.start(2)
    bundles = await cluster.create("t/n")
    await assign_all(cluster, bundles)
    port = int(cluster.brokers[0].url.rpartition(":")[2])
    await line.lay(port)
    window = await windows.open("overview", url=line.url, expected="ERR_")
    page, alert = window.page, window.page.locator(".elsewhere")
    await expect(page.locator("#bundle-count")).to_have_text("4")
    await line.cut()
    await expect(alert).to_contain_text(f"The stream of changes from {cluster.brokers[0].name} is broken")
    other = cluster.brokers[1]
    await expect(alert.get_by_role("link", name=other.name)).to_have_attribute("href", f"{other.url}/#/overview")
    await expect(page.get_by_role("alert").filter(has_text="These figures are of")).not_to_have_count(0)
    await cluster.brokers[0].node.current.operations.transfer(bundles[0], other.name)
    resumed: list[str] = []
    page.on("request", lambda asked: resumed.append(asked.url) if "/v1/watch" in asked.url else None)
    await line.lay(port)
    await expect(alert).to_have_count(0)
    await expect(page.get_by_role("list", name="Moves that ended")).to_contain_text(other.name)
    assert "since=" in resumed[-1], "it goes on where it was, and reads no snapshot again"


async def test_a_stream_that_falls_silent_is_not_called_live(cluster: Cluster, windows: Windows, line: Line) -> None:
    await cluster.start()
    await cluster.create("t/n")
    await line.lay(int(cluster.brokers[0].url.rpartition(":")[2]))
    window = await windows.open(url=line.url, expected="ERR_")
    await window.page.clock.install()
    await window.open("bundles")
    await window.page.reload()
    status = window.page.locator(".who [role=status]")
    await expect(status).to_have_text("live")
    line.passes.clear()
    await window.page.clock.fast_forward(SILENCE_MS)
    await expect(status).to_have_text("no word for 25 s")
    line.passes.set()
    await window.page.clock.fast_forward(SILENCE_MS)
    await expect(status).to_have_text("live")


async def test_a_log_in_that_ends_takes_nothing_that_was_typed(guarded: Guarded, windows: Windows) -> None:
    await guarded.start()
    await guarded.cluster.create("t/n", 1)
    window = await windows.open("policies?kind=namespace&name=t/n", expected="401 404")
    page, text = window.page, window.page.get_by_label("Document, as JSON")
    await window.log_in(guarded.issuer.token("root"))
    await expect(text).to_have_value("{}")
    await text.fill('{"paused": true}')
    await page.get_by_role("button", name="Save").click()
    other = Issuer("k2")
    guarded.keys.write_bytes(jwks(other))
    again = page.get_by_role("dialog", name="Log in again")
    await expect(again).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(again).to_be_visible()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await window.log_in(other.token("root", exp=1))
    await expect(again.get_by_role("alert")).to_contain_text("expired")
    assert {url.rpartition("/")[2] for url in asked} == {"me"}, "nothing else is asked with a token that has ended"
    await window.log_in(other.token("root"))
    await expect(again).to_have_count(0)
    await window.confirm("Save")
    await expect(page.get_by_role("table", name="History")).to_contain_text("root")
    await expect(page.locator(".who [role=status]")).to_have_text("live")


async def test_somebody_else_who_logs_in_finds_nothing(guarded: Guarded, windows: Windows) -> None:
    await guarded.start()
    await guarded.cluster.create("t/n", 1)
    viewer = await as_role(guarded, AccessRole.VIEWER, "*")
    window = await windows.open("policies?kind=namespace&name=t/n", expected="401 404")
    text = window.page.get_by_label("Document, as JSON")
    await window.log_in(guarded.issuer.token("root"))
    await expect(text).to_have_value("{}")
    await text.fill('{"paused": true}')
    other = Issuer("k2")
    guarded.keys.write_bytes(jwks(other, guarded.issuer))
    await window.page.evaluate("sessionStorage.setItem('loadmanager.token', 'x')")
    await expect(window.page.get_by_role("dialog", name="Log in again")).to_be_visible()
    await window.log_in(viewer)
    await expect(text).to_have_value("{}")
