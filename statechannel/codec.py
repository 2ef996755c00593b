"""How a record looks in the log: `LMvv cccccccc {json}`, readable by people, by Spark and by this module.

`vv` is the format version in hex, `cccccccc` the CRC-32 of everything but itself. The frame never changes, whatever the
version; so a damaged record is told from a newer one, and a newer one is never mis-read. The body is the JSON of
`record.Record`; fields that an older release does not know may only be added under a new version.

Version 1 is what the first release wrote. Version 2 adds the action `retire` with `moved_to`, and `algorithm` and
`parts` of a split. A record reads the same in every release: what a version does not have is not read from a record
of it.
"""

from __future__ import annotations

import re
from typing import Any
from zlib import crc32

import msgspec

from statechannel.errors import CorruptRecord, InvariantError, NeedsNewerFormat, NewerRecord, RecordTooLarge
from statechannel.record import MAX_HAND_OFF_BYTES, Action, Record

OLDEST_VERSION = 1
NEWEST_VERSION = 2
"""Every release reads all versions from the oldest to its newest; it writes the newest that all live brokers read."""

_HEAD = re.compile(rb"LM[0-9a-f]{2}")
_HEAD_BYTES = 4
_FRAME_BYTES = 14
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)
_SINCE_VERSION_2 = frozenset({"algorithm", "parts", "moved_to"})
_version_1_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
    msgspec.defstruct(
        "Version1",
        [
            (field.name, field.type) if field.required else (field.name, field.type, field.default)
            for field in msgspec.structs.fields(Record)
            if field.name not in _SINCE_VERSION_2
        ],
    )
)


def encode(record: Record, version: int = NEWEST_VERSION) -> bytes:
    """The bytes of a record in the given format version.

    Raises RecordTooLarge for a hand-off beyond its limit, NeedsNewerFormat where this version has no way to say it.
    """
    if not OLDEST_VERSION <= version <= NEWEST_VERSION:
        raise InvariantError(f"this release writes formats {OLDEST_VERSION} to {NEWEST_VERSION}, not {version}")
    if _hands_off_too_much(record):
        raise RecordTooLarge(f"a hand-off is larger than {MAX_HAND_OFF_BYTES} bytes: hand over a pointer to the state")
    if version < version_of(record):
        raise NeedsNewerFormat(
            f"{record.action} in this form needs record format {version_of(record)}, and the cluster writes {version} "
            "until every live broker reads the newer one: upgrade the others first"
        )
    body = _encoder.encode(record)
    head = b"LM%02x" % version
    return head + _seal(head, body) + body


def version_of(record: Record) -> int:
    """The oldest format that can carry a record."""
    return 2 if record.action is Action.RETIRE or record.moved_to or record.algorithm or record.parts else 1


def _seal(head: bytes, body: bytes) -> bytes:
    return b" %08x " % crc32(body, crc32(head))


def _hands_off_too_much(record: Record) -> bool:
    return any(s.hand_off is not None and len(s.hand_off) > MAX_HAND_OFF_BYTES for s in record.subjects)


def decode(data: bytes | None, newest: int = NEWEST_VERSION) -> Record:
    """The record in these bytes.

    Raises CorruptRecord for anything that is not an intact record of ours, NewerRecord for an intact one of a version
    above `newest`.
    """
    if data is None or _HEAD.match(data) is None:
        raise CorruptRecord("not a record of this channel")
    head, seal, body = data[:_HEAD_BYTES], data[_HEAD_BYTES:_FRAME_BYTES], data[_FRAME_BYTES:]
    if seal != _seal(head, body):  # compared as bytes: int() would forgive blanks, signs and capitals
        raise CorruptRecord("the checksum does not match")
    version = int(head[2:], 16)
    if version < OLDEST_VERSION:
        raise CorruptRecord(f"there is no format {version}")
    if version > newest:
        raise NewerRecord(f"a record of format {version}; this release reads up to {newest}: upgrade this broker")
    record = _read(body, version)
    if _hands_off_too_much(record):
        raise CorruptRecord(f"a hand-off is larger than {MAX_HAND_OFF_BYTES} bytes")
    return record


def _read(body: bytes, version: int) -> Record:
    """The record in a body as every release reads it that knows this version: all must get the same verdict."""
    try:
        record = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if version > 1:
            raise CorruptRecord(f"the body is not a record: {error}") from None
    else:
        if version >= version_of(record):
            return record
    return _read_version_1(body)


def _read_version_1(body: bytes) -> Record:
    """What the first release read: it passed over whatever stood in fields that it did not know."""
    try:
        known = _version_1_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptRecord(f"the body is not a record: {error}") from None
    if known.action is Action.RETIRE:
        raise CorruptRecord(f"format 1 has no action {known.action}")
    return Record(*(getattr(known, name) for name in known.__struct_fields__))
