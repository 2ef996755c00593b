"""Encodes decision records for the log: `DR`, the format's version, a CRC-32, then compressed MessagePack. Pure.

The frame never changes, so that a damaged record can be told from a newer one. A record that is too large for a Kafka
message omits its model, and says so.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from loadmanager.decisions.columns import StoredModel, restored, stored
from loadmanager.decisions.errors import BadDecision, NewerDecision
from loadmanager.decisions.memory import Memory, plain
from loadmanager.decisions.record import DecisionRecord, Outcome, ordinal
from loadmanager.strategies.rebalancing.decision import Decision
from statechannel.law.record import BrokerId

VERSION = 1
LARGEST_BYTES = 900_000
"""A Kafka message has at most 1 MB by default."""

PACKED_OUT_BYTES = 256 << 20
"""No record of ours unpacks to more than this."""

_MAGIC = b"DR"
_HEAD_BYTES = 7
_LEVEL = 6


class Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of version 1."""

    id: str
    at_ms: int
    leader: BrokerId
    strategy: str
    settings: dict[str, Any]
    decision: Decision
    policies_revision: int = -1
    model: StoredModel | None = None
    digest: str = ""
    without_model: str = ""
    memory: Memory = Memory()
    outcomes: tuple[Outcome, ...] = ()


_encoder = msgspec.msgpack.Encoder(enc_hook=plain)
_decoder = msgspec.msgpack.Decoder(Stored)


def encode(record: DecisionRecord, largest_bytes: int = LARGEST_BYTES) -> bytes:
    """The bytes, at most `largest_bytes`; if necessary without the model, then the memory, then the moves' reasons.

    Raises ValueError if even that is too large.
    """
    kept = _stored(record)
    framed = _frame(kept)
    for shorter in (_without_model, _without_memory, _without_words):
        if len(framed) <= largest_bytes:
            return framed
        kept = shorter(kept, len(framed))
        framed = _frame(kept)
    if len(framed) > largest_bytes:
        raise ValueError(f"decision {record.id} has {len(framed)} bytes even without its model: decide fewer moves")
    return framed


def decode(data: bytes | None) -> DecisionRecord:
    """The record in these bytes, with the recorded digest of its model. Raises BadDecision, NewerDecision."""
    kept = _read(data)
    try:
        ordinal(kept.id)
    except ValueError as error:
        raise BadDecision(str(error)) from None
    model = None if kept.model is None else restored(kept.model)
    return DecisionRecord(
        id=kept.id,
        at_ms=kept.at_ms,
        leader=kept.leader,
        strategy=kept.strategy,
        settings=kept.settings,
        decision=kept.decision,
        policies_revision=kept.policies_revision,
        model=model,
        digest=kept.digest,
        without_model=kept.without_model,
        memory=kept.memory,
        outcomes=kept.outcomes,
    )


def _stored(record: DecisionRecord) -> Stored:
    return Stored(
        id=record.id,
        at_ms=record.at_ms,
        leader=record.leader,
        strategy=record.strategy,
        settings=dict(record.settings),
        decision=msgspec.structs.replace(record.decision, memory=None),
        policies_revision=record.policies_revision,
        model=None if record.model is None else stored(record.model),
        digest=record.digest,
        without_model=record.without_model,
        memory=record.memory,
        outcomes=record.outcomes,
    )


def _frame(kept: Stored) -> bytes:
    body = zlib.compress(_encoder.encode(kept), _LEVEL)
    head = _MAGIC + bytes((VERSION,))
    return head + zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "big") + body


def _without_model(kept: Stored, size_bytes: int) -> Stored:
    if kept.model is None:
        return kept
    rows = f"{len(kept.model.broker_ids)} brokers and {kept.model.at.shape[0]} bundles"
    why = f"the model of {rows} made a record of {size_bytes} bytes: it was left out"
    return msgspec.structs.replace(kept, model=None, without_model=why)


def _without_memory(kept: Stored, size_bytes: int) -> Stored:
    lost = Memory(lost=f"the record had {size_bytes} bytes: the strategy's memory was left out")
    return msgspec.structs.replace(kept, memory=lost)


def _without_words(kept: Stored, size_bytes: int) -> Stored:
    moves = tuple(msgspec.structs.replace(move, reason="") for move in kept.decision.moves)
    return msgspec.structs.replace(kept, decision=msgspec.structs.replace(kept.decision, moves=moves))


def _read(data: bytes | None) -> Stored:
    if data is None or len(data) < _HEAD_BYTES or data[:2] != _MAGIC:
        raise BadDecision("it is no decision record")
    version, seal, body = data[2], data[3:_HEAD_BYTES], data[_HEAD_BYTES:]
    if zlib.crc32(body, zlib.crc32(data[:3])).to_bytes(4, "big") != seal:
        raise BadDecision("the checksum of the decision record does not match: it is damaged")
    if version == 0:
        raise BadDecision("there is no format 0 of decision records")
    if version > VERSION:
        raise NewerDecision(
            f"a decision record of format {version}; this release reads up to {VERSION}: ask a newer broker"
        )
    try:
        return _decoder.decode(_unpacked(body))
    except (msgspec.MsgspecError, zlib.error, UnicodeDecodeError, RecursionError) as error:
        raise BadDecision(f"the body of the decision record cannot be read: {error}") from None


def _unpacked(body: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(body, PACKED_OUT_BYTES)
    if not unpacking.eof or unpacking.unused_data:
        raise BadDecision("the body of the decision record does not end where it should")
    return found
