"""The API server as the kubelet asks it."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

log = logging.getLogger(__name__)
Object = dict[str, Any]
LINE_BYTES = 1 << 24
TIMEOUT = aiohttp.ClientTimeout(total=10)
WATCH = aiohttp.ClientTimeout(total=None, sock_read=300)
PAUSE_S = 0.5
STRATEGIC = "application/strategic-merge-patch+json"
CONFLICT, GONE, NOT_FOUND, INVALID = 409, 410, 404, 422


class Refused(Exception):
    """The API server said no."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


class Api:
    """One session. `async with`."""

    def __init__(self, url: str, authority: Path, certificate: Path, key: Path) -> None:
        self._url = url
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.load_cert_chain(certificate, key)

    async def __aenter__(self) -> Api:
        connector = aiohttp.TCPConnector(ssl=self._context, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, read_bufsize=LINE_BYTES)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._session.close()

    async def ask(self, method: str, path: str, body: Object | None = None, kind: str = "application/json") -> Object:
        """One request. Raises Refused, OSError, aiohttp.ClientError."""
        data = None if body is None else json.dumps(body)
        async with self._session.request(
            method, self._url + path, data=data, headers={"Content-Type": kind}, timeout=TIMEOUT
        ) as answer:
            text = await answer.text()
            if answer.status >= 400:
                raise Refused(answer.status, text)
            return json.loads(text)

    async def find(self, path: str) -> Object | None:
        """An object, None if there is none. Raises as `ask`."""
        try:
            return await self.ask("GET", path)
        except Refused as refused:
            if refused.status == NOT_FOUND:
                return None
            raise

    async def follow(self, path: str, changed: Callable[[Object, bool], None]) -> None:
        """Call `changed(object, is_there)` for each existing object, and then for each change, until cancelled."""
        known = dict[str, Object]()
        while True:
            try:
                version = await self._list(path, known, changed)
                await self._watch(path, version, known, changed)
            except (Refused, OSError, aiohttp.ClientError) as error:
                log.info("%s: %s", path, error)
                await asyncio.sleep(PAUSE_S)

    async def _list(self, path: str, known: dict[str, Object], changed: Callable[[Object, bool], None]) -> str:
        found = await self.ask("GET", path)
        items = {each["metadata"]["uid"]: each for each in found["items"]}
        for uid in known.keys() - items.keys():
            changed(known.pop(uid), False)
        known |= items
        for each in items.values():
            changed(each, True)
        return found["metadata"]["resourceVersion"]

    async def _watch(
        self, path: str, version: str, known: dict[str, Object], changed: Callable[[Object, bool], None]
    ) -> None:
        parameters = {"watch": "1", "resourceVersion": version}
        async with self._session.get(self._url + path, params=parameters, timeout=WATCH) as answer:
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise Refused(event["object"].get("code", GONE), event["object"].get("message", ""))
                item = event["object"]
                there = event["type"] != "DELETED"
                known[item["metadata"]["uid"]] = item
                if not there:
                    del known[item["metadata"]["uid"]]
                changed(item, there)


def path_of(namespace: str, resource: str, name: str = "") -> str:
    """Of a namespaced object of the core group."""
    return f"/api/v1/namespaces/{namespace}/{resource}" + (f"/{name}" if name else "")
