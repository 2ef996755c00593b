"""Small clusters on virtual time for tests of the shells: real channels and nodes, simulated servers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from loadmanager.broker.hooks import HostRunner
from loadmanager.broker.node import Node
from loadmanager.broker.serving import Serving
from loadmanager.cluster.dependencies import Dependencies
from loadmanager.cluster.membership import Membership
from loadmanager.cluster.suspicion import Answer
from loadmanager.model.host import BundleLoad
from loadmanager.model.load import Figures
from loadmanager.model.registration import Registration
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle, even_boundaries
from statechannel.law.codec import NEWEST_VERSION
from statechannel.law.record import NEVER, Action, BrokerId, Record, Role, Subject, Token
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Verdict
from statechannel.ports import Connection, Member
from statechannel.runtime.channel import Channel, ChannelSettings
from tests.simulator.loop import Process
from tests.simulator.world import World

NAMESPACE = "shop/orders"
ADMIN = BrokerId("admin:1", 1)
A, B, C = BrokerId("a:1", 1), BrokerId("b:1", 1), BrokerId("c:1", 1)


def virtually(story: Callable[[World], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that plays in a world of its own, on virtual time."""

    def test() -> None:
        with World(1) as world:
            world.run(story(world))

    test.__name__, test.__doc__, test.__module__ = story.__name__, story.__doc__, story.__module__
    return test


def process(world: World, name: str) -> Process:
    """A process whose clock is true."""
    return world.process(name, drift=0.0, offset_s=0.0)


@asynccontextmanager
async def replica(world: World, name: str = "a:1", **settings: Any) -> AsyncGenerator[Channel]:
    """A running channel of one partition, its publishes Unknown after 1 s."""
    log = world.log_client(process(world, name), request_timeout_s=0.5)
    chosen = ChannelSettings(partitions=1, publish_timeout_s=1.0)
    channel = Channel(log, msgspec.structs.replace(chosen, **settings), nonce=name, wall_ms=world.wall_ms)
    await channel.open()
    async with channel.running():
        yield channel


class Hand:
    """Writes to a channel as anybody would, and says what became of it."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel

    async def create(self, bundles: int = 1, namespace: str = NAMESPACE) -> tuple[Bundle, ...]:
        record = Record(
            "", Action.CREATE_NAMESPACE, ADMIN, Role.ADMIN,
            namespace=namespace, boundaries=even_boundaries(bundles), seen_namespace=NEVER,
        )  # fmt: skip
        assert isinstance(await self.channel.publish(record), Change)
        known = self.channel.table.namespace(namespace)
        assert known is not None
        return known.bundles

    def entry(self, bundle: Bundle) -> Ownership:
        entry = self.channel.table.get(bundle)
        assert entry is not None
        return entry

    async def write(
        self, action: Action, bundle: Bundle, by: BrokerId, to: BrokerId | None = None, *, role: Role = Role.BROKER,
        epoch: int = 0,
    ) -> Verdict:  # fmt: skip
        seen = self.entry(bundle).revision
        return await self.channel.publish(Record("", action, by, role, epoch, (Subject(bundle, seen),), to))

    async def accept(
        self, action: Action, bundle: Bundle, by: BrokerId, to: BrokerId | None = None, **more: Any
    ) -> None:
        verdict = await self.write(action, bundle, by, to, **more)
        assert isinstance(verdict, Change), verdict

    async def assign(self, bundle: Bundle, to: BrokerId) -> None:
        await self.accept(Action.OWN, bundle, to, to)
        await self.accept(Action.RETURN, bundle, to)


def membership_of(*brokers: BrokerId, draining: tuple[BrokerId, ...] = (), now_s: float = 0.0) -> Membership:
    """What a broker knows that is connected and sees these."""
    membership = Membership(validity_s=2.0, recovery_grace_s=150.0, now_s=now_s)
    see(membership, *brokers, draining=draining, now_s=now_s)
    return membership


def see(membership: Membership, *brokers: BrokerId, draining: tuple[BrokerId, ...] = (), now_s: float = 0.0) -> None:
    members = {b.name: Member(b, Registration(draining=b in draining).encode()) for b in brokers}
    membership.saw_members(members, Connection.CONNECTED, now_s)


class Service:
    """A hosted service that notes its hooks. `behave[hook]` is awaited in a hook, after it was noted."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.held: set[Bundle] = set()
        self.cpu_percent_each = 0.0
        self.behave: dict[str, Callable[[], Awaitable[object]]] = {}

    async def prepare(self, bundle: Bundle) -> None:
        await self._note("prepare")

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        await self._note("acquire" if hand_off is None else f"acquire with {hand_off!r}", "acquire")
        self.held.add(bundle)

    async def release(self, bundle: Bundle, to: object) -> Any:
        self.held.discard(bundle)
        return await self._note("release")

    async def abandon(self, bundle: Bundle) -> None:
        self.held.discard(bundle)
        await self._note("abandon")

    async def load(self) -> dict[Bundle, BundleLoad]:
        rate_msg_s = 100 * self.cpu_percent_each
        return {b: BundleLoad(in_rate_msg_s=rate_msg_s, cpu_percent=self.cpu_percent_each) for b in self.held}

    async def _note(self, what: str, hook: str = "") -> object:
        self.calls.append(what)
        behave = self.behave.get(hook or what)
        return await behave() if behave else None


