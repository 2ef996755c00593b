"""The counter's storage: exactly once, fenced by position and not by bundle, and an audit that sees what it must."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from loadmanager import FencedOut
from loadmanager.demo.counter.ledger import Ledger, LedgerUnavailable
from loadmanager.demo.counter.load import Acknowledged, audit
from loadmanager.demo.counter.traffic import Traffic
from statechannel.law.bundle import FULL_UPPER, Bundle, Key
from statechannel.law.record import Token

NAMESPACE = "demo/counters"
HALF = 0x80000000
WHOLE, LOWER, UPPER = Bundle(NAMESPACE, 0, FULL_UPPER), Bundle(NAMESPACE, 0, HALF), Bundle(NAMESPACE, HALF, FULL_UPPER)
APPLES = Key.parse(f"{NAMESPACE}/apples")
APPLES_HALF = LOWER if APPLES.position in LOWER else UPPER
OTHER_HALF = UPPER if APPLES_HALF is LOWER else LOWER


def token(offset: int) -> Token:
    return Token(0, 1, offset)


@asynccontextmanager
async def ledgers(path: Path, *brokers: str) -> AsyncGenerator[list[Ledger]]:
    opened = [Ledger(path, broker) for broker in brokers]
    for ledger in opened:
        await ledger.__aenter__()
    try:
        yield opened
    finally:
        for ledger in opened:
            await ledger.__aexit__()


async def test_a_repeated_request_gets_its_first_answer_also_from_another_owner(tmp_path: Path):
    async with ledgers(tmp_path / "c.db", "a:1", "b:1") as [a, b]:
        held = await a.open(WHOLE, token(1))
        first = await a.increment(held, APPLES, "r1")
        assert (first.value, first.broker) == (1, "a:1")
        assert await a.increment(held, APPLES, "r1") == first
        assert (await a.increment(held, APPLES, "r2")).value == 2
        taken = await b.open(WHOLE, token(2))
        assert taken.values == {APPLES.full_name: 2}
        assert await b.increment(taken, APPLES, "r1") == first
        assert (await b.increment(taken, APPLES, "r3")).value == 3


async def test_the_old_owner_writes_nothing_after_the_new_one_has_loaded(tmp_path: Path):
    async with ledgers(tmp_path / "c.db", "a:1", "b:1") as [a, b]:
        held = await a.open(WHOLE, token(1))
        await b.open(WHOLE, token(2))
        with pytest.raises(FencedOut):
            await a.increment(held, APPLES, "late")
        with pytest.raises(FencedOut):
            await a.open(WHOLE, token(1))


async def test_a_split_and_a_merge_forget_no_token(tmp_path: Path):
    async with ledgers(tmp_path / "c.db", "a:1", "b:1") as [a, b]:
        parent = await a.open(WHOLE, token(1))
        child = await b.open(APPLES_HALF, token(2))
        with pytest.raises(FencedOut):
            await a.increment(parent, APPLES, "under the parent's token")
        assert (await b.increment(child, APPLES, "r1")).value == 1
        with pytest.raises(FencedOut):
            await a.open(WHOLE, token(1))
        sibling = next(t for i in range(99) if (t := Key.parse(f"{NAMESPACE}/{i}")).position in OTHER_HALF)
        assert (await a.increment(parent, sibling, "r2")).value == 1, "the other half is still the parent's"
        merged = await a.open(WHOLE, token(3))
        assert merged.values == {APPLES.full_name: 1, sibling.full_name: 1}
        with pytest.raises(FencedOut):
            await b.increment(child, APPLES, "under the child's token")


async def test_hundreds_of_increments_share_commits_and_each_counts_once(tmp_path: Path):
    async with ledgers(tmp_path / "c.db", "a:1") as [ledger]:
        held = await ledger.open(WHOLE, token(1))
        answers = await asyncio.gather(*(ledger.increment(held, APPLES, f"r{i % 400}") for i in range(500)))
        assert sorted({answer.value for answer in answers}) == list(range(1, 401))
        assert held.values == {APPLES.full_name: 400}


async def test_hand_off_holds_all_requests_before_it_and_ends_the_writing(tmp_path: Path):
    async with ledgers(tmp_path / "c.db", "a:1", "b:1") as [a, b]:
        held = await a.open(WHOLE, token(1))
        asked = [asyncio.ensure_future(a.increment(held, APPLES, f"r{i}")) for i in range(50)]
        await asyncio.sleep(0)
        values = await a.close(held)
        assert values == {APPLES.full_name: 50}
        assert len([await each for each in asked]) == 50
        with pytest.raises(FencedOut, match="handed over"):
            await a.increment(held, APPLES, "afterwards")
        taken = await b.open(WHOLE, token(2), values)
        assert (await b.increment(taken, APPLES, "next")).value == 51


async def test_several_brokers_may_create_the_file_at_the_same_moment(tmp_path: Path):
    opened = [Ledger(tmp_path / "c.db", f"{i}:1") for i in range(8)]
    await asyncio.gather(*(ledger.__aenter__() for ledger in opened))
    for offset, ledger in enumerate(opened):
        await ledger.open(WHOLE, token(offset))
    await asyncio.gather(*(ledger.__aexit__() for ledger in opened))


async def test_a_write_that_fails_changes_nothing_in_memory(tmp_path: Path):
    path = tmp_path / "c.db"
    async with ledgers(path, "a:1") as [ledger]:
        held = await ledger.open(WHOLE, token(1))
        await ledger.increment(held, APPLES, "r1")
        with closing(sqlite3.connect(path)) as db:
            db.execute("ALTER TABLE counter RENAME TO away")
            with pytest.raises(LedgerUnavailable):
                await ledger.increment(held, APPLES, "r2")
            db.execute("ALTER TABLE away RENAME TO counter")
        assert held.values == {APPLES.full_name: 1}
        assert (await ledger.increment(held, APPLES, "r2")).value == 2


async def test_the_audit_sees_what_was_lost_doubled_or_told_wrongly(tmp_path: Path):
    path = tmp_path / "c.db"
    async with ledgers(path, "a:1") as [ledger]:
        held = await ledger.open(WHOLE, token(1))
        told = [
            Acknowledged(APPLES.full_name, f"r{i}", (await ledger.increment(held, APPLES, f"r{i}")).value)
            for i in range(3)
        ]
        await ledger.increment(held, APPLES, "stored, never acknowledged")
    assert audit(path, told).clean
    assert audit(path, [*told, Acknowledged(APPLES.full_name, "r9", 5)]).lost == 1
    assert audit(path, [*told[:2], Acknowledged(APPLES.full_name, "r2", 7)]).doubled == 1
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE increment SET value = 1 WHERE request_id = 'r1'")
    found = audit(path, [told[0], told[2]])
    assert (found.lost, found.doubled) == (0, 1), "two requests made the same value"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE increment SET value = 2 WHERE request_id = 'r1'")
        db.execute("UPDATE counter SET value = 5")
    assert audit(path, told).doubled == 1, "the counter was counted up without an increment"


def test_the_mix_is_skewed_and_drifts():
    traffic = Traffic(NAMESPACE, topics=100, drift_s=10.0)
    early = [traffic.pick(0.0) for _ in range(2_000)]
    late = [traffic.pick(500.0) for _ in range(2_000)]
    hottest_early, hottest_late = max(set(early), key=early.count), max(set(late), key=late.count)
    assert early.count(hottest_early) > 10 * len(early) / 100
    assert hottest_early != hottest_late
