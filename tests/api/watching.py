"""A client of `/v1/watch` that keeps the table that it is told, and remembers where it has come."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from loadmanager_api.cli.channel import parse
from statechannel.law.table import OwnershipTable

Table = dict[str, dict[str, Any]]


class Client:
    """Folds events; `revision` is the id of the last event that completed something."""

    def __init__(self, session: aiohttp.ClientSession, namespace: str | None = None) -> None:
        self.table: Table = {}
        self.revision: str | None = None
        self.seen: list[tuple[int, int]] = []
        """Partition and offset of each change."""
        self.kinds: list[str] = []
        self.last: Any = None
        self._session = session
        self._namespace = namespace
        self._steps: list[Any] = []
        """Of a change whose last piece has not come: it counts as a whole, or it comes again."""

    async def follow(self, url: str, events: int | None = None, header: bool = False) -> None:
        """Read so many events (or until the connection ends) from where we are; then hang up."""
        query = {"namespace": self._namespace} if self._namespace is not None else {}
        headers = {"Last-Event-ID": self.revision} if header and self.revision is not None else {}
        if self.revision is not None and not header:
            query["since"] = self.revision
        self._steps = []
        if self.revision is None:
            self.table = {}
        async with self._session.get(url + "/v1/watch", params=query, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            assert answer.content_type == "text/event-stream"
            lines: list[str] = []
            async for line in answer.content:
                lines.append(line.decode().rstrip("\n"))
                if not lines[-1]:
                    kind, revision, data = parse(lines)
                    lines = []
                    self._take(kind, revision, data)
                    if events is not None and kind and (events := events - 1) <= 0:
                        return

    def _take(self, kind: str, revision: str | None, data: Any) -> None:
        self.revision = revision or self.revision
        if kind:
            self.kinds.append(kind)
            self.last = data
        match kind:
            case "snapshot":
                self.table |= {bundle["bundle"]: bundle for bundle in data["bundles"]}
            case "reload":
                self.table = {n: b for n, b in self.table.items() if b["partition"] != data["partition"]}
            case "change":
                self._change(data)
            case _:
                pass

    def _change(self, data: Any) -> None:
        self._steps += data["bundles"]
        if data["more"]:
            return
        self.seen.append((data["partition"], data["offset"]))
        steps, self._steps = self._steps, []
        for step in steps:
            before = step["before"]
            if before is not None:
                assert self.table.pop(before["bundle"]) == before, "it was told something else before"
        for step in steps:
            if step["after"] is not None:
                self.table[step["after"]["bundle"]] = step["after"]

    async def until(self, url: str, table: Table, timeout_s: float = 60.0) -> None:
        """Read on until our table is this one."""
        async with asyncio.timeout(timeout_s):
            reading = asyncio.create_task(self.follow(url))
            try:
                while self.table != table and not reading.done():
                    await asyncio.sleep(0.005)
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
        assert self.table == table


def told(table: OwnershipTable, namespace: str | None = None) -> Table:
    """What a client should have been told of a broker's table."""
    return {
        str(entry.bundle): {
            "bundle": str(entry.bundle),
            "partition": table.partition_of(entry.bundle.namespace),
            "state": entry.state.value,
            "owner": entry.holder.name if entry.holder else None,
            "incarnation": entry.holder.incarnation if entry.holder else None,
            "target": entry.target.name if entry.target else None,
            "revision": entry.revision,
            "token": str(table.token(entry)),
        }
        for entry in table
        if namespace in (None, entry.bundle.namespace)
    }
