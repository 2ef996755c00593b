"""Clocks that run on while this virtual machine is paused: its host's, if it can be read.

Linux shows the host's clock as a PTP device on KVM, Hyper-V and VMware. Reading it is a system call of microseconds.
Without such a device, or the right to read it, only the wall clock is left, which guest tools or NTP set some time
after a pause.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

OF_HOSTS = {"KVM virtual PTP": "KVM", "hyperv": "Hyper-V", "ptp_vmw": "VMware"}
"""The names of the drivers' clocks, and of the hosts' hypervisors."""

SYSTEM, DEVICES = Path("/sys/class/ptp"), Path("/dev")
_FROM_DESCRIPTOR = 3
"""The kind of clock that an open file identifies: see FD_TO_CLOCKID in clock_getres(2)."""


def clocks_outside(system: Path = SYSTEM, devices: Path = DEVICES) -> Mapping[str, Callable[[], float]]:
    """The host's clocks that can be read now, else the wall clock, by name. The devices stay open."""
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
    """A function that reads the clock behind an open device, in seconds. It raises OSError if there is none."""
    number = (~descriptor << 3) | _FROM_DESCRIPTOR
    return lambda: time.clock_gettime(number)
