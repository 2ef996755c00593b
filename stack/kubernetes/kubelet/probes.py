"""Probes: HTTP, an open port, or a command in the container; with periods and thresholds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

Object = dict[str, Any]
Execute = Callable[[list[str], float], Awaitable[bool]]
"""Runs a command in the container for at most so many seconds. Returns True if it succeeded."""


class Prober:
    """Asks one container at its pod's address."""

    def __init__(self, container: Object, address: str, execute: Execute, session: aiohttp.ClientSession) -> None:
        self._address = address
        self._execute = execute
        self._session = session
        self._ports = {each.get("name", ""): each["containerPort"] for each in container.get("ports", ())}

    async def follow(self, probe: Object, became: Callable[[bool], None]) -> None:
        """Probe until cancelled, and call `became(ok)` each time that a threshold is reached."""
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        thresholds = {True: probe.get("successThreshold", 1), False: probe.get("failureThreshold", 3)}
        last, same = None, 0
        while True:
            succeeded = await self._ask(probe)
            same = same + 1 if succeeded == last else 1
            last = succeeded
            if same >= thresholds[succeeded]:
                became(succeeded)
            await asyncio.sleep(probe.get("periodSeconds", 10))

    async def _ask(self, probe: Object) -> bool:
        timeout_s = probe.get("timeoutSeconds", 1)
        try:
            async with asyncio.timeout(timeout_s):
                if "httpGet" in probe:
                    return await self._get(probe["httpGet"])
                if "tcpSocket" in probe:
                    _, writer = await asyncio.open_connection(self._address, self._port(probe["tcpSocket"]["port"]))
                    writer.close()
                    return True
                return await self._execute(probe["exec"]["command"], timeout_s)
        except (OSError, aiohttp.ClientError):  # TimeoutError is an OSError
            return False

    async def _get(self, get: Object) -> bool:
        host = get.get("host") or self._address
        url = f"{get.get('scheme', 'HTTP').lower()}://{host}:{self._port(get['port'])}{get.get('path', '/')}"
        headers = {each["name"]: each["value"] for each in get.get("httpHeaders", ())}
        headers |= {"User-Agent": "kube-probe"}
        async with self._session.get(url, headers=headers, ssl=False, allow_redirects=False) as answer:
            return 200 <= answer.status < 400

    def _port(self, port: int | str) -> int:
        return port if isinstance(port, int) else self._ports[port]
