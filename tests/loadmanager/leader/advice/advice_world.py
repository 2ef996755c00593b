"""Leaders that follow advice, on one real log and a clock that a test turns; their rounds say what settings deserve.

A leader can be killed or held up at any of its writes.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from loadmanager.errors import Conflict
from loadmanager.leader.advice.changes import SettingsApplier
from loadmanager.leader.advice.core import Sample
from loadmanager.leader.advice.follower import Following, Rounds
from loadmanager.leader.plans.advice import (
    Advice,
    Change,
    ChangeSettings,
    Expected,
    Measure,
    Provenance,
    Ruler,
    SettingChange,
    sealed,
)
from loadmanager.leader.plans.plan import Plan, PlanState
from loadmanager.leader.plans.store import PlanStore, publish
from loadmanager.leader.plans.table import OVER, By, PlanAction
from loadmanager.leader.rebalancing.moves import Counts
from loadmanager.settings import Settings
from loadmanager.settings.live import LiveSettings
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.law.table import OwnershipTable
from statechannel.ports import Log, Payload, TopicSpec

CLUSTER = "test"
START_MS = 1_000_000_000
MEASURE_MS = 100_000
ROUND_MS = 5_000
HOUR_MS = 3_600_000
WAIT_S = 30.0
SPREADS = {0.1: 0.5, 0.2: 0.2, 0.05: 0.9, 0.15: 0.5}
"""What the rounds find under each tolerance."""

_nonces = itertools.count()


class Clock:
    """Wall time, in ms."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


def tolerance(was: float | str, to: float) -> ChangeSettings:
    return ChangeSettings((SettingChange("balancing_tolerance", was, to),))


def advice(change: Change, at_ms: int = START_MS, **changes: Any) -> Advice:
    """Made of the hour before."""
    made = Advice(
        change,
        "replay found it better",
        Expected(Measure.SPREAD, before=0.5, after=0.3, low=0.1, high=0.3),
        Provenance(CLUSTER, at_ms - HOUR_MS, at_ms, "history advise", "0.1.0", "replay", {"decision": 3}),
        expires_ms=at_ms + 24 * HOUR_MS,
    )
    return sealed(msgspec.structs.replace(made, **changes))


class Killed(Exception):
    """This process is no more."""


class Fault:
    """What happens to a process at its n-th write: `before` or `after` it is killed, or `held` until `go`."""

    def __init__(self, at: int = -1, what: str = "") -> None:
        self.at, self.what = at, what
        self.writes = 0
        self.reached = asyncio.Event()
        self.go = asyncio.Event()


class FaultyLog:
    """The log as one process sees it."""

    def __init__(self, log: SqliteLog, fault: Fault) -> None:
        self._log, self.fault = log, fault

    async def append(self, topic: str, partition: int, payloads: Sequence[Payload]) -> None:
        fault = self.fault
        mine = fault.writes == fault.at
        fault.writes += 1
        if mine:
            fault.reached.set()
        if mine and fault.what == "held":
            await fault.go.wait()
        if mine and fault.what == "before":
            raise Killed
        await self._log.append(topic, partition, payloads)
        if mine and fault.what == "after":
            raise Killed

    async def open_topic(self, spec: TopicSpec) -> int:
        return await self._log.open_topic(spec)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class Process:
    """A broker that may lead: its settings, its plans, its look at advice in a term."""

    def __init__(self, log: SqliteLog, clock: Clock, number: int, fault: Fault, settings: Settings) -> None:
        seen: Log = FaultyLog(log, fault)  # type: ignore[assignment]
        self.fault = fault
        self.clock = clock
        self.notes: list[str] = []
        self.live = LiveSettings(settings, seen, wall_ms=clock, nonce=f"p{next(_nonces)}", note=self.notes.append)
        self.plans = PlanStore(seen, lambda: OwnershipTable(1), clock, nonce=f"s{next(_nonces)}")
        self.held_up = ""
        self.counts = Counts()
        self.rounds: Rounds = self._rounds
        """The rounds that its following reads; a test may set others."""
        self.following = Following(
            self.plans,
            {"settings": SettingsApplier(self.live)},
            lambda begin_ms, end_ms, ruler: self.rounds(begin_ms, end_ms, ruler),
            lambda: self.live.current,
            lambda: self.held_up,
            clock,
            f"leader {number}",
            self.notes.append,
            self.counts,
            {},
        )

    async def publish(self, of: Advice) -> Plan:
        return await publish(self.plans, of, CLUSTER, self.clock())

    async def review(self, plan_id: str, action: PlanAction, author: str, reason: str) -> Plan:
        await self.plans.refresh()
        return await self.plans.act(plan_id, action, By.OPERATOR, author, reason)

    async def _rounds(self, begin_ms: int, end_ms: int, ruler: Ruler) -> list[Sample]:
        """One every ROUND_MS since the world began, each with what the tolerance of then deserves, and some noise."""
        found: list[Sample] = []
        for number in range((min(end_ms, self.clock()) - START_MS) // ROUND_MS + 200):
            at_ms = START_MS + (number - 200) * ROUND_MS
            if begin_ms <= at_ms < end_ms:
                found.append(Sample(at_ms, SPREADS[self._tolerance_at(at_ms)] + 0.02 * ((number * 7) % 5 - 2)))
        return found

    def _tolerance_at(self, at_ms: int) -> float:
        value: object = self.live.start.tolerance
        for version in self.live.history("balancing_tolerance"):
            if version.at_ms <= at_ms:
                value = self.live.start.tolerance if version.value is None else version.value.value
        assert isinstance(value, float)
        return value

    def state(self, of: Advice) -> PlanState:
        return self.plans.get(of.id).state

    def changes(self) -> list[tuple[str, object]]:
        """Who changed the tolerance to what."""
        history = self.live.history("balancing_tolerance")
        return [(each.author, None if each.value is None else each.value.value) for each in history]

    async def until_over(self, of: Advice, looks: int = 60) -> PlanState:
        """Look again and again while time passes."""
        for _ in range(looks):
            with suppress(Conflict):  # another leader was faster: the next look goes on from there
                await self.following.tick()
            if self.state(of) in OVER:
                return self.state(of)
            self.clock.now_ms += ROUND_MS
        raise AssertionError(f"{self.state(of)}: {self.following.waiting}: {self.notes}")


class Place:
    """Where processes live: one log, one clock."""

    def __init__(self, log: SqliteLog, stack: AsyncExitStack) -> None:
        self.log = log
        self.clock = Clock()
        self._stack = stack

    async def process(self, number: int = 1, fault: Fault | None = None, **settings: Any) -> Process:
        """Start one, which has read everything."""
        chosen = {"cluster": CLUSTER, "advice_measure_s": MEASURE_MS / 1000, **settings}
        made = Process(self.log, self.clock, number, fault or Fault(), Settings(**chosen))
        await made.live.open()
        running = await self._stack.enter_async_context(asyncio.TaskGroup())
        tasks = [running.create_task(made.live.run()), running.create_task(made.plans.documents.run())]
        self._stack.callback(lambda: [task.cancel() for task in tasks])
        assert await made.live.wait_ready(WAIT_S)
        assert await made.plans.documents.wait_ready(WAIT_S)
        return made


@asynccontextmanager
async def place(directory: Path) -> AsyncGenerator[Place]:
    log = SqliteLog(directory / "log.db")
    await log.start(WAIT_S)
    try:
        async with AsyncExitStack() as stack:
            yield Place(log, stack)
    finally:
        await log.close()
