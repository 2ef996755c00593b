"""Clocks for proofs: the boot clock, and the time for which a virtual machine was paused, as its host's clock shows it.

On most hypervisors the boot clock stands still while the machine is paused. An earlier proof would then look fresh,
though others may have taken over meanwhile. Clocks outside of the machine show the pause. They may also be set; so they
only ever make proofs *older*. The leader counts its waits on the boot clock alone, which a pause makes too long and
nothing makes too short. See `docs/clocks.md`.

Linux shows the host's clock as a PTP device on KVM, Hyper-V and VMware. Reading it is a system call of microseconds.
Without such a device, or the right to read it, only the wall clock is left, which guest tools or NTP set some time
after a pause.

Not used: vmgenid changes with snapshots and clones, not with a pause. The `paused` flag of kvm-clock is never shown.
Steal time leaves out a stopped machine. vmclock (Linux 6.13) tells of migrations and restores; few hypervisors have it.
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


def boot_clock_s() -> float:
    """Seconds on a clock that runs on during suspend, which proofs need."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


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


NOTICED_S = 0.05
"""A longer gain is a pause; a shorter one is within the margin for which a leader waits beyond `validity_s`."""

DRIFT = 0.001
"""Two clocks without any pause go apart by less than this part of the time; NTP slews a clock by 0.0005 at most.
Shorter gains that come faster add up to a pause."""

HELD_UP_S = 0.005
"""Two clocks that were read further apart in time cannot be compared."""


class ProofClock:
    """`now_s` and `missed_s` may be read in any thread; `look` belongs to the control loop."""

    def __init__(self, boot_s: Callable[[], float], outside: Mapping[str, Callable[[], float]]) -> None:
        self._boot_s = boot_s
        self._outside = outside
        self._level_s: dict[str, tuple[float, float]] = {}
        """By how much each outside clock is ahead without a pause, and the boot time at which that was so."""
        self.missed_s = 0.0
        """Total seconds of pauses that the boot clock did not show. Only grows."""
        self.look()

    @property
    def can_tell(self) -> bool:
        """Whether there is any clock outside of this machine."""
        return bool(self._outside)

    def now_s(self) -> float:
        """The time in seconds, with all known pauses."""
        return self._boot_s() + self.missed_s

    def look(self) -> str | None:
        """Compare the clocks; a text if a pause was found, else None. Call it every few milliseconds."""
        read = {name: found for name, clock in self._outside.items() if (found := self._read(clock)) is not None}
        gained_s = {name: self._gained_s(name, *found) for name, found in read.items()}
        name = max(gained_s, key=gained_s.__getitem__, default="")
        if gained_s.get(name, 0.0) <= NOTICED_S:
            return None
        self._level_s |= read
        self.missed_s += gained_s[name]
        return f"{name} went {gained_s[name]:.2f} s ahead: it was set, or this machine was paused unnoticed"

    def _read(self, clock: Callable[[], float]) -> tuple[float, float] | None:
        """By how much an outside clock is ahead of the boot clock, and the boot time; None if it cannot be compared."""
        try:
            before_s, outside_s, after_s = self._boot_s(), clock(), self._boot_s()
        except OSError:  # the device is gone; it may come back
            return None
        return None if after_s - before_s > HELD_UP_S else (outside_s - after_s, after_s)

    def _gained_s(self, name: str, ahead_s: float, boot_s: float) -> float:
        """By how much an outside clock is further ahead than it was, apart from drift."""
        level_s, since_s = self._level_s.get(name, (ahead_s, boot_s))
        level_s = min(ahead_s, level_s + DRIFT * (boot_s - since_s))
        self._level_s[name] = level_s, boot_s
        return ahead_s - level_s
