"""What a coordinator keeps of its groups in a compacted topic: one record for each group, and one for each member.

A record's key has the token under which its writer owned the group's bundle; `store.py` says which of them count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

import msgspec

from statechannel.law.record import Token

N = TypeVar("N", int, float, str)

Partition = tuple[str, int]
"""A topic and the number of one of its partitions."""


class Mode(StrEnum):
    """Who divides the partitions of a group: its coordinator, or its members, which then claim them."""

    SERVER = "server"
    CLIENT = "client"


Config = Mapping[str, Mapping[str, tuple[int, ...]]]
"""For the strategy CONFIG: by name of a member, and by topic, the partitions that it reads."""


class Settings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What can be set for one group while it runs. `config` belongs to the strategy CONFIG."""

    mode: Mode = Mode.SERVER
    strategy: str = "STICKY"
    config: Config = {}


class Subscription(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a member says of itself.

    `session_timeout_ms`: after so long without a heartbeat it has stopped reading. `revoke_timeout_ms`: within so long
    it gives up what it is told to give up. `version`: of the protocol. `starts_at`: where the group starts in a
    partition without a committed offset, "earliest", "latest", or "none": the member has to know. `rack`: where it
    runs. `name`: what the strategy CONFIG calls it; its id is another one after each start. `client_id` and `host` tell
    people which program it is, and on which machine; nothing depends on them.
    """

    topics: tuple[str, ...]
    session_timeout_ms: int = 10_000
    revoke_timeout_ms: int = 60_000
    capacity: float = 1.0
    rack: str = ""
    version: int = 1
    starts_at: str = "latest"
    name: str = ""
    client_id: str = ""
    host: str = ""


class Rebalance(msgspec.Struct, frozen=True, array_like=True):
    """One rebalance of a group, by `number`; `at_ms` in milliseconds since 1970, `settled_ms` after it.

    Of the assigned `partitions`, `moved` got another reader, `kept` have the same one, the others got their first.
    `balance_degree` is the population standard deviation of partitions per member. None: it is not settled, or
    nothing paused. `worst` has the longest pause.
    """

    number: int
    generation: int
    why: str
    at_ms: int
    members: int
    partitions: int
    moved: int
    kept: int
    balance_degree: float = 0.0
    settled_ms: int | None = None
    pause_max_ms: int | None = None
    pause_mean_ms: float | None = None
    worst: Partition | None = None


class Description(msgspec.Struct, frozen=True):
    """A group as people see it. `holders`: who may be reading what; `targets`: who should, where it differs.
    `unread`: number of partitions of the members' topics that are assigned to no member. `creator`: the principal that
    created it, if that is known."""

    name: str
    settings: Settings
    generation: int
    members: Mapping[str, Subscription]
    holders: Mapping[Partition, str]
    targets: Mapping[Partition, str | None]
    unread: int = 0
    creator: str = ""


class GroupRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A group that has, or had, members."""

    settings: Settings = Settings()
    generation: int = 0
    """Grows with every change of who should read what."""
    topics: Mapping[str, int] = {}
    """The numbers of partitions of its topics, as far as they exist."""
    rebalances: tuple[Rebalance, ...] = ()
    """The last ones that are settled, oldest first."""
    complete: bool = True
    """Whether all members of the group are in the topic under this token."""
    writer: str = ""
    """Under which name its coordinator commits: the next one has it fenced before it begins."""
    empty_s: float = 0.0
    """For how long it has had no members, at least: what coordinators have counted on their own clocks."""
    reported: Mapping[str, int] = {}
    """By topic, how many of its partitions may have a report in `group-lag`."""
    creator: str = ""
    """The principal that created it; empty without authentication, and in records from before it was kept."""


class MemberRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One member, with what it may be reading. `epoch`: the group's generation in which it joined.

    `granted`: its partitions by topic, each with the revision in which it got it. `revoked`: those among them that it
    was told to give up, each with the revision that told it so. `claims`: where members divide the partitions, what it
    claims, computed for the generation `claimed_for`. `weights`: what those weigh, when it was last decided
    who should read them.
    """

    subscription: Subscription
    epoch: int
    revision: int = 0
    granted: Mapping[str, Mapping[int, int]] = {}
    revoked: Mapping[str, Mapping[int, int]] = {}
    claims: Mapping[str, tuple[int, ...]] | None = None
    claimed_for: int = 0
    process: str = ""
    weights: Mapping[str, Mapping[int, float]] = {}


Record = GroupRecord | MemberRecord
Written = tuple[str, bytes | None]
"""A key of the topic, and what belongs there now; None deletes it."""


def key_of(group: str, token: Token, member: str = "") -> str:
    """The key of a group, or of one of its members. A group's name may have line breaks, a member's has none."""
    return f"{group}\n{token}\n{member}"


_token = lru_cache(1_000)(Token.parse)


def parsed(key: str) -> tuple[str, Token, str]:
    """Group, token and member of a key. Raises ValueError."""
    group, token, member = key.rsplit("\n", 2)
    return group, _token(token), member


_group, _member = msgspec.json.Decoder(GroupRecord), msgspec.json.Decoder(MemberRecord)


def encoded(record: Record) -> bytes:
    return msgspec.json.encode(record)


def decoded(key: str, value: bytes) -> Record:
    """Raises ValueError, msgspec.ValidationError."""
    return (_member if parsed(key)[2] else _group).decode(value)


def by_topic(partitions: Mapping[Partition, N]) -> dict[str, dict[int, N]]:
    """Nested, as records have it."""
    found: dict[str, dict[int, N]] = {}
    for (topic, number), each in partitions.items():
        found.setdefault(topic, {})[number] = each
    return found


def flat(nested: Mapping[str, Mapping[int, N]]) -> dict[Partition, N]:
    """The reverse of `by_topic`."""
    return {(topic, number): each for topic, its in nested.items() for number, each in its.items()}


def listed(partitions: Iterable[Partition]) -> dict[str, tuple[int, ...]]:
    """By topic, in ascending order."""
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return {topic: tuple(its) for topic, its in found.items()}
