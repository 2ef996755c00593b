"""The leader's duties as values: decided by `core.py`, performed by `duties.py`."""

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
    """Raise the holder's incarnation; report success with `LeaderCore.raised`."""

    holder: BrokerId
    reason: str


class Place(msgspec.Struct, frozen=True, gc=False):
    """Give these bundles an owner: `release(to)` on behalf of a dead holder, if `revoked`.

    Else `own`, for bundles without an owner: revoked from `former`, or unassigned in an eager namespace.
    """

    subjects: tuple[Seen, ...]
    revoked: bool
    former: str = ""


class Cancel(msgspec.Struct, frozen=True, gc=False):
    """Publish `cancel` for these bundles: the move or split is called off."""

    subjects: tuple[Seen, ...]
    reason: str


class Evacuate(msgspec.Struct, frozen=True, gc=False):
    """Transfer these bundles away from a holder that is alive but stays cut off."""

    holder: BrokerId
    subjects: tuple[Seen, ...]
    reason: str


Duty = Revoke | Raise | Place | Cancel | Evacuate
