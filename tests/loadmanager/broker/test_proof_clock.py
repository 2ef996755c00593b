"""What a pause hides from the boot clock makes proofs older; what else clocks do makes nothing older for long."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.cluster.clocks import DRIFT, HELD_UP_S, NOTICED_S, ProofClock, clock_of, clocks_outside
from tests.loadmanager.small_world import Nodes, virtually
from tests.simulator.simulated_coordination import COORDINATION_SERVER
from tests.simulator.simulated_log import LOG_SERVER
from tests.simulator.world import World

V = 2.0


class Machine:
    """A virtual machine: `boot_s` stands still while it is paused, `host_s` does not."""

    def __init__(self) -> None:
        self.boot_s, self.host_s, self.between_s = 1_000.0, 5_000.0, 0.0
        self.gone = False

    def runs(self, seconds: float) -> None:
        self.boot_s += seconds
        self.host_s += seconds

    def pauses(self, seconds: float) -> None:
        self.host_s += seconds

    def read_host(self) -> float:
        if self.gone:
            raise OSError("no such device")
        self.runs(self.between_s)
        return self.host_s

    def clock(self, **others: Callable[[], float]) -> ProofClock:
        return ProofClock(lambda: self.boot_s, {"its host": self.read_host, **others})


def test_without_a_clock_outside_it_is_the_boot_clock():
    clock = ProofClock(lambda: 7.0, {})
    assert (clock.now_s(), clock.look(), clock.can_tell) == (7.0, None, False)


def test_a_pause_is_made_good_and_told():
    machine = Machine()
    clock = machine.clock()
    machine.runs(3)
    assert clock.look() is None
    machine.pauses(12.5)
    machine.runs(0.02)
    told = clock.look()
    assert told is not None
    assert "its host went 12.50 s ahead" in told
    assert clock.missed_s == pytest.approx(12.5, abs=0.01)
    assert clock.now_s() == pytest.approx(1_003.02 + 12.5, abs=0.01)
    assert clock.look() is None


def test_what_is_within_the_leaders_margin_is_passed_over():
    machine = Machine()
    clock = machine.clock()
    machine.pauses(NOTICED_S * 0.9)
    assert clock.look() is None
    assert clock.missed_s == 0.0


def test_short_pauses_add_up():
    machine = Machine()
    clock = machine.clock()
    for _ in range(100):
        machine.runs(0.02)
        machine.pauses(NOTICED_S * 0.9)
        clock.look()
    assert clock.missed_s == pytest.approx(100 * NOTICED_S * 0.9, abs=NOTICED_S + 0.01)


@pytest.mark.parametrize("drift", [DRIFT * 0.9, -DRIFT])
def test_clocks_that_drift_are_no_pause(drift: float):
    machine = Machine()
    clock = machine.clock()
    for number in range(10_000):
        machine.runs(0.02)
        machine.host_s += 0.02 * drift + (0.004 if number % 2 else -0.004)
        assert clock.look() is None
    assert clock.missed_s == 0.0


def test_of_two_clocks_that_tell_of_one_pause_the_longer_counts():
    machine = Machine()
    clock = machine.clock(other=lambda: machine.host_s * 0.9)
    machine.pauses(10)
    clock.look()
    assert clock.missed_s == pytest.approx(10)


def test_a_look_that_was_held_up_decides_nothing_and_the_next_one_does():
    machine = Machine()
    clock = machine.clock()
    machine.pauses(5)
    machine.between_s = 2 * HELD_UP_S
    assert clock.look() is None
    machine.between_s = 0.0
    assert clock.look() is not None
    assert clock.missed_s == pytest.approx(5, abs=0.01)


def test_device_that_returns_tells_of_the_pause_meanwhile():
    machine = Machine()
    clock = machine.clock()
    machine.gone = True
    machine.pauses(5)
    assert clock.look() is None
    machine.gone = False
    clock.look()
    assert clock.missed_s == pytest.approx(5, abs=0.01)


@given(st.lists(st.tuples(st.sampled_from(["runs", "pauses", "is set"]), st.floats(-50, 50)), max_size=40))
def test_clock_never_goes_back_nor_lags_by_more_than_it_passes_over(steps):
    """However the host's clock is set besides."""
    machine, shown_s = Machine(), 0.0
    clock = machine.clock()
    true_s = begun_s = machine.boot_s
    for looks, (what, seconds) in enumerate(steps, start=1):
        if what == "is set":
            machine.host_s += seconds
            clock.look()
        elif what == "runs":
            machine.runs(abs(seconds))
            true_s += abs(seconds)
        else:
            machine.pauses(abs(seconds))
            true_s += abs(seconds)
        clock.look()
        assert clock.now_s() >= shown_s
        shown_s = clock.now_s()
        assert shown_s - begun_s >= true_s - begun_s - looks * NOTICED_S - 1e-6


