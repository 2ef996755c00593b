"""A lookup's answer as Pulsar's clients expect it, and the topics whose owner is not in the table.

Pure: from a located owner to the bytes on the wire.
"""

from __future__ import annotations

import re
from urllib.parse import quote

import msgspec

from loadmanager.broker.lookup import Located
from loadmanager.broker.node import Node
from loadmanager.channel.owner.service import owner_of
from loadmanager.client.redirection import TOKEN_HEADER
from loadmanager.errors import NotFound, Unavailable
from loadmanager.model.registration import Peer, Registration
from statechannel.law.bundle import Key
from statechannel.law.record import BrokerId

CHANNEL_TOPICS = frozenset(
    {
        "persistent://pulsar/system/loadbalancer-service-unit-state",
        "non-persistent://pulsar/system/loadbalancer-service-unit-state",
        "persistent://loadmanager/system/bundle-state",
    }
)
"""The channel's own topics, under Pulsar's name and under ours; the table has no owner for them."""

_PARTITION = re.compile(r"-partition-([0-9]{1,9})$")

BUNDLE_HEADER = "X-Bundle"
BROKER_HEADER = "X-Broker"


def lookup_urls(registration: Registration) -> dict[str, str]:
    """URLs of a broker's service, as `LookupData` has them; its admin URL stands in for those it did not register."""
    urls = registration.urls
    http_url = urls.get("http", "") or registration.admin_url
    broker_url = urls.get("pulsar", "") or http_url
    return {
        "brokerUrl": broker_url,
        "httpUrl": http_url,
        "nativeUrl": broker_url,
        "brokerUrlSsl": urls.get("pulsar+ssl", ""),
    }


def known_peer(located: Located) -> Peer:
    """The owner's registration. Raises Unavailable if nothing is known of it."""
    if located.peer is None:
        raise Unavailable(f"{located.owner} owns {located.bundle}, but its addresses are not known here yet; try again")
    return located.peer


def lookup_headers(located: Located) -> dict[str, str]:
    """Headers for what Pulsar's answer has no field for."""
    return {
        BUNDLE_HEADER: str(located.bundle),
        BROKER_HEADER: quote(located.owner.name, safe=":[]"),
        TOKEN_HEADER: str(located.token),
    }


def lookup_body(peer: Peer) -> bytes:
    """The answer as Pulsar's JSON."""
    return msgspec.json.encode(lookup_urls(peer.registration))


def channel_owner(node: Node, topic: Key) -> tuple[BrokerId, Peer]:
    """The owner for one of the channel's own topics: the owner of that partition, of partition 0 if none is named.

    Raises NotFound if there is no such partition, Unavailable while it has no owner.
    """
    partition, partitions = _partition_of(topic), node.channel.table.partitions
    if partition >= partitions:
        raise NotFound(f"the channel has the partitions 0 to {partitions - 1}, not {partition}")
    owner = owner_of(node.world.coordination, node.membership, partition)
    peer = node.membership.peers.get(owner.name) if owner is not None else None
    if owner is None or peer is None:
        raise Unavailable(f"nobody owns partition {partition} of the channel at the moment; try again")
    return owner, peer


def is_channel_topic(topic: Key) -> bool:
    """Whether this is one of the channel's own topics, whole or a partition of it."""
    return _PARTITION.sub("", topic.full_name) in CHANNEL_TOPICS


def _partition_of(topic: Key) -> int:
    suffix = _PARTITION.search(topic.full_name)
    return int(suffix[1]) if suffix else 0
