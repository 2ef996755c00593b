"""A decision record reads back as it was, to the last bit of its model; what is damaged or newer is refused by name."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.decisions import codec
from loadmanager.decisions.codec import (
    MEMORY_BYTES,
    BadDecision,
    Column,
    NewerDecision,
    given_memory,
    kept_memory,
    pack,
    restored,
    stored,
    unpack,
)
from loadmanager.decisions.record import DecisionRecord, Memory, Outcome, ordinal, record_of, summary_of
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Candidate, Certificate, Decision, Move, Refused, Stage
from tests.loadmanager.decisions.models import broker, bundle, model, models

A, B = broker("a"), broker("b")
MOVE = Move(bundle(1), A, B, "a is fuller", Stage.OVERLOAD, 0.1, 0.2, 0.9, 0.8, 0.1, 0.2, 3)
DECISION = Decision(
    (MOVE, msgspec.structs.replace(MOVE, destination=None)),
    "one is hot",
    refused=(Refused("a", "paused", "by ann"),),
    candidates=(Candidate(bundle(2), A, B, 0.01, "resting", "12 s"),),
    counts={"resting": 3},
    spread_before=0.5,
    spread_after=0.1,
    certificate=Certificate(0.2, 0.25, "cpu", "had to move"),
)


def record(**more: Any) -> DecisionRecord:
    given: dict[str, Any] = {
        "strategy": "plan",
        "settings": Settings(bundle_rest_s=77.0),
        "model": model({"a": [4, 3], "b": [1]}),
        "policies_revision": 5,
        "outcomes": (Outcome("begun"), Outcome("refused", "it is in flight")),
    }
    return record_of("12.7", A, 1_900_000_000_123, DECISION, **{**given, **more})


def test_a_record_reads_back_as_it_was():
    written = record(memory=kept_memory({"hits": 3}))
    read = codec.decode(codec.encode(written))
    assert read.decision == DECISION
    assert (read.id, read.epoch, read.round, read.leader, read.at_ms) == ("12.7", 12, 7, A, written.at_ms)
    assert (read.strategy, read.policies_revision, read.outcomes) == ("plan", 5, written.outcomes)
    assert read.memory == written.memory
    assert read.model is not None
    assert read.model.at_ms == written.model.at_ms  # type: ignore[union-attr]
    assert read.digest == read.model.digest == written.model.digest  # type: ignore[union-attr]


@pytest.mark.slow
@given(models())
def test_any_model_has_the_same_digest_afterwards(any_model: Any):
    read = codec.decode(codec.encode(record(model=any_model))).model
    assert read is not None
    assert read.digest == any_model.digest
    assert read.bundles.ids == any_model.bundles.ids
    assert read.brokers.ids == any_model.brokers.ids
    assert read.constraints.rules == any_model.constraints.rules
    assert read.constraints.groups == any_model.constraints.groups
    assert read.constraints.spread_over_domains == any_model.constraints.spread_over_domains
    assert dict(read.bundles.left) == dict(any_model.bundles.left)
    for part in ("brokers", "bundles", "constraints"):
        before, after = getattr(any_model, part), getattr(read, part)
        for field in before.__struct_fields__:  # so that a column that the model gains is not forgotten here
            same = np.array_equal(getattr(before, field), getattr(after, field)) if field != "left" else True
            assert same, f"{part}.{field} is not kept"


@given(st.sampled_from(["f8", "i8", "i2", "u4", "b1"]), st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_a_column_keeps_type_and_shape(kind: str, shape: tuple[int, int]):
    array = np.arange(shape[0] * shape[1]).reshape(shape).astype(np.dtype(kind))
    read = unpack(pack(array, kind))
    assert read.dtype == array.dtype
    assert read.shape == shape
    assert (read == array).all()


def test_a_column_that_would_lose_a_value_is_refused():
    with pytest.raises(TypeError):
        pack(np.array([0.5]), "i8")
    with pytest.raises(OverflowError, match="between 1 and 70000 does not fit"):
        pack(np.array([1, 70_000]), "i2")
    for array, kind in ((np.array([2**63], np.uint64), "i8"), (np.array([2**53 + 1], np.int64), "f8")):
        with pytest.raises(OverflowError, match="does not fit"):
            pack(array, kind)


def test_the_settings_of_then_are_read_without_the_environment(monkeypatch: pytest.MonkeyPatch):
    read = codec.decode(codec.encode(record()))
    monkeypatch.setenv("LOADMANAGER_BUNDLE_REST_S", "5")
    monkeypatch.setenv("LOADMANAGER_CLUSTER", "elsewhere")
    settings = read.restored_settings()
    assert settings.bundle_rest_s == 77.0
    assert settings.cluster == "standalone"
    assert settings.tolerance == Settings.model_construct().tolerance


def test_no_secret_and_no_address_is_kept():
    secret = Settings(kafka={"sasl.password": "hunter2"}, zookeeper={"auth": "hunter2"}, advertised="me:1")
    kept = record(settings=secret).settings
    assert "hunter2" not in str(kept)
    assert not {"kafka", "zookeeper", "log", "coordination", "advertised"} & set(kept)


def test_settings_that_this_release_does_not_know_are_passed_over():
    read = msgspec.structs.replace(record(), settings={"bundle_rest_s": 9.0, "of_tomorrow": 1})
    assert codec.decode(codec.encode(read)).restored_settings().bundle_rest_s == 9.0


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 6, 7, 40, -1])
def test_truncated_bytes_are_refused(cut: int):
    with pytest.raises(BadDecision):
        codec.decode(codec.encode(record())[:cut])


@given(st.data())
def test_no_flipped_bit_is_taken(data: st.DataObject):
    octets = bytearray(codec.encode(record(model=None)))
    at = data.draw(st.integers(0, len(octets) - 1))
    octets[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BadDecision):
        codec.decode(bytes(octets))


def reframed(version: int, body: bytes) -> bytes:
    head = b"DR" + bytes((version,))
    return head + zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "big") + body


def test_a_newer_version_is_named_and_not_misread():
    with pytest.raises(NewerDecision, match="format 2; this release reads up to 1"):
        codec.decode(reframed(2, b"whatever"))


@pytest.mark.parametrize(
    "octets",
    [
        None,
        b"",
        b"something else",
        reframed(0, b""),
        reframed(1, b"no zlib"),
        reframed(1, zlib.compress(b"\xc1")),
        reframed(1, zlib.compress(b"\x80")),
        reframed(1, zlib.compress(b"\x80") + b"more"),
        reframed(1, zlib.compress(b"x" * 100)[:-3]),
    ],
)
def test_what_is_no_record_is_refused(octets: bytes | None):
    with pytest.raises(BadDecision):
        codec.decode(octets)


def test_what_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(codec, "PACKED_OUT_BYTES", 1000)
    with pytest.raises(BadDecision, match="does not end"):
        codec.decode(codec.encode(record()))


def test_columns_that_do_not_fit_together_are_refused():
    kept = stored(model({"a": [4, 3], "b": [1]}))
    short = {**kept.bundles, "owner": pack(np.zeros(2, np.int64), "i8")}
    with pytest.raises(BadDecision, match="equally long"):
        restored(msgspec.structs.replace(kept, bundles=short))
    with pytest.raises(BadDecision, match="lacks owner"):
        restored(msgspec.structs.replace(kept, bundles={k: v for k, v in kept.bundles.items() if k != "owner"}))
    with pytest.raises(BadDecision, match="names of its bundles"):
        restored(msgspec.structs.replace(kept, homes=()))
    with pytest.raises(BadDecision, match="cannot have the shape"):
        unpack(Column("f8", (3,), b"12345678"))
    with pytest.raises(BadDecision, match="a column of the type"):
        unpack(Column("O8", (1,), b"12345678"))


def test_a_record_that_is_too_large_goes_without_its_model_and_says_so():
    hot = model({"a": list(np.random.default_rng(1).random(2000)), "b": [1]})
    octets = codec.encode(record(model=hot), 8_000)
    assert len(octets) <= 8_000
    read = codec.decode(octets)
    assert read.model is None
    assert read.without_model.startswith("the model of 2 brokers and 2001 bundles made a record of ")
    assert read.digest == hot.digest
    assert read.decision == DECISION


def test_then_the_memory_goes_and_then_the_words():
    dice = np.random.default_rng(1)
    moves = tuple(msgspec.structs.replace(MOVE, reason=dice.bytes(100).hex()) for _ in range(100))
    decision = msgspec.structs.replace(DECISION, moves=moves)
    many = msgspec.structs.replace(record(model=None), memory=Memory(dice.bytes(20_000)), decision=decision)
    without_memory = codec.decode(codec.encode(many, 25_000))
    assert without_memory.memory.lost.startswith("the record had ")
    assert without_memory.decision == decision
    without_words = codec.decode(codec.encode(many, 8_000))
    assert len(without_words.decision.moves) == 100
    assert {move.reason for move in without_words.decision.moves} == {""}
    with pytest.raises(ValueError, match="decide fewer moves"):
        codec.encode(many, 500)


class Hits(msgspec.Struct, frozen=True):
    """A strategy's memory."""

    by_broker: dict[str, int]
    pairs: tuple[tuple[int, float], ...] = ()


