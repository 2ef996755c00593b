"""Reads how busy this process, its cgroup and its host are. The only place that uses psutil.

The process counts by default. If its cgroup (version 2) limits CPU or memory, the group counts instead, against its
limit, because the kernel throttles and kills by group. A parent of the group may have the limit: the tightest one
counts, with the usage of the group that has it. Parsing is pure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from loadmanager.model.load import NO_IO, Figures, IoRates

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")


class Limits(msgspec.Struct, frozen=True):
    """The groups that limit this process, and their limits; None where there is none."""

    cpu_group: Path | None = None
    cores: float | None = None
    memory_group: Path | None = None
    memory_bytes: int | None = None


def parse_own_path(text: str) -> str | None:
    """The path of the version 2 group in the text of `/proc/self/cgroup`; None if there is none."""
    for line in text.splitlines():
        hierarchy, _, path = line.partition("::")
        if hierarchy == "0" and path.startswith("/"):
            return path
    return None


def parse_cpu_max(text: str) -> float | None:
    """Cores that `cpu.max` ("quota period", in microseconds) allows; None for "max" and for malformed text."""
    quota, _, period = text.strip().partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period) or None


def parse_limit_bytes(text: str) -> int | None:
    """The limit in `memory.max`; None for "max"."""
    text = text.strip()
    return int(text) if text.isdigit() and int(text) > 0 else None


def parse_counter(text: str, name: str) -> int | None:
    """One counter of a file of "name value" lines (`cpu.stat`, `memory.stat`); None if it is missing."""
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return None


def working_set_bytes(current: str, stat: str) -> int | None:
    """Memory that cannot be dropped: `memory.current` less inactive file pages, as Kubernetes counts it."""
    used = current.strip()
    if not used.isdigit():
        return None
    return max(0, int(used) - (parse_counter(stat, "inactive_file") or 0))


def find_limits(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUP) -> Limits:
    """The tightest limits on the way from the process's own group up to the root."""
    path = parse_own_path(_read(own))
    if path is None:
        return Limits()
    group = root / path.lstrip("/")
    groups = [each for each in (group, *group.parents) if each.is_relative_to(root)]
    cores = [(value, each) for each in groups if (value := parse_cpu_max(_read(each / "cpu.max"))) is not None]
    sizes = [(value, each) for each in groups if (value := parse_limit_bytes(_read(each / "memory.max"))) is not None]
    cpu, memory = min(cores, default=(None, None)), min(sizes, default=(None, None))
    return Limits(cpu[1], cpu[0], memory[1], memory[0])


def cpu_used_us(group: Path) -> int | None:
    """CPU time that the group has used, microseconds; None if it cannot be read."""
    return parse_counter(_read(group / "cpu.stat"), "usage_usec")


def memory_used_bytes(group: Path) -> int | None:
    """The group's working set; None if it cannot be read."""
    return working_set_bytes(_read(group / "memory.current"), _read(group / "memory.stat"))


def _read(path: Path) -> str:
    """The file's text; empty if it cannot be read: a group may vanish, a kernel may lack a controller."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


SHORTEST_WINDOW_S = 0.5
"""Over a shorter time a processor is either busy or idle: a process that starts would report itself as full."""

_LOOPBACK = frozenset({"lo", "lo0", "Loopback Pseudo-Interface 1"})


class Sensors:
    """`read()` gives the figures since the previous call. For one thread. `capacity` overrides cores and memory."""

    def __init__(
        self,
        capacity: Mapping[str, float] | None = None,
        *,
        limits: Limits | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        declared = capacity or {}
        self._limits = find_limits() if limits is None else limits
        self._clock_s = clock_s
        self._process = psutil.Process()
        self._cores = declared.get("cpu") or min(_cores_of_process(), self._limits.cores or float("inf"))
        memory_bytes = min(psutil.virtual_memory().total, self._limits.memory_bytes or float("inf"))
        self._memory_bytes = int(declared.get("memory_bytes") or memory_bytes)
        psutil.cpu_percent(None)  # the first call only sets the beginning of the next measurement
        self._cpu_s, self._at_s = self._cpu_used_s(), clock_s()
        self._cpu_percent = 0.0
        self._io_bytes = self._io_counted()
        self._io = NO_IO

    def read(self) -> Figures:
        """Read a few files of /proc; takes some hundred microseconds."""
        self._measure()
        host_memory_percent = psutil.virtual_memory().percent
        return Figures(
            cpu_percent=self._cpu_percent,
            memory_percent=min(100.0, 100.0 * self._memory_used_bytes() / self._memory_bytes),
            cores=self._cores,
            memory_bytes=self._memory_bytes,
            host_cpu_percent=psutil.cpu_percent(None),
            host_memory_percent=host_memory_percent,
            io=self._io,
        )

    def _measure(self) -> None:
        cpu_s, at_s = self._cpu_used_s(), self._clock_s()
        if at_s - self._at_s >= SHORTEST_WINDOW_S:
            used = (cpu_s - self._cpu_s) / (at_s - self._at_s) / self._cores
            self._cpu_percent = min(100.0, max(0.0, 100.0 * used))
            io_bytes = self._io_counted()
            grown = [max(0, now - before) for now, before in zip(io_bytes, self._io_bytes, strict=True)]
            self._io = IoRates(*(round(each / (at_s - self._at_s)) for each in grown))
            self._cpu_s, self._io_bytes, self._at_s = cpu_s, io_bytes, at_s

    def _cpu_used_s(self) -> float:
        group = self._limits.cpu_group
        used_us = cpu_used_us(group) if group is not None else None
        if used_us is not None:
            return used_us / 1e6
        times = self._process.cpu_times()
        return times.user + times.system

    def _io_counted(self) -> tuple[int, int, int, int]:
        """Bytes so far, in the order of IoRates; 0 for what the system does not report."""
        read = written = received = sent = 0
        with suppress(AttributeError, psutil.Error, OSError):  # not on macOS; not without the right to
            disks = self._process.io_counters()
            read, written = disks.read_bytes, disks.write_bytes
        with suppress(psutil.Error, OSError):
            cards = psutil.net_io_counters(pernic=True)
            received = sum(card.bytes_recv for name, card in cards.items() if name not in _LOOPBACK)
            sent = sum(card.bytes_sent for name, card in cards.items() if name not in _LOOPBACK)
        return read, written, received, sent

    def _memory_used_bytes(self) -> int:
        group = self._limits.memory_group
        used_bytes = memory_used_bytes(group) if group is not None else None
        return self._process.memory_info().rss if used_bytes is None else used_bytes


def _cores_of_process() -> float:
    try:
        return float(len(os.sched_getaffinity(0)))
    except AttributeError:  # not on macOS and Windows
        return float(os.cpu_count() or 1)
