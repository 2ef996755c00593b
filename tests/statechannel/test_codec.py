"""What a record looks like in the log, and that damage, strangers and newer releases are told apart."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statechannel.errors import (
    CorruptRecord,
    InvariantError,
    NeedsNewerFormat,
    NewerRecord,
    RecordTooLarge,
    StateChannelError,
)
from statechannel.law import codec
from statechannel.law.agreement import Agreement
from statechannel.law.bundle import FULL_UPPER, Bundle
from statechannel.law.record import MAX_HAND_OFF_BYTES, NEVER, UNSAID, Action, BrokerId, Record, Role, Subject
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change

from . import record_log

RECORDED = Path(__file__).parent / "recorded"
AGREEING = {Action.AMEND, Action.AGREE}
ACTIONS_OF = {1: set(Action) - AGREEING - {Action.RETIRE}, 2: set(Action) - AGREEING, 3: set(Action)}
FIELDS_SINCE = {2: {"algorithm", "parts", "moved_to"}, 3: {"seen_latest", "root", "agreement", "seen_agreement"}}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
offsets = st.integers(NEVER, 2**53)
positions = st.integers(0, FULL_UPPER)
brokers = st.builds(BrokerId, texts, st.integers(0, 2**40))
subjects = st.builds(
    Subject, st.builds(Bundle, texts, positions, positions), offsets, st.none() | st.binary(max_size=40)
)
lengths_s = st.floats(0, 1e6)
agreements = st.builds(Agreement, texts, lengths_s, lengths_s, lengths_s, st.integers(1, 1_000))
records = st.builds(
    Record,
    id=texts,
    action=st.sampled_from(Action),
    actor=brokers,
    role=st.sampled_from(Role),
    epoch=st.integers(0, 2**62),
    subjects=st.lists(subjects, max_size=3).map(tuple),
    to=st.none() | brokers,
    namespace=st.none() | texts,
    seen_namespace=offsets,
    boundaries=st.lists(positions, max_size=4).map(tuple),
    cluster=st.none() | texts,
    at_ms=st.integers(0, 2**45),
    cause=texts,
    reason=texts,
    algorithm=texts,
    parts=st.integers(0, 2**40),
    moved_to=texts,
    seen_latest=offsets,
    root=texts,
    agreement=st.none() | agreements,
    seen_agreement=offsets,
)
SAMPLE = Record(
    "r-1",
    Action.RELEASE,
    BrokerId("a:6650", 3),
    subjects=(Subject(Bundle("shop/orders", 0, 0x80000000), 17, b"cursor=42"),),
    reason="geht über an b",
)
NEEDING = [
    (2, Record("r", Action.RETIRE, BrokerId("a", 1), Role.ADMIN)),
    (2, Record("r", Action.RETIRE, BrokerId("a", 1), Role.ADMIN, moved_to="bundle-state-2")),
    (2, Record("r", Action.SPLIT, BrokerId("a", 1), algorithm="by-load")),
    (2, Record("r", Action.SPLIT, BrokerId("a", 1), parts=2)),
    (3, Record("r", Action.AMEND, BrokerId("a", 1), Role.ADMIN)),
    (3, Record("r", Action.AGREE, BrokerId("a", 1))),
    (3, Record("r", Action.LEAD, BrokerId("a", 1), Role.LEADER, 1, root="r")),
    (3, Record("r", Action.LEAD, BrokerId("a", 1), Role.LEADER, 1, seen_agreement=0)),
    (3, Record("r", Action.DELETE_NAMESPACE, BrokerId("a", 1), Role.ADMIN, namespace="t/n", seen_latest=0)),
]
"""Records, and the oldest format that can say them."""


def framed(body: bytes, head: bytes = b"LM01") -> bytes:
    """A frame with a right checksum around any body."""
    return b"%b %08x %b" % (head, crc32(body, crc32(head)), body)


@given(records)
def test_a_record_comes_back_as_it_was_written(record: Record):
    assert codec.decode(codec.encode(record)) == record


def test_a_record_is_one_readable_line():
    lead = Record("r-1", Action.LEAD, BrokerId("a:6650", 3), Role.LEADER, 7)
    body = b'{"id":"r-1","action":"lead","actor":["a:6650",3],"role":"leader","epoch":7}'
    assert codec.encode(lead, 1) == b"LM01 b2b688e3 " + body
    assert codec.encode(lead, 2) == b"LM02 fb005de0 " + body
    assert b"\n" not in codec.encode(SAMPLE)


def test_each_single_flipped_bit_is_noticed():
    intact = codec.encode(SAMPLE)
    for bit in range(len(intact) * 8):
        damaged = bytearray(intact)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptRecord, NewerRecord)):
            codec.decode(bytes(damaged))


def test_each_truncation_and_each_appended_byte_is_noticed():
    intact = codec.encode(SAMPLE)
    for damaged in [*(intact[:length] for length in range(len(intact))), *(intact + bytes([b]) for b in range(256))]:
        with pytest.raises(CorruptRecord):
            codec.decode(damaged)


@given(records, st.data())
def test_overwritten_bytes_never_make_another_record(record: Record, data: st.DataObject):
    intact = codec.encode(record)
    start = data.draw(st.integers(0, len(intact) - 1))
    damaged = intact[:start] + (patch := data.draw(st.binary(min_size=1, max_size=8))) + intact[start + len(patch) :]
    if damaged == intact:
        return
    with pytest.raises((CorruptRecord, NewerRecord)):
        codec.decode(damaged)


@given(st.binary(max_size=200) | st.binary(max_size=60).map(framed))
def test_foreign_bytes_are_corrupt_whatever_they_are(data: bytes):
    with pytest.raises(CorruptRecord):
        codec.decode(data)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"id":"\xff","action":"noop","actor":["a",1]}',
        b'{"id":"\\ud800","action":"noop","actor":["a",1]}',
        b'{"id":"1","action":"dance","actor":["a",1]}',
        b'{"id":"1","action":"noop","actor":["a"]}',
        b'{"id":"1","action":"noop","actor":["a",-1]}',
        b'{"id":"1","action":"lead","actor":["a",1],"epoch":9223372036854775808}',
        b'{"id":"1","action":"own","actor":["a",1],"subjects":[[["t/n",0,4294967296],3]]}',
        b'{"id":"1","action":"own","actor":["a",1],"subjects":[[["t/n",0,9],-2]]}',
        b'{"id":"1","action":"own","actor":["a",1],"subjects":[[["t/n",0,9],3,"not base64!"]]}',
        b'{"id":"1","action":"noop","actor":["a",1],"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
)
def test_an_intact_frame_around_nonsense_is_corrupt_and_nothing_worse(body: bytes):
    with pytest.raises(CorruptRecord):
        codec.decode(framed(body))


def nested(depth: int) -> bytes:
    """A record with a field that nobody knows, so deep inside the record."""
    field = b"[" * (depth - 1) + b'"]]]{\\"[["' + b"]" * (depth - 1)
    return framed(b'{"id":"1","action":"noop","actor":["a",1],"x":' + field + b"}")


def test_how_deep_a_body_may_be_is_a_number_and_no_matter_of_the_call_stack():
    def at(frames: int, data: bytes) -> Record:
        return codec.decode(data) if frames == 0 else at(frames - 1, data)

    for frames in (0, 300):
        assert at(frames, nested(codec.MAX_DEPTH)).action is Action.NOOP
        with pytest.raises(CorruptRecord, match="nested deeper than 512"):
            at(frames, nested(codec.MAX_DEPTH + 1))


@pytest.mark.parametrize("data", [None, b"", b"LM", b"LM01", b"LM01 00000000", b"LM01 00000000 ", b"XX01 00000000 {}"])
def test_what_is_too_short_or_of_somebody_else_is_corrupt(data: bytes | None):
    with pytest.raises(CorruptRecord):
        codec.decode(data)


def test_an_intact_record_of_a_newer_version_says_so_whatever_its_body():
    for body in (b'{"id":"1"}', b"\x00\x01 a binary format"):
        with pytest.raises(NewerRecord, match=r"format 4.*upgrade"):
            codec.decode(framed(body, b"LM04"))


def test_a_damaged_record_of_a_newer_version_is_corrupt_and_stops_nobody():
    with pytest.raises(CorruptRecord):
        codec.decode(framed(b"{}", b"LM04")[:-1] + b"]")


def test_reader_limited_to_less_treats_the_present_version_as_newer():
    with pytest.raises(NewerRecord):
        codec.decode(codec.encode(SAMPLE), newest=codec.NEWEST_VERSION - 1)


def test_there_is_no_version_below_the_oldest():
    with pytest.raises(CorruptRecord):
        codec.decode(framed(codec.encode(SAMPLE)[14:], b"LM00"))


@pytest.mark.parametrize("version", [codec.OLDEST_VERSION - 1, codec.NEWEST_VERSION + 1])
def test_a_version_that_this_release_does_not_know_is_not_written(version: int):
    with pytest.raises(InvariantError):
        codec.encode(SAMPLE, version)


def handing_off(size: int) -> Record:
    return Record("r", Action.RELEASE, BrokerId("a", 1), subjects=(Subject(Bundle("t/n", 0, 9), 1, bytes(size)),))


def test_a_hand_off_of_just_the_limit_travels():
    assert codec.decode(codec.encode(handing_off(MAX_HAND_OFF_BYTES))) == handing_off(MAX_HAND_OFF_BYTES)


def test_larger_hand_off_is_refused_before_writing_and_corrupt_if_written():
    too_large = handing_off(MAX_HAND_OFF_BYTES + 1)
    with pytest.raises(RecordTooLarge, match="hand over a pointer"):
        codec.encode(too_large)
    with pytest.raises(CorruptRecord, match="hand-off"):
        codec.decode(framed(codec._encoder.encode(too_large)))


# --- what older versions cannot say


def test_the_version_is_the_oldest_that_can_carry_the_record():
    assert codec.version_of(SAMPLE) == 1
    for version, newer in NEEDING:
        assert codec.version_of(newer) == version
        assert codec.decode(codec.encode(newer, version)) == newer


@pytest.mark.parametrize(("version", "newer"), NEEDING)
def test_what_the_agreed_version_cannot_carry_is_not_written(version: int, newer: Record):
    for older in range(codec.OLDEST_VERSION, version):
        with pytest.raises(NeedsNewerFormat, match=rf"needs record format {version}.*writes {older}.*upgrade"):
            codec.encode(newer, older)


def head(version: int) -> bytes:
    return b"LM%02x" % version


def as_its_release_read_it(body: bytes, version: int) -> Record:
    """A release's decoder knew the fields and actions of its own version; fields that it did not know it left out."""
    later = {name for since, names in FIELDS_SINCE.items() if since > version for name in names}
    known = [(f.name, f.type, f.default) if f.default is not msgspec.NODEFAULT else (f.name, f.type)
             for f in msgspec.structs.fields(Record) if f.name not in later]  # fmt: skip
    read = msgspec.structs.asdict(msgspec.json.decode(body, type=msgspec.defstruct("Then", known)))
    if read["action"] not in ACTIONS_OF[version]:
        raise CorruptRecord("an unknown action")
    record = Record(**read)
    unsaid = version < 3 and record.action is Action.DELETE_NAMESPACE
    return msgspec.structs.replace(record, seen_latest=UNSAID) if unsaid else record


