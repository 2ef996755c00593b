"""What is written to the bundle-state channel: one frozen value per record, and the identities it names.

A record names an action, who does it in which role, the bundles it concerns and, for each, the revision that its
author had seen. Whether it counts is not decided here but by `transitions.py`, when it is read back.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from statechannel.errors import InvalidName
from statechannel.law.agreement import NEVER_AGREED, Agreement
from statechannel.law.bundle import Bundle, Position

MAX_HAND_OFF_BYTES = 64 * 1024
NEVER = -1
"""The revision of what has never been written: what a record says it saw when it saw nothing."""
UNSAID = -2
"""What a record of a format that cannot say what it saw is read as. No record can say this itself."""

BUNDLES_A_RECORD = 125
"""How many bundles those put into one record who change many: each reader takes it in one step of its loop. No law."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Revision = Annotated[int, msgspec.Meta(ge=NEVER, le=2**63 - 1)]
"""An offset, or NEVER. Decoding refuses other numbers: one that no replica can hash or store must not be accepted."""


class BrokerId(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One incarnation of a broker: its advertised `host:port` and the number of this start."""

    name: str
    incarnation: Count

    def __str__(self) -> str:
        return f"{self.name}#{self.incarnation}"

    @classmethod
    def parse(cls, text: str) -> BrokerId:
        """`host:port#7`. Raises InvalidName."""
        name, mark, number = text.rpartition("#")
        if not name or not mark or not (number.isascii() and number.isdigit()):
            raise InvalidName(f"{text!r} is no broker incarnation; write host:port#7")
        return cls(name, int(number))


class Token(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A fencing token: where in the log the present ownership of a range began. Only grows.

    Compare tokens of the same key or range only. `str()` is of fixed width, so that a store can compare text.
    """

    generation: int
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.generation:04d}-{self.partition:05d}-{self.offset:015d}"

    @classmethod
    def parse(cls, text: str) -> Token:
        """The inverse of `str()`. Raises InvalidName."""
        try:
            generation, partition, offset = (int(part) for part in text.split("-"))
        except ValueError:
            raise InvalidName(f"{text!r} is no fencing token") from None
        token = cls(generation, partition, offset)
        if str(token) != text:
            raise InvalidName(f"{text!r} is no fencing token; write it as {token}")
        return token


class Action(StrEnum):
    """What a record does; the rows of the law are in `transitions.py`."""

    __hash__ = str.__hash__  # that of an enumeration is Python: each bundle's step is looked up by these

    OWN = "own"
    RETURN = "return"
    TRANSFER = "transfer"
    READY = "ready"
    RELEASE = "release"
    UNLOAD = "unload"
    SPLIT = "split"
    CREATE = "create"
    MERGE = "merge"
    CANCEL = "cancel"
    REVOKE = "revoke"
    CREATE_NAMESPACE = "create-namespace"
    DELETE_NAMESPACE = "delete-namespace"
    LEAD = "lead"
    GENESIS = "genesis"
    RETIRE = "retire"
    NOOP = "noop"
    AMEND = "amend"
    AGREE = "agree"


class Role(StrEnum):
    """In which capacity the actor acts. `leader` is checked against the partition's epoch."""

    __hash__ = str.__hash__  # as that of `Action`

    BROKER = "broker"
    LEADER = "leader"
    ADMIN = "admin"


class Subject(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One bundle that a record concerns, the revision its author saw, and what it hands to the next owner."""

    bundle: Bundle
    seen: Revision
    hand_off: bytes | None = None


class Record(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One entry of the channel.

    `id` is unique per written record and the same in every copy of it. `to` is the destination of `own`, `transfer`
    and the leader's `release`. `boundaries` are the ring positions of `create-namespace` (all of them), `split` and
    `create` (only those between the parent's ends). A `split` without them says how the holder is to find them:
    `algorithm`, and into how many `parts`. `seen_namespace` is the compare-and-set of namespace records; `seen_latest`
    that of `delete-namespace` on every bundle, the last change of any that its author saw (UNSAID in older formats).
    `moved_to` is where a `retire`d log goes on. `agreement` is what `amend` and `agree` are about, `seen_agreement`
    their compare-and-set, and a `lead`'s; `root` is the coordination root in which the author of a `lead` was elected.
    `at_ms` is the writer's wall clock, for people and history only. `cause` ties the record to the decision that
    asked for it and `reason` says in words why.
    """

    id: str
    action: Action
    actor: BrokerId
    role: Role = Role.BROKER
    epoch: Count = 0
    subjects: tuple[Subject, ...] = ()
    to: BrokerId | None = None
    namespace: str | None = None
    seen_namespace: Revision = NEVER
    boundaries: tuple[Position, ...] = ()
    cluster: str | None = None
    at_ms: int = 0
    cause: str = ""
    reason: str = ""
    algorithm: str = ""
    parts: Count = 0
    moved_to: str = ""
    seen_latest: Revision = NEVER
    root: str = ""
    agreement: Agreement | None = None
    seen_agreement: Revision = NEVER_AGREED
