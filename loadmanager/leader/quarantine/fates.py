"""Finds out whether the *process* of a lost broker crashed, by the registrations of its name. Pure.

A process registers its start time (`Registration.started_ms`). If its name registers again with another start time, the
earlier process crashed. With the same start time it was paused, cut off or fenced, and lives. A name that does not
register again within `gone_s` counts as gone until it does. A draining broker left on purpose. A lost broker that held
nothing leaves no trace in the channel; the leader records it too, as evidence about chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from loadmanager.leader.quarantine.losses import Fate, Loss, Losses
from loadmanager.model.registration import Peer, Registration
from statechannel.law.record import BrokerId

KNOWN_KEPT = 20_000
UNNOTED_KEPT = 1_000
NOTED_AFTER_MS = 2_000
"""The leader revokes a lost broker's bundles well within this time."""


class Found(msgspec.Struct, frozen=True):
    """The fate of a lost broker, and how it is known."""

    broker: BrokerId
    fate: Fate
    why: str


class Processes:
    """The last registration of each incarnation that this broker has seen."""

    def __init__(self) -> None:
        self._known: dict[BrokerId, Registration] = {}
        self._present: dict[str, Peer] = {}
        self._unnoted: dict[BrokerId, int] = {}

    def saw(self, peers: Mapping[str, Peer], now_ms: int) -> None:
        """Take the registered brokers after a change."""
        for name, before in self._present.items():
            peer = peers.get(name)
            if (peer is None or peer.broker != before.broker) and not before.registration.draining:
                self._unnoted[before.broker] = now_ms
        self._present = dict(peers)
        for peer in peers.values():
            self._known[peer.broker] = peer.registration
            self._unnoted.pop(peer.broker, None)
        _shorten(self._known, KNOWN_KEPT)
        _shorten(self._unnoted, UNNOTED_KEPT)

    @property
    def watches(self) -> bool:
        """Whether brokers have vanished that no record may mention yet."""
        return bool(self._unnoted)

    def unnoted(self, losses: Losses, now_ms: int) -> list[Found]:
        """Brokers that are no longer registered, and that no record mentions."""
        self._unnoted = {broker: at_ms for broker, at_ms in self._unnoted.items() if broker not in losses}
        return [
            Found(broker, Fate.OPEN, "it is not registered any more, and held nothing")
            for broker, at_ms in self._unnoted.items()
            if now_ms - at_ms >= NOTED_AFTER_MS
        ]

    def fate(self, loss: Loss, peers: Mapping[str, Peer], now_ms: int, gone_s: float) -> Found | None:
        """The broker's fate if it is newly known, else None."""
        known, name = self._known.get(loss.broker), loss.broker.name
        peer = peers.get(name)
        if known is not None and known.draining:
            return Found(loss.broker, Fate.LIVES, "it was leaving")
        waits = loss.fate is Fate.GONE or now_ms - loss.at_ms < gone_s * 1000
        if peer is None:
            if waits:
                return None
            return Found(loss.broker, Fate.GONE, f"nobody has registered as {name} for {gone_s:g} s")
        if peer.broker.incarnation <= loss.broker.incarnation:  # its session has not ended yet
            return None if waits else Found(loss.broker, Fate.LIVES, "it is still registered")
        if self._is_same(loss, known, peer.registration, gone_s):
            return Found(loss.broker, Fate.LIVES, f"the same process came back as {peer.broker}")
        return Found(loss.broker, Fate.CRASHED, f"another process runs as {peer.broker}")

    def _is_same(self, loss: Loss, known: Registration | None, now: Registration, gone_s: float) -> bool:
        """Whether the lost process is the one that is registered now; True in doubt."""
        if known is not None:
            return known.started_ms == now.started_ms
        return not loss.alive_ms < now.started_ms <= loss.at_ms + gone_s * 1000


def _shorten(known: dict[BrokerId, Any], most: int) -> None:
    while len(known) > most:
        del known[next(iter(known))]
