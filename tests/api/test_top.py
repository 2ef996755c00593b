"""`loadmanager top`: the screen and its keys, by textual's Pilot, against real brokers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from click.testing import CliRunner
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static
from textual.widgets._footer import FooterKey

from loadmanager.model.policies.model import AccessRole
from loadmanager_api.cli.main import main
from loadmanager_api.cli.remote import Remote
from loadmanager_api.cli.top.app import Page, Pick, Sure, Top, Write
from loadmanager_api.cli.top.asking import PAGE
from statechannel.law.bundle import Bundle
from tests.api.access.conftest import Guarded, guarded
from tests.api.conftest import WAIT_S, Cluster

__all__ = ["guarded"]

EVERY_S = 0.1


class Driver:
    """The screen, and somebody at the keyboard who waits for what it shows."""

    def __init__(self, app: Top, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    async def until(self, holds: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                while not holds():
                    await self.pilot.pause(0.01)
        except TimeoutError:
            raise AssertionError(f"{self.rows('brokers')} {self.rows('bundles')} {self.said}") from None

    def rows(self, table: str) -> list[list[str]]:
        grid = self.app.grid(table)
        return [[str(cell) for cell in grid.get_row_at(at)] for at in range(grid.row_count)]

    @property
    def head(self) -> str:
        return str(self.app.query_one("#head", Static).render())

    @property
    def said(self) -> list[str]:
        return [note.message for note in self.app._notifications]

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def choose(self, table: str, name: str) -> None:
        """Put the cursor on the row that begins so."""
        await self.until(lambda: any(row[0] == name for row in self.rows(table)))
        grid = self.app.grid(table)
        grid.focus()
        grid.move_cursor(row=[row[0] for row in self.rows(table)].index(name))
        await self.until(lambda: grid.has_focus and (grid.chosen or "").startswith(name))

    async def window(self, kind: type) -> Any:
        await self.until(lambda: isinstance(self.app.screen, kind))
        return self.app.screen

    async def agree(self, key: str = "y") -> str:
        """Answer the question; returns it."""
        window = await self.window(Sure)
        question = str(window.query_one(Static).render())
        await self.press(key)
        await self.until(lambda: self.app.screen is not window)
        return question


@asynccontextmanager
async def top(
    *urls: str, size: tuple[int, int] = (80, 24), variables: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[Driver]:
    remote = Remote(admin_urls=list(urls), variables=variables or {})
    app = Top(remote, **{"namespace": None, "owner": None, "every_s": EVERY_S, **options})
    async with app.run_test(size=size) as pilot:
        yield Driver(app, pilot)


class Relay:
    """Passes bytes between `top` and a broker, and keeps what the broker sent."""

    def __init__(self, broker_url: str) -> None:
        host, _, port = broker_url.removeprefix("http://").partition(":")
        self._broker = host, int(port)
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.got: list[bytes] = []
        self.url = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """From now on nobody listens there; connections end."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(*self._broker)
        self._writers += [writer, to_broker]
        await asyncio.gather(self._pass(reader, to_broker, []), self._pass(from_broker, writer, self.got))

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: list[bytes]) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                kept.append(data)
                sink.write(data)
                await sink.drain()
        sink.close()


@asynccontextmanager
async def relayed(broker_url: str) -> AsyncIterator[Relay]:
    relay = Relay(broker_url)
    await relay.open()
    try:
        yield relay
    finally:
        await relay.close()


async def assigned(cluster: Cluster, topic: str = "t/n/a") -> tuple[Bundle, str, str]:
    """A bundle, its owner, and another broker."""
    bundle = await cluster.assign(topic)
    owner = cluster.owner(bundle)
    assert owner is not None
    return bundle, owner, cluster.other(owner).name


# --- what it shows