class Counting:
    name = "counting"


@pytest.mark.parametrize(
    "memory",
    [None, {"a": 1, "b": [0.5, None]}, 7, Hits({"a": 3}, ((1, 0.5),)), {"x": np.float64(0.1)}, {"set": {2, 1}}],
)
def test_a_memory_reads_back(memory: object):
    kept = kept_memory(memory)
    assert not kept.lost
    read = given_memory(kept, Counting())
    assert kept_memory(read).data == kept.data
    assert isinstance(memory, dict) or read == memory


def test_arrays_in_a_memory_read_back():
    read = given_memory(kept_memory({"seen": np.array([[0.1, 0.2]])}), Counting())
    assert (read["seen"] == np.array([[0.1, 0.2]])).all()  # type: ignore[index]


def test_a_memory_that_cannot_be_kept_is_told():
    kept = kept_memory({"open": object()})
    assert "cannot be kept" in kept.lost
    with pytest.raises(BadDecision, match="cannot be kept"):
        given_memory(kept, Counting())
    assert f"at most {MEMORY_BYTES}" in kept_memory(b"x" * (MEMORY_BYTES + 1)).lost


@pytest.mark.parametrize("name", ["os:system", "msgspec:Struct", "tests:Nothing", f"{__name__}:Counting"])
def test_a_record_makes_us_load_no_foreign_type(name: str):
    with pytest.raises(BadDecision, match="a type unknown to this release"):
        given_memory(Memory(b"\x80", name), Counting())


def test_ids_are_ordered_as_numbers():
    assert ordinal("9.10") < ordinal("10.2") < ordinal("10.11")
    for bad in ("", "1", "1.", "a.b", "1.2.3", "\u0661.\u0662", "1.2\n"):
        with pytest.raises(ValueError, match=r"write epoch\.round"):
            ordinal(bad)


def test_a_summary_counts_what_was_begun():
    shown = summary_of(record(), 44)
    assert (shown.id, shown.moves, shown.begun, shown.offset, shown.has_model) == ("12.7", 2, 1, 44, True)
