"""Consumer groups under faults: what is lost, what is read twice, how long nobody reads.

First the faults of OpenChaos: four members in processes of their own read eight partitions of a real Kafka under a flow
of records, and some of them lose their network (`loss`), are killed and begin anew (`kill`), or are stopped and go on
(`suspend`): one at random at a time (`minor`), three of four at once (`major`), always the same one (`fixed`). Ours in
every mode, Kafka's protocols in `minor`; all with the same session time-out. Then `chaos_table.py`.

Ends with status 1 if a record of ours is lost, or repeated long after its commit was due.
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import asyncio
import random
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka.admin import AdminClient, NewTopic

from bench import chaos_table
from bench.chaos_verdict import Verdict, judge
from bench.figures import emit
from bench.groups import NAMES, EqualKafka, Flow, Member, Read, coordinators
from tests.faults import Cut, TcpProxy, proxy_to

MEMBERS = 4
PARTITIONS = 8
RATE_S = 400
SESSION_S = 3.0
FAULT_S = 5.0
"""Longer than a session: others read what the victims had."""
STEADY_S = 3.0
"""Before the first fault: everybody has committed."""
FAULTS = 3
"""In each play, one after another, when all is read again."""
SETTLED_S = 40.0
LOOK_S = 0.1
IN_FLIGHT_S = SESSION_S + 1.5
"""A commit that is older was due: a session, in which a member without its network reads on, and a commit interval."""
KINDS = ("loss", "kill", "suspend")
MODES = ("minor", "major", "fixed")
SEED = 1


def run(kind: str) -> None:
    """All figures of this bench; it needs Kafka, whatever `kind` is."""
    directory = Path(tempfile.mkdtemp(prefix="bench-chaos-"))
    try:
        failures = asyncio.run(_run(directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if failures:
        raise SystemExit(f"not as promised: {'; '.join(failures)}")


async def _run(directory: Path) -> list[str]:
    async with AsyncExitStack() as stack:
        links = [await stack.enter_async_context(proxy_to()) for _ in range(MEMBERS)]
        ports = {f"LINK{slot}": link.port for slot, link in enumerate(links)}
        kafka = EqualKafka(directory / "kafka", SESSION_S, ports)
        stack.callback(kafka.stop)
        await asyncio.to_thread(kafka.start)
        for slot, link in enumerate(links):
            link.target = f"127.0.0.1:{kafka.listener_port(f'LINK{slot}')}"
        admin_urls = await stack.enter_async_context(coordinators(kafka.address))
        brokers = [urlsplit(url).netloc for url in admin_urls]
        slots = [
            Slot(link, [await stack.enter_async_context(proxy_to(address)) for address in brokers]) for link in links
        ]
        failures: list[str] = []
        for protocol in ("ours", "classic", "consumer"):
            for kind in KINDS:
                for mode in MODES if protocol == "ours" else MODES[:1]:
                    verdict = await Play(protocol, kafka.address, admin_urls, slots).run(kind, mode)
                    if protocol == "ours" and (verdict.lost or verdict.late):
                        failures.append(f"{kind}, {mode}: {verdict}")
        return failures + await chaos_table.run(kafka.address, admin_urls, directory)


class Slot:
    """Where one member at a time is: its network, and whoever is there now."""

    def __init__(self, kafka: TcpProxy, brokers: Sequence[TcpProxy]) -> None:
        self.kafka = kafka
        self._brokers = brokers
        self.through = {int(link.target.rpartition(":")[2]): link.port for link in brokers}
        self.member: Member | None = None

    def cut(self) -> None:
        """Nothing passes any more, in silence."""
        for link in (self.kafka, *self._brokers):
            link.cut(Cut.BLACKHOLE)

    def heal(self) -> None:
        """What was held back passes."""
        for link in (self.kafka, *self._brokers):
            link.heal()


class Play:
    """One group, under one protocol."""

    def __init__(self, protocol: str, kafka: str, admin_urls: Sequence[str], slots: Sequence[Slot]) -> None:
        ours = uuid.uuid4().hex[:8]
        self.topic = f"chaos-{ours}"
        self._protocol, self._kafka, self._slots = protocol, kafka, slots
        self._told: dict[str, Any] = {
            "protocol": protocol, "topic": self.topic, "session_s": SESSION_S, "brokers": admin_urls,
            "group": f"bench/groups/{ours}" if protocol == "ours" else f"group-{ours}",
        }  # fmt: skip
        self._members: list[Member] = []

    async def run(self, kind: str, mode: str) -> Verdict:
        """Faults of this kind; what they did."""
        admin = AdminClient({"bootstrap.servers": self._kafka, "broker.address.family": "v4"})
        admin.create_topics([NewTopic(self.topic, PARTITIONS, 1)])[self.topic].result(30)
        flow = Flow(self._kafka, self.topic, PARTITIONS, RATE_S)
        chosen, missed = random.Random(SEED), 0
        try:
            for slot in self._slots:
                await self._join(slot)
            missed += not await self._all_is_read(time.time(), members=MEMBERS)
            await asyncio.sleep(STEADY_S)
            began_s = time.time()
            for _ in range(FAULTS):
                victims = {
                    "minor": [chosen.randrange(MEMBERS)],
                    "major": chosen.sample(range(MEMBERS), 3),
                    "fixed": [0],
                }
                await self._fault(kind, [self._slots[number] for number in victims[mode]])
                missed += not await self._all_is_read(time.time())
            until_s = time.time()
        finally:
            await asyncio.to_thread(flow.stop)
        read_s = await self._to_the_end(flow) - began_s
        for member in self._members:
            await member.end(signal.SIGKILL)
        verdict = judge([member.read for member in self._members], flow.sent, IN_FLIGHT_S, until_s)
        emit(
            "chaos", f"{NAMES[self._protocol]}: {kind}, {mode}: lost", verdict.lost, "records", target="0",
            met=not verdict.lost, of=flow.sent.total(), repeated=verdict.repeated, late=verdict.late,
            stale=verdict.stale, longest_silence_s=round(verdict.silence_s, 2),
            longest_pause_s=round(verdict.pause_s, 2), moves=verdict.moves,
            total_s=round(read_s, 1), seed=SEED, not_settled=missed,
        )  # fmt: skip
        return verdict

    async def _join(self, slot: Slot) -> None:
        slot.member = await Member.begin(**self._told, kafka=slot.kafka.address, through=slot.through)
        self._members.append(slot.member)

    async def _fault(self, kind: str, victims: Sequence[Slot]) -> None:
        for slot in victims:
            assert slot.member is not None
            match kind:
                case "loss":
                    slot.cut()
                case "kill":
                    await slot.member.end(signal.SIGKILL)
                case _:
                    slot.member.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(FAULT_S)
        for slot in victims:
            assert slot.member is not None
            match kind:
                case "loss":
                    slot.heal()
                case "kill":
                    await self._join(slot)
                case _:
                    slot.member.process.send_signal(signal.SIGCONT)

    async def _all_is_read(self, since_s: float, members: int = 1) -> bool:
        """Wait until every partition is read since then, by so many members; whether that came."""

        def is_read() -> bool:
            found = [member.reads_since(max(since_s, time.time() - 0.5)) for member in self._members]
            return len(set[int]().union(*found)) == PARTITIONS and sum(map(bool, found)) >= members

        return await _comes(is_read)

    async def _to_the_end(self, flow: Flow) -> float:
        """When the last record was read; if it never is, the verdict says so."""
        await _comes(lambda: _has_all([member.read for member in self._members], flow))
        return time.time()


async def _comes(holds: Callable[[], bool]) -> bool:
    """Whether it holds within a while."""
    for _ in range(int(SETTLED_S / LOOK_S)):
        if holds():
            return True
        await asyncio.sleep(LOOK_S)
    return False


def _has_all(read: Sequence[Read], flow: Flow) -> bool:
    return all(
        any(runs and runs[-1].first + runs[-1].size >= count for runs in (each.get(partition, []) for each in read))
        for partition, count in flow.sent.items()
    )
