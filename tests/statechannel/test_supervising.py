"""Failures are contained: a step is repeated, a service begins again, one listener's bug is its own."""

from __future__ import annotations

import asyncio

import pytest

from statechannel.errors import LogUnavailable
from statechannel.runtime import tasks
from statechannel.runtime.listeners import Listeners
from statechannel.runtime.tasks import failure_of, is_bug, kept_running, retried


class Step:
    """Fails with these errors in turn, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "done"


async def test_a_step_is_repeated_with_pauses_that_double() -> None:
    told, pauses = list[tuple[str, float]](), list[float]()

    async def pause(pause_s: float) -> None:
        pauses.append(pause_s)

    step = Step(*(LogUnavailable(name) for name in "abcd"))
    failed = lambda error, pause_s: told.append((str(error), pause_s))  # noqa: E731
    answer = await retried(step, (LogUnavailable,), first_s=1, last_s=3, failed=failed, pause=pause)
    assert (answer, pauses) == ("done", [1, 2, 3, 3])
    assert told == [("a", 1), ("b", 2), ("c", 3), ("d", 3)]


async def test_another_error_is_not_repeated() -> None:
    with pytest.raises(ValueError, match="bug"):
        await retried(Step(ValueError("bug")), (LogUnavailable,), first_s=1, last_s=1, failed=lambda *_: None)


async def test_who_hears_of_a_failure_can_give_up() -> None:
    def give_up(error: Exception, _: float) -> None:
        raise error

    with pytest.raises(LogUnavailable):
        await retried(Step(LogUnavailable("a")), (LogUnavailable,), first_s=1, last_s=1, failed=give_up)


@pytest.mark.parametrize(
    ("error", "bug"), [(LogUnavailable("away"), False), (TimeoutError(), False), (KeyError(), True)]
)
async def test_a_failure_is_noted_and_a_bug_is_told_apart(error: Exception, bug: bool) -> None:
    notes = list[str]()
    assert await failure_of("a look", Step(error)(), notes.append) is error
    assert is_bug(error) == bug
    assert notes == [f"a look failed: {error!r}" if bug else f"a look was cut short: {error}"]
    assert await failure_of("a look", Step()(), notes.append) is None
    assert not is_bug(None)


async def test_a_service_begins_again_until_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "BEGIN_AGAIN_S", 0.0)
    notes = list[str]()
    await kept_running("it", Step(KeyError("a"), LogUnavailable("b")), notes.append)
    assert notes == ["it failed: KeyError('a')", "it begins again", "it was cut short: b", "it begins again"]


async def test_a_service_can_be_cancelled() -> None:
    running = asyncio.create_task(kept_running("it", asyncio.Event().wait, lambda _: None))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_listener_that_fails_does_not_silence_the_others(caplog: pytest.LogCaptureFixture) -> None:
    heard, listeners = list[int](), Listeners[[int]]("a view")
    listeners.add(lambda _: 1 // 0)
    remove = listeners.add(heard.append)
    listeners.call(1)
    remove()
    listeners.call(2)
    assert heard == [1]
    assert "a listener of a view failed" in caplog.text
