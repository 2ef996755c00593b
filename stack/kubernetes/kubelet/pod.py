"""The life of one pod: volumes, init containers, containers, its end; and the status that the API server gets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from stack.kubernetes.kubelet import images
from stack.kubernetes.kubelet.api import CONFLICT, INVALID, NOT_FOUND, STRATEGIC, Api, Refused, path_of
from stack.kubernetes.kubelet.container import Container, Launch, now
from stack.kubernetes.kubelet.environment import Misconfigured, Object, command, environment, references
from stack.kubernetes.kubelet.sandbox import Mount, Sandbox
from stack.kubernetes.kubelet.volumes import made, mounts, volume_references

log = logging.getLogger(__name__)
RETRY_S = 1.0


@dataclass(frozen=True)
class Node:
    """What pods need of the machine they are on. `links` gives the variables of a namespace's Services."""

    api: Api
    session: aiohttp.ClientSession
    folder: Path
    address: str
    links: Callable[[str], Mapping[str, str]]
    names: Callable[[str], Path]


class Pod:
    """Begins with `begin()`, ends with `end()` or `kill()`, or by itself; `reported` follows its status."""

    def __init__(self, found: Object, node: Node, address: str) -> None:
        self.object = found
        self.folder = node.folder / "pods" / "_".join(found["metadata"][key] for key in ("namespace", "name", "uid"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.address = address
        self.ending = False
        self._node = node
        self._phase = ""
        self._dirty = asyncio.Event()
        self._conditions = dict[str, tuple[bool, str]]()
        self._began = now()
        spec = found["spec"]
        self._grace_s: float = spec.get("terminationGracePeriodSeconds", 30)
        self.init = [self._container(each) for each in spec.get("initContainers", ())]
        self.main = [self._container(each) for each in spec["containers"]]
        self._volumes = dict[str, Path]()
        self._tasks: list[asyncio.Task[None]] = []

    def _container(self, spec: Object) -> Container:
        log_file = self.folder / f"{spec['name']}.log"
        return Container(spec, log_file, self._node.session, self._dirty.set, self._grace_s)

    @property
    def uid(self) -> str:
        return self.object["metadata"]["uid"]

    @property
    def namespace(self) -> str:
        return self.object["metadata"]["namespace"]

    @property
    def over(self) -> bool:
        """Whether all its containers have ended for good."""
        return bool(self._phase)

    def begin(self) -> None:
        """Start it."""
        self._tasks = [asyncio.create_task(self._live()), asyncio.create_task(self._report_changes())]
        self._dirty.set()

    async def end(self, grace_s: float) -> None:
        """End its containers in order, report that, and take the object away."""
        self.ending = True
        deadline_s = asyncio.get_running_loop().time() + grace_s
        await asyncio.gather(*(each.stop(grace_s) for each in self.main))
        for each in reversed(self.init):
            await each.stop(max(2.0, deadline_s - asyncio.get_running_loop().time()))
        await self._forget_tasks()
        self._finish()
        await self._report()
        await remove(self._node.api, self.object)

    async def kill(self) -> None:
        """SIGKILL to everything."""
        self.ending = True
        for each in [*self.main, *self.init]:
            each.kill()
        await self._forget_tasks()

    async def _forget_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- its life

    async def _live(self) -> None:
        try:
            await self._make_volumes()
            async with asyncio.TaskGroup() as sidecars:
                if await self._initialize(sidecars):
                    await asyncio.gather(*(self._run(each) for each in self.main))
                for each in reversed(self.init):
                    await each.stop(self._grace_s)
        except Exception:
            log.exception("%s", self.object["metadata"]["name"])
            self._phase = "Failed"
        self._finish()
        self._dirty.set()

    async def _initialize(self, sidecars: asyncio.TaskGroup) -> bool:
        """Run the init containers, one after the other. Returns True if all succeeded."""
        for each in self.init:
            if each.spec.get("restartPolicy") == "Always":
                sidecars.create_task(self._run(each, always=True))
                await each.has_started.wait()
            elif await self._run(each, init=True) != 0:
                return False
        self._condition("Initialized", True)
        return True

    async def _run(self, container: Container, *, always: bool = False, init: bool = False) -> int:
        policy = "Always" if always else self.object["spec"].get("restartPolicy", "Always")
        if init and policy == "Always":
            policy = "OnFailure"
        launch = await self._launch(container)
        return await container.run(launch, lambda code: policy == "Always" or (policy == "OnFailure" and code != 0))

    def _finish(self) -> None:
        codes = [each.exit_code for each in self.main]
        self._phase = self._phase or ("Succeeded" if all(code == 0 for code in codes) else "Failed")

    # --- what it starts with

    async def _objects(self, needed: Iterator[tuple[str, str]]) -> dict[tuple[str, str], Object | None]:
        found = dict[tuple[str, str], Object | None]()
        for resource, name in needed:
            found[resource, name] = each = await self._node.api.find(path_of(self.namespace, resource, name))
            if each is not None and resource == "persistentvolumeclaims":
                found[resource, name] = await self._node.api.find(
                    f"/api/v1/persistentvolumes/{each['spec'].get('volumeName')}"
                )
        return found

    async def _make_volumes(self) -> None:
        told = ""
        while True:
            objects = await self._objects(volume_references(self.object))
            try:
                self._volumes = made(self.object, self.folder / "volumes", objects)
            except Misconfigured as error:
                if str(error) != told:
                    told = str(error)
                    await self._warn("FailedMount", f"MountVolume.SetUp failed: {told}")
                await asyncio.sleep(RETRY_S)
            else:
                return

    async def _launch(self, container: Container) -> Launch:
        while True:
            image = images.find(container.spec["image"])
            if image is None:
                container.wait_for("ErrImagePull", f"no registry has the image {container.spec['image']}")
            else:
                try:
                    return self._resolved(container, image, await self._objects(references(container.spec)))
                except Misconfigured as error:
                    container.wait_for("CreateContainerConfigError", str(error))
            await asyncio.sleep(RETRY_S)

    def _resolved(
        self, container: Container, image: images.Image, objects: dict[tuple[str, str], Object | None]
    ) -> Launch:
        pod = self.object["spec"].get("securityContext", {})
        own = container.spec.get("securityContext", {})
        user = own.get("runAsUser", pod.get("runAsUser", image.user))
        if user == 0 and own.get("runAsNonRoot", pod.get("runAsNonRoot")):
            raise Misconfigured("container has runAsNonRoot and image will run as root")
        root = self.folder / f"{container.name}.root"
        root.mkdir(exist_ok=True)
        sandbox = Sandbox(
            root,
            self._node.names(self.namespace),
            tuple(self._mounts(container, image)),
            user,
            own.get("runAsGroup", pod.get("runAsGroup", user)),
            container.spec.get("workingDir", image.folder),
            own.get("readOnlyRootFilesystem", False),
        )
        variables = self._environment(container, image, objects)
        arguments = command(container.spec, image.entrypoint, variables, self.address)
        return Launch(arguments, variables, sandbox, self.address)

    def _mounts(self, container: Container, image: images.Image) -> Iterator[Mount]:
        yield from (Mount(folder, str(folder), read_only=True) for folder in image.folders)
        yield from mounts(container.spec, self._volumes)

    def _environment(
        self, container: Container, image: images.Image, objects: dict[tuple[str, str], Object | None]
    ) -> dict[str, str]:
        links = self._node.links(self.namespace) if self.object["spec"].get("enableServiceLinks", True) else {}
        known = {**image.environment, "HOSTNAME": self.object["metadata"]["name"], **links}
        status = self.object.get("status", {}) | {"podIP": self.address, "hostIP": self._node.address}
        return environment(container.spec, self.object | {"status": status}, objects, known)

    async def _warn(self, reason: str, message: str) -> None:
        meta = self.object["metadata"]
        keys = ("namespace", "name", "uid")
        event = {
            "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
            "involvedObject": {"kind": "Pod", "apiVersion": "v1", **{key: meta[key] for key in keys}},
            "type": "Warning", "reason": reason, "message": message, "count": 1,
            "firstTimestamp": now(), "lastTimestamp": now(), "source": {"component": "kubelet"},
        }  # fmt: skip
        await self._node.api.ask("POST", path_of(meta["namespace"], "events"), event)

    # --- its status

    async def _report_changes(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._report()
            except (Refused, OSError, aiohttp.ClientError) as error:
                log.info("%s: %s", self.object["metadata"]["name"], error)
                await asyncio.sleep(RETRY_S)
                self._dirty.set()

    async def _report(self) -> None:
        path = path_of(self.namespace, "pods", self.object["metadata"]["name"]) + "/status"
        change = {"metadata": {"uid": self.uid}, "status": self._status()}
        try:
            await self._node.api.ask("PATCH", path, change, STRATEGIC)
        except Refused as refused:
            if refused.status not in (NOT_FOUND, CONFLICT, INVALID):
                raise
            log.debug("%s is gone, or another pod has its name: %s", self.object["metadata"]["name"], refused)

    def _status(self) -> Object:
        ready = not self._phase and all(each.ready for each in [*self.main, *self._sidecars()])
        self._condition("ContainersReady", ready)
        self._condition("Ready", ready)
        began = all(each.running or each.restarts or each.exit_code is not None for each in self.main)
        conditions = [
            {"type": kind, "status": str(holds), "lastTransitionTime": since}
            for kind, (holds, since) in self._conditions.items()
        ]
        return {
            "phase": self._phase or ("Running" if began else "Pending"),
            "conditions": conditions,
            "hostIP": self._node.address,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "startTime": self._began,
            "initContainerStatuses": [each.status() for each in self.init],
            "containerStatuses": [each.status() for each in self.main],
        }

    def _sidecars(self) -> Iterator[Container]:
        return (each for each in self.init if each.spec.get("restartPolicy") == "Always")

    def _condition(self, kind: str, holds: bool) -> None:
        if self._conditions.get(kind, (None, ""))[0] != holds:
            self._conditions[kind] = (holds, now())


async def remove(api: Api, pod: Object) -> None:
    """Take the object of a pod away that has ended."""
    options = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
    try:
        path = path_of(pod["metadata"]["namespace"], "pods", pod["metadata"]["name"])
        await api.ask("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options})
    except Refused as refused:
        if refused.status not in (NOT_FOUND, CONFLICT):
            raise
