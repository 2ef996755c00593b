"""The demo's stage: brokers and the load generator as processes, and what the script can do to them.

A child's standard input is a pipe that ends with this process, however that ends; a child then ends too. Each child has
a session of its own, so that Ctrl-C reaches only this process, which then ends the children in order, by handle.
"""

from __future__ import annotations

import asyncio
import os
import signal
import string
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from loadmanager.client import HttpRouter, Router
from loadmanager.demo.counter.load import Snapshot
from loadmanager.demo.member import Orders, Told
from loadmanager.demo.observer import Observer
from loadmanager.demo.options import (
    BUNDLES,
    NAMESPACE,
    Options,
    cluster_settings,
    onlooker_settings,
)
from loadmanager.model.keys import key_at
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.transitions import State

LINE_BYTES = 1 << 20
END_S = 3.0


class Child:
    """One running child; `errors` is where its standard error goes."""

    def __init__(self, process: Process, errors: Path) -> None:
        self._process = process
        self.errors = errors

    @classmethod
    async def start(cls, module: str, arguments: Sequence[str], *, errors: Path, path: Path | None = None) -> Child:
        """`python -m module arguments…`, with `path` before the others on the module path.

        Its Python stacks are in `errors` if native code ends it.
        """
        search = os.pathsep.join(filter(None, (path and str(path), os.environ.get("PYTHONPATH"))))
        with errors.open("ab") as sink:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *arguments),
                stdin=PIPE,
                stdout=PIPE,
                stderr=sink,
                env={**os.environ, "PYTHONPATH": search, "PYTHONFAULTHANDLER": "1"},
                limit=LINE_BYTES,
                start_new_session=True,
            )
        return cls(process, errors)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    async def hear(self, line: Callable[[bytes], None]) -> int:
        """Call `line` with each line of standard output until it ends; the exit code."""
        assert self._process.stdout is not None
        async for text in self._process.stdout:
            line(text)
        return await self._process.wait()

    def kill(self) -> None:
        """SIGKILL."""
        if self.running:
            self._process.kill()

    def terminate(self) -> None:
        """SIGTERM."""
        if self.running:
            self._process.send_signal(signal.SIGTERM)

    def close_input(self) -> None:
        """Close the child's standard input, which tells it to end."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    async def wait(self) -> int:
        """The exit code."""
        return await self._process.wait()

    async def end(self) -> None:
        """Close its input, and kill it if it does not end within END_S."""
        self.close_input()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()


EVENTS_KEPT = 200
READY_S = 60.0
FAILOVER_S = 60.0
SETTLE_S = 60.0

_told = msgspec.json.Decoder(Told)
_figures = msgspec.json.Decoder(Snapshot)


class Served(msgspec.Struct, frozen=True, order=True):
    """A bundle began or stopped being served by a broker."""

    at_ns: int
    bundle: str
    by: str
    on: bool


class Event(msgspec.Struct, frozen=True):
    """Something that the script did, or that happened because of it. `tone` is `act`, `good`, `bad` or `plain`."""

    at_s: float
    text: str
    tone: str


class Life(msgspec.Struct):
    """One process of a broker; times in seconds of the demo. `end` says how it ended, if before the demo's end."""

    label: str
    begun_s: float
    ready_s: float | None = None
    ended_s: float | None = None
    end: str = ""


class Member:
    """A broker's process. `state` is `starting`, `up`, `leaving`, `killed` or `left`."""

    def __init__(self, label: str, name: str = "") -> None:
        self.label = label
        self.name = name
        self.child: Child | None = None
        self.state = "starting"
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def admin_url(self) -> str:
        return f"http://{self.name}"

    @property
    def process(self) -> Child:
        """Its process. A member is shown before it has one."""
        assert self.child is not None, f"{self.label} was not started"
        return self.child


