"""Live settings on a real log: two brokers, their changes, races and restarts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from loadmanager.documents.fold import SETTINGS_TOPIC, Entry
from loadmanager.errors import Conflict, Invalid, NotFound
from loadmanager.settings import Settings
from loadmanager.settings.live import LiveSettings
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.ports import Payload

WAIT_S = 60
_NONCES = itertools.count()


class Process:
    """One broker's settings, and what it noted."""

    def __init__(self, log: SqliteLog, start: Settings) -> None:
        self.notes: list[str] = []
        self.log = log
        self.live = LiveSettings(
            start, log, wall_ms=lambda: 1_000, nonce=f"process-{next(_NONCES)}", note=self.notes.append
        )

    async def until(self, **expected: object) -> None:
        changed = asyncio.Event()
        stop = self.live.on_change(lambda _old, _new: changed.set())
        async with asyncio.timeout(WAIT_S):
            while any(getattr(self.live.current, name) != value for name, value in expected.items()):
                changed.clear()
                await changed.wait()
        stop()


@asynccontextmanager
async def process(directory: Path, **start: object) -> AsyncGenerator[Process]:
    log = SqliteLog(directory / "log.db")
    await log.start(5)
    made = Process(log, Settings(**start))  # type: ignore[arg-type]
    await made.live.open()
    try:
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(made.live.run())
            assert await made.live.wait_ready(WAIT_S)
            yield made
            running.cancel()
    finally:
        await log.close()


async def test_a_change_holds_in_every_broker_and_after_all_have_restarted(tmp_path: Path) -> None:
    async with process(tmp_path) as one, process(tmp_path) as other:
        version = await one.live.set("balancing", "false", seen=0, author="ann", reason="a quiet night")
        assert one.live.current.balancing is False
        await other.until(balancing=False)
        assert other.live.version("balancing") == version
    async with process(tmp_path) as again:
        assert again.live.current.balancing is False
        assert [(v.author, v.reason) for v in again.live.history("balancing")] == [("ann", "a quiet night")]


async def test_pulsars_name_and_unit_are_taken_and_ours_is_kept(tmp_path: Path) -> None:
    async with process(tmp_path) as one:
        version = await one.live.set("loadBalancerSheddingIntervalMinutes", "2", seen=None, author="ann", reason="")
        assert (version.name, version.value and version.value.value) == ("balancing_interval_s", 120.0)
        assert one.live.current.balancing_interval_s == 120.0
        assert one.live.history("loadBalancerSheddingIntervalMinutes") == (version,)


async def test_unsetting_leaves_it_to_each_broker_again(tmp_path: Path) -> None:
    async with process(tmp_path, balancing_budget=0.5) as one, process(tmp_path) as other:
        await one.live.set("balancing_budget", 0.1, seen=None, author="ann", reason="")
        await other.until(balancing_budget=0.1)
        await other.live.unset("balancing_budget", seen=1, author="bob", reason="enough")
        await one.until(balancing_budget=0.5)
        assert other.live.current.balancing_budget == 0.2
        with pytest.raises(NotFound, match="balancing_budget"):
            await one.live.unset("balancing_budget", seen=None, author="ann", reason="")


async def test_two_that_saw_the_same_version_and_one_of_them_wins(tmp_path: Path) -> None:
    async with process(tmp_path) as one, process(tmp_path) as other:
        outcomes = await asyncio.gather(
            one.live.set("balancing_moves_per_round", 7, seen=0, author="ann", reason="calm"),
            other.live.set("balancing_moves_per_round", 9, seen=0, author="bob", reason="haste"),
            return_exceptions=True,
        )
        won = next(each for each in outcomes if not isinstance(each, BaseException))
        lost = next(each for each in outcomes if isinstance(each, BaseException))
        assert isinstance(lost, Conflict)
        assert f"version 1 by {won.author}" in str(lost)
        for each in (one, other):
            await each.until(balancing_moves_per_round=won.value and won.value.value)


async def test_nothing_is_written_that_does_not_go_with_the_rest(tmp_path: Path) -> None:
    async with process(tmp_path) as one:
        await one.live.set("load_window_s", 3, seen=None, author="ann", reason="")
        await one.live.set("load_report_max_interval_s", 1, seen=None, author="ann", reason="")
        for name, value in (("load_window_s", 12), ("load_report_max_interval_s", 0.4)):
            with pytest.raises(Invalid, match="a sixth of load_window_s"):
                await one.live.set(name, value, seen=None, author="ann", reason="")
        with pytest.raises(Invalid, match="a sixth of load_window_s"):
            await one.live.unset("load_window_s", seen=None, author="ann", reason="")
        with pytest.raises(Invalid, match="where the broker is started"):
            await one.live.set("session_timeout_s", 5, seen=None, author="ann", reason="")
        assert len(one.live.history()) == 2


async def test_what_another_release_wrote_is_noted_once_and_left_out(tmp_path: Path) -> None:
    written = {"of_tomorrow": b'{"value":1}', "split": b'{"value":"often"}', "merge": b'{"much":1}'}
    async with process(tmp_path) as one:
        for name, raw in (written | {"split_hits": b'{"value":5}'}).items():
            entry = Entry(f"foreign-{name}", name, 0, msgspec.Raw(raw), "tomorrow")
            await one.log.append(SETTINGS_TOPIC, 0, [Payload(name.encode(), msgspec.json.encode(entry))])
        await one.live.set("balancing", False, seen=None, author="ann", reason="")
        await one.live.set("balancing", True, seen=None, author="ann", reason="")
        assert one.live.current == Settings()
        assert set(one.live.ignored) == {"of_tomorrow", "split", "split_hits"}
        noted = "\n".join(one.notes)
        assert len(one.notes) == 4
        assert "of_tomorrow is left out here: this release has no such setting" in noted
        assert "split_hits is left out here: split_hits cannot be set: fixed at 3" in noted
        assert "merge is of another release and cannot be read" in noted
        await one.live.set("split", False, seen=1, author="ann", reason="mend it")
        assert one.live.current.split is False


async def test_the_past_can_be_asked(tmp_path: Path) -> None:
    async with process(tmp_path) as one:
        before = one.live.revision
        first = await one.live.set("balancing_budget", 0.3, seen=None, author="ann", reason="")
        await one.live.set("balancing_budget", 0.4, seen=None, author="ann", reason="")
        assert one.live.at(before) == Settings()
        assert one.live.at(first.offset).balancing_budget == 0.3
        assert one.live.at(one.live.revision) == one.live.current


async def test_listeners_get_old_and_new_and_only_when_something_changes(tmp_path: Path) -> None:
    async with process(tmp_path) as one:
        told: list[tuple[bool, bool]] = []
        one.live.on_change(lambda _old, _new: 1 / 0)  # type: ignore[arg-type,return-value]
        one.live.on_change(lambda old, new: told.append((old.split, new.split)))
        await one.live.set("split", False, seen=None, author="ann", reason="")
        await one.live.set("split", False, seen=None, author="ann", reason="once more")
        assert told == [(True, False)]