@pytest.mark.slow
async def test_brokers_bundles_and_moves_are_shown_live(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n", 4)
    bundle, owner, other = await assigned(cluster)
    async with top(cluster.brokers[0].url) as driver:
        await driver.until(lambda: len(driver.rows("brokers")) == 2)
        assert sorted(row[0] for row in driver.rows("brokers")) == sorted(broker.name for broker in cluster.brokers)
        assert any("leader" in row[1] for row in driver.rows("brokers"))
        await driver.until(lambda: [str(bundle), "assigned", owner] in [row[:3] for row in driver.rows("bundles")])
        assert "balancing on" in driver.head
        await cluster.brokers[1].node.current.operations.transfer(bundle, other, author="ann")
        await driver.until(lambda: [row[1:4] for row in driver.rows("moves")] == [[str(bundle), "assigned", other]])
        await driver.until(lambda: [str(bundle), "assigned", other] in [row[:3] for row in driver.rows("bundles")])


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
async def test_everything_fits_on_the_screen(cluster: Cluster, size: tuple[int, int]) -> None:
    await cluster.start(3)
    await cluster.create("tenant/namespace", 40)
    bundle, _, other = await assigned(cluster, "tenant/namespace/a")
    async with top(cluster.brokers[0].url, size=size) as driver:
        await driver.until(lambda: len(driver.rows("bundles")) == 40)
        await cluster.brokers[0].node.current.operations.transfer(bundle, other, author="ann")
        await driver.until(lambda: bool(driver.rows("moves")))
        for table in ("brokers", "bundles", "moves"):
            grid = driver.app.grid(table)
            assert grid.virtual_size.width <= size[0], f"{table} is wider than the screen"
            assert grid.region.height >= 4
        assert driver.app.grid("bundles").region.height > size[1] // 4
        keys = list(driver.app.query(FooterKey))
        assert keys[-1].key == "q"
        assert keys[-1].region.right <= size[0]
        await driver.press("t")
        window = await driver.window(Pick)
        assert window.query_one(".window").region.right <= size[0]
        await driver.press("escape")


@pytest.mark.slow
async def test_no_more_bundles_are_asked_for_than_a_page_shows(cluster: Cluster) -> None:
    """A relay counts what the broker sends: a watch that began with all bundles, or a list of them, would be more."""
    await cluster.start()
    await cluster.create("t/n", 20_000)
    async with relayed(cluster.brokers[0].url) as relay, top(relay.url, every_s=3_600) as driver:
        await driver.until(lambda: len(driver.rows("bundles")) == PAGE)
        first = driver.rows("bundles")
        await driver.until(lambda: b"event-stream" in b"".join(relay.got))
        moved = await cluster.assign("t/n/a")
        await driver.until(lambda: any(row[1] == str(moved) for row in driver.rows("moves")))
        assert len(b"".join(relay.got)) < 500_000, "a row is some 300 bytes"
        await driver.press("right_square_bracket")
        await driver.until(lambda: len(driver.rows("bundles")) == PAGE and driver.rows("bundles") != first)
        assert driver.rows("bundles")[0][0] > first[-1][0]
        await driver.press("left_square_bracket")
        await driver.until(lambda: driver.rows("bundles")[:1] == first[:1])


@pytest.mark.slow
async def test_bundles_are_filtered_by_namespace_owner_and_state(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n", 4)
    await cluster.create("t/m", 2)
    bundle, owner, _ = await assigned(cluster)
    async with top(cluster.brokers[0].url) as driver:
        await driver.until(lambda: len(driver.rows("bundles")) == 6)
        await driver.press("n")
        (await driver.window(Write)).query_one(Input).value = "t/m"
        await driver.press("enter")
        await driver.until(lambda: {row[0].rpartition("/")[0] for row in driver.rows("bundles")} == {"t/m"})
        assert "t/m" in str(driver.app.grid("bundles").border_title)
        await driver.press("x", "s")
        states = (await driver.window(Pick)).query_one(OptionList)
        states.highlighted = [str(option.prompt) for option in states.options].index("assigned")
        await driver.press("enter")
        await driver.until(lambda: [row[0] for row in driver.rows("bundles")] == [str(bundle)])
        await driver.press("x")
        await driver.until(lambda: len(driver.rows("bundles")) == 6)
        await driver.choose("brokers", owner)
        await driver.press("enter")
        await driver.until(lambda: [row[0] for row in driver.rows("bundles")] == [str(bundle)])
        await driver.press("x", "n")
        (await driver.window(Write)).query_one(Input).value = "nonsense"
        await driver.press("enter")
        await driver.until(lambda: any("nonsense" in text for text in driver.said))


@pytest.mark.slow
async def test_the_hottest_bundles_come_first(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 4)
    bundle = await cluster.assign("t/n/a")
    async with top(cluster.brokers[0].url) as driver:
        await driver.until(lambda: len(driver.rows("bundles")) == 4)
        await driver.press("l")
        await driver.until(lambda: [[row[0], row[3]] for row in driver.rows("bundles")] == [[str(bundle), "10"]])
        await driver.press("l")
        await driver.until(lambda: len(driver.rows("bundles")) == 4)


@pytest.mark.slow
async def test_what_is_wrong_stands_in_the_head_and_a_key_shows_all(cluster: Cluster) -> None:
    await cluster.start(2)
    bundle = (await cluster.create("t/n", 4))[-1]
    async with top(cluster.brokers[0].url) as driver:
        await driver.until(lambda: driver.head.startswith("nothing is wrong"))
        policy = {"quarantined": "three brokers died"}
        assert (await cluster.ask("PUT", f"/v1/policies/bundle/{bundle}", json=policy))[0] == 200
        await cluster.ask("POST", "/v1/balancing/pause", json={"reason": "release night"})
        await driver.until(lambda: driver.head.startswith("ERROR: 1 bundle is quarantined, and no broker may take it"))
        await driver.until(lambda: bool(driver.rows("bundles")) and driver.rows("bundles")[0][0] == str(bundle))
        assert "what is wrong first" in str(driver.app.grid("bundles").border_title)
        await driver.until(lambda: "and 1 more" in driver.head)
        await driver.press("exclamation_mark")
        text = str((await driver.window(Page)).query_one(Static).render())
        assert f"→ loadmanager bundles release-quarantine {bundle}" in text
        assert "release night" in text


# --- what its keys do


@pytest.mark.slow
async def test_a_bundle_is_moved_after_a_question(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n", 4)
    bundle, owner, other = await assigned(cluster)
    async with top(cluster.brokers[0].url) as driver:
        for answer in ("n", "escape"):
            await driver.choose("bundles", str(bundle))
            await driver.press("t")
            await driver.window(Pick)
            await driver.press("enter")
            assert f"from {owner} to {other}" in await driver.agree(answer)
        await driver.press("t")
        await driver.window(Pick)
        await driver.press("escape")
        await cluster.agree()
        assert cluster.owner(bundle) == owner, "nobody said yes"
        await driver.press("t")
        await driver.window(Pick)
        await driver.press("enter")
        await driver.agree()
        await driver.until(lambda: any(f"moved to {other}" in text for text in driver.said))
        assert cluster.owner(bundle) == other
        assert bundle in cluster.of(other).host.held


@pytest.mark.slow
async def test_a_bundle_is_unloaded_after_a_question(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 4)
    bundle = await cluster.assign("t/n/a")
    async with top(cluster.brokers[0].url) as driver:
        await driver.choose("bundles", str(bundle))
        await driver.press("u")
        assert str(bundle) in await driver.agree()
        await driver.until(lambda: any("was unloaded" in text for text in driver.said))
        assert cluster.owner(bundle) is None
        await driver.until(lambda: [str(bundle), "unassigned", "-"] in [row[:3] for row in driver.rows("bundles")])


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
async def test_a_broker_is_drained_and_taken_back(cluster: Cluster, kept: bool) -> None:
    await cluster.start(2)
    await cluster.create("t/n", 4)
    bundle, owner, other = await assigned(cluster)
    if kept:
        status, _, _ = await cluster.ask("PUT", f"/v1/brokers/{owner}/drain", params={"by_policy": "true"})
        assert status == 202
    async with top(cluster.brokers[0].url) as driver:
        await driver.choose("brokers", owner)
        if not kept:
            await driver.press("d")
            assert f"all bundles of {owner}" in await driver.agree()
            await cluster.until(lambda: cluster.owner(bundle) == other)
        await driver.until(lambda: any(row[0] == owner and "draining" in row[1] for row in driver.rows("brokers")))
        await driver.choose("brokers", owner)
        await driver.press("d")
        assert "ends the drain" in await driver.agree()
        await driver.until(lambda: not any("draining" in row[1] for row in driver.rows("brokers")))
        assert not cluster.of(owner).node.registration.draining


@pytest.mark.slow
async def test_bundles_and_brokers_are_explained(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 4)
    bundle = await cluster.assign("t/n/a")
    name = cluster.brokers[0].name
    async with top(cluster.brokers[0].url) as driver:
        for table, subject, key in (
            ("bundles", str(bundle), "e"),
            ("bundles", str(bundle), "enter"),
            ("brokers", name, "e"),
        ):
            await driver.choose(table, subject)
            await driver.press(key)
            text = str((await driver.window(Page)).query_one(Static).render())
            assert text.startswith(subject)
            assert name in text
            await driver.press("escape")
        await driver.press("question_mark")
        assert "drain the chosen broker" in str((await driver.window(Page)).query_one(Static).render())


@pytest.mark.slow
async def test_a_refusal_is_shown_and_changes_nothing(guarded: Guarded) -> None:
    cluster = guarded.cluster
    await guarded.start(2)
    await guarded.grant(AccessRole.VIEWER, "vic", "*")
    await cluster.create("t/n", 4)
    bundle, owner, _ = await assigned(cluster)
    token = {"LOADMANAGER_TOKEN": guarded.issuer.token("vic")}
    async with top(cluster.brokers[0].url, variables=token) as driver:
        for table, subject, key in (("bundles", str(bundle), "u"), ("brokers", owner, "d")):
            await driver.choose(table, subject)
            await driver.press(key)
            await driver.agree()
            await driver.until(lambda: len(driver.said) == (1 if key == "u" else 2))  # noqa: B023 - awaited at once
            assert "operator" in driver.said[-1]
        await cluster.agree()
        assert cluster.owner(bundle) == owner
        assert not cluster.of(owner).node.registration.draining


@pytest.mark.slow
async def test_a_viewer_of_one_namespace_sees_that(guarded: Guarded) -> None:
    cluster = guarded.cluster
    await guarded.start()
    await guarded.grant(AccessRole.VIEWER, "vic", "t/n")
    await cluster.create("t/n", 4)
    await cluster.create("t/m", 4)
    token = {"LOADMANAGER_TOKEN": guarded.issuer.token("vic")}
    async with top(cluster.brokers[0].url, variables=token, namespace="t/n") as driver:
        await driver.until(lambda: len(driver.rows("bundles")) == 4)
        assert "balancing is not shown" in driver.head
        await driver.until(lambda: driver.app.grid("moves").border_subtitle == "")
        bundle = await cluster.assign("t/n/a")
        await driver.until(lambda: [row[1] for row in driver.rows("moves")] == [str(bundle)])
        await driver.press("x")
        await driver.until(lambda: "viewer" in driver.head)


# --- brokers that die, and what cannot be


@pytest.mark.slow
async def test_another_broker_is_asked_when_one_dies(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n", 4)
    first, second = cluster.brokers
    async with relayed(first.url) as relay, top("http://127.0.0.1:9", relay.url, second.url) as driver:
        await driver.until(lambda: len(driver.rows("bundles")) == 4 and b"event-stream" in b"".join(relay.got))
        await relay.close()
        bundle = await cluster.assign("t/n/a")
        await driver.until(lambda: [str(bundle), "assigned"] in [row[:2] for row in driver.rows("bundles")])
        other = await cluster.assign("t/n/b")
        await driver.until(lambda: str(other) in [row[1] for row in driver.rows("moves")])
        await driver.choose("bundles", str(bundle))
        await driver.press("u")
        await driver.agree()
        await driver.until(lambda: cluster.owner(bundle) is None)


@pytest.mark.slow
async def test_a_screen_without_any_broker_says_so_and_goes_on(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n", 4)
    async with relayed(cluster.brokers[0].url) as relay, top(relay.url) as driver:
        await driver.until(lambda: len(driver.rows("bundles")) == 4)
        await relay.close()
        await driver.until(lambda: "no broker answers" in driver.head)
        await relay.open()
        driver.app._remote.admin_urls[:] = [relay.url]
        await driver.until(lambda: "balancing on" in driver.head)


def test_without_a_terminal_or_a_broker_no_screen_is_taken() -> None:
    piped = CliRunner().invoke(main, ["top"])
    assert (piped.exit_code, "needs a terminal" in piped.stderr) == (1, True)
