"""What a log takes and gives, and what brokers write to the channel: one frozen value per record.

A record names an action, its actor and role, the bundles it concerns and, for each, the revision that its author saw.
`transitions.py` decides whether it counts, when it is read back.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

from statechannel.errors import InvalidName
from statechannel.law.agreement import NEVER_AGREED, Agreement
from statechannel.law.bundle import Bundle, Position


class Payload(msgspec.Struct, frozen=True, gc=False):
    """One append: an optional key, and a value (None deletes the key of a compacted topic)."""

    key: bytes | None
    value: bytes | None


class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """One entry read: the payload, its partition and offset, and when the log took it (the log's wall clock, ms)."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    appended_ms: int


MAX_HAND_OFF_BYTES = 64 * 1024
NEVER = -1
"""The revision of what was never written: a record whose author saw nothing has it."""
UNSAID = -2
"""The value in a record read from a format without this field. No record can carry it."""

BUNDLES_A_RECORD = 125
"""The most bundles that an author puts into one record: each reader applies a record in one step of its loop.

A habit of authors, which the law does not check.
"""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Revision = Annotated[int, msgspec.Meta(ge=NEVER, le=2**63 - 1)]
"""An offset, or NEVER. Decoding refuses other numbers, since a replica must be able to hash and store it."""


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
            raise InvalidName(f"{text!r} is not a broker incarnation; write host:port#7")
        return cls(name, int(number))


class Token(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """A fencing token: where in the log the present ownership of a bundle began. Only grows.

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
            raise InvalidName(f"{text!r} is not a valid fencing token") from None
        token = cls(generation, partition, offset)
        if str(token) != text:
            raise InvalidName(f"{text!r} is not a valid fencing token; write it as {token}")
        return token


class Action(StrEnum):
    """What a record does; the rows of the law are in `transitions.py`."""

    __hash__ = str.__hash__  # an enumeration's own hash is slow Python, and every step is looked up by these

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

    __hash__ = str.__hash__  # as in `Action`

    BROKER = "broker"
    LEADER = "leader"
    ADMIN = "admin"


class Subject(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One bundle of a record, the revision its author saw, and the hand-off to the next owner."""

    bundle: Bundle
    seen: Revision
    hand_off: bytes | None = None


class Record(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One entry of the channel.

    `id` is unique per written record and the same in every copy of it. `to` is the destination of `own`, `transfer`
    and the leader's `release`. `boundaries` are the positions of `create-namespace` (all of them), `split` and
    `create` (only those between the parent's ends). A `split` without them says how the holder finds them: `algorithm`,
    and into how many `parts`. `seen_namespace` is the compare-and-set of namespace records. `seen_latest` is that of
    `delete-namespace`: the last change of any bundle that its author saw (UNSAID in older formats). `moved_to` is where
    a `retire`d log goes on. `amend` and `agree` are about `agreement`; `seen_agreement` is the compare-and-set of both
    and of `lead`. `root` is the coordination root in which the author of a `lead` was elected. `at_ms` is the writer's
    wall clock, for people, history and `moves.py`. `cause` ties the record to the decision that asked for it, and
    `reason` says in words why.
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