@pytest.mark.parametrize("version", ACTIONS_OF)
@given(record=records)
def test_each_release_reads_an_older_frame_as_the_older_release_did(version: int, record: Record):
    body = codec._encoder.encode(record)
    if record.action not in ACTIONS_OF[version]:
        with pytest.raises(CorruptRecord, match=f"format {version} has no action {record.action}"):
            codec.decode(framed(body, head(version)))
    else:
        assert codec.decode(framed(body, head(version))) == as_its_release_read_it(body, version)


@pytest.mark.parametrize(
    ("since", "field"),
    [(2, b'"algorithm":5'), (2, b'"parts":-1'), (2, b'"moved_to":null'), (3, b'"seen_latest":"all"'), (3, b'"root":7')],
)
def test_field_unknown_to_a_version_may_hold_anything_in_its_frame(since: int, field: bytes):
    body = b'{"id":"1","action":"noop","actor":["a",1],' + field + b"}"
    for version in ACTIONS_OF:
        if version < since:
            assert codec.decode(framed(body, head(version))) == as_its_release_read_it(body, version)
        else:
            with pytest.raises(CorruptRecord):
                codec.decode(framed(body, head(version)))


# --- recorded logs


def recorded_lines(version: int) -> list[tuple[int, int, str, bytes]]:
    lines = (RECORDED / f"v{version}.log").read_text(encoding="utf-8").splitlines()
    fields = (line.split(" ", 3) for line in lines if not line.startswith("#"))
    return [(int(partition), int(offset), verdict, payload.encode()) for partition, offset, verdict, payload in fields]


