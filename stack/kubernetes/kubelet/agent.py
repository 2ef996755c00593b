"""The kubelet of all nodes: follows the API server, and gives each pod on its nodes a life."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from stack.kubernetes.kubelet import nodes
from stack.kubernetes.kubelet.api import Api
from stack.kubernetes.kubelet.environment import service_links
from stack.kubernetes.kubelet.names import hosts
from stack.kubernetes.kubelet.pod import Node, Pod, remove
from stack.kubernetes.kubelet.proxy import Proxy

log = logging.getLogger(__name__)
Object = dict[str, Any]
ENDED = ("Succeeded", "Failed")
NAMES_S = 0.05


class Orders(msgspec.Struct, frozen=True):
    """How to run. `nodes` have names and zones; pods get addresses 127.`network`.x.y."""

    url: str
    authority: str
    certificate: str
    key: str
    server_certificate: str
    server_key: str
    port: int
    folder: str
    nodes: dict[str, str]
    network: int
    address: str = "127.0.0.1"


class Kubelet:
    """Runs until cancelled; then it ends all pods' processes."""

    def __init__(self, orders: Orders, api: Api, session: aiohttp.ClientSession) -> None:
        self._orders = orders
        self._api = api
        self._folder = Path(orders.folder)
        self._node = Node(api, session, self._folder, orders.address, self._links, self.names)
        self._services = dict[str, Object]()
        self._objects = dict[str, Object]()
        self._pods = dict[str, Pod]()
        self._proxy = Proxy(self._objects.values)
        self._addresses = 0
        self._renaming = asyncio.Event()
        self._work = set[asyncio.Task[None]]()
        self.ready = False

    async def run(self) -> None:
        """Run until cancelled."""
        await nodes.register(self._api, self._orders.nodes, self._orders.address, self._orders.port)
        self.ready = True
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(nodes.renew(self._api, self._orders.nodes))
                tasks.create_task(self._api.follow("/api/v1/services", self._service_changed))
                tasks.create_task(self._api.follow("/api/v1/pods", self._pod_changed))
                tasks.create_task(self._keep_names())
        finally:
            self._proxy.close()
            await asyncio.gather(*(pod.kill() for pod in self._pods.values()))

    # --- names and Services

    def names(self, namespace: str) -> Path:
        """The folder with the hosts file of a namespace."""
        folder = self._folder / "names" / namespace
        if not folder.exists():
            folder.mkdir(parents=True)
            self._write_names(folder)
        return folder

    def _links(self, namespace: str) -> dict[str, str]:
        here = [each for each in self._services.values() if each["metadata"]["namespace"] == namespace]
        masters = [
            each
            for each in self._services.values()
            if (each["metadata"]["namespace"], each["metadata"]["name"]) == ("default", "kubernetes")
        ]
        return service_links([*masters, *here])

    def _service_changed(self, service: Object, there: bool) -> None:
        self._services[service["metadata"]["uid"]] = service
        if not there:
            del self._services[service["metadata"]["uid"]]
        self._renaming.set()

    async def _keep_names(self) -> None:
        while True:
            await self._renaming.wait()
            self._renaming.clear()
            for folder in (self._folder / "names").glob("*"):
                self._write_names(folder)
            try:
                await self._proxy.change(self._services.values())
            except OSError as error:
                log.warning("proxy: %s", error)
            await asyncio.sleep(NAMES_S)

    def _write_names(self, folder: Path) -> None:
        new = folder / "new"
        new.write_text(hosts(folder.name, self._services.values(), self._objects.values()))
        new.replace(folder / "hosts")

    # --- pods

    def _pod_changed(self, found: Object, there: bool) -> None:
        uid = found["metadata"]["uid"]
        self._objects[uid] = found
        if not there:
            del self._objects[uid]
        self._renaming.set()
        if found["spec"].get("nodeName") not in self._orders.nodes:
            return
        pod = self._pods.get(uid)
        leaving = "deletionTimestamp" in found["metadata"]
        if not there:
            if pod is not None:
                self._do(self._kill(pod))
        elif pod is not None:
            pod.object = found
            if leaving and not pod.ending:
                self._do(self._end(pod, found["metadata"].get("deletionGracePeriodSeconds", 30)))
        elif leaving:
            self._do(remove(self._api, found))
        elif found.get("status", {}).get("phase") not in ENDED:
            self._begin(found)

    def _begin(self, found: Object) -> None:
        self._addresses += 1
        address = f"127.{self._orders.network}.{self._addresses // 250}.{self._addresses % 250 + 1}"
        pod = self._pods[found["metadata"]["uid"]] = Pod(found, self._node, address)
        pod.begin()

    async def _end(self, pod: Pod, grace_s: float) -> None:
        pod.ending = True
        await pod.end(grace_s)
        self._pods.pop(pod.uid, None)

    async def _kill(self, pod: Pod) -> None:
        await pod.kill()
        self._pods.pop(pod.uid, None)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a pod's end failed", exc_info=task.exception())

    def log_of(self, namespace: str, name: str, container: str) -> bytes | None:
        """What a container of the newest pod of this name has written."""
        files = sorted(
            (self._folder / "pods").glob(f"{namespace}_{name}_*/{container}.log"), key=lambda file: file.stat().st_mtime
        )
        with contextlib.suppress(FileNotFoundError, IndexError):
            return files[-1].read_bytes()
        return None
