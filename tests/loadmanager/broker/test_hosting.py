"""Hooks that hang, raise, cancel themselves, or run on the wrong loop: none holds up or breaks the caller."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator

import pytest

from loadmanager.broker.hooks import HookFailed, HostRunner, Workers


@pytest.fixture
def runner() -> Iterator[HostRunner]:
    runner = HostRunner()
    yield runner
    runner.close()


@pytest.fixture
def service_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The service's own loop, on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def its_thread() -> int:
    return threading.get_ident()


async def test_a_coroutine_hook_returns_its_answer(runner: HostRunner):
    async def hook(what: str) -> str:
        return what

    assert await runner.call(hook, "x", timeout_s=60) == "x"


async def test_a_plain_hook_runs_on_another_thread(runner: HostRunner):
    assert await runner.call(threading.get_ident, timeout_s=60) != threading.get_ident()


async def test_a_coroutine_hook_runs_on_the_services_loop(service_loop: asyncio.AbstractEventLoop):
    runner = HostRunner(service_loop)
    assert await runner.call(its_thread, timeout_s=60) != threading.get_ident()


async def test_a_plain_function_around_a_coroutine_runs_it_on_the_services_loop(
    service_loop: asyncio.AbstractEventLoop,
):
    runner = HostRunner(service_loop)
    expected = await runner.call(its_thread, timeout_s=60)
    assert await runner.call(lambda: its_thread(), timeout_s=60) == expected
    assert await runner.call(functools.partial(its_thread), timeout_s=60) == expected
    runner.close()


async def test_a_coroutine_hook_that_hangs_is_cut_off(runner: HostRunner):
    ended = asyncio.Event()

    async def hook() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(HookFailed, match=r"hook did not return within 0\.01 s"):
        await runner.call(hook, timeout_s=0.01)
    assert ended.is_set()


async def test_a_plain_hook_that_hangs_is_left_behind(runner: HostRunner):
    go_on = threading.Event()
    try:
        with pytest.raises(HookFailed, match="did not return"):
            await runner.call(go_on.wait, timeout_s=0.01)
        assert await runner.call(threading.get_ident, timeout_s=60), "others are served meanwhile"
    finally:
        go_on.set()


async def test_forty_plain_hooks_that_hang_do_not_fail_the_next_one(runner: HostRunner):
    go_on = threading.Event()
    hanging = [asyncio.ensure_future(runner.call(go_on.wait, timeout_s=100)) for _ in range(40)]
    try:
        assert await runner.call(threading.get_ident, timeout_s=60)
        assert not any(hook.done() for hook in hanging)
    finally:
        go_on.set()
    assert await asyncio.gather(*hanging) == [True] * 40


async def test_a_burst_of_quick_plain_hooks_needs_few_threads(runner: HostRunner):
    threads = set(await asyncio.gather(*(runner.call(threading.get_ident, timeout_s=60) for _ in range(500))))
    assert len(threads) <= 16


async def test_failure_tells_of_hanging_worker_threads_and_ends_when_they_return():
    go_on = threading.Event()
    workers = Workers(limit=3)
    runner = HostRunner(workers=workers)
    try:
        hanging = await asyncio.gather(
            *(runner.call(go_on.wait, timeout_s=1.0) for _ in range(3)), return_exceptions=True
        )
        assert ["did not return" in str(failure) for failure in hanging] == [True] * 3
        with pytest.raises(HookFailed, match="all worker threads are taken by hooks that hang"):
            await runner.call(threading.get_ident, timeout_s=0.1)
    finally:
        go_on.set()
    assert await runner.call(threading.get_ident, timeout_s=60)
    runner.close()


async def test_a_plain_hook_that_was_given_up_before_it_began_is_not_run():
    go_on, ran = threading.Event(), threading.Event()
    runner = HostRunner(workers=Workers(limit=1))
    try:
        for hook in (go_on.wait, ran.set):
            with pytest.raises(HookFailed, match="did not return"):
                await runner.call(hook, timeout_s=0.05)
    finally:
        go_on.set()
    await runner.call(threading.get_ident, timeout_s=60)
    assert not ran.is_set()
    runner.close()


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), StopIteration()])
async def test_a_plain_hook_that_wants_to_end_the_process_has_only_failed(runner: HostRunner, error: BaseException):
    def hook() -> None:
        raise error

    with pytest.raises(HookFailed, match="raised"):
        await runner.call(hook, timeout_s=60)


@pytest.mark.parametrize("error", [ValueError("no room"), TimeoutError("its own")])
async def test_what_a_hook_raises_is_told(runner: HostRunner, error: Exception):
    async def hook() -> None:
        raise error

    def plain() -> None:
        raise error

    for each in (hook, plain):
        with pytest.raises(HookFailed, match=f"raised {type(error).__name__}: {error}"):
            await runner.call(each, timeout_s=60)


async def test_hook_cancelled_by_the_service_has_failed_and_the_caller_goes_on(
    runner: HostRunner, service_loop: asyncio.AbstractEventLoop
):
    async def hook() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.get_loop().call_soon(task.cancel)
        await asyncio.Event().wait()

    with pytest.raises(HookFailed, match="was cancelled by the service"):
        await HostRunner(service_loop).call(hook, timeout_s=60)

    async def raises() -> None:
        raise asyncio.CancelledError

    with pytest.raises(HookFailed, match="was cancelled by the service"):
        await runner.call(raises, timeout_s=60)


async def test_a_caller_that_is_cancelled_stays_cancelled(runner: HostRunner):
    begun = asyncio.Event()

    async def hook() -> None:
        begun.set()
        await asyncio.Event().wait()

    call = asyncio.ensure_future(runner.call(hook, timeout_s=60))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_hook_with_the_wrong_parameters_has_failed(runner: HostRunner):
    async def hook() -> None: ...

    with pytest.raises(HookFailed, match="TypeError"):
        await runner.call(hook, 1, 2, timeout_s=60)


async def test_a_service_whose_loop_is_closed_says_so():
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(HookFailed, match=r"^the service's event loop is closed$"):
        await HostRunner(loop).call(its_thread, timeout_s=60)
