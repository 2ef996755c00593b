"""The log of decisions on every log: by id, by time, newest first, of a bundle, trimmed by age, and with gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from loadmanager.cluster import journal
from loadmanager.decisions import log as decision_log
from loadmanager.decisions.log import DecisionLog
from loadmanager.decisions.record import DecisionRecord, id_of, record_of
from loadmanager.settings import Settings
from loadmanager.strategies.rebalancing.decision import Decision, Move
from statechannel.errors import LogUnavailable
from statechannel.ports import Payload
from tests.loadmanager.decisions.models import broker, bundle, model

A, B = broker("a"), broker("b")
SETTINGS = Settings()


LATER_MS = 2**52
"""As if the leader's clock ran far ahead: then only the log's counts."""


def decided(
    epoch: int, number: int, moved: int | None = None, with_model: bool = True, at_ms: int = LATER_MS
) -> DecisionRecord:
    moves = () if moved is None else (Move(bundle(moved), A, B, f"round {number}"),)
    found = model({"a": [1], "b": []}) if with_model else None
    return record_of(
        id_of(epoch, number), A, at_ms, Decision(moves, f"reason {number}"), strategy="plan", settings=SETTINGS,
        model=found,
    )  # fmt: skip


def over(log, topic: str, retention_s: float = 3_600.0, wall_ms: Callable[[], int | None] = lambda: 0) -> DecisionLog:
    return DecisionLog(log, wall_ms, topic=topic, retention_s=retention_s)


@pytest.fixture
def topic(logs) -> str:
    return logs.topic("decisions")


@pytest.fixture
async def decisions(logs, topic):
    opened = over(await logs.open(), topic)
    await opened.open()
    return opened


async def took_ms(decisions: DecisionLog, decision_id: str) -> int:
    found = await decisions.get(decision_id)
    assert found is not None
    return found.appended_ms


async def test_a_record_is_found_by_its_id_also_by_another_process(logs, decisions, topic):
    for epoch, number in [(1, 1), (1, 2), (1, 9), (1, 10), (2, 1), (10, 1)]:
        await decisions.append(decided(epoch, number))
    other = over(await logs.open(), topic)
    await other.open()
    for reader in (decisions, other):
        for wanted in ("1.1", "1.10", "1.9", "2.1", "10.1"):
            found = await reader.get(wanted)
            assert found is not None
            assert found.record.id == wanted
            assert found.record.model is not None
            assert found.record.model.digest == found.record.digest
        assert await reader.get("1.3") is None
        assert await reader.get("11.1") is None
    with pytest.raises(ValueError, match=r"epoch\.round"):
        await decisions.get("x")


async def test_a_deposed_leaders_last_record_is_found_among_its_successors(decisions, topic):
    for epoch, number in [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (2, 3)]:
        await decisions.append(decided(epoch, number))
    fresh = over(decisions._journal._log, topic)
    for wanted in ("1.3", "2.1", "2.2", "1.2"):
        found = await fresh.get(wanted)
        assert found is not None, wanted
        assert found.record.id == wanted


async def test_the_newest_come_first_and_page_by_page(decisions):
    for number in range(1, 8):
        await decisions.append(decided(1, number))
    first = await decisions.newest(3)
    assert [each.id for each in first] == ["1.7", "1.6", "1.5"]
    then = await decisions.newest(3, before=first[-1].offset)
    assert [each.id for each in then] == ["1.4", "1.3", "1.2"]
    assert [each.id for each in await decisions.newest(100)][-1] == "1.1"
    assert await decisions.newest(5, before=0) == []


async def test_an_empty_log_has_nothing(decisions):
    assert await decisions.newest(5) == []
    assert await decisions.get("1.1") is None
    assert await decisions.at(2**40) is None


async def test_a_time_finds_the_round_at_or_before_it(decisions):
    await decisions.append(decided(1, 1))
    await asyncio.sleep(0.02)  # two different milliseconds of the log's clock
    await decisions.append(decided(1, 2, with_model=False))
    first, second = await took_ms(decisions, "1.1"), await took_ms(decisions, "1.2")
    for at_ms, wanted in [(first, "1.1"), (second - 1, "1.1"), (second, "1.2"), (second + 10_000, "1.2")]:
        found = await decisions.at(at_ms)
        assert found is not None
        assert found.record.id == wanted
    assert await decisions.at(first - 1) is None
    with_model = await decisions.with_model(second)
    assert with_model is not None
    assert with_model.record.id == "1.1"


async def test_round_counts_from_its_decision_not_from_when_the_log_took_it(decisions):
    await decisions.append(decided(1, 1))
    first = await took_ms(decisions, "1.1")
    await asyncio.sleep(0.02)
    await decisions.append(decided(1, 2, at_ms=first + 1))
    assert await took_ms(decisions, "1.2") > first + 1
    for at_ms, wanted in [(first, "1.1"), (first + 1, "1.2")]:
        found = await decisions.at(at_ms)
        assert found is not None
        assert found.record.id == wanted


async def test_what_cannot_be_read_is_passed_over(decisions, topic):
    await decisions.append(decided(1, 1))
    await decisions._journal._log.append(topic, 0, [Payload(b"x", b"no record"), Payload(None, b"")])
    await decisions.append(decided(1, 2))
    assert [each.id for each in await decisions.newest(10)] == ["1.2", "1.1"]
    fresh = over(decisions._journal._log, topic)
    found = await fresh.get("1.1")
    assert found is not None
    found = await fresh.get("1.2")
    assert found is not None


async def test_what_is_too_old_is_trimmed_and_the_rest_is_found_still(decisions):
    await decisions.append(decided(1, 1))
    await asyncio.sleep(0.02)
    await decisions.append(decided(1, 2))
    second = await took_ms(decisions, "1.2")
    await decisions.trim(second + 3_600_000)
    assert [each.id for each in await decisions.newest(10)] == ["1.2"]
    assert await decisions.get("1.1") is None
    assert await decisions.at(second - 1) is None
    await decisions.append(decided(1, 3))
    assert [each.id for each in await decisions.newest(10)] == ["1.3", "1.2"]


async def test_the_leader_trims_as_it_appends_but_not_each_time(logs, topic, monkeypatch: pytest.MonkeyPatch):
    now_ms: int | None = None
    decisions = over(await logs.open(), topic, 1.0, lambda: now_ms)
    await decisions.open()
    await decisions.append(decided(1, 1))  # the time is not known: nothing is trimmed
    now_ms = await took_ms(decisions, "1.1") + 2_000
    await decisions.append(decided(1, 2))
    assert await decisions.get("1.1") is None
    assert await decisions.newest(1) == []  # a second later by the leader's clock, all of it was too old
    now_ms += 10_000
    monkeypatch.setattr(journal, "TRIM_EVERY_S", 1e9)
    await decisions.append(decided(1, 3))
    assert [each.id for each in await decisions.newest(9)] == ["1.3"]


async def test_large_models_of_quiet_rounds_are_kept_now_and_then(logs, topic, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(decision_log, "LARGE_BYTES", 100)
    decisions, passed_ms = over(await logs.open(), topic, 1e9), 0
    await decisions.open()
    for number, moved, at_ms in [
        (1, None, 0),
        (2, None, 590_000),
        (3, 5, 590_000),
        (4, None, 1_180_000),
        (5, None, 1_190_000),
    ]:
        if decisions._large_s is not None:  # as if this time had passed
            decisions._large_s -= (at_ms - passed_ms) / 1000
        passed_ms = at_ms
        await decisions.append(decided(1, number, moved))
    kept = {each.id: each.has_model for each in await decisions.newest(10)}
    assert kept == {"1.1": True, "1.2": False, "1.3": True, "1.4": False, "1.5": True}
    found = await decisions.get("1.4")
    assert found is not None
    assert found.record.digest
    assert "every 10 min" in found.record.without_model


class Silent:
    """A log that never answers."""

    async def append(self, *_: object) -> None:
        await asyncio.Event().wait()

    async def begins(self, *_: object) -> tuple[int, ...]:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_log_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(journal, "APPEND_TIMEOUT_S", 0.05)
    monkeypatch.setattr(journal, "READ_TIMEOUT_S", 0.05)
    decisions = over(Silent(), "decisions")
    with pytest.raises(LogUnavailable, match=r"within 0\.05 s"):
        await decisions.append(decided(1, 1))
    with pytest.raises(LogUnavailable):
        await decisions.newest(1)
