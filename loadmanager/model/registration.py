"""What a broker registers beside its liveness (Pulsar's LocalBrokerData): facts, not load."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

import msgspec

from statechannel.law.record import BrokerId
from statechannel.ports import Member

VERSION = version("loadmanager")


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data of a liveness node. `urls` are the service's, by protocol; `admin_url` is its broker's REST admin."""

    admin_url: str = ""
    urls: Mapping[str, str] = msgspec.field(default_factory=dict)
    version: str = VERSION
    codec: int = 1
    """The newest record format that it reads. Where it is absent, 1 for ever: a later release must not read its own."""
    capacity: Mapping[str, float] = msgspec.field(default_factory=dict)
    failure_domain: str = ""
    draining: bool = False
    behind: bool = False
    """It does not get at the channel at present: it would not notice what it is given."""
    started_ms: int = 0
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


class Peer(msgspec.Struct, frozen=True):
    """A registered broker: its current incarnation and what it registered."""

    broker: BrokerId
    registration: Registration


def read_peer(member: Member) -> Peer:
    """A member's registration; one that cannot be read counts as an empty one that takes nothing (draining)."""
    try:
        return Peer(member.broker, msgspec.json.decode(member.data, type=Registration))
    except msgspec.MsgspecError:
        return Peer(member.broker, Registration(draining=True))
