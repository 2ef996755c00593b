"""Sensors: the texts of a cgroup, which group's limit counts, and figures of the real process."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from loadmanager.cluster import sensors as module
from loadmanager.cluster.sensors import Sensors
from loadmanager.model.load import NO_IO


@pytest.mark.parametrize(
    ("text", "path"),
    [("0::/a/b\n", "/a/b"), ("9:name=systemd:/\n1:cpu:/x\n0::/\n", "/"), ("1:cpu:/x\n", None), ("", None)],
)
def test_the_own_group_is_the_one_of_the_unified_hierarchy(text: str, path: str | None) -> None:
    assert module.parse_own_path(text) == path


@pytest.mark.parametrize(
    ("text", "cores"),
    [("150000 100000\n", 1.5), ("max 100000\n", None), ("50000 100000", 0.5), ("", None), ("1 0", None), ("x y", None)],
)
def test_cpu_max_is_cores_or_nothing(text: str, cores: float | None) -> None:
    assert module.parse_cpu_max(text) == cores


@pytest.mark.parametrize(("text", "size"), [("max\n", None), ("1048576\n", 1048576), ("", None), ("0", None)])
def test_memory_max_is_bytes_or_nothing(text: str, size: int | None) -> None:
    assert module.parse_limit_bytes(text) == size


def test_counters_are_found_by_their_whole_name() -> None:
    text = "usage_usec 42\nuser_usec 40\nnr_throttled x\n"
    assert module.parse_counter(text, "usage_usec") == 42
    assert module.parse_counter(text, "usage") is None
    assert module.parse_counter(text, "nr_throttled") is None


def test_file_pages_that_can_be_dropped_are_no_used_memory() -> None:
    assert module.working_set_bytes("1000\n", "anon 500\ninactive_file 300\n") == 700
    assert module.working_set_bytes("1000\n", "") == 1000
    assert module.working_set_bytes("", "") is None


def group(path: Path, **files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("_", ".", 1)).write_text(text)
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A pod limited to 1.5 cores and a container in it limited to 4 cores and 1,000 bytes."""
    group(tmp_path / "cgroup")
    group(tmp_path / "cgroup/pod", cpu_max="150000 100000", memory_max="max", cpu_stat="usage_usec 2000000")
    group(
        tmp_path / "cgroup/pod/box",
        cpu_max="400000 100000",
        memory_max="1000",
        memory_current="700",
        memory_stat="inactive_file 200",
    )
    (tmp_path / "own").write_text("0::/pod/box\n")
    return tmp_path


def test_the_tightest_limit_counts_wherever_it_stands(root: Path) -> None:
    limits = module.find_limits(root / "cgroup", root / "own")
    pod = root / "cgroup/pod"
    assert limits == module.Limits(pod, 1.5, pod / "box", 1000)
    assert module.cpu_used_us(pod) == 2_000_000
    assert module.memory_used_bytes(pod / "box") == 500


def test_no_cgroup_means_no_limit(tmp_path: Path) -> None:
    assert module.find_limits(tmp_path, tmp_path / "absent") == module.Limits()


def test_a_limited_group_is_measured_against_its_limit(root: Path) -> None:
    now = [100.0]
    limits = module.Limits(root / "cgroup/pod", 0.5, root / "cgroup/pod/box", 1000)
    sensors = Sensors(limits=limits, clock_s=lambda: now[0])
    group(root / "cgroup/pod", cpu_stat="usage_usec 2400000")  # 0.4 s of CPU time
    now[0] += 2.0
    figures = sensors.read()
    assert figures.cores == 0.5
    assert figures.cpu_percent == pytest.approx(40)
    assert figures.memory_percent == pytest.approx(50)
    assert figures.memory_bytes == 1000


def work() -> None:
    """Until the system, which counts in hundredths of a second, has noticed."""
    before = sum(psutil.Process().cpu_times()[:2])
    while sum(psutil.Process().cpu_times()[:2]) < before + 0.05:
        pass


def test_a_process_without_limits_shows_its_own_work() -> None:
    now = [0.0]
    sensors = Sensors({"cpu": 1.0}, limits=module.Limits(), clock_s=lambda: now[0])
    work()
    now[0] = 10.0
    figures = sensors.read()
    assert 0.0 < figures.cpu_percent <= 100
    assert 0.0 < figures.memory_percent < 100
    assert figures.cores == 1.0
    assert figures.memory_bytes > 0


def test_two_readings_at_the_same_instant_repeat_the_figure() -> None:
    sensors = Sensors(limits=module.Limits(), clock_s=lambda: 1.0)
    assert sensors.read().cpu_percent == sensors.read().cpu_percent == 0.0


def test_what_is_burnt_in_the_first_instant_is_not_taken_for_a_full_broker() -> None:
    now = [0.0]
    sensors = Sensors({"cpu": 1.0}, limits=module.Limits(), clock_s=lambda: now[0])
    work()
    now[0] = 0.001
    assert sensors.read().cpu_percent == 0.0
    now[0] = 10.0
    assert 0.0 < sensors.read().cpu_percent < 50, "the burst counts in the window in which it is over"


def test_disks_are_read_and_written_by_this_process(tmp_path: Path) -> None:
    now = [0.0]
    sensors = Sensors(limits=module.Limits(), clock_s=lambda: now[0])
    assert sensors.read().io == NO_IO
    before = psutil.Process().io_counters().write_bytes
    with (tmp_path / "data").open("wb") as file:
        file.write(b"x" * 4_000_000)
        file.flush()
        os.fsync(file.fileno())
    written = psutil.Process().io_counters().write_bytes - before  # 0 if the file is in memory
    now[0] = 2.0
    assert sensors.read().io.disk_write_bytes_s >= written / 2


def test_the_network_counts_without_its_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    card = next(iter(psutil.net_io_counters(pernic=True).values()))
    now, more = [0.0], [0]

    def cards(pernic: bool) -> object:
        assert pernic
        grown = card._replace(bytes_recv=1_000 + more[0], bytes_sent=500 + 2 * more[0])
        return {"lo": grown, "eth0": grown, "eth1": grown}

    monkeypatch.setattr(psutil, "net_io_counters", cards)
    sensors = Sensors(limits=module.Limits(), clock_s=lambda: now[0])
    now[0], more[0] = 10.0, 3_000
    io = sensors.read().io
    assert (io.network_in_bytes_s, io.network_out_bytes_s) == (600, 1_200)
    now[0], more[0] = 20.0, -500  # a card that was taken out and in again
    assert sensors.read().io.network_in_bytes_s == 0
