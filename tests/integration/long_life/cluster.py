"""The brokers of the long life: processes that are started, asked, told where to die, and started again."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from loadmanager.demo.stage import Child
from tests.integration.long_life.points import Order, Point, Start, Told
from tests.integration.long_life.waiting import until

ROOT = Path(__file__).resolve().parents[3]
ASK_S = 30.0
_told = msgspec.json.Decoder(Told)
_METRIC = re.compile(r'loadmanager_(\w+)(?:\{partition="(\d+)"\})? (\S+)')


class Process(Child):
    """A broker's process, which takes orders."""

    def tell(self, order: Order) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(msgspec.json.encode(order) + b"\n")

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)


class Answer(msgspec.Struct, frozen=True):
    """Of a broker's admin interface; status 0: it did not answer."""

    status: int
    body: Any


class Member:
    """A broker's name, and the process that has it at present."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.name = ""
        self.child: Process | None = None
        self.ready = asyncio.Event()
        self.armed = asyncio.Event()
        self.loaded: tuple[int, ...] = ()
        """Up to where the snapshots went with which its present process began, by partition; -1: none."""
        self.died_at = ""
        self.exit_code: int | None = None
        self.paused = False
        self.hearing: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """Whether its process runs and is ready."""
        return self.ready.is_set() and self.exit_code is None and not self.paused

    def __str__(self) -> str:
        return f"{self.label} ({self.name})"


class Cluster:
    """Use: `async with`. All processes end with it. `settings` are those of all brokers, and may be changed."""

    def __init__(self, directory: Path, settings: dict[str, object], labels: str = "ABC") -> None:
        self.directory = directory
        self.settings = settings
        self.store = directory / "counters.db"
        self.members = [Member(label) for label in labels]
        self.refused: list[str] = []
        """What the store refused, over the whole life."""

    async def __aenter__(self) -> Cluster:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_S))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        for member in self.members:
            if member.paused:
                self.go_on(member)
        await asyncio.gather(*(member.child.end() for member in self.members if member.child is not None))
        await asyncio.gather(*(member.hearing for member in self.members if member.hearing is not None))

    # --- processes

    async def start(self, *members: Member) -> None:
        """Start these (default: all) under the names that they had, and return when they are ready."""
        await asyncio.gather(*(self._start(member) for member in members or self.members))

    async def _start(self, member: Member) -> None:
        settings = {**self.settings, "advertised": member.name or "127.0.0.1:0"}
        argument = msgspec.json.encode(Start(settings, str(self.store))).decode()
        errors = self.directory / f"{member.label}.err"
        member.ready.clear()
        member.exit_code, member.died_at = None, ""
        started = await Process.start("tests.integration.long_life.member", [argument], path=ROOT, errors=errors)
        assert isinstance(started, Process)
        member.child, member.hearing = started, asyncio.create_task(self._hear(member, started))
        await until(lambda: member.ready.is_set() or member.exit_code is not None, f"{member} is ready")
        assert member.up, f"{member} ended with {member.exit_code}: {errors.read_text()[-2000:]}"

    async def _hear(self, member: Member, child: Child) -> None:
        member.exit_code = await child.hear(lambda line: self._heard(member, _told.decode(line)))

    def _heard(self, member: Member, told: Told) -> None:
        match told.kind:
            case "ready":
                member.name, member.loaded = told.name, told.loaded
                member.ready.set()
            case "armed":
                member.armed.set()
            case "hit":
                member.died_at = told.detail
            case "refused":
                self.refused.append(f"{member}: {told.detail}")
            case _:
                pass

    async def stop(self) -> None:
        """SIGTERM to all at once; return when all have left in order."""
        for member in self.up():
            assert member.child is not None
            member.child.terminate()
        await until(lambda: not self.up(), "all brokers have left after SIGTERM")
        assert [member.exit_code for member in self.members] == [0] * len(self.members)

    async def kill(self) -> None:
        """SIGKILL to all at once."""
        for member in self.up():
            assert member.child is not None
            member.child.kill()
        await until(lambda: not self.up(), "all brokers are dead after SIGKILL")

    async def arm(self, member: Member, order: Order) -> None:
        """Tell a broker where to die."""
        assert member.child is not None
        member.armed.clear()
        member.child.tell(order)
        await until(member.armed.is_set, f"{member} takes an order")

    async def until_dead(self, member: Member, point: Point) -> None:
        """Return when it has died where it was told to."""
        await until(lambda: member.exit_code is not None, f"{member} dies at {point}")
        assert (member.died_at, member.exit_code) == (point, -9), f"{member} died elsewhere, or by itself"

    async def until_paused(self, member: Member, point: Point) -> None:
        """Return when it has stopped where it was told to; from then on it is not up."""
        await until(lambda: member.died_at == point, f"{member} pauses at {point}")
        member.paused = True

    def go_on(self, member: Member) -> None:
        """End its pause."""
        assert member.child is not None
        member.child.go_on()
        member.paused, member.died_at = False, ""

    def up(self) -> list[Member]:
        """Those that can be asked."""
        return [member for member in self.members if member.up]

    # --- asking

    async def ask(self, member: Member, method: str, path: str, body: object = None, **query: str) -> Answer:
        """Ask one broker's admin interface; one that is gone gives status 0."""
        try:
            async with self._session.request(method, f"http://{member.name}{path}", json=body, params=query) as answer:
                text = await answer.text()
                is_json = answer.content_type.endswith("json")
                return Answer(answer.status, msgspec.json.decode(text) if is_json and text else text)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return Answer(0, repr(error))

    async def metrics(self, member: Member) -> dict[tuple[str, int], float]:
        """Those without labels (partition -1) and those of a partition."""
        answer = await self.ask(member, "GET", "/metrics")
        return dict(_metrics(str(answer.body))) if answer.status == 200 else {}

    async def channel_owner(self, partition: int) -> Member | None:
        """Who looks after the partition's snapshots."""
        for member in self.up():
            if ("channel_log_begin", partition) in await self.metrics(member):
                return member
        return None

    async def notes(self, member: Member) -> list[str]:
        """What it noted for people."""
        answer = await self.ask(member, "GET", "/v1/notes", limit="500")
        return [note["text"] for note in answer.body["notes"]] if answer.status == 200 else []

    async def bundles(self, namespace: str) -> Sequence[dict[str, Any]]:
        """As the first broker that answers has them."""
        for member in self.up():
            answer = await self.ask(member, "GET", "/v1/bundles", namespace=namespace, limit="1000")
            if answer.status == 200:
                return answer.body["bundles"]
        return []

    async def is_whole(self, namespace: str) -> bool:
        """Whether each bundle has an owner that is up."""
        names = {member.name for member in self.up()}
        bundles = await self.bundles(namespace)
        return bool(bundles) and all(b["owner"] in names and b["owner_live"] for b in bundles)


def _metrics(text: str) -> Iterator[tuple[tuple[str, int], float]]:
    for line in text.splitlines():
        if found := _METRIC.fullmatch(line):
            name, partition, value = found.groups()
            yield (name, int(partition or -1)), float(value)