# --- in a cluster


@pytest.mark.parametrize("host_tells", [False, True])
def test_broker_on_a_paused_machine_stops_in_time_if_its_host_tells(host_tells: bool):
    """Its network is not back yet, so no answer can tell it. Without the host's clock this shows what that is for."""

    async def story(world: World) -> None:
        nodes = Nodes(world)
        if host_tells:
            nodes.outside = {"its host": lambda: world.now_s}
        a, b, c = await nodes.ready("a:1", "b:1", "c:1")
        owner = next(started for started in (a, b, c) if started is not nodes.leader())
        (bundle,) = await nodes.own_all(1, owner)
        for server in (COORDINATION_SERVER, LOG_SERVER):
            world.cut(owner.name, server)
        world.pause(owner.name)
        begun_s = world.now_s
        await asyncio.sleep(15)
        others = [s for s in (a, b, c) if s is not owner and s.serving.serving(bundle)]
        assert len(others) == 1, "somebody else has it"
        nodes.hidden_s[owner.name] = world.now_s - begun_s
        world.resume(owner.name)
        together_s = 0.0
        for _ in range(300):
            await asyncio.sleep(0.01)
            together_s += 0.01 if len(nodes.serving(bundle)) > 1 else 0.0
        if host_tells:
            assert together_s <= 0.03
            assert owner.told("its host went 15")
        else:
            assert together_s > V / 2

    virtually(story)()


# --- which clocks there are


def device(system: Path, number: int, driver: str) -> None:
    (system / f"ptp{number}").mkdir(parents=True)
    (system / f"ptp{number}" / "clock_name").write_text(driver + "\n")


def test_without_a_hosts_clock_there_is_the_wall_clock(tmp_path: Path):
    assert clocks_outside(tmp_path, tmp_path) == {"its wall clock": time.time}
    device(tmp_path, 0, "igb")  # a network card's
    (tmp_path / "ptp0").joinpath("device").touch()
    assert list(clocks_outside(tmp_path, tmp_path)) == ["its wall clock"]


@pytest.mark.parametrize("there", [False, True])
def test_a_hosts_clock_that_cannot_be_read_is_none(tmp_path: Path, there: bool):
    device(tmp_path, 1, "KVM virtual PTP")
    devices = tmp_path / "dev"
    devices.mkdir()
    if there:
        (devices / "ptp1").touch()  # a file has no clock
    assert list(clocks_outside(tmp_path, devices)) == ["its wall clock"]


def test_a_hosts_clock_is_read_through_its_open_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    device(tmp_path, 0, "hyperv")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "ptp0").touch()
    asked: list[int] = []
    monkeypatch.setattr(time, "clock_gettime", lambda number: asked.append(number) or 1_234.5)
    found = clocks_outside(tmp_path, tmp_path / "dev")
    assert {name: read() for name, read in found.items()} == {"the clock of its Hyper-V host": 1_234.5}
    descriptor = ~(asked[-1] >> 3)
    assert (asked[-1] & 7, Path(f"/proc/self/fd/{descriptor}").resolve().name) == (3, "ptp0")
    os.close(descriptor)


def test_a_descriptor_without_a_clock_is_refused_by_the_kernel():
    with open(os.devnull) as null, pytest.raises(OSError, match=r"Invalid argument|not supported"):
        clock_of(null.fileno())()