class Sensors:
    """A machine of one core, on which nothing runs but the service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def read(self) -> Figures:
        cpu_percent = len(self._service.held) * self._service.cpu_percent_each
        return Figures(cpu_percent, 20.0, 1.0, 1 << 32, cpu_percent, 20.0)


QUICK = Settings.model_construct(
    cluster="test",
    partitions=1,
    start_timeout_s=10.0,
    session_timeout_s=3.0,
    recovery_grace_s=5.0,
    in_flight_timeout_s=8.0,
    publish_timeout_s=1.0,
    lead_timeout_s=4.0,
    host_acquire_timeout_s=2.0,
    drain_timeout_s=5.0,
)


class Started:
    """A node in a process of its own."""

    def __init__(self, process: Process, node: Node, service: Service, main: asyncio.Task[object]) -> None:
        self.process, self.node, self.service, self.main = process, node, service, main
        self.refuses_connections = False

    @property
    def name(self) -> str:
        return self.node.settings.advertised

    @property
    def serving(self) -> Serving:
        """What it serves, of a node that has an incarnation."""
        assert self.node.serving is not None
        return self.node.serving

    def told(self, text: str) -> bool:
        """Whether a note contains this."""
        return any(text in note.text for note in self.node.notes)

    def ask(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """Do something as this process."""
        return self.process.run(lambda: self.process.loop.create_task(work()))


class Nodes:
    """Nodes by name; they see each other's ports by `refuses_connections` and by whether the process is dead."""

    def __init__(self, world: World, settings: Settings = QUICK) -> None:
        self.world = world
        self.settings = settings
        self.by_name: dict[str, Started] = {}
        self.hidden_s: defaultdict[str, float] = defaultdict(float)
        """By name for how long its machine was paused without its boot clock's noticing."""
        self.outside: dict[str, Callable[[], float]] = {}

    def start(
        self, name: str, service: Service | None = None, process_name: str = "", *, reads: int = NEWEST_VERSION
    ) -> Started:
        """Start a node; `process_name` tells a second process of the same name from the first.

        `reads` is the newest record format of its release.
        """
        world, own = self.world, process(self.world, process_name or name)
        service = service or Service()
        nodes: list[Node] = []

        async def live() -> None:
            dependencies = Dependencies(
                log=world.log_client(own, request_timeout_s=0.5),
                coordination=world.coordination_client(own, session_timeout_s=3.0, request_timeout_s=0.5),
                clock_s=lambda: world.loop.time() - self.hidden_s[name],
                wall_ms=world.wall_ms,
                nonce=f"{name}-{world.loop.executed}",
                probe=self._probe,
                sensors=Sensors(service),
                newest_version=reads,
                outside=self.outside,
            )
            settings = self.settings.model_copy(update={"advertised": name})
            nodes.append(Node(settings, service, HostRunner(), dependencies))
            await nodes[0].run()

        main = own.start(live)
        own.run(world.loop.call_soon, lambda: None)
        started = Started(own, _LATER, service, main)
        self.by_name[name] = started

        def begun() -> None:
            started.node = nodes[0]

        world.loop.call_soon(begun)
        return started

    async def _probe(self, peer: Any, keep_s: float) -> Answer:
        started = self.by_name[peer.broker.name]
        if started.process.dead or started.refuses_connections:
            return Answer.REFUSED
        await asyncio.sleep(keep_s)
        return Answer.ENDED if started.process.dead else Answer.OPEN

    async def ready(self, *names: str, reads: int = NEWEST_VERSION) -> list[Started]:
        """Start these and wait until all see each other and one leads."""
        started = [self.start(name, reads=reads) for name in names]
        await asyncio.sleep(0)
        await self.world.until(lambda: all(s.node.ready.is_set() for s in started), 10, "all are ready")
        await self.world.until(
            lambda: all(set(s.node.peers()) == set(self.by_name) for s in started) and self.leader() is not None,
            10, "all know each other, and one leads",
        )  # fmt: skip
        return started

    def leader(self) -> Started | None:
        begun = (s for s in self.by_name.values() if not s.process.dead and s.node is not _LATER)
        acting = (s for s in begun if s.node.incarnation is not None)
        return next((s for s in acting if s.node.current.leader.leading is not None), None)

    async def own_all(self, bundles: int, by: Started, namespace: str = NAMESPACE) -> list[Bundle]:
        """Create a namespace and give all of it to one broker."""
        await by.ask(lambda: by.node.current.operations.create_namespace(namespace, even_boundaries(bundles)))
        known = by.node.channel.table.namespace(namespace)
        assert known is not None
        for bundle in known.bundles:
            await by.ask(lambda bundle=bundle: by.node.current.operations.transfer(bundle, by.name))
        tables = [each.node.channel.table for each in self.by_name.values() if not each.process.dead and each.node]
        await self.world.until(
            lambda: all(table.count_by_state().get(State.ASSIGNED, 0) >= bundles for table in tables),
            5, "everybody has read it",
        )  # fmt: skip
        return list(known.bundles)

    def serving(self, bundle: Bundle) -> list[str]:
        """Who serves a bundle at this moment; a process that is paused answers as it would when it runs on."""
        alive = [s for s in self.by_name.values() if not s.process.dead and s.node and s.node.serving]
        return [s.name for s in alive if s.process.run(s.serving.serving, bundle)]


_LATER: Any = None
