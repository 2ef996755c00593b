"""Brokers serve under one coordination root and one proof time, which the log names.

Whatever the settings say, whatever happens to the root, and wherever the replacement of an agreement is interrupted.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from loadmanager.channel.agreement import Agreeing
from loadmanager.channel.migration.agreement import Replaced, replace_agreement
from loadmanager.channel.migration.move import Place
from loadmanager.errors import Conflict
from loadmanager.settings import Settings
from loadmanager.settings.live import LiveSettings
from statechannel.errors import ForeignCluster, LogUnavailable
from statechannel.law.agreement import Agreement
from statechannel.law.bundle import Bundle
from statechannel.law.partition import ClusterIdentity
from statechannel.law.record import Action, BrokerId, Record, Role
from statechannel.law.table import OwnershipTable
from statechannel.law.verdict import Change
from statechannel.ports import Coordination, Identity, Log
from statechannel.runtime.channel import Channel
from tests.loadmanager.small_world import QUICK, Nodes, Started, process, virtually
from tests.simulator.simulated_coordination import SimulatedCoordinationServer
from tests.simulator.world import World

TWO = QUICK.model_copy(update={"partitions": 2})
BUNDLES = 4


def words(started: Started) -> list[Agreement | None]:
    table = started.node.channel.table
    return [table.agreed(partition).agreement for partition in range(table.partitions)]


def with_values(**values: float) -> Settings:
    """Settings in which these were given, as on a command line."""
    return Settings.model_construct(**{**{name: getattr(TWO, name) for name in TWO.model_fields_set}, **values})


async def failure(started: Started) -> BaseException:
    """What a node ended with."""
    await asyncio.wait([started.main])
    error: BaseException | None = started.main.exception()
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert error is not None
    return error


class Died(Exception):
    """The operator's machine did, in the middle of its work."""


class Watched:
    """Counts, after every callback of the simulation, the brokers that would serve each bundle."""

    def __init__(self, nodes: Nodes, bundles: list[Bundle]) -> None:
        self.nodes, self.bundles = nodes, bundles
        self.most, self.fewest = 0, len(nodes.by_name)
        nodes.world.loop.after_callback = self.look

    def look(self, _: object) -> None:
        counts = [len(self.nodes.serving(bundle)) for bundle in self.bundles]
        self.most, self.fewest = max(self.most, *counts), min(self.fewest, *counts)

    async def all_served(self, within_s: float) -> None:
        def served() -> bool:
            return all(len(self.nodes.serving(bundle)) == 1 for bundle in self.bundles)

        await self.nodes.world.until(served, within_s, "every bundle is served")


class Operator:
    """Runs `channel agree` in a process of its own; `interrupt_at` ends it at the n-th thing it asks of a server."""

    def __init__(self, world: World, coordination: SimulatedCoordinationServer | None = None) -> None:
        self.world = world
        self.server = coordination or world.coordination
        self.runs = 0
        self.asked = 0

    async def agree(
        self, change: Callable[[Agreement], Agreement] = lambda before: before, *, lost: bool = False,
        old: SimulatedCoordinationServer | None = None, interrupt_at: int | None = None,
    ) -> Replaced:  # fmt: skip
        self.runs += 1
        self.asked = 0
        own = process(self.world, f"operator-{self.runs}")
        done: asyncio.Future[Replaced] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            log = self._counted(self.world.log_client(own, request_timeout_s=0.5), interrupt_at)
            await log.start(5)
            place = Place(log, await self._client(own, self.server, interrupt_at), "log", "root")
            left = None if old is None else (await self._client(own, old, interrupt_at), "old root")
            done.set_result(
                await replace_agreement(
                    place, TWO.cluster, lambda before, root: msgspec.structs.replace(change(before), root=root),
                    old=left, lost=lost, say=lambda _: None,
                )
            )  # fmt: skip

        task = own.start(work)
        await asyncio.wait([task])
        own.crash()
        if not done.done():
            raise task.exception() or asyncio.CancelledError
        return done.result()

    async def _client(self, own, server: SimulatedCoordinationServer, interrupt_at: int | None) -> Coordination:
        known, self.world.coordination = self.world.coordination, server
        client = self.world.coordination_client(own, session_timeout_s=3.0, request_timeout_s=0.5)
        self.world.coordination = known
        await client.start(5)
        return self._counted(client, interrupt_at)

    def _counted(self, port, interrupt_at: int | None):
        """The port; what writes is counted, and the n-th is not begun any more."""
        for name in ("append", "start_incarnation", "identify"):
            ask = getattr(port, name, None)
            if ask is not None:
                setattr(port, name, self._counting(ask, interrupt_at))
        return port

    def _counting(self, ask, interrupt_at: int | None):
        async def counted(*arguments, **more):
            self.asked += 1
            if self.asked == interrupt_at:
                raise Died
            return await ask(*arguments, **more)

        return counted


