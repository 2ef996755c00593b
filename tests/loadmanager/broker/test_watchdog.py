"""A control loop that hangs: its session ends, others take over, and it wakes up as somebody else."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loadmanager import Broker
from loadmanager.broker.control_loop import LOOKS, Stillness, Watchdog
from loadmanager.broker.node import Node
from tests.loadmanager.embedded import Host, bundles_of, cluster, until
from tests.servers import coordination_root, shared_zookeeper

SESSION_S, V = 2.0, 1.0
MARGIN_S = 0.1
SLACK_S = 6.0
"""For a machine that does much else: what is asserted otherwise never comes."""
WAIT_S = 30.0


# --- how long a loop has been still


def test_a_loop_that_does_not_turn_is_still_for_as_long_as_we_looked():
    stillness = Stillness(0.1, 0.0)
    assert stillness.look(1, 0.1) == 0.0
    assert [round(stillness.look(1, 0.1 * n), 6) for n in (2, 3, 4)] == [0.1, 0.2, 0.3]


def test_one_turn_is_enough():
    stillness = Stillness(0.1, 0.0)
    for n in range(10):
        stillness.look(1, 0.1 * n)
    assert stillness.look(2, 1.1) == 0.0
    assert stillness.look(2, 1.2) == pytest.approx(0.1)


def test_time_in_which_nobody_could_look_does_not_count():
    stillness = Stillness(0.1, 0.0)
    stillness.look(1, 0.1)
    assert stillness.look(1, 3_600.0) == pytest.approx(0.2), "the machine slept for an hour"


# --- a watchdog on a loop of a thread of its own


class Kept:
    """A watchdog, and what it did."""

    def __init__(self, timeout_s: float) -> None:
        self.abandoned = threading.Event()
        self.abandoned_on = 0
        self.order: list[str] = []
        self.watchdog = Watchdog(timeout_s, time.monotonic, self._abandon, self.order.append)

    def _abandon(self) -> None:
        self.abandoned_on = threading.get_ident()
        self.abandoned.set()


@asynccontextmanager
async def keeping(timeout_s: float) -> AsyncGenerator[Kept]:
    kept = Kept(timeout_s)
    kept.watchdog.start()
    try:
        yield kept
    finally:
        kept.watchdog.stop()


def hold_up_the_loop(until_set: threading.Event) -> None:
    assert until_set.wait(WAIT_S), "nobody ended the session"


async def test_a_loop_that_hangs_is_told_about_with_the_call_that_held_it(caplog: pytest.LogCaptureFixture):
    async with keeping(0.4) as kept:
        hold_up_the_loop(kept.abandoned)
        assert kept.abandoned_on != threading.get_ident(), "this thread hung"
        while not kept.order:
            await asyncio.sleep(0.01)
        assert "held by" in kept.order[0]
        while not (said := [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]):
            await asyncio.sleep(0.01)
    [said] = said
    assert "hold_up_the_loop(kept.abandoned)" in said
    assert "until_set.wait" in said


async def test_what_fell_due_while_the_loop_hung_comes_after_the_news():
    async with keeping(0.4) as kept:

        async def go_on() -> None:
            await asyncio.sleep(0.01)
            kept.order.append("a task goes on")

        task = asyncio.create_task(go_on())
        await asyncio.sleep(0)
        hold_up_the_loop(kept.abandoned)
        time.sleep(0.1)  # noqa: ASYNC251 - it hangs on; the news are handed over meanwhile
        await task
        assert kept.order[0].startswith("the control loop did not turn for")
        assert kept.order[1] == "a task goes on"


async def test_each_hang_is_told_once():
    async with keeping(0.4) as kept:
        for hang in (1, 2):
            kept.abandoned.clear()
            hold_up_the_loop(kept.abandoned)
            time.sleep(0.5)  # noqa: ASYNC251 - and hangs on
            async with asyncio.timeout(WAIT_S):
                while len(kept.order) < hang:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(4 * 0.4 / LOOKS)  # time to see that it turns again
            assert len(kept.order) == hang


async def test_session_ends_although_the_hung_loop_holds_the_logging_lock():
    handler = logging.StreamHandler()
    logging.getLogger("loadmanager.broker.control_loop").addHandler(handler)
    try:
        async with keeping(0.4) as kept:
            handler.acquire()
            try:
                hold_up_the_loop(kept.abandoned)
            finally:
                handler.release()
    finally:
        logging.getLogger("loadmanager.broker.control_loop").removeHandler(handler)


async def test_a_loop_that_is_busy_for_half_the_time_out_is_left_alone():
    async with keeping(2.0) as kept:
        for _ in range(2):
            time.sleep(1.0)  # noqa: ASYNC251 - busy, that is what is tested
            await asyncio.sleep(0.2)
        assert not kept.abandoned.is_set()


PAUSED = """
import asyncio, sys, time
from loadmanager.broker.control_loop import Watchdog

