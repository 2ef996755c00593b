"""What a broker registers with its liveness node (Pulsar's LocalBrokerData): facts, not load."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

import msgspec

from statechannel.law.record import BrokerId
from statechannel.ports import Member

VERSION = version("loadmanager")


class Registration(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data of a liveness node. `urls` are the service's, by protocol; `admin_url` is the admin interface."""

    admin_url: str = ""
    urls: Mapping[str, str] = msgspec.field(default_factory=dict)
    version: str = VERSION
    codec: int = 1
    """The newest record format that the broker reads. Absent means 1 in every release, never the reader's own."""
    capacity: Mapping[str, float] = msgspec.field(default_factory=dict)
    failure_domain: str = ""
    draining: bool = False
    behind: bool = False
    """The broker cannot read the channel at present: it would not notice bundles that it is given."""
    started_ms: int = 0
    properties: Mapping[str, str] = msgspec.field(default_factory=dict)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


class Peer(msgspec.Struct, frozen=True):
    """A registered broker: its current incarnation and what it registered."""

    broker: BrokerId
    registration: Registration


def read_peer(member: Member) -> Peer:
    """A member's registration; an unreadable one counts as empty and draining, so it takes nothing."""
    try:
        return Peer(member.broker, msgspec.json.decode(member.data, type=Registration))
    except msgspec.MsgspecError:
        return Peer(member.broker, Registration(draining=True))
