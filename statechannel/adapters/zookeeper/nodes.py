"""The paths and the format of the nodes below a coordination root. Sends no request.

{root}/identity             cluster, log, and the identity of this root, written once
{root}/root-IDENTITY        exists as long as the root has this identity: every transaction checks it
{root}/brokers/ids/NAME     its *version* is the current incarnation of NAME; never deleted
{root}/brokers/live/NAME    ephemeral: NAME is registered, with its incarnation and data; each registration
                            creates it again, each proof writes it unchanged
{root}/epoch                its version is the current epoch
{root}/leader               ephemeral: who leads, and since which epoch
{root}/offices/LEASE        ephemeral: who holds the lease
{root}/terms/LEASE          its version rises with each claim of the lease; never deleted
"""

from __future__ import annotations

import logging
import re

from statechannel.errors import InvalidName
from statechannel.law.record import BrokerId
from statechannel.ports import Leadership, Member

LOGGER = logging.getLogger("statechannel.zookeeper")


class Nodes:
    """The paths below one root."""

    def __init__(self, root: str) -> None:
        self.root = root = "/" + root.strip("/")
        self.identity = f"{root}/identity"
        self.ids_dir = f"{root}/brokers/ids"
        self.live_dir = f"{root}/brokers/live"
        self.epoch = f"{root}/epoch"
        self.leader = f"{root}/leader"
        self.leases_dir = f"{root}/offices"
        self.terms_dir = f"{root}/terms"

    def marker(self, root: str) -> str:
        """The node that exists as long as this root has that identity."""
        return f"{self.root}/root-{root}"

    def id(self, name: str) -> str:
        """The node whose version is the incarnation of a broker's name. Raises InvalidName."""
        return f"{self.ids_dir}/{check_name(name)}"

    def live(self, name: str) -> str:
        """The liveness node of a broker's name. Raises InvalidName."""
        return f"{self.live_dir}/{check_name(name)}"

    def lease(self, lease: str) -> str:
        """The node of a lease's holder. Raises InvalidName."""
        return f"{self.leases_dir}/{check_lease(lease)}"

    def term(self, lease: str) -> str:
        """The node that counts the claims of a lease. Raises InvalidName."""
        return f"{self.terms_dir}/{check_lease(lease)}"

    def ancestors(self) -> list[str]:
        """The nodes above the root, parents first. Other clusters may have their roots below them."""
        return _with_ancestors(self.root)[:-1]

    def directories(self) -> list[str]:
        """Our nodes that must exist before any other, parents first."""
        brokers = self.ids_dir.rpartition("/")[0]
        return [self.root, brokers, self.ids_dir, self.live_dir, self.leases_dir, self.terms_dir, self.epoch]


LEASE = re.compile(r"[A-Za-z0-9-]{1,64}")


def check_lease(lease: str) -> str:
    """The name itself, if it is a lease's. Raises InvalidName."""
    if not LEASE.fullmatch(lease):
        raise InvalidName(f"{lease!r} is not a lease; write up to 64 letters, digits and '-'")
    return lease


def check_name(name: str) -> str:
    """The name itself, if ZooKeeper takes it as the last part of a path. Raises InvalidName."""
    if not name.isprintable() or name in {"", ".", ".."} or "/" in name:
        raise InvalidName(f"{name!r} is not a broker name; write host:port")
    return name


def encode_member(broker: BrokerId, data: bytes) -> bytes:
    """A liveness node: the incarnation in digits, a line feed, the registered data."""
    return b"%d\n%b" % (broker.incarnation, data)


def decode_member(name: str, node: bytes) -> Member | None:
    """The inverse. None, with a warning, if another program wrote the node."""
    number, mark, data = node.partition(b"\n")
    if not mark or not number.isdigit():
        LOGGER.warning("the liveness node of %s holds data that no broker wrote: %r", name, node[:40])
        return None
    return Member(BrokerId(name, int(number)), data)


def encode_leadership(leadership: Leadership) -> bytes:
    """The election node: broker, incarnation and epoch as `host:port#7 3`."""
    return f"{leadership.leader} {leadership.epoch}".encode()


def decode_leadership(node: bytes) -> Leadership | None:
    """The inverse. None, with a warning, if another program wrote the node."""
    leader, _, epoch = node.decode(errors="replace").rpartition(" ")
    try:
        return Leadership(BrokerId.parse(leader), int(epoch))
    except (InvalidName, ValueError):
        LOGGER.warning("the election node holds data that no broker wrote: %r", node[:80])
        return None


def encode_holder(holder: BrokerId) -> bytes:
    """A lease's node: broker and incarnation as `host:port#7`."""
    return str(holder).encode()


def decode_holder(lease: str, node: bytes) -> BrokerId | None:
    """The inverse. None, with a warning, if another program wrote the node."""
    try:
        return BrokerId.parse(node.decode(errors="replace"))
    except (InvalidName, ValueError):
        LOGGER.warning("the node of lease %s holds data that no broker wrote: %r", lease, node[:80])
        return None


def _with_ancestors(path: str) -> list[str]:
    return [path[:end] for end, letter in enumerate(path) if letter == "/" and end > 0] + [path]
