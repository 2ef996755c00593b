"""Clocks that go on while this machine is paused, if it is a virtual one: its host's, where that can be read.

Linux shows the host's clock as a PTP device on KVM, Hyper-V and VMware. Reading one is a system call of microseconds.
Whoever may not read it, or has none, is left with the wall clock, which guest tools or NTP set some time after a pause.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

OF_HOSTS = {"KVM virtual PTP": "KVM", "hyperv": "Hyper-V", "ptp_vmw": "VMware"}
"""What the drivers call their clocks, and whose host's these are."""

SYSTEM, DEVICES = Path("/sys/class/ptp"), Path("/dev")
_FROM_DESCRIPTOR = 3
"""The kernel's kind of clock that is named by an open file: see FD_TO_CLOCKID in clock_getres(2)."""


def clocks_outside(system: Path = SYSTEM, devices: Path = DEVICES) -> Mapping[str, Callable[[], float]]:
    """By name: the host's clock if it can be read now, else the wall clock. The devices stay open."""
    found = dict[str, Callable[[], float]]()
    for name, device in _host_devices(system):
        with suppress(OSError):
            read = clock_of(os.open(devices / device, os.O_RDONLY | os.O_CLOEXEC))
            read()
            found[f"the clock of its {name} host"] = read
    return found or {"its wall clock": time.time}


def _host_devices(system: Path) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for directory in sorted(system.glob("ptp*")):
        with suppress(OSError):
            driver = (directory / "clock_name").read_text().strip()
            if driver in OF_HOSTS:
                found.append((OF_HOSTS[driver], directory.name))
    return found


def clock_of(descriptor: int) -> Callable[[], float]:
    """Reads, in seconds, the clock behind an open device. Raises OSError where that has none."""
    number = (~descriptor << 3) | _FROM_DESCRIPTOR
    return lambda: time.clock_gettime(number)