async def cluster(world: World, settings: Settings = TWO) -> tuple[Nodes, list[Started], list[Bundle]]:
    nodes = Nodes(world, settings)
    started = await nodes.ready("a:1", "b:1")
    bundles = await nodes.own_all(BUNDLES, started[0])
    for bundle in bundles[::2]:
        await started[0].ask(lambda bundle=bundle: started[0].node.current.operations.transfer(bundle, "b:1"))
    return nodes, started, bundles


def leads(nodes: Nodes) -> bool:
    alive = [each.node for each in nodes.by_name.values() if not each.process.dead]
    return any(node.ready.is_set() and node.current.leader.leading for node in alive)


def root_of(coordination: SimulatedCoordinationServer) -> str:
    identity = coordination.identity()
    assert identity is not None
    return identity.root


async def elected_anew(nodes: Nodes) -> None:
    coordination = nodes.world.coordination
    before, leadership = coordination.current_epoch, coordination.leadership
    assert leadership is not None
    coordination.end_leadership(leadership)
    await nodes.world.until(lambda: coordination.current_epoch > before and leads(nodes), 10, "a new leader")


# --- the word, and who does not fit


@virtually
async def test_the_first_broker_says_it_in_every_partition_and_the_others_fit(world: World):
    _, (a, b), _ = await cluster(world)
    root = root_of(world.coordination)
    assert words(a) == words(b) == [Agreement(root, 1.25, 0.05, 0.1, 2)] * 2


@virtually
async def test_a_broker_with_another_proof_time_does_not_start_and_names_both(world: World):
    nodes, (a, _), _ = await cluster(world)
    nodes.settings = with_values(proof_validity_s=20.0, session_timeout_s=20.0)
    error = await failure(nodes.start("c:1"))
    assert isinstance(error, ForeignCluster)
    assert "proof_validity_s is 1.25 in the log and 20.0 here" in str(error)
    assert "c:1" not in a.node.peers()


@virtually
async def test_a_broker_that_was_given_no_proof_time_takes_the_one_of_the_log(world: World):
    nodes, (a, _), _ = await cluster(world, with_values(proof_validity_s=1.0))
    nodes.settings = TWO
    (c,) = await nodes.ready("c:1")
    assert c.node.settings.proof_validity_s == a.node.settings.proof_validity_s == 1.0
    assert c.node.current._proofs.validity_s == 1.0
    assert c.node.membership.validity_s == 1.0


@virtually
async def test_a_log_of_an_earlier_release_learns_it_once_all_brokers_read_it(world: World):
    nodes = Nodes(world, TWO)
    (old,) = await nodes.ready("old:1", reads=2)
    (new,) = await nodes.ready("new:1")
    assert words(new) == [None, None]
    old.process.run(old.node.stop, 1.0)
    await world.until(lambda: all(words(new)), 20, "it is said")
    await world.until(lambda: nodes.leader() is new, 10, "it leads")


@virtually
async def test_of_two_roots_the_one_that_the_log_names_counts(world: World):
    """A mistyped, fresh root accepts nobody whose log belongs to another."""
    nodes, (a, _), bundles = await cluster(world)
    watched = Watched(nodes, bundles)
    right, world.coordination = world.coordination, SimulatedCoordinationServer(name="new")
    error = await failure(nodes.start("c:1"))
    assert isinstance(error, ForeignCluster)
    assert root_of(right) in str(error)
    assert "is empty" in str(error)
    assert world.coordination.identity() is None
    assert watched.most == watched.fewest == 1
    assert a.node.current.leader.leading or nodes.leader()