class Stage:
    """State and processes of the demo. Use it inside the TaskGroup that it is given."""

    def __init__(self, options: Options, directory: Path, tasks: asyncio.TaskGroup) -> None:
        self.options = options
        self.directory = directory
        self.store = directory / "counters.db"
        self.settings = cluster_settings(options, directory)
        self.observer = Observer(Settings.model_validate(onlooker_settings(self.settings)), self._took_the_lead)
        self.members: dict[str, Member] = {}
        self.reads: int | None = None
        """The newest format of records known to brokers that start from now on; None: all."""
        self.load = Snapshot()
        self.loads: list[tuple[float, Snapshot]] = []
        """The load generator's figures, with their times."""
        self.lives: list[Life] = []
        self.events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.served: list[Served] = []
        self.failovers: dict[str, float] = {}
        self.ready_s: list[float] = []
        self.problems: list[str] = []
        self.began_s = time.monotonic()
        self._tasks = tasks
        self._children: list[Child] = []
        self._generator: Child | None = None
        self._generating: asyncio.Task[int] | None = None
        self._http: HttpRouter | None = None

    def note(self, text: str, tone: str = "plain") -> None:
        """Show an event."""
        self.events.append(Event(self.now_s, text, tone))

    def problem(self, text: str) -> None:
        """Record a failure of the demo."""
        self.problems.append(text)
        self.note(text, "bad")

    # --- looking

    @property
    def now_s(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self.began_s

    @property
    def setting_up(self) -> str:
        """What the demo waits for before the load begins; "" afterwards."""
        if self._generator is not None:
            return ""
        ready = len(self.up())
        if ready < self.options.brokers:
            return f"{ready} of {self.options.brokers} brokers are ready"
        owned = sum(entry.state is State.ASSIGNED for entry in self.observer.table)
        return f"{owned} of {BUNDLES} bundles have owners"

    def label(self, broker: str) -> str:
        """The letter of a broker; its address if it is not one of ours."""
        return next((m.label for m in self.members.values() if m.name == broker), broker)

    def words(self, text: str) -> str:
        """A text for people: brokers by their letters."""
        for member in self.members.values():
            if member.name:
                text = text.replace(member.name, member.label)
        return text

    def up(self) -> list[Member]:
        """The members that serve."""
        return [m for m in self.members.values() if m.state == "up"]

    def leader(self) -> Member | None:
        """The broker that took the lead last, if it is still up."""
        leader = self.observer.leader
        return next((m for m in self.up() if leader is not None and m.name == leader.name), None)

    async def led_by(self) -> Member:
        """The leader, once there is one. Raises RuntimeError if no broker takes the lead in time."""
        try:
            await self.observer.wait_for(lambda: self.leader() is not None, SETTLE_S)
        except TimeoutError:
            raise RuntimeError("no broker leads: the demo cannot go on") from None
        leader = self.leader()
        assert leader is not None
        return leader

    def _took_the_lead(self, broker: BrokerId, epoch: int) -> None:
        self.note(f"{broker.name} leads (epoch {epoch})")

    # --- brokers

    async def start_brokers(self, count: int) -> None:
        """Start some, together, and wait until they are ready. Raises RuntimeError if one does not start."""
        self.note(f"{count} brokers start, each is a process of its own", "act")

        async def start() -> None:
            member = await self.start_broker()
            self.note(f"{member.label} is ready")

        await asyncio.gather(*(start() for _ in range(count)))
        self._http = HttpRouter(Router(m.admin_url for m in self.up()))

    async def start_broker(self, former: Member | None = None) -> Member:
        """Start a new one, or one under the name of a former one, and wait until it is ready. Raises RuntimeError."""
        label = former.label if former else next(x for x in string.ascii_uppercase if x not in self.members)
        settings = {**self.settings, "advertised": former.name if former else "127.0.0.1:0"}
        orders = Orders(settings, str(self.store), NAMESPACE, BUNDLES, self.reads)
        errors = self.directory / f"{label}.err"
        member = self.members[label] = Member(label, former.name if former else "")
        self.lives.append(Life(label, self.now_s))
        argument = msgspec.json.encode(orders).decode()
        member.child = await self._start("loadmanager.demo.member", [argument], errors)
        self._tasks.create_task(self._attend(member, member.child))
        try:
            async with asyncio.timeout(READY_S):
                await member.ready
        except TimeoutError:
            raise RuntimeError(f"broker {label} was not ready within {READY_S:g} s; see {errors}") from None
        return member

    async def _start(self, module: str, arguments: Sequence[str], errors: Path) -> Child:
        child = await Child.start(module, arguments, errors=errors)
        self._children.append(child)
        return child

    async def _attend(self, member: Member, child: Child) -> None:
        code = await child.hear(lambda line: self._heard(member, line))
        if member.state in ("starting", "up"):
            lines = child.errors.read_text().strip().splitlines() or ["it wrote no error"]
            self.problem(f"broker {member.label} ended by itself (exit code {code}): {lines[-1]}")
            member.state = "left"
            self._ended(member, f"exit code {code}")
        if not member.ready.done():
            member.ready.set_exception(RuntimeError(f"broker {member.label} did not start; see {child.errors}"))

    def _heard(self, member: Member, line: bytes) -> None:
        told = _told.decode(line)
        if told.kind == "served":
            self.served.append(Served(told.at_ns, told.bundle, member.label, told.on))
        elif told.kind == "ready":
            member.name, member.state = told.name, "up"
            self._life(member).ready_s = self.now_s
            self.ready_s.append(told.took_ms / 1000)
            if not member.ready.done():
                member.ready.set_result(None)
        elif told.kind == "left":
            member.state = "left"

    def _life(self, member: Member) -> Life:
        return next(life for life in reversed(self.lives) if life.label == member.label)

    def _ended(self, member: Member, how: str) -> None:
        life = self._life(member)
        if life.ended_s is None:
            life.ended_s, life.end = self.now_s, how

    async def kill(self, member: Member, role: str) -> None:
        """SIGKILL, then wait until every bundle that it held answers again, and note how long that took."""
        orphans = self.observer.held_by_name(member.name)
        begun_s = time.monotonic()
        member.process.kill()
        member.state = "killed"
        self._ended(member, "SIGKILL")
        who = f"leader {member.label}" if role == "leader" else member.label
        self.note(f"SIGKILL to {who} (pid {member.process.pid}), which owned {len(orphans)} bundles", "bad")
        await self._until_answered(orphans, FAILOVER_S)
        self.failovers[role] = round(time.monotonic() - begun_s, 3)
        self.note(f"all {len(orphans)} answer again after {self.failovers[role]:.2f} s", "good")

    async def retire(self, member: Member) -> None:
        """SIGTERM: it moves its bundles away, then leaves."""
        held = len(self.observer.held_by_name(member.name))
        begun_s = time.monotonic()
        member.state = "leaving"
        member.process.terminate()
        self.note(f"SIGTERM to {member.label}: it hands its {held} bundles over and leaves", "act")
        try:
            async with asyncio.timeout(SETTLE_S):
                await member.process.wait()
        except TimeoutError:
            self.problem(f"{member.label} did not leave within {SETTLE_S:g} s")
            return
        member.state = "left"
        self._ended(member, "SIGTERM")
        self.note(f"{member.label} has left after {time.monotonic() - begun_s:.2f} s", "good")

    # --- bundles

    async def first_owners(self) -> None:
        """Assign every bundle by first lookups."""
        await self._until_answered(self.observer.bundles(NAMESPACE), READY_S)

    async def transfer(self, bundle: Bundle, to: Member) -> bool:
        """Move a bundle by hand, through the admin interface of some broker. Returns True if it arrived."""
        path = f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range}/unload"
        asked = next(m for m in self.up() if m is not to)
        session = self.http.router.session
        try:
            async with session.put(asked.admin_url + path, params={"destinationBroker": to.name}) as answer:
                if answer.status == 204:
                    return True
                self.note(f"{bundle.range} to {to.label}: {answer.status} {(await answer.text())[:120]}")
        except OSError as error:
            self.note(f"{bundle.range} to {to.label}: {error}")
        return False

    @property
    def http(self) -> HttpRouter:
        """The stage's own client, apart from the load generator's."""
        assert self._http is not None, "start the brokers first"
        return self._http

    async def _until_answered(self, bundles: Iterable[Bundle], limit_s: float) -> None:
        """Read a counter of each bundle, as a client."""

        async def ask(bundle: Bundle) -> None:
            topic = key_at(bundle.namespace, bundle.lo).full_name
            answer = await self.http.get(topic, f"/v1/counters?topic={topic}", budget_s=limit_s)
            if answer.status != 200:
                self.problem(f"{bundle} answers {answer.status}")

        async with asyncio.TaskGroup() as asking:
            for bundle in bundles:
                asking.create_task(ask(bundle))

    # --- load

    async def start_load(self) -> None:
        """Start the load generator."""
        options = self.options
        arguments = ["--json", "--rate", str(options.rate_s), "--budget", str(options.budget_s)]
        arguments += ["--store", str(self.store), "--namespace", NAMESPACE]
        for member in self.up():
            arguments += ["--admin", member.admin_url]
        errors = self.directory / "load.err"
        self._generator = await self._start("loadmanager.demo.counter.load", arguments, errors)
        self._generating = self._tasks.create_task(self._generator.hear(self._heard_of_load))

    def _heard_of_load(self, line: bytes) -> None:
        before, self.load = self.load, _figures.decode(line)
        self.loads.append((self.now_s, self.load))
        if self.load.failed > before.failed:
            self.note(f"{self.load.failed - before.failed} requests failed: {self.load.examples[-1:]}", "bad")

    async def finish_load(self) -> None:
        """End the load, and let it audit what is stored."""
        assert self._generator is not None
        assert self._generating is not None
        self._generator.close_input()
        try:
            async with asyncio.timeout(SETTLE_S):
                await asyncio.shield(self._generating)
        except TimeoutError:
            self.problem(f"the load generator did not end within {SETTLE_S:g} s")
        if self.load.stored is None:
            self.problem(f"the load generator gave no audit; see {self._generator.errors}")

    # --- the end

    async def clear(self) -> None:
        """End all processes, whatever they are doing."""
        for member in self.members.values():
            member.state = "left"
        await asyncio.gather(*(child.end() for child in self._children))
        if self._http is not None:
            await self._http.router.close()
