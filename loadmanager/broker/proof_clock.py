"""The clock for proofs: the boot clock plus the time for which a virtual machine was paused.

On most hypervisors the boot clock stands still while the machine is paused. An earlier proof would then look fresh,
though others may have taken over meanwhile. Clocks outside of the machine show the pause. They may also be set; so they
only ever make proofs *older*. The leader counts its waits on the boot clock alone, which a pause makes too long and
nothing makes too short. See `docs/clocks.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

NOTICED_S = 0.05
"""A longer gain is a pause; a shorter one is within the margin for which a leader waits beyond `validity_s`."""

HELD_UP_S = 0.005
"""Two clocks that were read further apart in time cannot be compared."""


class ProofClock:
    """`now_s` and `missed_s` may be read in any thread; `look` belongs to the control loop."""

    def __init__(self, boot_s: Callable[[], float], outside: Mapping[str, Callable[[], float]]) -> None:
        self._boot_s = boot_s
        self._outside = outside
        self._ahead_s: dict[str, float] = {}
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
        found = {name: self._gained_s(name, read) for name, read in self._outside.items()}
        name = max(found, key=found.__getitem__, default="")
        if found.get(name, 0.0) <= NOTICED_S:
            return None
        self.missed_s += found[name]
        return f"{name} went {found[name]:.2f} s ahead: it was set, or this machine was paused unnoticed"

    def _gained_s(self, name: str, read: Callable[[], float]) -> float:
        """By how much an outside clock gained on the boot clock since the last look."""
        try:
            before_s, outside_s, after_s = self._boot_s(), read(), self._boot_s()
        except OSError:  # the device is gone; it may come back
            return 0.0
        if after_s - before_s > HELD_UP_S:
            return 0.0  # the next look compares again
        ahead_s = outside_s - after_s
        gained_s = ahead_s - self._ahead_s.get(name, ahead_s)
        self._ahead_s[name] = ahead_s
        return gained_s