class SlowRoot:
    """A coordination root that answers when it may."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def identify(self, *_: object) -> str:
        self.asked.set()
        await self.may_answer.wait()
        return "root-1"


def live_settings() -> LiveSettings:
    return LiveSettings(with_values(), cast("Log", None), wall_ms=lambda: 0, nonce="n", note=lambda _: None)


class Reader:
    """An `Agreeing` over a table that has read just what the test writes to it."""

    def __init__(self, partitions: int) -> None:
        self.table, self.root, self.live = OwnershipTable(partitions), SlowRoot(), live_settings()
        self.first = Agreement("root-1", 2.0, TWO.clock_drift, TWO.margin_s, partitions)
        self.second = msgspec.structs.replace(self.first, proof_validity_s=1.5)
        self._offsets = itertools.count()
        channel = SimpleNamespace(table=self.table, can_agree=False)
        self.agreeing = Agreeing(cast("Channel", channel), cast("Coordination", self.root), self.live, lambda _: None)

    async def settle(self) -> None:
        await self.agreeing.settle(ClusterIdentity("test", "log", 0))

    def reads(self, partition: int, action: Action, agreement: Agreement) -> None:
        seen = self.table.agreed(partition).revision
        record = Record(
            f"{action}", action, BrokerId("admin:1", 1), Role.ADMIN, agreement=agreement, seen_agreement=seen
        )
        assert isinstance(self.table.replay(partition, next(self._offsets), record), Change)


async def test_what_is_replaced_while_the_root_is_asked_is_what_the_broker_takes():
    reader = Reader(partitions=1)
    reader.reads(0, Action.AGREE, reader.first)
    settling = asyncio.ensure_future(reader.settle())
    await reader.root.asked.wait()
    reader.reads(0, Action.AMEND, reader.second)
    reader.reads(0, Action.AGREE, reader.second)
    reader.root.may_answer.set()
    await settling
    assert reader.agreeing.ours == reader.second
    assert reader.live.current.proof_validity_s == 1.5


@pytest.mark.parametrize("ahead", [0, 1])
async def test_a_replacement_read_in_one_partition_only_is_waited_for(ahead: int):
    """A replica reads its partitions one by one: that they differ is no contradiction between broker and log."""
    reader = Reader(partitions=2)
    reader.root.may_answer.set()
    for partition in range(2):
        reader.reads(partition, Action.AGREE, reader.first)
    reader.reads(ahead, Action.AMEND, reader.second)
    reader.reads(ahead, Action.AGREE, reader.second)
    with pytest.raises(LogUnavailable, match="in some partitions only"):
        await reader.settle()
    reader.reads(1 - ahead, Action.AMEND, reader.second)
    reader.reads(1 - ahead, Action.AGREE, reader.second)
    await reader.settle()
    assert reader.agreeing.ours == reader.second


# --- the root is lost, or another one


@virtually
async def test_brokers_serve_on_under_traffic_until_a_wiped_root_is_replaced(world: World):
    nodes, (a, b), bundles = await cluster(world)
    for _ in range(5):
        await elected_anew(nodes)
    watched = Watched(nodes, bundles)
    before, epoch = {each.node.current.me for each in (a, b)}, world.coordination.current_epoch
    world.coordination.lose_everything()
    await asyncio.sleep(30)
    assert watched.most == watched.fewest == 1, "nobody can be revoked, so the log's proofs are enough"
    assert all(each.told("has lost the data of coordination root") for each in (a, b))
    assert {each.node.current.me for each in (a, b)} == before
    error = await failure(nodes.start("c:1"))
    assert isinstance(error, ForeignCluster), "an empty root means nothing: the log's word counts"
    del nodes.by_name["c:1"]
    replaced = await Operator(world).agree(lost=True)
    assert not replaced.was_done
    await world.until(lambda: leads(nodes), 3, "one leads")
    assert world.coordination.current_epoch == epoch + 1, "epochs are not counted from 1 again"
    await watched.all_served(15)
    assert watched.most == 1
    after = {each.node.current.me for each in (a, b)}
    assert all(new.incarnation > old.incarnation for new, old in zip(sorted(after), sorted(before), strict=True))


@virtually
async def test_a_running_broker_that_meets_another_root_fences_itself(world: World):
    nodes, (a, b), bundles = await cluster(world)
    watched = Watched(nodes, bundles)
    world.coordination.lose_everything()
    other = world.coordination.identify(Identity("another", "log", ""))
    errors = [await failure(each) for each in (a, b)]
    for error in errors:
        assert isinstance(error, ForeignCluster)
        word = words(a)[0]
        assert word is not None
        assert word.root in str(error)
        assert other in str(error)
    assert watched.most == 1


# --- it is replaced


@virtually
async def test_another_proof_time_holds_once_no_proof_under_the_old_one_can_count(world: World):
    nodes, (a, b), bundles = await cluster(world)
    watched = Watched(nodes, bundles)
    began_s = world.now_s
    await Operator(world).agree(lambda before: msgspec.structs.replace(before, proof_validity_s=5.0, margin_s=0.25))
    took_s = world.now_s - began_s
    assert 1.35 <= took_s <= 3, "V and the margin of the old one"
    await world.until(lambda: a.node.settings.session_timeout_s < 5.0, 1, "the settings of these do not allow it")
    errors = [await failure(each) for each in (a, b)]
    assert all("session_timeout_s must not be below proof_validity_s" in str(error) for error in errors)
    nodes.by_name.clear()
    nodes.settings = TWO.model_copy(update={"session_timeout_s": 6.0})
    for name in ("a:1", "b:1"):
        world.processes[name].crash()
    again = await nodes.ready("a:1", "b:1")
    await watched.all_served(20)
    assert {each.node.current._proofs.validity_s for each in again} == {5.0}
    assert watched.most == 1


@virtually
async def test_a_running_cluster_takes_a_new_proof_time_without_a_restart(world: World):
    nodes, (a, b), bundles = await cluster(world)
    watched = Watched(nodes, bundles)
    await Operator(world).agree(lambda before: msgspec.structs.replace(before, proof_validity_s=1.0))
    await watched.all_served(10)
    assert {each.node.current._proofs.validity_s for each in (a, b)} == {1.0}
    assert watched.most == 1
    again = await Operator(world).agree()
    assert again.was_done


@virtually
async def test_a_broker_that_is_paused_meanwhile_comes_back_as_nobody(world: World):
    """It wakes up in the middle, cut off from the log, with a proof that is as fresh as it can be."""
    nodes, (_, b), bundles = await cluster(world)
    watched = Watched(nodes, bundles)
    await asyncio.sleep(1)
    world.cut("a:1", "log")
    replacing = asyncio.ensure_future(Operator(world).agree(_faster))
    await asyncio.sleep(0.5)
    world.pause("a:1")
    await replacing
    world.resume("a:1")
    await asyncio.sleep(1)
    assert all("a:1" not in nodes.serving(bundle) for bundle in bundles), "its incarnation was raised"
    world.heal("a:1", "log")
    await watched.all_served(20)
    assert watched.most == 1
    assert b.node.current.me.incarnation > 1


@virtually
async def test_cluster_moves_to_another_root_and_users_of_the_old_one_end(world: World):
    nodes, (a, b), bundles = await cluster(world)
    watched = Watched(nodes, bundles)
    old, new = world.coordination, SimulatedCoordinationServer(name="new")
    with pytest.raises(Conflict, match="--from-coordination"):
        await Operator(world, new).agree()
    with pytest.raises(Conflict, match="correct --from-coordination"):
        await Operator(world, new).agree(old=SimulatedCoordinationServer(name="new"))
    assert watched.fewest == 1, "what was refused changed nothing"
    await Operator(world, new).agree(old=old)
    errors = [await failure(each) for each in (a, b)]
    assert all(root_of(new) in str(error) and root_of(old) in str(error) for error in errors)
    for name in ("a:1", "b:1"):
        world.processes[name].crash()
    nodes.by_name.clear()
    world.coordination = new
    await nodes.ready("a:1", "b:1")
    await watched.all_served(20)
    assert watched.most == 1


@pytest.mark.parametrize("point", range(1, 8))
def test_an_interrupted_replacement_is_ended_by_the_same_command(point: int):
    async def story(world: World) -> None:
        nodes, _, bundles = await cluster(world)
        watched = Watched(nodes, bundles)
        operator = Operator(world)
        change = _faster
        with pytest.raises(Died):
            await operator.agree(change, interrupt_at=point)
        await asyncio.sleep(5)
        begun = any(a.following is not None for a in _agreed(nodes))
        assert (watched.fewest == 0) is begun, "either nothing has happened, or nobody serves"
        await operator.agree(change)
        await watched.all_served(15)
        assert watched.most == 1

    with World(point) as world:
        world.run(story(world))


def _faster(before: Agreement) -> Agreement:
    return msgspec.structs.replace(before, proof_validity_s=1.0)


def _agreed(nodes: Nodes):
    table = nodes.by_name["a:1"].node.channel.table
    return [table.agreed(partition) for partition in range(table.partitions)]
