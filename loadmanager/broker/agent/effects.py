"""Where the host stands with a bundle, and what the core asks of its shell: plain values.

Effects are performed in the order in which the core returns them.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId


class Stand(StrEnum):
    """Where the host stands with a bundle."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    ACQUIRING = "acquiring"
    SERVING = "serving"
    RELEASING = "releasing"
    RELEASED = "released"
    SUSPENDED = "suspended"
    """It served and was told to abandon, because our proofs had run out; we may still be the holder."""
    FAILED = "failed"


class Hosted(msgspec.Struct, frozen=True, gc=False):
    """A bundle at our host: where it stands, and under which token (for prepare: which transfer's revision)."""

    stand: Stand
    token: int
    hand_off: bytes | None = None


class Serve(msgspec.Struct, frozen=True, gc=False):
    """Serve from now on, under this token's offset."""

    bundle: Bundle
    token: int


class Stop(msgspec.Struct, frozen=True, gc=False):
    """Do not serve from now on. Takes effect before anything else happens."""

    bundle: Bundle


class Prepare(msgspec.Struct, frozen=True, gc=False):
    """Call the host's `prepare`; report with `prepared`."""

    bundle: Bundle
    token: int


class Acquire(msgspec.Struct, frozen=True, gc=False):
    """Call the host's `acquire`; report with `acquired`."""

    bundle: Bundle
    token: int
    hand_off: bytes | None


class Release(msgspec.Struct, frozen=True, gc=False):
    """Call the host's `release`; report with `released`."""

    bundle: Bundle
    token: int
    to: BrokerId | None


class Abandon(msgspec.Struct, frozen=True, gc=False):
    """Call the host's `abandon`; nobody waits for it."""

    bundle: Bundle


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Publish this action for the bundle as seen at `seen`, until it is accepted or the bundle has moved on."""

    bundle: Bundle
    action: Action
    seen: int
    hand_off: bytes | None = None
    reason: str = ""
    boundaries: tuple[int, ...] = ()


class Survey(msgspec.Struct, frozen=True, gc=False):
    """Ask the host where the bundle's keys are, and what they carry if the algorithm goes by that; report with
    `surveyed`. Asked for once as seen at `seen`."""

    bundle: Bundle
    seen: int
    algorithm: str


Effect = Serve | Stop | Prepare | Acquire | Release | Abandon | Publish | Survey
