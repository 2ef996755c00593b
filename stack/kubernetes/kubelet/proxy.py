"""Services with an address: each connection goes on to some pod that is ready, as kube-proxy arranges it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from stack.kubernetes.kubelet.names import is_ready, selected

log = logging.getLogger(__name__)
Object = dict[str, Any]
CHUNK_BYTES = 1 << 16


class Proxy:
    """`pods()` are those of the whole cluster, at this moment."""

    def __init__(self, pods: Callable[[], Iterable[Object]]) -> None:
        self._pods = pods
        self._services = dict[str, Object]()
        self._listening = dict[tuple[str, int], asyncio.Server]()
        self._changing = asyncio.Lock()

    async def change(self, services: Iterable[Object]) -> None:
        """Listen for these Services, and for no others."""
        async with self._changing:
            self._services = {each["metadata"]["uid"]: each for each in services}
            wanted = {
                (each["spec"]["clusterIP"], port["port"]): (uid, port)
                for uid, each in self._services.items()
                if each["spec"].get("clusterIP", "None") != "None" and each["spec"].get("selector")
                for port in each["spec"].get("ports", ())
            }
            for place in self._listening.keys() - wanted.keys():
                self._listening.pop(place).close()
            for place in wanted.keys() - self._listening.keys():
                uid, port = wanted[place]
                self._listening[place] = await asyncio.start_server(partial(self._serve, uid, port), *place)

    def close(self) -> None:
        """Take no connection any more."""
        for server in self._listening.values():
            server.close()

    async def _serve(self, uid: str, port: Object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            service = self._services.get(uid)
            ready = [pod for pod in selected(service, self._pods()) if is_ready(pod)] if service else []
            if not ready:
                return  # refused, but after the connection was made: nothing else listens here
            pod = random.choice(ready)
            theirs = await asyncio.open_connection(pod["status"]["podIP"], _target(pod, port))
            try:
                await asyncio.gather(_copy(reader, theirs[1]), _copy(theirs[0], writer))
            finally:
                theirs[1].close()
        except OSError as error:
            log.debug("%s: %s", port, error)
        finally:
            writer.close()


def _target(pod: Object, port: Object) -> int:
    target = port.get("targetPort", port["port"])
    if isinstance(target, int):
        return target
    named = (each for container in pod["spec"]["containers"] for each in container.get("ports", ()))
    return next(each["containerPort"] for each in named if each.get("name") == target)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
        writer.write_eof()
