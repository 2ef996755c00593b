"""What is done to a group by its operators while its members fail: resets, moves of its coordinator, modes; and what
just goes on, a partition without news for longer than Kafka keeps offsets."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from bench.chaos_resets import Reset
from bench.groups import NAMESPACE, Flow

if TYPE_CHECKING:
    from bench.chaos_play import Play

RETENTION_S = 60.0
"""The least that Kafka takes (`offsets.retention.minutes=1`)."""
EVERY_S = 1.5
BACK = 300
"""Records that a reset lets a partition read again, at most."""
RESET_S = 12.0
"""Members have so long to stop: longer than a session and a suspension."""
IDLE = 0


class Besides:
    """Nothing is done; the others are of this kind."""

    name = ""
    longer_s = 0.0
    """So much longer members go on failing."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.resets: list[Reset] = []
        self.is_over = False
        """`run` ends soon then, and what it has asked for is answered."""

    async def run(self, group: Play, flow: Flow) -> None:
        """Until it is over."""

    async def after(self, group: Play) -> None:
        """When the last fault is over."""


class Resets(Besides):
    """Some partitions read again all the time, while the group's bundle is unloaded now and then."""

    name = "resets"

    async def run(self, group: Play, flow: Flow) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._move(group))
            for partition in range(3):
                tasks.create_task(self._reset(group, partition))

    async def _reset(self, group: Play, partition: int) -> None:
        while not self.is_over:
            await asyncio.sleep(self._rng.uniform(0.5, 1.5) * EVERY_S)
            wish = {
                "to": f"-{self._rng.randrange(1, BACK)}", "topic": group.topic, "partitions": [partition],
                "timeout_s": RESET_S,
            }  # fmt: skip
            asked_s = time.time()
            status, said = await asyncio.to_thread(_ask, group, f"/v1/groups/{group.group}/offsets", "PUT", wish)
            steps = said.get("steps", ()) if status == 200 else ()
            offset = next((each["after"] for each in steps), None)
            if offset is not None:
                self.resets.append(Reset(partition, offset, asked_s, time.time()))

    async def _move(self, group: Play) -> None:
        while not self.is_over:
            await asyncio.sleep(self._rng.uniform(4.0, 8.0))
            await asyncio.to_thread(_ask, group, f"/admin/v2/namespaces/{NAMESPACE}/unload", "PUT", None)


class Client(Besides):
    """Members divide the partitions from now on; in between the coordinator does for a while."""

    name = "client mode"

    async def run(self, group: Play, flow: Flow) -> None:
        for mode in ("client", "server", "client"):
            path, status = f"/v1/groups/{group.group}", 0
            while status not in (200, 204) and not self.is_over:
                status, _ = await asyncio.to_thread(_ask, group, path, "PATCH", {"mode": mode})
                await asyncio.sleep(0.2)
            await asyncio.sleep(7.0)


class Idle(Besides):
    """One partition gets nothing more, for longer than Kafka keeps offsets; then all members die, and others come."""

    name = "idle partition"
    longer_s = RETENTION_S

    async def run(self, group: Play, flow: Flow) -> None:
        await asyncio.sleep(1.0)
        flow.idle = IDLE

    async def after(self, group: Play) -> None:
        await group.renew()


BESIDES: Mapping[str, type[Besides]] = {each.name: each for each in (Resets, Client, Idle)}


def _ask(group: Play, path: str, method: str, body: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
    """The status, and what the answer says; 0 if there was none."""
    data = None if body is None else json.dumps(body).encode()
    url = f"{group.setting.admin_urls[0]}{path}"
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with _opener.open(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        return error.code, {"error": error.read().decode()}
    except OSError:
        return 0, {}


class _Redirects(urllib.request.HTTPRedirectHandler):
    """The library follows 307 for GET alone."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        return urllib.request.Request(newurl, req.data, dict(req.headers), method=req.get_method())


_opener = urllib.request.build_opener(_Redirects())
