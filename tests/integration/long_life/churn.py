"""Bundles that split and merge again and again, and go from broker to broker, as administrators would have it by REST.

Each worker has a range of its own. What is refused (a broker is gone, a bundle on its way) is asked for again: only
what the brokers called done counts as done.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from statechannel.law.bundle import Bundle
from tests.integration.long_life.cluster import Answer, Cluster
from tests.integration.long_life.waiting import until_told

PARTS = (2, 5)
PAUSE_S = 0.02
AGAIN_S = 0.1


class Churn:
    """Use `running()`."""

    def __init__(self, cluster: Cluster, ranges: Sequence[Bundle]) -> None:
        self._cluster = cluster
        self._ranges = ranges
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Churn]:
        """Go on while the context is open; what is under way then is waited for."""
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for number, each in enumerate(self._ranges):
                tasks.create_task(self._work(Range(self._cluster, each, number), over))
            try:
                yield self
            finally:
                over.set()

    async def _work(self, place: Range, over: asyncio.Event) -> None:
        for turn in itertools.count():
            if over.is_set():
                return
            what, done = await place.step(PARTS[turn % len(PARTS)])
            (self.done if done else self.refused)[what] += 1
            await asyncio.sleep(PAUSE_S if done else AGAIN_S)


class Range:
    """A range of the ring that nobody else reshapes."""

    def __init__(self, cluster: Cluster, whole: Bundle, number: int = 0) -> None:
        self._cluster = cluster
        self.whole = whole
        self._asked = itertools.count(number)
        self._rounds = number

    async def step(self, parts: int) -> tuple[str, bool]:
        """Split if it is one bundle, merge if it is several of one owner, bring them together if of more."""
        bundles = await self.bundles()
        owners = Counter(b["owner"] for b in bundles if b["owner"] is not None)
        if not owners or len(bundles) > owners.total():
            return "assigned", False
        owner, _ = owners.most_common(1)[0]
        if len(owners) > 1:
            stray = next(b for b in bundles if b["owner"] != owner)
            return "gathered", await self.transfer(stray["range"], owner)
        if len(bundles) > 1:
            return f"merge {len(bundles)}", await self.merge([b["bundle"] for b in bundles])
        self._rounds += 1
        others = [member for member in self._cluster.up() if member.name != owner]
        if self._rounds % 4 == 0 and others:
            return "transfer", await self.transfer(bundles[0]["range"], others[self._rounds // 4 % len(others)].name)
        return f"split {parts}", len(await self.split(parts)) == parts

    async def into(self, parts: int) -> list[str]:
        """Have it in so many bundles, each with an owner; which. Who is asked may have read less than others have."""
        found: list[str] = []

        async def is_cut() -> bool:
            bundles = await self.bundles()
            if len(bundles) == parts and all(b["state"] == "assigned" for b in bundles):
                found[:] = [b["bundle"] for b in bundles]
                return True
            if len(bundles) == 1:
                await self.split(parts)
            elif len(bundles) != parts:
                await self.merge([b["bundle"] for b in bundles])
            return False

        await until_told(is_cut, f"{self.whole} is in {parts} bundles")
        return found

    async def bundles(self) -> list[dict[str, Any]]:
        """Those that it consists of now."""
        found = await self._cluster.bundles(self.whole.namespace)
        parsed = [(Bundle.parse(b["bundle"]), b) for b in found]
        return [shown for bundle, shown in parsed if self.whole.lo <= bundle.lo and bundle.hi <= self.whole.hi]

    async def split(self, parts: int, **more: object) -> list[str]:
        """Into so many; the children, none if no broker says that it is done."""
        answer = await self._ask("POST", f"/v1/bundles/{self.whole}/split", {"parts": parts, **more})
        return answer.body["children"] if answer.status == 200 else []

    async def merge(self, bundles: Sequence[str]) -> bool:
        """These into one."""
        return (await self._ask("POST", "/v1/bundles/merge", {"bundles": list(bundles)})).status == 200

    async def transfer(self, range_: str, to: str) -> bool:
        """A bundle to a broker."""
        path = f"/admin/v2/namespaces/{self.whole.namespace}/{range_}/unload"
        return (await self._ask("PUT", path, None, destinationBroker=to)).status == 204

    async def _ask(self, method: str, path: str, body: object, **query: str) -> Answer:
        """One broker after the other."""
        up = self._cluster.up()
        if not up:
            return Answer(0, "no broker is up")
        return await self._cluster.ask(up[next(self._asked) % len(up)], method, path, body, **query)
