"""How a record looks in the log: `LMvv cccccccc {json}`, readable by people, by Spark and by this module.

`vv` is the format version in hex, `cccccccc` the CRC-32 of everything but itself. The frame never changes, whatever the
version; so a damaged record is told from a newer one, and a newer one is never mis-read. The body is the JSON of
`record.Record`; fields that an older release does not know may only be added under a new version.
"""

from __future__ import annotations

from zlib import crc32

import msgspec

from statechannel.errors import CorruptRecord, InvariantError, NewerRecord
from statechannel.record import MAX_HAND_OFF_BYTES, Record

OLDEST_VERSION = 1
NEWEST_VERSION = 1
"""Every release reads all versions from the oldest to its newest; it writes the newest that all live brokers read."""

_MAGIC = b"LM"
_FRAME_BYTES = 14
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


def encode(record: Record, version: int = NEWEST_VERSION) -> bytes:
    """The bytes of a record in the given format version."""
    if not OLDEST_VERSION <= version <= NEWEST_VERSION:
        raise InvariantError(f"this release writes formats {OLDEST_VERSION} to {NEWEST_VERSION}, not {version}")
    body = _encoder.encode(record)
    head = b"LM%02x" % version
    return b"%b %08x %b" % (head, crc32(body, crc32(head)), body)


def decode(data: bytes | None, newest: int = NEWEST_VERSION) -> Record:
    """The record in these bytes.

    Raises CorruptRecord for anything that is not an intact record of ours, NewerRecord for an intact one of a version
    above `newest`.
    """
    if data is None or len(data) < _FRAME_BYTES or data[:2] != _MAGIC:
        raise CorruptRecord("not a record of this channel")
    body = data[_FRAME_BYTES:]
    try:
        version, checksum = int(data[2:4], 16), int(data[5:13], 16)
    except ValueError:
        raise CorruptRecord("the frame is damaged") from None
    if crc32(body, crc32(data[:4])) != checksum:
        raise CorruptRecord("the checksum does not match")
    if version > newest:
        raise NewerRecord(f"a record of format {version}; this release reads up to {newest}: upgrade this broker")
    try:
        record = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"the body is not a record: {error}") from None
    if any(s.hand_off is not None and len(s.hand_off) > MAX_HAND_OFF_BYTES for s in record.subjects):
        raise CorruptRecord(f"a hand-off is larger than {MAX_HAND_OFF_BYTES} bytes")
    return record
