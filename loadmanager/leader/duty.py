"""What a leader owes at a moment, as values: decided by `core.py`, performed by `duties.py`."""

from __future__ import annotations

import msgspec

from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

Seen = tuple[Bundle, int]
"""A bundle, and the revision at which it was seen."""


class Revoke(msgspec.Struct, frozen=True, gc=False):
    """Publish `revoke` for these bundles, each as seen."""

    holder: BrokerId
    subjects: tuple[Seen, ...]
    reason: str


class Raise(msgspec.Struct, frozen=True, gc=False):
    """Raise the holder's incarnation; report with `raised`."""

    holder: BrokerId
    reason: str


class Place(msgspec.Struct, frozen=True, gc=False):
    """Give these bundles a new owner in their dead holders' place (`release(to)`); or `own` what has none: what was
    revoked from `former`, or what an eager namespace has."""

    subjects: tuple[Seen, ...]
    revoked: bool
    former: str = ""


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Publish `cancel` for these bundles: the move or split is off."""

    subjects: tuple[Seen, ...]
    reason: str


class Evacuate(msgspec.Struct, frozen=True, gc=False):
    """Transfer these bundles away from a holder that is alive but cut off for good."""

    holder: BrokerId
    subjects: tuple[Seen, ...]
    reason: str


Duty = Revoke | Raise | Place | Cancel | Evacuate
