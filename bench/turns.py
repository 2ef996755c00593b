"""The longest turn of the control loop at 1,000 brokers with 1,000,000 bundles, in CPU time, while much happens.

A turn is what the loop does between two looks at its sockets and timers; proofs of ownership are written by the same
loop. See `turns_world.py` for what is real. `TURNS_SCALE=0.1` plays a tenth of it; `TURNS_ONLY=rack,created` plays what
has one of these words in its name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

from bench.figures import emit
from bench.turns_loop import LINES, OVER_LINES, told
from bench.turns_world import TurnsWorld
from loadmanager.broker.metrics import NodeMetrics
from loadmanager.embedding.handover import LIGHT_A_TURN
from loadmanager.model.policies.model import IsolationPolicy, Kind
from statechannel.law.bundle import Bundle, Key, even_boundaries
from statechannel.law.transitions import State

SCALE = float(os.environ.get("TURNS_SCALE", "1"))
ONLY = os.environ.get("TURNS_ONLY", "").split(",")
BROKERS, NAMESPACES, BUNDLES_EACH = round(1_000 * SCALE), round(1_000 * SCALE), 1_000
RACK, GROUP = round(100 * SCALE), round(20 * SCALE)
BIG = 65_536
BOUND_S = 0.020
AT_ONCE = 1_000
"""Topics that one request asks for."""

Play = Callable[[TurnsWorld], Awaitable[None]]


def run(_kind: str) -> None:
    """All figures of this bench; nothing in it depends on what carries the log."""
    world = TurnsWorld(BROKERS, NAMESPACES, BUNDLES_EACH, GROUP, BOUND_S)
    with world:
        world.run(_played(world))


async def _played(world: TurnsWorld) -> None:
    world.fill()
    for broker in world.brokers:
        world.coordination.start_incarnation(broker.name, broker.incarnation - 1)
    for peer in world.brokers[1:]:
        world.enter(peer)
    world.report(world.brokers)
    await _note(world, "start", lambda world: world.start())
    await _isolate(world)
    for what, play in SCENARIOS.items():
        if any(word in what for word in ONLY):
            await _note(world, what, play)


async def _note(world: TurnsWorld, what: str, play: Play) -> None:
    with world.loop.noting() as noted:
        begin_s = world.now_s
        await play(world)
        lasted_s = world.now_s - begin_s
    emit(
        "turns",
        f"longest turn, {what}",
        noted.longest_s * 1e3,
        "ms",
        target=f"< {BOUND_S * 1e3:g}",
        met=noted.longest_s < BOUND_S,
        turns_over=noted.over,
        turns=noted.turns,
        longest_without_search_ms=round(noted.longest_own_s * 1e3, 1),
        turns_over_without_search=noted.over_own,
        cpu_s=round(noted.total_s, 2),
        lasted_s=round(lasted_s, 1),
        collecting_ms=round(noted.collecting_s * 1e3, 1),
        longest_without_search_of=noted.longest_of,
        longest_collecting_ms=round(noted.longest_collecting_s * 1e3, 1),
        longest_at=noted.longest_at,
        over_of=dict(noted.over_of.most_common(LINES)),
        over_at=told(noted.over_at, OVER_LINES),
    )


# --- scenarios


async def _isolate(world: TurnsWorld) -> None:
    """The tenant `pay` is bound to its group, as it is placed already."""
    names = tuple(broker.name for broker in world.group)
    await _put(world, IsolationPolicy(("pay/.*",), names))
    await world.settled()


async def _put(world: TurnsWorld, policy: IsolationPolicy) -> None:
    node = world.node
    await _as_node(world, lambda: node.policies.put(Kind.ISOLATION, "pay", policy, author="bench", force=True))


async def _as_node(world: TurnsWorld, work: Callable[[], Awaitable[object]]) -> None:
    """Do it as the node, and wait until it is done."""

    async def do() -> None:
        await work()

    own = world.processes["node"]
    await own.run(lambda: world.loop.create_task(do()))


async def _idle(world: TurnsWorld) -> None:
    """A minute, in which every peer reports its load once."""
    peers = world.brokers[1:]
    for second in range(60):
        world.report(peers[second::60])
        await asyncio.sleep(1.0)


async def _scrape(world: TurnsWorld) -> None:
    """A minute in which a Prometheus asks every second."""
    metrics = NodeMetrics(world.node)
    for _ in range(60):
        await _as_node(world, metrics.scraped)
        await asyncio.sleep(1.0)


async def _rack(world: TurnsWorld) -> None:
    for broker in world.brokers[1 : 1 + RACK]:
        world.kill(broker)
    await world.settled()


async def _rolling_restart(world: TurnsWorld) -> None:
    """Every living peer in turn, a fiftieth of them at a time: it transfers all it has, ends, and comes back."""
    living = [broker for broker in world.brokers[1:] if broker not in world.referee.dead]
    wave = max(1, len(living) // 50)
    for begin in range(0, len(living), wave):
        leaving = living[begin : begin + wave]
        for broker in leaving:
            world.register(broker, draining=True)
        while any(world.node.channel.table.count_held_by(broker) for broker in leaving):
            for among in (world.group, [broker for broker in world.brokers[1:] if broker not in world.group]):
                others = [broker for broker in among if broker not in leaving and broker not in world.referee.dead]
                world.referee.drain([broker for broker in leaving if broker in among], others)
            await asyncio.sleep(2.0)  # what others sent there meanwhile is sent away as well
        for broker in leaving:
            world.restart(broker)
    await world.settled()


async def _own_drain(world: TurnsWorld) -> None:
    """The node itself drains, and takes bundles again."""
    node = world.node
    await _as_node(world, lambda: node.drain(120.0))
    await _as_node(world, node.undrain)


async def _group_down(world: TurnsWorld) -> None:
    """All brokers of the isolation group die: their bundles have no permitted place. Then they come back."""
    held = sum(world.node.channel.table.count_held_by(broker) for broker in world.group)
    for broker in world.group:
        world.kill(broker)
    table = world.node.channel.table
    await world.until(
        lambda: table.count_by_state()[State.UNASSIGNED] >= held, 120, "all of them are unassigned", poll_s=0.1
    )
    await asyncio.sleep(10.0)


async def _group_back(world: TurnsWorld) -> None:
    for broker in list(world.group):
        world.restart(broker)
    await world.settled()


async def _create(world: TurnsWorld) -> None:
    operations = world.node.current.operations
    boundaries = even_boundaries(BIG)
    await _as_node(world, lambda: operations.create_namespace("big/one", boundaries))
    await asyncio.sleep(5.0)


async def _look_up(world: TurnsWorld) -> None:
    """First lookups of all bundles, a thousand topics at once, as a request for many topics asks."""
    lookup, known = world.node.current.lookup, world.node.channel.table.namespace("big/one")
    assert known is not None
    bundles = known.bundles
    for begin in range(0, BIG, AT_ONCE):
        topics = [_topic_of(bundle) for bundle in bundles[begin : begin + AT_ONCE]]

        async def ask(topics: list[Key] = topics) -> None:
            async with asyncio.TaskGroup() as tasks:
                for begin in range(0, len(topics), LIGHT_A_TURN):  # as endpoints hand them over
                    for topic in topics[begin : begin + LIGHT_A_TURN]:
                        tasks.create_task(lookup.locate(topic, 30.0))
                    await asyncio.sleep(0)

        await _as_node(world, ask)


def _topic_of(bundle: Bundle) -> Key:
    return Key(bundle.namespace, str(bundle), bundle.lo)


async def _unload(world: TurnsWorld) -> None:
    operations = world.node.current.operations
    await _as_node(world, lambda: operations.unload_namespace("big/one"))


async def _delete(world: TurnsWorld) -> None:
    operations = world.node.current.operations
    await _as_node(world, lambda: operations.delete_namespace("big/one"))
    await asyncio.sleep(5.0)


async def _policy_change(world: TurnsWorld) -> None:
    """The group is one broker smaller from now on: what that one has must leave."""
    names = tuple(broker.name for broker in world.group[1:])
    await _put(world, IsolationPolicy(("pay/.*",), names))
    await asyncio.sleep(120.0)
    await world.settled()


SCENARIOS: dict[str, Play] = {
    "idle for a minute": _idle,
    "its metrics are read every second for a minute": _scrape,
    f"a rack of {RACK} dies": _rack,
    "rolling restart of all": _rolling_restart,
    "the node itself drains": _own_drain,
    f"an isolation group of {GROUP} is wholly down": _group_down,
    "it comes back": _group_back,
    f"a namespace of {BIG:,} bundles is created": _create,
    "its first lookups": _look_up,
    "it is unloaded": _unload,
    "it is deleted": _delete,
    "a policy changes": _policy_change,
}
