"""The state of a bundle at the host, and the effects that the core asks of its shell: plain values.

Effects are performed in the order in which the core returns them.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, BrokerId


class Stand(StrEnum):
    """The state of a bundle at the host."""

    PREPARING = "preparing"
    PREPARED = "prepared"
    ACQUIRING = "acquiring"
    SERVING = "serving"
    RELEASING = "releasing"
    RELEASED = "released"
    SUSPENDED = "suspended"
    """The host served it and was told to abandon, since our proofs had run out; we may still be the holder."""
    FAILED = "failed"


class Hosted(msgspec.Struct, frozen=True, gc=False):
    """A bundle at our host: its state and token (while preparing: the revision of the transfer)."""

    stand: Stand
    token: int
    hand_off: bytes | None = None


class Serve(msgspec.Struct, frozen=True, gc=False):
    """Serve from now on; `token` is the offset of the fencing token."""

    bundle: Bundle
    token: int


class Stop(msgspec.Struct, frozen=True, gc=False):
    """Stop serving. Takes effect before anything else happens."""

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
    """Publish this action for the bundle at revision `seen`, until it is accepted or the bundle has changed."""

    bundle: Bundle
    action: Action
    seen: int
    hand_off: bytes | None = None
    reason: str = ""
    boundaries: tuple[int, ...] = ()


class AskKeys(msgspec.Struct, frozen=True, gc=False):
    """Ask the host for the bundle's keys, and their rates if the algorithm needs them; report with `keys_answered`.

    Asked once for each revision `seen`.
    """

    bundle: Bundle
    seen: int
    algorithm: str


Effect = Serve | Stop | Prepare | Acquire | Release | Abandon | Publish | AskKeys
