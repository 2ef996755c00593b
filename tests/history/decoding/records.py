"""Strategies for records of each topic as bytes: valid ones, odd ones, and bytes that were damaged on their way."""

from __future__ import annotations

import json
import zlib
from typing import Any

import msgspec
from hypothesis import strategies as st

from loadmanager.decisions.codec import encode
from loadmanager.decisions.record import DecisionRecord, Outcome
from loadmanager.strategies.rebalancing.decision import Decision, Move, Stage
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId


@st.composite
def mostly(draw: st.DrawFn, good: st.SearchStrategy[Any], odd: st.SearchStrategy[Any]) -> Any:
    """Odd in one of twelve: a record has many fields, and should be good in most of them."""
    return draw(odd if draw(st.sampled_from([False] * 11 + [True])) else good)


names = st.sampled_from(["b1:8080", "ünï:1", "", "a\u0000b"])
beyond = st.sampled_from([-1, 2**63 - 1, 2**63, -(2**63) - 1, 10**40])
whole = mostly(st.integers(0, 10**6), beyond)
some_ms = st.sampled_from([-1, 253_402_300_799_999, 253_402_300_800_000, 10**30])
times_ms = st.one_of(st.integers(0, 4 * 10**12), some_ms)
decimals = st.one_of(st.floats(0, 1e12), st.integers(-5, 10**20), st.sampled_from([0, -0.0, 1.5e300, 5e-324]))
junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.sampled_from(["5", "1.5", "", 1.0, 2.5]), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=4,
)
brokers = mostly(st.tuples(names, st.integers(0, 9)), st.one_of(st.tuples(names, beyond, junk), st.tuples(names)))
positions = mostly(st.integers(0, 2**32 - 1), st.sampled_from([-1, 2**32]))
bundles = mostly(st.tuples(st.sampled_from(["t/n", "ä/b", ""]), positions, positions), st.tuples(names))

_loads = {
    **dict.fromkeys(("keys", "sessions"), whole),
    **dict.fromkeys(
        ("in_rate_msg_s", "out_rate_msg_s", "in_rate_bytes_s", "out_rate_bytes_s", "cpu_percent"), decimals
    ),
}
costs = st.fixed_dictionaries({}, optional={**_loads, "hottest_keys": st.just([["k", 1.0]]), "new": junk})
broker_loads = st.fixed_dictionaries(
    {"broker": brokers, "sampled_ms": times_ms},
    optional={
        **_loads,
        **dict.fromkeys(("memory_percent", "host_cpu_percent", "host_memory_percent"), decimals),
        "bundles": whole,
        "capacity": st.dictionaries(st.sampled_from(["cpu", "memory_bytes", "ö"]), decimals, max_size=2),
        "new": junk,
    },
)
top_bundles = st.fixed_dictionaries(
    {"broker": brokers, "sampled_ms": times_ms},
    optional={
        "bundles": st.lists(st.tuples(bundles, costs), max_size=3),
        "total": costs,
        "count": whole,
        "spread": st.lists(bundles, max_size=1),
        "new": junk,
    },
)


def as_json(values: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[bytes]:
    """As brokers write them, and as others might: with fields of wrong types, spaces, NaN."""
    fields = st.sampled_from([*_loads, "broker", "sampled_ms", "bundles"])
    spoilt = st.tuples(values, fields, junk).map(lambda parts: {**parts[0], parts[1]: parts[2]})
    odd = st.sampled_from(
        [b"", b"null", b"[]", b"{}", b'{"broker":["a",1],"sampled_ms":NaN}', b"\xff\xfe", b"[" * 5_000]
    )
    texts = st.one_of(values, spoilt).map(lambda value: json.dumps(value).encode())
    return mostly(st.one_of(texts, texts.map(lambda text: b" " + text + b"\n")), odd)


@st.composite
def damaged(draw: st.DrawFn, records: st.SearchStrategy[bytes]) -> bytes:
    """Whole, cut off, with something behind it, or with a byte that is another."""
    record = draw(records)
    match draw(st.sampled_from(["whole"] * 5 + ["cut", "more", "other"])):
        case "cut":
            return record[: draw(st.integers(0, len(record)))]
        case "more":
            return record + draw(st.sampled_from([b"x", b"{}", b"\x00", record]))
        case "other" if record:
            at = draw(st.integers(0, len(record) - 1))
            return record[:at] + bytes([draw(st.integers(0, 255))]) + record[at + 1 :]
        case _:
            return record


broker = st.builds(BrokerId, names, st.integers(0, 9))
figures = st.one_of(st.floats(), st.just(0.0))
moves = st.builds(
    Move,
    st.builds(Bundle, st.just("t/n"), st.integers(0, 9), st.integers(10, 2**32 - 1)),
    broker,
    st.one_of(st.none(), broker),
    st.text(max_size=5),
    st.sampled_from(Stage),
    gain=figures,
)
decision_records = st.builds(
    DecisionRecord,
    id=st.one_of(st.just("3.17"), st.just("999999999999999999.0")),
    at_ms=times_ms.filter(lambda at_ms: at_ms < 2**64),
    leader=broker,
    strategy=st.text(max_size=5),
    settings=st.dictionaries(st.text(max_size=3), junk, max_size=2),
    decision=st.builds(
        Decision,
        st.lists(moves, max_size=3).map(tuple),
        st.text(max_size=5),
        spread_before=figures,
        spread_after=figures,
    ),
    policies_revision=mostly(st.integers(-1, 9), st.just(2**63)),
    digest=st.text(max_size=3),
    outcomes=st.lists(st.builds(Outcome, st.sampled_from(["begun", "refused"]), st.text(max_size=3)), max_size=4).map(
        tuple
    ),
)


def sealed(body: bytes, version: int = 1) -> bytes:
    """A frame whose checksum is right, whatever is in it."""
    head = b"DR" + bytes((version,))
    return head + zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "big") + body


decisions = mostly(
    decision_records.map(encode),
    st.one_of(
        st.builds(sealed, st.binary(max_size=5), st.sampled_from([0, 1, 2, 255])),
        junk.map(lambda value: sealed(zlib.compress(msgspec.msgpack.encode(value)))),
    ),
)