def recorded_digests(version: int) -> list[str]:
    lines = (RECORDED / f"v{version}.log").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("# digest ") for line in lines if line.startswith("# digest ")]


@pytest.mark.parametrize("version", range(codec.OLDEST_VERSION, codec.NEWEST_VERSION + 1))
def test_recorded_log_of_each_version_gives_the_same_verdicts_and_table(version: int):
    digests = recorded_digests(version)
    table = OwnershipTable(len(digests))
    for partition, offset, verdict, payload in recorded_lines(version):
        try:
            outcome = table.replay(partition, offset, codec.decode(payload))
        except CorruptRecord:
            table.skip(partition, offset)
            assert verdict == "corrupt"
        else:
            assert verdict == ("change" if isinstance(outcome, Change) else outcome.reason)
    table.check_invariants()
    assert [table.digest(p) for p in range(len(digests))] == digests


@pytest.mark.parametrize("version", range(codec.OLDEST_VERSION, codec.NEWEST_VERSION + 1))
def test_recorded_log_of_each_version_has_all_actions_and_the_same_bytes(version: int):
    seen: set[Action] = set()
    for _, _, verdict, payload in recorded_lines(version):
        if verdict != "corrupt":
            record = codec.decode(payload)
            seen.add(record.action)
            assert codec.encode(record, version) == payload
    assert seen == ACTIONS_OF[version]


def test_the_recorded_log_of_the_newest_version_is_what_its_script_writes():
    written = "\n".join([*record_log.lines(record_log.history()), ""])
    assert (RECORDED / f"v{codec.NEWEST_VERSION}.log").read_text(encoding="utf-8") == written


def test_the_recorded_log_of_version_2_has_each_way_to_split():
    decoded = [codec.decode(payload) for _, _, verdict, payload in recorded_lines(2) if verdict == "change"]
    splits = [(bool(r.boundaries), bool(r.algorithm), bool(r.parts)) for r in decoded if r.action is Action.SPLIT]
    assert set(splits) == {(False, False, False), (True, False, False), (False, True, False), (False, True, True)}


def test_errors_of_the_codec_belong_to_the_one_tree():
    assert all(
        issubclass(e, StateChannelError)
        for e in (CorruptRecord, NewerRecord, NeedsNewerFormat, RecordTooLarge, InvariantError)
    )
