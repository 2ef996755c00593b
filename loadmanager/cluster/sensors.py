"""Reads how busy this process, its cgroup and its host are. The only place that uses psutil.

The process counts by default. If its cgroup limits CPU or memory, the group counts instead, against its limit, because
the kernel throttles and kills by group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

import psutil

from loadmanager.cluster import cgroup
from loadmanager.model.load.model import NO_IO, Figures, IoRates

SHORTEST_WINDOW_S = 0.5
"""Over a shorter time a processor is either busy or idle: a process that starts would report itself as full."""

_LOOPBACK = frozenset({"lo", "lo0", "Loopback Pseudo-Interface 1"})


class Sensors:
    """`read()` gives the figures since the previous call. For one thread. `capacity` overrides cores and memory."""

    def __init__(
        self,
        capacity: Mapping[str, float] | None = None,
        *,
        limits: cgroup.Limits | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        declared = capacity or {}
        self._limits = cgroup.find_limits() if limits is None else limits
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
        used_us = cgroup.cpu_used_us(group) if group is not None else None
        if used_us is not None:
            return used_us / 1e6
        times = self._process.cpu_times()
        return times.user + times.system

    def _io_counted(self) -> tuple[int, int, int, int]:
        """Bytes so far, in the order of IoRates; 0 for what the system does not tell."""
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
        used_bytes = cgroup.memory_used_bytes(group) if group is not None else None
        return self._process.memory_info().rss if used_bytes is None else used_bytes


def _cores_of_process() -> float:
    try:
        return float(len(os.sched_getaffinity(0)))
    except AttributeError:  # not on macOS and Windows
        return float(os.cpu_count() or 1)
