"""Hooks that are marked `at_once` are called where the control loop runs; all others are not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from loadmanager.broker.hooks import HookFailed, HostRunner, at_once
from loadmanager_api.cli.broker import Idle


class Flags:
    """A host with a hook that only sets a flag, and one that is not marked."""

    @at_once
    def marked(self, what: str) -> tuple[str, int]:
        return what, threading.get_ident()

    @at_once
    def declines(self) -> None:
        raise ValueError("no room")

    def unmarked(self) -> int:
        return threading.get_ident()


@pytest.fixture
def runner() -> Iterator[HostRunner]:
    runner = HostRunner()
    yield runner
    runner.close()


async def test_a_marked_hook_is_called_on_the_loop_that_asks(runner: HostRunner) -> None:
    assert await runner.call(Flags().marked, "x", timeout_s=1) == ("x", threading.get_ident())


async def test_a_hook_beside_it_still_runs_on_another_thread(runner: HostRunner) -> None:
    assert await runner.call(Flags().unmarked, timeout_s=1) != threading.get_ident()


async def test_a_marked_hook_that_raises_has_failed(runner: HostRunner) -> None:
    with pytest.raises(HookFailed, match=r"declines raised ValueError: no room"):
        await runner.call(Flags().declines, timeout_s=1)


def test_a_coroutine_function_cannot_be_marked() -> None:
    async def hook() -> None:
        """Never called."""

    with pytest.raises(TypeError, match="is a coroutine function"):
        at_once(hook)


async def test_the_host_that_does_nothing_needs_no_thread(runner: HostRunner) -> None:
    before = threading.active_count()
    idle = Idle()
    await runner.call(idle.acquire, "bundle", "token", None, timeout_s=1)
    assert await runner.call(idle.load, timeout_s=1) == {}
    assert threading.active_count() == before
