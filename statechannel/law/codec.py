"""The format of a record in the log: `LMvv cccccccc {json}`, readable by people, by Spark and by this module.

`vv` is the format version in hex, `cccccccc` the CRC-32 of everything but itself. The frame is the same in every
version, so a reader tells a damaged record from a newer one and never misreads a newer one. The body is the JSON of
`record.Record`; a field that an older release does not know needs a new version.

Version 1 is that of the first release. Version 2 adds the action `retire` with `moved_to`, and `algorithm` and `parts`
of a split. Version 3 adds `seen_latest` of `delete-namespace`, `amend` and `agree` with `agreement` and
`seen_agreement`, and the `root` of a `lead`. Every release reads a record alike: fields that a version does not have
are ignored in a record of that version.
"""

from __future__ import annotations

import re
from operator import attrgetter
from typing import Any
from zlib import crc32

import msgspec

from statechannel.errors import CorruptRecord, InvariantError, NeedsNewerFormat, NewerRecord, RecordTooLarge
from statechannel.law.record import MAX_HAND_OFF_BYTES, NEVER, UNSAID, Action, BrokerId, Record

OLDEST_VERSION = 1
NEWEST_VERSION = 3
"""Every release reads all versions from the oldest to its newest; it writes the newest that all live brokers read."""

AGREEING_VERSION = DELETES_SAW_VERSION = 3
"""The first version with agreements. A log that has an agreement is no longer written in an older version."""

MAX_DEPTH = 512
"""Nested arrays and objects; our records have 4. A deeper body is corrupt for every reader: without this limit
the verdict would depend on Python's version and the depth of the call stack, and brokers would differ."""

_HEAD = re.compile(rb"LM[0-9a-f]{2}")
_HEAD_BYTES = 4
_FRAME_BYTES = 14
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_encoder = msgspec.json.Encoder()
_FIELDS_SINCE: dict[int, frozenset[str]] = {
    2: frozenset({"algorithm", "parts", "moved_to"}),
    3: frozenset({"seen_latest", "root", "agreement", "seen_agreement"}),
}
_ACTIONS_SINCE: dict[int, frozenset[Action]] = {
    2: frozenset({Action.RETIRE}),
    3: frozenset({Action.AMEND, Action.AGREE}),
}
"""What each version adds. A new field has a default: a record that keeps the default needs no newer version."""

_BLANK = Record("", Action.NOOP, BrokerId("", 0))


class _Reading:
    """Reads one version: without the fields and actions that only later versions have."""

    def __init__(self, version: int) -> None:
        later = range(version + 1, NEWEST_VERSION + 1)
        lacking = frozenset[str]().union(*(_FIELDS_SINCE.get(each, ()) for each in later))
        fields = [field for field in msgspec.structs.fields(Record) if field.name not in lacking]
        self.version = version
        self.unknown = frozenset[Action]().union(*(_ACTIONS_SINCE.get(each, ()) for each in later))
        self.later = attrgetter(*sorted(lacking))
        self.blank = self.later(_BLANK)
        self.decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(
            msgspec.defstruct(
                f"Version{version}",
                [(f.name, f.type) if f.required else (f.name, f.type, f.default) for f in fields],
            )
        )

    def has(self, record: Record) -> bool:
        """Whether the version can carry all of a record."""
        return self.later(record) == self.blank and record.action not in self.unknown

    def read(self, body: bytes) -> Record:
        """The record as a release reads it that knows no later version: fields of later ones are ignored.

        Raises CorruptRecord.
        """
        known = _decoded(self.decoder, body)
        if known.action in self.unknown:
            raise CorruptRecord(f"format {self.version} has no action {known.action}")
        return Record(**{name: getattr(known, name) for name in known.__struct_fields__})


_decoder = msgspec.json.Decoder(Record)
_readings = {version: _Reading(version) for version in range(OLDEST_VERSION, NEWEST_VERSION)}
"""For each version but the newest, which needs none."""


def encode(record: Record, version: int = NEWEST_VERSION) -> bytes:
    """The bytes of a record in the given format version.

    Raises RecordTooLarge for a hand-off beyond its limit, NeedsNewerFormat if this version cannot carry the record.
    """
    record = _sayable(record)
    if not OLDEST_VERSION <= version <= NEWEST_VERSION:
        raise InvariantError(f"this release writes formats {OLDEST_VERSION} to {NEWEST_VERSION}, not {version}")
    if _hands_off_too_much(record):
        raise RecordTooLarge(f"a hand-off is larger than {MAX_HAND_OFF_BYTES} bytes: hand over a pointer to the state")
    if version < NEWEST_VERSION and not _readings[version].has(record):
        raise NeedsNewerFormat(
            f"{record.action} in this form needs record format {version_of(record)}, and the cluster writes {version} "
            "until every live broker reads the newer one: upgrade the others first"
        )
    body = _encoder.encode(record)
    head = b"LM%02x" % version
    return head + _seal(head, body) + body


def version_of(record: Record) -> int:
    """The oldest format that can carry a record."""
    said = _sayable(record)
    return next((version for version, reading in _readings.items() if reading.has(said)), NEWEST_VERSION)


def _sayable(record: Record) -> Record:
    return msgspec.structs.replace(record, seen_latest=NEVER) if record.seen_latest == UNSAID else record


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
    record = _as_said(_read(body, version), version)
    if _hands_off_too_much(record):
        raise CorruptRecord(f"a hand-off is larger than {MAX_HAND_OFF_BYTES} bytes")
    return record


def _read(body: bytes, version: int) -> Record:
    """The record in a body. Every release that knows this version reads it alike, for all must get the same verdict."""
    if version == NEWEST_VERSION:
        return _decoded(_decoder, body)
    reading = _readings[version]
    try:
        record = _decoded(_decoder, body)  # the fast path: hardly any record has fields that its version lacks
    except CorruptRecord:
        return reading.read(body)
    return record if reading.has(record) else reading.read(body)


def _as_said(record: Record, version: int) -> Record:
    """Only since format 3 does a delete say what it saw of every bundle; an older one is judged without it."""
    if version < DELETES_SAW_VERSION and record.action is Action.DELETE_NAMESPACE:
        return msgspec.structs.replace(record, seen_latest=UNSAID)
    return record


def nests_too_deep(text: bytes) -> bool:
    """Whether arrays and objects nest deeper than MAX_DEPTH in a JSON text."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    depth = 0
    for bracket in _STRINGS.sub(b"", text).translate(None, delete=_NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False


def _decoded(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """Raises CorruptRecord."""
    if nests_too_deep(body):
        raise CorruptRecord(f"the body is nested deeper than {MAX_DEPTH}")
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptRecord(f"the body is not a record: {error}") from None
