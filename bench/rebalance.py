"""What readers of a topic notice when one of them dies, joins or leaves: ours and Kafka's two protocols in one run.

Three consumers in processes of their own read twelve partitions of a real Kafka, under 600 records/s, with equal
session time-outs. Then one is killed, one joins, one ends in order. *Moved*: from the last record that the former
reader read to the first of the next one. *Others*: the longest silence of a partition that did not move.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.figures import emit, median
from bench.groups import NAMES, PROTOCOLS, EqualKafka, Flow, Member, coordinators, make_topic

PARTITIONS = 12
RATE_S = 600
SESSION_S = 6.0
"""Kafka's least, by default, for its classic protocol; its new one has it from the server."""
STEADY_S = 4.0
SETTLED_S = 40.0


def run(kind: str) -> None:
    """All figures of this bench; it needs Kafka, whatever `kind` is."""
    del kind
    directory = Path(tempfile.mkdtemp(prefix="bench-rebalance-"))
    kafka = EqualKafka(directory / "kafka", SESSION_S)
    try:
        kafka.start()
        asyncio.run(_run(kafka.address))
    finally:
        kafka.stop()
        shutil.rmtree(directory, ignore_errors=True)


async def _run(kafka: str) -> None:
    async with coordinators(kafka) as admin_urls:
        for protocol in PROTOCOLS:
            await _play(protocol, kafka, admin_urls)


class Play:
    """One group under one protocol."""

    def __init__(self, protocol: str, kafka: str, admin_urls: list[str]) -> None:
        ours = uuid.uuid4().hex[:8]
        self.protocol, self.kafka = protocol, kafka
        self.topic = f"rebalance-{ours}"
        group = f"bench/groups/{ours}" if protocol == "ours" else f"group-{ours}"
        self._told = {
            "protocol": protocol, "kafka": kafka, "topic": self.topic, "group": group, "brokers": admin_urls,
            "session_s": SESSION_S,
        }  # fmt: skip
        self.members: list[Member] = []

    async def join(self) -> Member:
        member = await Member.start(self._told, len(self.members))
        self.members.append(member)
        return member

    async def settled(self, *members: Member) -> dict[int, Member]:
        """Everything is read, evenly, and has been for a while: who reads what."""
        deadline_s, since_s = time.time() + SETTLED_S, time.time()
        before: dict[int, Member] = {}
        while time.time() < deadline_s:
            await asyncio.sleep(0.1)
            readers = self._readers(members, time.time() - 0.5)
            if readers != before:
                before, since_s = readers, time.time()
            if len(readers) == PARTITIONS and time.time() - since_s > STEADY_S:
                return readers
        raise TimeoutError(f"{self.protocol}: the group does not settle")

    def _readers(self, members: tuple[Member, ...], since_s: float) -> dict[int, Member]:
        return {partition: member for member in members for partition in member.reads_since(since_s)}

    def moved_s(self, before: Mapping[int, Member], after: Mapping[int, Member], at_s: float) -> list[float]:
        """For each partition that has another reader: from the last record of the one to the first of the other."""
        return [
            next(run.first_s for run in after[each].read[each] if run.first_s >= at_s)
            - before[each].read[each][-1].last_s
            for each in before
            if after[each] is not before[each]
        ]

    def silence_s(self, before: Mapping[int, Member], after: Mapping[int, Member], at_s: float, to_s: float) -> float:
        """The longest silence of a partition that has kept its reader."""
        longest_s = 0.0
        for partition, member in before.items():
            if after[partition] is member:
                seen = [at_s, *(run.first_s for run in member.read[partition] if at_s <= run.first_s <= to_s), to_s]
                longest_s = max(longest_s, *(later - earlier for earlier, later in pairwise(seen)))
        return longest_s


async def _play(protocol: str, kafka: str, admin_urls: list[str]) -> None:
    play = Play(protocol, kafka, admin_urls)
    make_topic(kafka, play.topic, PARTITIONS)
    flow = Flow(kafka, play.topic, PARTITIONS, RATE_S)
    try:
        first, second, third = [await play.join() for _ in range(3)]
        before = await play.settled(first, second, third)
        killed_s = time.time()
        await first.end(signal.SIGKILL)
        after = await play.settled(second, third)
        _told(play, "killed", before, after, killed_s)
        fourth = await play.join()
        before, after = after, await play.settled(second, third, fourth)
        _told(play, "joins", before, after, fourth.joining_s)
        waited_s = min(runs[0].first_s for runs in fourth.read.values()) - fourth.joining_s
        emit("rebalance", f"{NAMES[protocol]}: joins, to its first record", waited_s, "s")
        left_s = time.time()
        await second.end(signal.SIGTERM)
        before, after = after, await play.settled(third, fourth)
        _told(play, "ends", before, after, left_s)
    finally:
        flow.stop()
        await asyncio.sleep(1.0)
        for member in play.members:
            await member.end(signal.SIGKILL)
    seen = Counter((each, run.offset) for member in play.members for each, its in member.read.items() for run in its)
    lost = sum(sum(1 for offset in range(sent) if (each, offset) not in seen) for each, sent in flow.sent.items())
    repeated = sum(times - 1 for times in seen.values())
    emit("rebalance", f"{NAMES[protocol]}: lost", lost, "records", target="0", met=lost == 0, repeated=repeated)


def _told(play: Play, what: str, before: Mapping[int, Member], after: Mapping[int, Member], at_s: float) -> None:
    moved = play.moved_s(before, after, at_s)
    details: dict[str, Any] = {"longest_s": round(max(moved), 3), "moved": len(moved)}
    name = NAMES[play.protocol]
    emit("rebalance", f"{name}: one {what}, moved partitions are silent", median(moved), "s", **details)
    silence_s = play.silence_s(before, after, at_s, min(at_s + SESSION_S + 2, time.time() - 0.5))
    emit("rebalance", f"{name}: one {what}, others are silent at most", silence_s, "s")
