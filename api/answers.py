"""A lookup's answer as Pulsar's clients expect it, and which topics are answered otherwise than by the table.

Pure: from what was located to the bytes on the wire.
"""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from api.presenting import leader_of
from api.schemas import LookupData
from loadmanager.errors import Unavailable
from loadmanager.lookup import Located
from loadmanager.node import Node
from loadmanager.redirection import TOKEN_HEADER
from loadmanager.registration import Peer, Registration
from statechannel.bundle import Topic
from statechannel.record import Broker

CHANNEL_TOPICS = frozenset(
    {
        "persistent://pulsar/system/loadbalancer-service-unit-state",
        "non-persistent://pulsar/system/loadbalancer-service-unit-state",
        "persistent://loadmanager/system/bundle-state",
    }
)
"""The channel's own topics, under Pulsar's name and under ours; the table that they carry cannot find them."""

BUNDLE_HEADER = "X-Bundle"
BROKER_HEADER = "X-Broker"


def lookup_data(registration: Registration) -> LookupData:
    """Where clients reach this broker's service; its admin URL stands in for what it did not register."""
    urls = registration.urls
    http_url = urls.get("http", "") or registration.admin_url
    broker_url = urls.get("pulsar", "") or http_url
    return LookupData(
        brokerUrl=broker_url, httpUrl=http_url, nativeUrl=broker_url, brokerUrlSsl=urls.get("pulsar+ssl", "")
    )


def known_peer(located: Located) -> Peer:
    """The owner's registration. Raises Unavailable if nothing is known of it."""
    if located.peer is None:
        raise Unavailable(f"{located.owner} owns {located.bundle}, but its addresses are not known here yet; try again")
    return located.peer


def lookup_headers(located: Located) -> dict[str, str]:
    """What Pulsar's answer has no field for."""
    return {
        BUNDLE_HEADER: str(located.bundle),
        BROKER_HEADER: quote(located.owner.name, safe=":[]"),
        TOKEN_HEADER: str(located.token),
    }


def lookup_body(peer: Peer) -> bytes:
    """Pulsar's JSON."""
    return msgspec.json.encode(lookup_data(peer.registration).model_dump())


def channel_owner(node: Node) -> tuple[Broker, Peer]:
    """Who answers for the channel's own topics: the leader, until partitions have elected owners of their own.

    Raises Unavailable while nobody leads.
    """
    leader = leader_of(node)
    peer = node.membership.peers.get(leader.name) if leader is not None else None
    if leader is None or peer is None:
        raise Unavailable("nobody leads at the moment, so nobody answers for the channel; try again")
    return leader, peer


def is_channel_topic(topic: Topic) -> bool:
    """Whether this is one of the channel's own topics."""
    return topic.full_name in CHANNEL_TOPICS