async def main():
    watchdog = Watchdog(0.5, lambda: time.clock_gettime(time.CLOCK_BOOTTIME), lambda: print("ended"), print)
    watchdog.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.sleep(1.0)
    print("well", flush=True)
    watchdog.stop()

asyncio.run(main())
"""


def test_process_stopped_as_a_whole_is_not_taken_for_a_hung_loop():
    child = subprocess.Popen([sys.executable, "-c", PAUSED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGSTOP)
    time.sleep(1.5)  # three time-outs
    child.send_signal(signal.SIGCONT)
    said, _ = child.communicate("go on\n", timeout=WAIT_S)
    assert said == "well\n"


# --- brokers


@pytest.fixture(params=["sqlite", pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
def places(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Where the brokers of a test coordinate."""
    if request.param == "sqlite":
        return {}
    server = shared_zookeeper(request.config)
    return {"coordination": f"zookeeper://{server.address}{coordination_root('watchdog')}", "development": True}


class Hang:
    """Holds up the control loop of a broker until it is told to end."""

    def __init__(self, broker: Broker) -> None:
        self._ended = threading.Event()
        self.began_s = time.monotonic()
        self.over = broker._control.ask(self.hold_up_the_control_loop)

    async def hold_up_the_control_loop(self, _node: Node) -> None:
        self._ended.wait(WAIT_S)

    def end(self) -> None:
        self._ended.set()

    @property
    def lasts_s(self) -> float:
        return time.monotonic() - self.began_s


def leads(broker: Broker) -> bool:
    return broker.node.current.leader.leading is not None


def at(broker: Broker, other: Broker) -> int | None:
    """The incarnation under which one broker sees another registered."""
    peer = broker.node.peers().get(other.name)
    return None if peer is None else peer.broker.incarnation


@pytest.mark.slow
async def test_bundles_of_a_hung_broker_move_and_it_wakes_as_a_new_incarnation(
    tmp_path: Path, places: dict[str, str], caplog: pytest.LogCaptureFixture
):
    quick: dict[str, Any] = {"session_timeout_s": SESSION_S, "proof_validity_s": V, "recovery_grace_s": 5.0, **places}
    async with cluster(tmp_path, Host(), Host(), balancing=False, **quick) as [hung, other]:
        bundles = bundles_of(hung)
        assert all(map(hung.serving, bundles))
        await until(lambda: leads(hung))
        before = hung.node.current.me
        hang = Hang(hung)
        try:
            await until(lambda: at(other, hung) is None, WAIT_S)
            await until(lambda: all(map(other.serving, bundles)), WAIT_S)
            assert hang.lasts_s < SESSION_S + V + MARGIN_S + SLACK_S
            assert not any(map(hung.serving, bundles))
            assert leads(other)
        finally:
            hang.end()
        await until(lambda: (at(other, hung) or 0) > before.incarnation and hung.node.ready.is_set(), WAIT_S)
        assert hung.node.current.me.incarnation > before.incarnation
        await other.transfer(bundles[0], hung.name)
        await until(lambda: hung.serving(bundles[0]) and not other.serving(bundles[0]), WAIT_S)
    assert_it_is_told(caplog, hung)


def assert_it_is_told(caplog: pytest.LogCaptureFixture, hung: Broker) -> None:
    [said] = [record.getMessage() for record in caplog.records if record.name == "loadmanager.broker.control_loop"]
    assert "hold_up_the_control_loop" in said
    [noted] = [note.text for note in hung.node.notes if "our session was ended" in note.text]
    assert "self._ended.wait" in noted or "threading" in noted
    [fenced] = [note.text for note in hung.node.notes if "was fenced" in note.text]
    texts = [note.text for note in hung.node.notes]
    assert texts.index(noted) < texts.index(fenced) < len(texts) - 1


async def test_a_broker_that_is_busy_for_half_its_session_keeps_everything(tmp_path: Path, places: dict[str, str]):
    quick: dict[str, Any] = {"session_timeout_s": 2 * SESSION_S, "proof_validity_s": 2 * V, **places}
    async with cluster(tmp_path, Host(), Host(), balancing=False, **quick) as [busy, other]:
        bundles, before = bundles_of(busy), busy.node.current.me
        gone: list[str] = []
        other.node.world.coordination.on_change(
            lambda: gone.append(busy.name) if busy.name not in other.node.world.coordination.members else None
        )
        hang = Hang(busy)
        await asyncio.sleep(SESSION_S)
        hang.end()
        await until(hang.over.done, WAIT_S)
        await until(lambda: all(map(busy.serving, bundles)), WAIT_S)
        assert busy.node.current.me == before
        assert not gone
        assert not any(map(other.serving, bundles))
