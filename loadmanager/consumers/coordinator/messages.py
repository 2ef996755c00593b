"""What members and their coordinator say to each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from loadmanager.consumers.coordinator.records import Config, Partition, Subscription
from loadmanager.errors import Invalid
from statechannel.errors import InvalidName
from statechannel.law.bundle import DOTS, Key

PROTOCOL = "groups"
"""Under which brokers register the URL where members ask."""

NO_COORDINATOR = (
    "coordinates no consumer groups: brokers do that start with --host loadmanager.consumer.hosting:make_host"
)

VERSIONS = range(1, 2)
"""Versions of the protocol that this coordinator speaks."""

SESSION_MS = range(1_000, 1_800_001)
REVOKE_MS = range(1_000, 3_600_001)
TOPICS = 1_000
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
STARTS = ("earliest", "latest", "none")
"""In the order in which they count: the group starts at the begin if one of its members says so."""
NAME_LENGTH = 255


class Why(StrEnum):
    """Why a member was refused."""

    UNKNOWN_MEMBER = "unknown_member"
    """Its session is over: it must stop reading everything, and may join again under another id."""
    ID_IN_USE = "id_in_use"
    """Another process is a member under this id: the caller may ask again, and joins when that session is over."""
    UNSUPPORTED_VERSION = "unsupported_version"
    NO_TOPIC = "no_topic"
    """Its topic is gone: there is nothing to commit any more."""
    NOT_YOURS = "not_yours"
    """It does not hold the partition, or did not in the revision that it names."""
    LATE = "late"
    """The member sent a later commit before this arrived, or sent this to a former coordinator."""


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refused heartbeat or commit; `detail` says what to do. `coordinator`: to which a late commit has to be sent."""

    why: Why
    detail: str
    coordinator: str = ""


OVER = Refusal(Why.UNKNOWN_MEMBER, "the session is over: stop reading, and join under another id")
"""To a heartbeat of a member that is none any more."""


class Beat(msgspec.Struct, frozen=True, omit_defaults=True):
    """A heartbeat. `epoch` is that of the answers before; 0 joins. `acked`: the member reads nothing outside of that
    revision any more.

    `process`: any text that no other process has; one that joins under the id of a member is refused if it has another.
    `sequence` grows with each heartbeat of a member. `claims`: in a group whose members divide the partitions, what
    this one should read, computed for `generation`.
    """

    subscription: Subscription
    epoch: int = 0
    acked: int = 0
    sequence: int = 1
    generation: int = 0
    claims: tuple[Partition, ...] | None = None
    process: str = ""


class View(msgspec.Struct, frozen=True):
    """What members divide partitions by, the same for all of one generation (`targets.divided`).

    `topics`: their numbers of partitions. `held`: by member, what it should read so far. `weights`: by topic, what
    partitions weigh, `racks`: where they are led, and `config`: who reads which, each where that counts.
    """

    members: Mapping[str, Subscription]
    topics: Mapping[str, int]
    strategy: str
    held: Mapping[str, Mapping[str, tuple[int, ...]]] = {}
    weights: Mapping[str, Mapping[int, float]] = {}
    racks: Mapping[str, Mapping[int, str]] | None = None
    config: Config = {}


class Answer(msgspec.Struct, frozen=True):
    """What a member may read until `lease_ms` after it sent the heartbeat. 0: the lease was not prolonged.

    `epoch`: of this membership. Revisions are compared within one epoch only. `view`: given where members divide the
    partitions, if this one computed its claims for another generation. `missing`: those of its topics that cannot be
    read yet. `coordinator`: commits name it.
    """

    epoch: int
    revision: int
    generation: int
    lease_ms: int
    partitions: Mapping[str, tuple[int, ...]]
    view: View | None = None
    missing: tuple[str, ...] = ()
    coordinator: str = ""


def group_key(name: str) -> Key:
    """The key of a group; its name without the domain is the `group.id`, so it has every character that Kafka takes.

    Raises InvalidName.
    """
    if "\0" in name:
        raise InvalidName(f"{name!r} is not a group.id of Kafka: it has the character 0, where Kafka's clients cut it")
    return Key.parse(name)


def check_topic(name: str) -> None:
    """Raise Invalid unless Kafka takes this name of a topic."""
    if not _TOPIC.fullmatch(name) or name in DOTS:
        raise Invalid(f"{name[:300]!r} is not a topic of Kafka: letters, digits, '.', '_' and '-', at most 249")


def check(member: str, subscription: Subscription, process: str = "") -> None:
    """Raise Invalid for a heartbeat that makes no sense."""
    if not 0 < len(member) <= NAME_LENGTH or not member.isprintable():
        raise Invalid(f"a member's id has 1 to {NAME_LENGTH} printable characters")
    if len(process) > NAME_LENGTH:
        raise Invalid(f"process of {member} has more than {NAME_LENGTH} characters")
    for what in ("rack", "name", "client_id", "host"):
        text = getattr(subscription, what)
        if len(text) > NAME_LENGTH or not text.isprintable():
            raise Invalid(f"the {what} of {member} is {text[:300]!r}: give at most {NAME_LENGTH} printable characters")
    if not 0 < len(subscription.topics) <= TOPICS:
        raise Invalid(f"{member} subscribes to {len(subscription.topics)} topics: give 1 to {TOPICS}")
    for topic in subscription.topics:
        check_topic(topic)
    if len(set(subscription.topics)) < len(subscription.topics):
        raise Invalid(f"{member} names a topic twice")
    if subscription.session_timeout_ms not in SESSION_MS:
        raise Invalid(f"session_timeout_ms must be {SESSION_MS[0]} to {SESSION_MS[-1]}")
    if subscription.revoke_timeout_ms not in REVOKE_MS:
        raise Invalid(f"revoke_timeout_ms must be {REVOKE_MS[0]} to {REVOKE_MS[-1]}")
    if subscription.starts_at not in STARTS:
        raise Invalid(f"starts_at is {subscription.starts_at[:100]!r}: give one of {', '.join(STARTS)}")
    if not 0 < subscription.capacity < float("inf"):
        raise Invalid(f"the capacity of {member} is {subscription.capacity}: give a number above 0")
