"""Reads how busy this process, its cgroup and its host are. The only place that uses psutil.

The process counts by default. If its cgroup limits CPU or memory, the group counts instead, against its limit, because
the kernel throttles and kills by group.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

import psutil

from loadmanager.cluster import cgroup
from loadmanager.model.load.model import Figures

SHORTEST_WINDOW_S = 0.5
"""Over a shorter time a processor is either busy or idle: a process that starts would report itself as full."""


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

    def read(self) -> Figures:
        """Read a few files of /proc; takes some hundred microseconds."""
        host_memory_percent = psutil.virtual_memory().percent
        return Figures(
            cpu_percent=self._read_cpu_percent(),
            memory_percent=min(100.0, 100.0 * self._memory_used_bytes() / self._memory_bytes),
            cores=self._cores,
            memory_bytes=self._memory_bytes,
            host_cpu_percent=psutil.cpu_percent(None),
            host_memory_percent=host_memory_percent,
        )

    def _read_cpu_percent(self) -> float:
        cpu_s, at_s = self._cpu_used_s(), self._clock_s()
        if at_s - self._at_s >= SHORTEST_WINDOW_S:
            used = (cpu_s - self._cpu_s) / (at_s - self._at_s) / self._cores
            self._cpu_percent = min(100.0, max(0.0, 100.0 * used))
            self._cpu_s, self._at_s = cpu_s, at_s
        return self._cpu_percent

    def _cpu_used_s(self) -> float:
        group = self._limits.cpu_group
        used_us = cgroup.cpu_used_us(group) if group is not None else None
        if used_us is not None:
            return used_us / 1e6
        times = self._process.cpu_times()
        return times.user + times.system

    def _memory_used_bytes(self) -> int:
        group = self._limits.memory_group
        used_bytes = cgroup.memory_used_bytes(group) if group is not None else None
        return self._process.memory_info().rss if used_bytes is None else used_bytes


def _cores_of_process() -> float:
    try:
        return float(len(os.sched_getaffinity(0)))
    except AttributeError:  # not on macOS and Windows
        return float(os.cpu_count() or 1)
