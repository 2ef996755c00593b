"""One container of a pod: its process, restarts, probes, hooks, and what the status says of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from stack.kubernetes.kubelet.probes import Prober
from stack.kubernetes.kubelet.sandbox import Sandbox

Object = dict[str, Any]
FIRST_BACK_OFF_S = 1.0
LAST_BACK_OFF_S = 30.0
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def now() -> str:
    """As the API has times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Launch:
    """All that is needed to start it."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    sandbox: Sandbox
    address: str


class Container:
    """Tells `changed()` when its status has changed."""

    def __init__(
        self,
        spec: Object,
        log_file: Path,
        session: aiohttp.ClientSession,
        changed: Callable[[], None],
        grace_s: float = 30.0,
    ) -> None:
        self.spec = spec
        self._grace_s = grace_s
        self.name: str = spec["name"]
        self.log_file = log_file
        self.restarts = 0
        self.has_started = asyncio.Event()
        self.state: Object = {"waiting": {"reason": "ContainerCreating"}}
        self._last: Object = {}
        self._ready = False
        self._session = session
        self._changed = changed
        self._process: Process | None = None
        self._launch: Launch | None = None
        self._leaving = False
        self._began_s = 0.0
        self._probing: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    # --- what the status says

    @property
    def running(self) -> bool:
        return "running" in self.state

    @property
    def ready(self) -> bool:
        """Running, started, and its readiness probe succeeds."""
        return self.running and self.has_started.is_set() and self._ready

    @property
    def exit_code(self) -> int | None:
        """Of the process that ended last, if none runs."""
        return self.state["terminated"]["exitCode"] if "terminated" in self.state else None

    def status(self) -> Object:
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": "",
            "state": self.state,
            "lastState": self._last,
            "ready": self.ready,
            "started": self.has_started.is_set(),
            "restartCount": self.restarts,
        }

    def wait_for(self, reason: str, message: str) -> None:
        """It cannot start yet."""
        self._become({"waiting": {"reason": reason, "message": message}})

    def _become(self, state: Object) -> None:
        if state != self.state:
            self.state = state
            self._changed()

    # --- its life

    async def run(self, launch: Launch, again: Callable[[int], bool]) -> int:
        """Until it has ended for good: `again(exit code)` says whether it is started again. Returns the exit code."""
        self._launch, back_off_s = launch, FIRST_BACK_OFF_S
        while True:
            code = await self._once(launch)
            if self._leaving or not again(code):
                return code
            self._last, self.restarts = self.state, self.restarts + 1
            message = f"back-off {back_off_s:g}s restarting failed container={self.name}"
            self.wait_for("CrashLoopBackOff", message)
            await asyncio.sleep(back_off_s)
            back_off_s = min(2 * back_off_s, LAST_BACK_OFF_S)

    async def _once(self, launch: Launch) -> int:
        began, self._ending = now(), None
        with self.log_file.open("ab") as output:
            self._process = process = await asyncio.create_subprocess_exec(
                *launch.sandbox.command(launch.arguments),
                stdin=DEVNULL,
                stdout=output,
                stderr=output,
                env=launch.environment,
                start_new_session=True,
            )
        self._began_s = time.monotonic()
        self._ready = "readinessProbe" not in self.spec
        if "startupProbe" not in self.spec:
            self.has_started.set()
        self._become({"running": {"startedAt": began}})
        self._probing = asyncio.create_task(self._probe(launch))
        try:
            code = await process.wait()
        finally:
            self._probing.cancel()
            _signal_all(process.pid, signal.SIGKILL)  # what it has left behind
        self._ready = False
        self.has_started.clear()
        self._become({"terminated": _ended(began, 128 - code if code < 0 else code)})
        return code

    async def stop(self, grace_s: float) -> None:
        """The hook, SIGTERM, and SIGKILL after `grace_s`. Returns when it has ended; it is not started again."""
        self._leaving = True
        await asyncio.shield(self._end_once(grace_s))

    def _end_once(self, grace_s: float) -> asyncio.Task[None]:
        """A process gets one SIGTERM: many end at once when they get a second one."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(grace_s))
        return self._ending

    def kill(self) -> None:
        """SIGKILL at once; it is not started again."""
        self._leaving = True
        if self._process is not None and self._process.returncode is None:
            _signal_all(self._process.pid, signal.SIGKILL)

    async def _end(self, grace_s: float) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        try:
            async with asyncio.timeout(grace_s):
                hook = self.spec.get("lifecycle", {}).get("preStop", {}).get("exec")
                if hook:
                    await self.execute(hook["command"], grace_s)
                if process.returncode is None:
                    process.send_signal(signal.SIGTERM)
                await process.wait()
        except TimeoutError:
            _signal_all(process.pid, signal.SIGKILL)
            await process.wait()

    async def execute(self, command: list[str], timeout_s: float) -> bool:
        """Whether a command in the container succeeds within the time."""
        if self._process is None or self._launch is None or self._process.returncode is not None:
            return False
        inside = self._launch.sandbox.entering(self._process.pid, command)
        process = await asyncio.create_subprocess_exec(
            *inside, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, env=self._launch.environment
        )
        try:
            async with asyncio.timeout(timeout_s):
                return await process.wait() == 0
        except TimeoutError:
            return False
        finally:
            if process.returncode is None:
                process.kill()

    # --- probes

    async def _probe(self, launch: Launch) -> None:
        prober = Prober(self.spec, launch.address, self.execute, self._session)
        startup, readiness, liveness = (self.spec.get(each) for each in PROBES)
        if startup:
            starting = asyncio.create_task(prober.follow(startup, self._startup_became))
            try:
                await self.has_started.wait()
            finally:
                starting.cancel()
        following = [
            prober.follow(probe, became)
            for probe, became in ((readiness, self._readiness_became), (liveness, self._liveness_became))
            if probe
        ]
        await asyncio.gather(*following)

    def _startup_became(self, succeeded: bool) -> None:
        if succeeded:
            self.has_started.set()
            self._changed()
        else:
            self._restart()

    def _readiness_became(self, succeeded: bool) -> None:
        if succeeded != self._ready:
            self._ready = succeeded
            self._changed()

    def _liveness_became(self, succeeded: bool) -> None:
        if not succeeded:
            self._restart()

    def _restart(self) -> None:
        """End the process; `run` starts it again."""
        self._end_once(self._grace_s)


def _ended(began: str, code: int) -> Object:
    reason = "Completed" if code == 0 else "Error"
    return {"exitCode": code, "reason": reason, "startedAt": began, "finishedAt": now()}


def _signal_all(leader: int, number: signal.Signals) -> None:
    """To the process and all that it started: they are one session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)
