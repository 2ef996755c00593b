"""Checks the brokers' wall clocks by their load reports: each has its sender's time, and the time when Kafka took it.

Kafka's clock is one that no broker sets (`message.timestamp.type=LogAppendTime`). On SQLite an entry has the time of
its writer's clock, so this would show nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing

import msgspec

from loadmanager.model.load import BROKERS_TOPIC, decode_broker_load
from statechannel.audit import Finding, Severity
from statechannel.ports import Log

APART_S = 30.0
"""As the alert LoadManagerClockApart."""
READ_ENTRIES = 5_000
START_S = 10.0


class Report(msgspec.Struct, frozen=True):
    """The times of a broker's last load report, in ms: by the broker's clock, and by the log's."""

    sampled_ms: int
    appended_ms: int


async def audit_broker_clocks(log: Log) -> AsyncIterator[Finding]:
    """Findings about the clocks of brokers that report their load. Creates nothing. Raises LogUnavailable."""
    try:
        await log.start(START_S)
        if await log.has_topic(BROKERS_TOPIC):
            for finding in judge_clocks(await _last_reports(log)):
                yield finding
    finally:
        await log.close()


async def _last_reports(log: Log) -> dict[str, Report]:
    start = max((await log.begins(BROKERS_TOPIC))[0], (await log.ends(BROKERS_TOPIC))[0] - READ_ENTRIES)
    found: dict[str, Report] = {}
    async with aclosing(log.read(BROKERS_TOPIC, 0, start)) as batches:
        async for batch in batches:
            for entry in batch:
                name = (entry.key or b"").decode(errors="replace")
                found.pop(name, None)
                if entry.value is not None:
                    try:
                        found[name] = Report(decode_broker_load(entry.value).sampled_ms, entry.appended_ms)
                    except msgspec.MsgspecError:
                        continue
    return found


def judge_clocks(reports: Mapping[str, Report]) -> Iterator[Finding]:
    """One finding for each clock that differs from the log's, or one if none does."""
    apart = {name: (each.sampled_ms - each.appended_ms) / 1000 for name, each in sorted(reports.items())}
    wrong = {name: ahead_s for name, ahead_s in apart.items() if abs(ahead_s) > APART_S}
    for name, ahead_s in wrong.items():
        way = "ahead of" if ahead_s > 0 else "behind"
        text = f"the clock of {name} was {abs(ahead_s):.0f} s {way} Kafka's at its last load report"
        advice = f"correct it: within {APART_S:.0f} s is fine; brokers a minute apart from others trim nothing"
        yield Finding("clocks of brokers", Severity.WARNING, text, advice)
    if apart and not wrong:
        text = f"{len(apart)} within {APART_S:.0f} s of Kafka's, at their last load reports"
        yield Finding("clocks of brokers", Severity.OK, text)
