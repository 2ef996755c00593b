"""A node's life among others: start, fences, replicas that stop, servers that are away, and what its host is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from zlib import crc32

import msgspec
import pytest

from loadmanager.broker.node import LAST_STEP_S
from loadmanager.model.policies.model import Kind, NamespacePolicy
from statechannel.errors import CoordinationUnavailable, LogUnavailable, NameTaken, NewerRecord
from statechannel.law.bundle import even_boundaries
from statechannel.law.codec import AGREEING_VERSION
from statechannel.law.record import BrokerId
from statechannel.ports import Connection, Member, Payload
from tests.loadmanager.small_world import NAMESPACE, Nodes, Started, virtually
from tests.simulator.loop import Process
from tests.simulator.simulated_coordination import COORDINATION_SERVER, SimulatedCoordination
from tests.simulator.simulated_log import LOG_SERVER
from tests.simulator.world import World

V = 2.0


def of_a_later_format() -> Payload:
    head, body = b"LM63", b'{"new":1}'
    return Payload(None, head + b" %08x " % crc32(body, crc32(head)) + body)


def cause(error: BaseException | None) -> BaseException | None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


# --- start


@virtually
async def test_a_node_waits_for_servers_that_come_late(world: World):
    world.set_down(LOG_SERVER, True)
    world.set_down(COORDINATION_SERVER, True)
    nodes = Nodes(world)
    a = nodes.start("a:1")
    await asyncio.sleep(3)
    world.set_down(LOG_SERVER, False)
    await asyncio.sleep(3)
    world.set_down(COORDINATION_SERVER, False)
    await world.until(lambda: a.node.ready.is_set(), 10, "it started after all")


def reads_no_members(started: Started) -> Callable[[], None]:
    """From now on; returns what ends it with the next change of members."""
    membership, lags = started.node.membership, [True]
    feed = membership.saw_members

    def fed(members: Mapping[str, Member], connection: Connection, now_s: float) -> None:
        feed({} if lags else members, connection, now_s)

    membership.saw_members = fed  # type: ignore[method-assign]
    return lags.clear


@virtually
async def test_node_is_ready_and_eligible_once_it_has_read_its_registration(world: World):
    nodes = Nodes(world)
    a = nodes.start("a:1")
    await asyncio.sleep(0)
    goes_on = reads_no_members(a)
    b = nodes.start("b:1")
    await asyncio.sleep(0)
    await world.until(lambda: b.node.ready.is_set() and "a:1" in b.node.peers(), 10, "the other one reads of both")
    assert not a.node.ready.is_set(), "nobody could move anything to it by name"
    goes_on()
    nodes.start("c:1")
    await world.until(a.node.ready.is_set, 1, "it is ready")
    assert "a:1" in a.node.peers()
    await nodes.own_all(1, a)


@virtually
async def test_a_node_that_cannot_read_who_is_there_serves_all_the_same(world: World):
    a = Nodes(world).start("a:1")
    await asyncio.sleep(0)
    reads_no_members(a)
    await world.until(a.node.ready.is_set, 3, "it is ready")
    assert a.node.peers() == {}


@pytest.mark.parametrize(
    ("server", "error"), [(LOG_SERVER, LogUnavailable), (COORDINATION_SERVER, CoordinationUnavailable)]
)
def test_a_node_whose_server_stays_away_ends_with_its_error(server: str, error: type[Exception]):
    async def story(world: World) -> None:
        world.set_down(server, True)
        a = Nodes(world).start("a:1")
        await world.until(lambda: a.process.dead, 15, "it gives up")
        assert isinstance(cause(a.process.failure), error)
        assert server in str(cause(a.process.failure))

    virtually(story)()


def test_all_steps_of_a_start_share_one_deadline():
    async def story(world: World) -> None:
        world.set_down(LOG_SERVER, True)
        world.set_down(COORDINATION_SERVER, True)
        nodes = Nodes(world)
        began_s = world.now_s
        a = nodes.start("a:1")
        await asyncio.sleep(8)
        world.set_down(LOG_SERVER, False)
        await world.until(lambda: a.process.dead, 5, "it gives up")
        assert world.now_s - began_s <= nodes.settings.start_timeout_s + 2, "and a second to close"
        assert isinstance(cause(a.process.failure), CoordinationUnavailable)

    virtually(story)()


@virtually
async def test_start_that_times_out_says_how_long_and_what_it_waited_for(world: World):
    nodes = Nodes(world)
    (a,) = await nodes.ready("a:1")
    world.log.attach = lambda _tail: None  # type: ignore[method-assign] # it answers, and sends nothing to new readers
    world.cut("b:1", LOG_SERVER)
    b = nodes.start("b:1")
    await asyncio.sleep(nodes.settings.start_timeout_s - LAST_STEP_S)
    world.heal("b:1", LOG_SERVER)  # too late: a last look tells how far it is
    await world.until(lambda: b.process.dead, 3, "it gives up")
    assert isinstance(cause(b.process.failure), LogUnavailable)
    end = a.node.channel.table.next_offset(0)
    assert str(cause(b.process.failure)) == (
        "not started within 10 s (start_timeout_s): the channel could not be read to its end: "
        f"partition 0 ends at offset {end}, and is read up to 0"
    )


@pytest.mark.parametrize("server", [LOG_SERVER, COORDINATION_SERVER])
def test_a_server_that_falters_in_the_middle_of_a_start_is_asked_again(server: str):
    async def story(world: World) -> None:
        nodes = Nodes(world)
        await nodes.ready("a:1")
        b = nodes.start("b:1")
        await asyncio.sleep(0.002)
        for _ in range(3):
            world.set_down(server, True)
            await asyncio.sleep(0.7)
            world.set_down(server, False)
            await asyncio.sleep(0.002)
        await world.until(lambda: b.node.ready.is_set(), 10, "it started after all")

    virtually(story)()


@virtually
async def test_stopping_node_does_not_wait_for_absent_coordination(world: World):
    nodes = Nodes(world)
    a, _ = await nodes.ready("a:1", "b:1")
    world.coordination.start_incarnation("a:1", 0)  # a second process of that name
    await world.until(lambda: a.told("was fenced"), 3, "a is fenced")
    world.set_down(COORDINATION_SERVER, True)
    a.process.run(a.node.stop)
    await world.until(lambda: a.process.dead, 12, "a has left")
    assert a.process.failure is None


# --- fences


@virtually
async def test_fenced_node_stops_serving_tells_its_host_and_begins_anew(world: World):
    nodes = Nodes(world)
    a, _ = await nodes.ready("a:1", "b:1")
    (bundle,) = await nodes.own_all(1, a)
    assert nodes.serving(bundle) == ["a:1"]
    before = a.node.current.me
    world.coordination.start_incarnation("a:1", before.incarnation)
    await world.until(lambda: a.node.current.me != before and a.node.ready.is_set(), 5, "it began anew")
    assert "abandon" in a.service.calls
    assert a.node.current.me.incarnation > before.incarnation + 1
    await world.until(lambda: len(nodes.serving(bundle)) == 1, 15, "somebody serves it again")
    token = (await a.ask(lambda: a.node.current.lookup.locate(_topic(), 1))).token
    assert token.offset > 2


def _topic():
    from statechannel.law.bundle import Key

    return Key.parse(f"{NAMESPACE}/x")


@virtually
async def test_leader_fenced_in_place_does_not_leave_the_cluster_without_one(world: World):
    """Its session lives on, and with it the election node of an incarnation that is over."""
    nodes = Nodes(world)
    await nodes.ready("a:1", "b:1", "c:1")
    leader = nodes.leader()
    assert leader is not None
    before = leader.node.current.me
    world.coordination.start_incarnation(before.name, before.incarnation)
    await world.until(lambda: leader.node.current.me != before, 5, "it began anew")
    await world.until(lambda: nodes.leader() is not None, 5, "somebody leads")


@virtually
async def test_node_fenced_while_draining_leaves_at_once_in_good_order(world: World):
    nodes = Nodes(world)
    a, b = await nodes.ready("a:1", "b:1")
    await nodes.own_all(2, a)
    b.service.behave["prepare"] = lambda: asyncio.sleep(1.5)
    a.process.run(a.node.stop, 60.0)
    await asyncio.sleep(0.2)
    world.coordination.start_incarnation("a:1", 9)
    await world.until(lambda: a.process.dead, 4, "a has left, long before the drain's time is over")
    assert a.process.failure is None
    assert a.service.calls.count("abandon") >= 2


# --- a replica that reads no further


@virtually
async def test_a_newer_record_ends_the_node_after_its_host_was_told(world: World):
    nodes = Nodes(world)
    a, _ = await nodes.ready("a:1", "b:1")
    (bundle,) = await nodes.own_all(1, a)
    world.log.append("bundle-state", 0, [of_a_later_format()])
    await world.until(lambda: nodes.serving(bundle) == [], 0.1, "nothing is served any more")
    await world.until(lambda: a.process.dead, 10, "it has ended")
    assert isinstance(cause(a.process.failure), NewerRecord)
    assert a.service.calls[-1] == "abandon"


@virtually
async def test_nobody_is_written_to_above_the_format_that_he_reads(world: World):
    nodes = Nodes(world)
    (a,) = await nodes.ready("a:1")
    world.coordination.register(1, BrokerId("a:1", a.node.current.me.incarnation), b'{"codec":0}')
    await world.until(lambda: a.node.membership.peers["a:1"].registration.codec == 0, 2, "it is seen")
    assert a.node.channel.write_version == AGREEING_VERSION, "nor below the one that the log needs"


# --- leaving


@virtually
async def test_node_leaves_after_moving_what_it_can_and_abandons_the_rest(world: World):
    nodes = Nodes(world)
    a, b = await nodes.ready("a:1", "b:1")
    (bundle,) = await nodes.own_all(1, a)
    b.service.behave["prepare"] = lambda: asyncio.sleep(100)
    a.process.run(a.node.stop, 1.0)
    await world.until(lambda: nodes.serving(bundle) == [], 1.5, "its time is over")
    await world.until(lambda: a.process.dead, 8, "it has left")
    assert a.service.calls[-1] == "abandon"


@virtually
async def test_a_graceful_leave_hands_over_with_at_most_one_owner_at_any_instant(world: World):
    nodes = Nodes(world)
    a, _b, _c = await nodes.ready("a:1", "b:1", "c:1")
    bundles = await nodes.own_all(8, a)
    most: list[int] = []
    world.loop.after_callback = lambda _: most.append(max(len(nodes.serving(bundle)) for bundle in bundles))
    a.process.run(a.node.stop)
    await world.until(lambda: a.process.dead, 5, "a has left")
    await world.until(lambda: all(len(nodes.serving(b)) == 1 for b in bundles), 1, "all are served")
    world.loop.after_callback = None
    assert max(most) == 1
    assert "abandon" not in a.service.calls


# --- servers that are away


@virtually
async def test_node_serves_without_coordination_and_stops_in_time_without_both(world: World):
    nodes = Nodes(world)
    a, _ = await nodes.ready("a:1", "b:1")
    (bundle,) = await nodes.own_all(1, a)
    world.set_down(COORDINATION_SERVER, True)
    for _ in range(100):
        await asyncio.sleep(0.2)
        assert nodes.serving(bundle) == ["a:1"]
    world.set_down(LOG_SERVER, True)
    await asyncio.sleep(V)
    assert nodes.serving(bundle) == []
    world.set_down(LOG_SERVER, False)
    await world.until(lambda: nodes.serving(bundle) == ["a:1"], 3, "nobody has revoked it: it serves again")


@virtually
async def test_with_the_log_away_it_serves_on(world: World):
    nodes = Nodes(world)
    a, _ = await nodes.ready("a:1", "b:1")
    (bundle,) = await nodes.own_all(1, a)
    world.set_down(LOG_SERVER, True)
    for _ in range(100):
        await asyncio.sleep(0.2)
        assert nodes.serving(bundle) == ["a:1"]


@virtually
async def test_bundle_acquired_while_coordination_is_away_is_proved_at_once(world: World):
    """No-ops are written for what we hold, not only for what we already serve."""
    nodes = Nodes(world)
    a, b = await nodes.ready("a:1", "b:1")
    (bundle,) = await nodes.own_all(1, a)
    world.set_down(COORDINATION_SERVER, True)
    await asyncio.sleep(5)
    b.service.behave["acquire"] = lambda: asyncio.sleep(0.5)
    await a.ask(lambda: a.node.current.operations.transfer(bundle, "b:1"))
    assert nodes.serving(bundle) == ["b:1"]


# --- crashes


@virtually
async def test_a_crashed_owner_is_replaced_within_detection_and_validity(world: World):
    nodes = Nodes(world)
    a, _b, _c = await nodes.ready("a:1", "b:1", "c:1")
    if nodes.leader() is a:
        a = nodes.by_name["b:1"]
    bundles = await nodes.own_all(16, a)
    world.crash(a.name)
    await world.until(lambda: all(len(nodes.serving(b)) == 1 for b in bundles), 4, "all are served again")


@virtually
async def test_a_crashed_leader_is_replaced_within_detection_and_validity(world: World):
    nodes = Nodes(world)
    await nodes.ready("a:1", "b:1", "c:1")
    leader = nodes.leader()
    assert leader is not None
    bundles = await nodes.own_all(16, leader)
    world.crash(leader.name)
    await world.until(lambda: all(len(nodes.serving(b)) == 1 for b in bundles), 4, "all are served again")


@virtually
async def test_a_paused_owner_wakes_to_find_that_it_serves_nothing(world: World):
    nodes = Nodes(world)
    a, _b, _c = await nodes.ready("a:1", "b:1", "c:1")
    if nodes.leader() is a:
        a = nodes.by_name["b:1"]
    (bundle,) = await nodes.own_all(1, a)
    most: list[int] = []
    world.loop.after_callback = lambda _: most.append(len(nodes.serving(bundle)))
    world.pause(a.name)
    await asyncio.sleep(15)
    world.resume(a.name)
    await asyncio.sleep(5)
    world.loop.after_callback = None
    assert max(most) == 1
    assert len(nodes.serving(bundle)) == 1


# --- bugs of others


@virtually
async def test_failing_strategy_ends_neither_broker_nor_leadership_for_long(world: World):
    nodes = Nodes(world)
    (a,) = await nodes.ready("a:1")
    (bundle,) = await nodes.own_all(1, a)
    core = a.node.current

    async def fail(_: object) -> None:
        raise LookupError("a plugin's bug")

    core.leader._rebalance = fail
    core.leader._end("for the next term to begin")
    await world.until(lambda: a.told("LookupError"), 5, "the bug is told")
    core.leader._rebalance = core.rebalancer.rebalance
    await world.until(lambda: core.leader.leading is not None, 10, "it leads again")
    assert nodes.serving(bundle) == ["a:1"]


@virtually
async def test_broker_without_the_log_is_given_nothing_until_it_reads_it(world: World):
    """It holds the fewest bundles, so everything would be given to it, again and again, and nobody would serve."""
    nodes = Nodes(world)
    a, b, c = await nodes.ready("a:1", "b:1", "c:1")
    bundles = await nodes.own_all(4, a)
    world.cut("c:1", LOG_SERVER)
    await world.until(lambda: b.node.peers()["c:1"].registration.behind, 12, "c says so")
    world.crash("a:1")
    await world.until(lambda: all(nodes.serving(x) == ["b:1"] for x in bundles), 25, "b has all")
    world.heal("c:1", LOG_SERVER)
    await world.until(lambda: not b.node.peers()["c:1"].registration.behind, 5, "c is back")
    await b.ask(lambda: b.node.current.operations.transfer(bundles[0], "c:1"))
    assert c.node.serving is not None
    assert nodes.serving(bundles[0]) == ["c:1"]


@virtually
async def test_registration_that_others_do_not_see_is_repeated(world: World):
    """A server restored from a copy, or a change that was missed, must not keep a broker without bundles."""
    nodes = Nodes(world)
    a, c = await nodes.ready("a:1", "c:1")
    shown = msgspec.structs.replace(c.node.registration, behind=True).encode()
    await c.ask(lambda: c.node.world.coordination.register(c.node.current.me, shown))
    await world.until(lambda: a.node.peers()["c:1"].registration.behind, 5, "others see what is not so")
    await world.until(lambda: not a.node.peers()["c:1"].registration.behind, 30, "c has registered again")
    revision = a.node.membership.revision
    await asyncio.sleep(60)
    assert a.node.membership.revision == revision, "it registers no more than it must"


@virtually
async def test_node_with_a_hung_loop_stops_serving_first_and_becomes_the_next_one(
    world: World,
):
    nodes = Nodes(world)
    a, b = await nodes.ready("a:1", "b:1")
    bundles = await nodes.own_all(4, a)
    before = a.node.current.me
    a.process.run(a.node.world.coordination.abandon)
    a.process.run(a.node.abandoned, "it hung")
    assert a.node.serving is not None
    assert not a.node.serving.claims()
    assert not any(nodes.serving(bundle) for bundle in bundles)
    await world.until(lambda: "a:1" not in b.node.peers(), 1, "the others see silence")
    await world.until(
        lambda: "a:1" in b.node.peers() and b.node.peers()["a:1"].broker.incarnation > before.incarnation,
        5, "it registers as the next",
    )  # fmt: skip
    await world.until(lambda: all(nodes.serving(bundle) for bundle in bundles), 10, "all is served again")
    assert a.node.current.me.incarnation > before.incarnation
    assert a.told("it hung: our session was ended")


@virtually
async def test_node_cut_off_from_both_stops_and_resumes_what_it_still_owns(
    world: World,
):
    nodes = Nodes(world)
    (a,) = await nodes.ready("a:1")
    (bundle,) = await nodes.own_all(1, a)
    world.set_down(LOG_SERVER, True)
    world.set_down(COORDINATION_SERVER, True)
    await world.until(lambda: "abandon" in a.service.calls, 2 * V, "the host was told to stop")
    assert nodes.serving(bundle) == []
    world.set_down(LOG_SERVER, False)
    world.set_down(COORDINATION_SERVER, False)
    await world.until(lambda: nodes.serving(bundle) == ["a:1"], 10, "it serves again")


@virtually
async def test_the_bundles_of_an_eager_namespace_are_served_without_any_lookup(world: World):
    nodes = Nodes(world)
    a, b = await nodes.ready("a:1", "b:1")
    await a.ask(lambda: a.node.current.operations.create_namespace(NAMESPACE, even_boundaries(4)))
    await asyncio.sleep(30)
    assert not [entry for entry in a.node.channel.table if entry.holder is not None]
    await b.ask(lambda: b.node.policies.put(Kind.NAMESPACE, NAMESPACE, NamespacePolicy(eager=True), author="test"))
    bundles = [entry.bundle for entry in a.node.channel.table]
    await world.until(lambda: all(len(nodes.serving(bundle)) == 1 for bundle in bundles), 5, "all are served")
    assert {name for bundle in bundles for name in nodes.serving(bundle)} == {"a:1", "b:1"}
    (owner,) = nodes.serving(bundles[0])
    await b.ask(lambda: b.node.current.operations.unload(bundles[0]))
    await world.until(lambda: len(nodes.serving(bundles[0])) == 1, 5, f"it has an owner again, after {owner}")


@virtually
async def test_non_exclusive_namespace_is_served_on_by_brokers_cut_off_from_both(world: World):
    """And meanwhile by another one too: that is the price, and it ends when the first one hears of it."""
    nodes = Nodes(world)
    a, b = await nodes.ready("a:1", "b:1")
    (bundle,) = await nodes.own_all(1, a)
    shared = NamespacePolicy(exclusive=False)
    await b.ask(lambda: b.node.policies.put(Kind.NAMESPACE, NAMESPACE, shared, author="test"))
    await world.until(lambda: NAMESPACE in a.node.policies.current().namespaces, 5, "a knows of it")
    for server in (LOG_SERVER, COORDINATION_SERVER):
        world.cut("a:1", server)
    await asyncio.sleep(2 * V)
    assert all(a.node.world.clock_s() > until_s for until_s in a.serving.until_s()), "no proof is fresh"
    assert nodes.serving(bundle) == ["a:1"]
    await world.until(lambda: nodes.serving(bundle) == ["a:1", "b:1"], 60, "b got it meanwhile")
    assert "abandon" not in a.service.calls
    for server in (LOG_SERVER, COORDINATION_SERVER):
        world.heal("a:1", server)
    await world.until(lambda: nodes.serving(bundle) == ["b:1"], 30, "a heard that it is fenced")
    assert "abandon" in a.service.calls


@virtually
async def test_of_two_processes_of_one_name_the_fenced_one_ends_and_says_why(world: World):
    nodes = Nodes(world)
    (first,) = await nodes.ready("a:1")
    second = nodes.start("a:1", process_name="a:1 again")
    await asyncio.sleep(0)
    await world.until(lambda: second.node.ready.is_set(), 5, "the second one runs")
    await world.until(lambda: first.process.dead, 5, "the first one has ended")
    failure = cause(first.process.failure)
    assert isinstance(failure, NameTaken)
    assert "a:1#2" in str(failure)
    assert "--advertised" in str(failure)
    await asyncio.sleep(10)
    assert second.node.ready.is_set()
    assert second.node.current.me == BrokerId("a:1", 2), "nobody fenced it"


def far_away(world: World, one_way_s: float) -> None:
    """The coordination service, for everybody who comes from now on; the log stays near."""
    near = world.coordination_client

    def client(process: Process, **_: float) -> SimulatedCoordination:
        made = near(process, session_timeout_s=20 * one_way_s, request_timeout_s=4 * one_way_s)
        for direction in (made.link._requests, made.link._answers):
            direction._latency_s = lambda: one_way_s
        return made

    world.coordination_client = client  # type: ignore[method-assign]


@pytest.mark.parametrize("one_way_s", [0.65, 1.3, 2.0])
@pytest.mark.parametrize("second_after_s", [0.0, 0.4, 0.9, 1.7])
def test_namesakes_far_from_coordination_fence_each_other_once(one_way_s: float, second_after_s: float):
    async def story(world: World) -> None:
        far_away(world, one_way_s)
        nodes = Nodes(world)
        first = nodes.start("a:1")
        await asyncio.sleep(0)
        await world.until(lambda: first.node.ready.is_set(), 30, "the first one runs")
        await asyncio.sleep(second_after_s)
        second = nodes.start("a:1", process_name="a:1 again")
        await asyncio.sleep(0)
        await world.until(lambda: first.process.dead, 40, "the first one has ended")
        assert isinstance(cause(first.process.failure), NameTaken)
        await world.until(lambda: second.node.ready.is_set(), 10, "the second one runs")
        await asyncio.sleep(10)
        assert second.node.current.me == BrokerId("a:1", 2), "nobody fenced it"

    virtually(story)()
