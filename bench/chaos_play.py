"""One play: a group under one protocol reads a flow of records while its members fail; then it is read to the end."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from bench.chaos_besides import Besides
from bench.chaos_commits import GroupHistory
from bench.chaos_faults import KILL, LOSS, Fault, plan
from bench.chaos_resets import backward, stored, undone
from bench.chaos_ways import Ways
from bench.figures import emit
from bench.group_reads import Counts, count, lost
from bench.groups import NAMES, NAMESPACE, Flow, Member, gathered, make_topic, until

MEMBERS, PARTITIONS, RATE_S = 4, 8, 400
SESSION_S = 3.0
LENGTH_S = 21.0
"""No fault begins later."""
BEGIN_S, END_S = 60.0, 90.0
"""Within so long everybody reads, and at the end everything was read."""
STEADY_S = 1.0


class Place(NamedTuple):
    """By what addresses a member reaches Kafka and the coordinators."""

    kafka: str
    ways: Mapping[str, int]
    """Ports of brokers to ports of the member's proxies."""


class Setting(NamedTuple):
    """What all plays share. `kafka` is where nothing is cut."""

    kafka: str
    admin_urls: list[str]
    places: Sequence[Place]
    ways: Ways


class Play:
    """A group of `MEMBERS` processes."""

    def __init__(self, protocol: str, setting: Setting) -> None:
        ours = uuid.uuid4().hex[:8]
        self.protocol, self.setting = protocol, setting
        self.topic = f"chaos-{ours}"
        self.group = f"{NAMESPACE}/{ours}" if protocol == "ours" else f"group-{ours}"
        self.all: list[Member] = []
        self.members: dict[int, Member] = {}
        """Who is at which place now."""
        self.killed: set[int] = set()

    async def join(self, place: int) -> None:
        """A new process at this place."""
        to = self.setting.places[place]
        told = {
            "protocol": self.protocol, "kafka": to.kafka, "ways": to.ways, "topic": self.topic, "group": self.group,
            "brokers": self.setting.admin_urls, "session_s": SESSION_S, "kafka_settings": {"log_level": 2},
        }  # fmt: skip
        self.members[place] = await Member.start(told, len(self.all))
        self.all.append(self.members[place])

    async def renew(self) -> None:
        """All members are killed, and others come. Returns when these read what there is to read."""
        for place in range(MEMBERS):
            self.killed.add(self.members[place].number)
            await self.members[place].end(signal.SIGKILL)
        for place in range(MEMBERS):
            await self.join(place)
        await self.everybody_reads(PARTITIONS - 1)

    async def everybody_reads(self, partitions: int = PARTITIONS) -> None:
        """So many partitions are read, and each member reads some. Raises TimeoutError."""
        async with asyncio.timeout(BEGIN_S):
            since_s = time.time()
            while time.time() - since_s < STEADY_S:
                await asyncio.sleep(0.1)
                reads = [each.reads_since(time.time() - 0.5) for each in self.members.values()]
                if len(set().union(*reads)) < partitions or not all(reads):
                    since_s = time.time()

    async def suffer(self, fault: str, faults: Sequence[Fault]) -> None:
        """All faults, one after another; returns when the last one is over."""
        begin_s = time.monotonic()
        for each in faults:
            await asyncio.sleep(max(0.0, begin_s + each.at_s - time.monotonic()))
            await asyncio.gather(*(self._fail(fault, victim, each.for_s) for victim in each.victims))

    async def _fail(self, fault: str, victim: int, for_s: float) -> None:
        member = self.members[victim]
        if fault == LOSS:
            self.setting.ways.cut(victim)
            await asyncio.sleep(for_s)
            self.setting.ways.heal(victim)
        elif fault == KILL:
            self.killed.add(member.number)
            await member.end(signal.SIGKILL)
            await asyncio.sleep(for_s)
            await self.join(victim)
        else:
            member.process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(for_s)
            member.process.send_signal(signal.SIGCONT)

    async def read_to_the_end(self, sent: Mapping[int, int]) -> None:
        """Wait until everything was read, or the time is over."""
        with suppress(TimeoutError):
            await until(lambda: not lost(gathered(self.all), sent), END_S)

    def died(self) -> int:
        """Members whose process ended without being killed."""
        return sum(each.process.returncode is not None and each.number not in self.killed for each in self.all)

    async def end(self) -> None:
        for member in self.all:
            if member.process.returncode is None:
                member.process.send_signal(signal.SIGCONT)
            await member.end(signal.SIGKILL)


async def play(protocol: str, fault: str, mode: str, setting: Setting, seed: int, besides: Besides) -> bool:
    """Play it and print its figures. Returns True if all is as it must be. Equal seeds give all protocols equal
    faults."""
    rng = random.Random(f"{seed} {fault} {mode}")
    faults = plan(fault, mode, MEMBERS, SESSION_S, LENGTH_S + besides.longer_s, rng)
    group = Play(protocol, setting)
    make_topic(setting.kafka, group.topic, PARTITIONS)
    flow = Flow(setting.kafka, group.topic, PARTITIONS, RATE_S)
    doing: asyncio.Task[None] | None = None
    try:
        for place in range(MEMBERS):
            await group.join(place)
        await group.everybody_reads()
        since_s = time.time()
        doing = asyncio.create_task(besides.run(group, flow))
        await group.suffer(fault, faults)
        over_s = time.time()
        besides.is_over = True
        await doing
        await besides.after(group)
        await asyncio.to_thread(flow.stop)
        await group.read_to_the_end(flow.sent)
        died, rebalances = group.died(), await asyncio.to_thread(_rebalances, group, since_s)
    finally:
        if doing is not None:
            doing.cancel()
        flow.stop()
        await group.end()
    history = await asyncio.to_thread(GroupHistory, setting.kafka, group.group, group.topic)
    read = gathered(group.all)
    found = count(read, flow.sent, history.commits, since_s, stored(history.commits, besides.resets))
    if rebalances is None:
        rebalances = sum(at_s >= since_s for at_s in history.generations.values())
    return _told(f"{NAMES[protocol]}: {', '.join(filter(None, (fault, mode, besides.name)))}", found, died, {
        "faults": len(faults), "records": sum(flow.sent.values()), "read_after_s": round(found.read_s - over_s, 2),
        "moved": found.moved, "rebalances": rebalances, "commits": sum(map(len, history.commits.values())),
        "resets": len(besides.resets), "backward": backward(history.commits, besides.resets),
        "undone": undone(read, history.commits, besides.resets),
    })  # fmt: skip


def _told(what: str, found: Counts, died: int, details: Mapping[str, Any]) -> bool:
    met = not (found.lost or found.not_in_flight or found.overlaps or died or details["backward"] or details["undone"])
    emit(
        "chaos", f"{what}: lost", found.lost, "records",
        target="0; none read again without need, no overlap, no offset goes back but by a reset, which holds", met=met,
        duplicates=found.duplicates, not_in_flight=found.not_in_flight, overlaps=found.overlaps,
        overlap_s=round(found.overlap_s, 3), silence_s=round(found.silence_s, 2), died=died, **details,
    )  # fmt: skip
    return met


def _rebalances(group: Play, since_s: float) -> int | None:
    """How many began since then, at most the last 100; None if another server knows."""
    if group.protocol != "ours":
        return None
    with urllib.request.urlopen(f"{group.setting.admin_urls[0]}/v1/groups/{group.group}/rebalances", timeout=10) as had:
        return sum(each["at_ms"] >= since_s * 1000 for each in json.loads(had.read()))
