"""Plans on small clusters of real nodes, on virtual time: reviewed, run, taken back; and leaders that die meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from loadmanager.errors import Conflict, Invalid, NotFound
from loadmanager.leader.plans.plan import MoveStatus, Plan, PlanKind, PlanState
from loadmanager.leader.plans.table import PlanAction
from loadmanager.leader.rebalancing import rounds
from loadmanager.leader.rebalancing.actions import OperatorActions, Subject, Unload, pause, resume
from loadmanager.leader.rebalancing.limits import Rule
from loadmanager.leader.rebalancing.plan_runner import ATTEMPTS
from loadmanager.leader.service import DutyExecutor
from loadmanager.model.policies.model import BundlePolicy, Kind
from loadmanager.strategies.rebalancing.decision import Decision, Move
from loadmanager.strategies.rebalancing.decision import Stage as MoveStage
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, Record, Role
from statechannel.law.verdict import Change, Reason, Refusal
from tests.installed import install
from tests.loadmanager.small_world import QUICK, Nodes, Started, virtually
from tests.simulator.world import World

REVIEWED = QUICK.model_copy(
    update={"balancing_interval_s": 5.0, "balancing_review": True, "balancing_budget": 1.0, "bundle_rest_s": 600.0}
)
BY_HAND = QUICK.model_copy(update={"balancing": False, "balancing_moves_per_round": 10})
BALANCED = REVIEWED.model_copy(update={"balancing_review": False})
AS_TOLD_REVIEWED = REVIEWED.model_copy(update={"balancing_strategy": "scripted"})
AS_TOLD = AS_TOLD_REVIEWED.model_copy(update={"balancing_review": False})
S, P = PlanState, PlanAction


class Stage:
    """Brokers of which the first has everything, and the transfers and unloads that are seen."""

    def __init__(self, nodes: Nodes, brokers: list[Started], bundles: list[Bundle]) -> None:
        self.nodes, self.brokers, self.bundles = nodes, brokers, bundles
        self.moves: list[Record] = []
        self.most_under_way = 0

    def watch(self) -> None:
        table = self.brokers[0].node.channel.table

        def note(change: Change) -> None:
            if change.record.action in (Action.TRANSFER, Action.UNLOAD):
                self.moves.append(change.record)
            self.most_under_way = max(self.most_under_way, sum(1 for _ in table.in_flight()))

        self.brokers[0].node.channel.listen(note)

    async def at(self, broker: Started, work: Any) -> Any:
        """Something that an operator does at a broker."""
        return await broker.ask(lambda: work(OperatorActions(broker.node.current.rebalancer)))

    def plan(self, plan_id: str) -> Plan:
        return self.follower.node.plans.get(plan_id)

    def is_(self, plan_id: str, state: PlanState) -> bool:
        return self.plan(plan_id).state is state

    def owner(self, bundle: Bundle) -> str:
        entry = self.follower.node.channel.table.get(bundle)
        assert entry is not None
        return "nobody" if entry.holder is None else entry.holder.name

    @property
    def leader(self) -> Started:
        found = self.nodes.leader()
        assert found is not None
        return found

    @property
    def follower(self) -> Started:
        return next(b for b in self.brokers if not b.process.dead and b is not self.nodes.leader())


async def stage(world: World, settings: Any, *names: str, bundles: int = 12) -> Stage:
    nodes = Nodes(world, settings)
    brokers = await nodes.ready(*(names or ("a:1", "b:1")))
    for broker in brokers:
        broker.service.cpu_percent_each = 7.0
    found = Stage(nodes, brokers, await nodes.own_all(bundles, brokers[0]))
    found.watch()
    return found


async def proposed(world: World, on: Stage) -> Plan:
    await world.until(lambda: len(on.follower.node.plans.open()) == 1, 30, "a proposal")
    return on.follower.node.plans.open()[0]


@virtually
async def test_round_under_review_proposes_and_moves_nothing_until_it_is_run(world: World):
    on = await stage(world, REVIEWED)
    plan = await proposed(world, on)
    await asyncio.sleep(20)
    assert on.moves == []
    assert len(on.follower.node.plans.all()) == 1
    assert plan.kind is PlanKind.BALANCE
    assert plan.cause.startswith("1.")
    assert plan.certificate is not None
    await on.at(on.follower, lambda writer: writer.act(plan.id, P.APPROVE, "ann", "looks good"))
    await asyncio.sleep(8)
    assert on.moves == []
    await on.at(on.follower, lambda writer: writer.act(plan.id, P.RUN, "ann", ""))
    await world.until(lambda: on.is_(plan.id, S.DONE), 20, "it is done")
    assert {move.cause for move in on.moves} == {f"plan {plan.id}"}
    assert [step.action for step in on.plan(plan.id).steps] == ["approve", "run", "finish"]
    assert {on.owner(move.bundle) for move in plan.moves} == {"b:1"}


@virtually
async def test_a_plan_is_verified_undone_and_then_rests(world: World):
    on = await stage(world, REVIEWED)
    plan = await proposed(world, on)
    await on.at(on.follower, lambda writer: writer.act(plan.id, P.APPROVE, "ann", ""))
    await on.at(on.leader, lambda writer: writer.act(plan.id, P.RUN, "ann", ""))
    await world.until(lambda: on.is_(plan.id, S.DONE), 20, "it is done")
    await world.until(lambda: len(on.brokers[1].service.held) == len(plan.moves), 5, "they are served")
    await asyncio.sleep(60)  # loads are means of half a minute
    verified = await on.at(on.follower, lambda writer: writer.verify(plan.id, "ann"))
    assert verified.state is S.VERIFIED
    assert verified.verification.holding == len(plan.moves)
    for name, usage in plan.predicted.usages.items():
        assert verified.verification.actual.usages[name] == pytest.approx(usage, abs=0.02)
    back = await on.at(on.follower, lambda writer: writer.undo(plan.id, "ann", "not what we wanted"))
    assert {move.bundle for move in back.moves} == {move.bundle for move in plan.moves}
    await on.at(on.follower, lambda writer: writer.act(back.id, P.APPROVE, "ann", ""))
    await on.at(on.follower, lambda writer: writer.act(back.id, P.RUN, "ann", ""))
    await world.until(lambda: on.is_(plan.id, S.UNDONE), 20, "the first one is undone")
    assert {on.owner(bundle) for bundle in on.bundles} == {"a:1"}
    assert on.leader.node.current.rebalancer.counts.moves == {"balance": len(plan.moves), "undo": len(plan.moves)}
    await asyncio.sleep(60)  # everything is at one broker again, and rests
    moved = {move.bundle for move in plan.moves}
    assert all(moved.isdisjoint(m.bundle for m in later.moves) for later in on.follower.node.plans.open())


@virtually
async def test_withdrawn_running_plan_is_undone_at_once_also_by_the_next_leader(world: World):
    on = await stage(world, BY_HAND, "a:1", "b:1", "c:1", bundles=12)
    old = on.leader
    holder, to = (broker for broker in on.brokers if broker is not old)
    await _give_all(on, holder)
    plan = await on.at(holder, lambda writer: writer.unload(Unload(broker=holder.name, to=to.name, wave=2), "ann", ""))
    await world.until(lambda: sum(on.owner(b) == to.name for b in on.bundles) >= 3, 20, "it is in its middle")
    await on.at(holder, lambda writer: writer.act(plan.id, P.WITHDRAW, "bob", "clients complain"))
    old.process.crash()
    await world.until(lambda: on.is_(plan.id, S.UNDONE), 60, "the next leader has undone it")
    assert on.leader is not old
    assert {on.owner(bundle) for bundle in on.bundles} == {holder.name}
    back = on.plan(f"{plan.id}-undo")
    assert (back.state, back.undoes, back.author) == (S.DONE, plan.id, f"plan {plan.id}, undone")
    done = [move.bundle for move, outcome in plan.pairs(on.plan(plan.id).outcomes) if outcome.status is MoveStatus.DONE]
    assert [move.bundle for move in back.moves] == done
    assert 3 <= len(done) < 12
    assert [step.action for step in on.plan(plan.id).steps] == ["approve", "run", "withdraw", "settle", "undo"]


@virtually
async def test_undo_lists_what_has_moved_on_and_leaves_it_there(world: World):
    on = await stage(world, BY_HAND, "a:1", "b:1", "c:1", bundles=4)
    plan = await on.at(on.follower, lambda writer: writer.unload(Unload(broker="a:1", to="b:1"), "ann", ""))
    await world.until(lambda: on.is_(plan.id, S.DONE), 20, "it is done")
    gone = on.bundles[1]
    await on.follower.ask(lambda: on.follower.node.current.operations.transfer(gone, "c:1"))
    verified = await on.at(on.follower, lambda writer: writer.verify(plan.id, "ann"))
    assert verified.state is S.DONE
    assert list(verified.verification.moved_on) == [str(gone)]
    back = await on.at(on.follower, lambda writer: writer.undo(plan.id, "ann", ""))
    assert [move.bundle for move in back.moves] == [b for b in on.bundles if b != gone]
    assert "c:1" in back.left_out[str(gone)]
    with pytest.raises(Conflict, match=f"plan {back.id} .proposed. takes back {plan.id} already"):
        await on.at(on.follower, lambda writer: writer.undo(plan.id, "ann", ""))


@virtually
async def test_bundles_that_moved_since_the_plan_are_skipped_and_listed(world: World):
    on = await stage(world, BY_HAND, "a:1", "b:1", "c:1", bundles=4)
    wish = Unload(broker="a:1", to="b:1")
    plan = await on.at(on.follower, lambda writer: writer.unload(wish, "ann", "", review=True))
    moved = on.bundles[2]
    await on.follower.ask(lambda: on.follower.node.current.operations.transfer(moved, "c:1"))
    for action in (P.APPROVE, P.RUN):
        await on.at(on.follower, lambda writer, action=action: writer.act(plan.id, action, "ann", ""))
    await world.until(lambda: on.is_(plan.id, S.DONE), 20, "it is done")
    outcomes = dict(zip((move.bundle for move in plan.moves), on.plan(plan.id).outcomes, strict=True))
    assert outcomes[moved].status is MoveStatus.SKIPPED
    assert "c:1" in outcomes[moved].detail
    assert on.owner(moved) == "c:1"
    assert [b for b, outcome in outcomes.items() if outcome.status is MoveStatus.DONE] == [
        bundle for bundle in on.bundles if bundle != moved
    ]


@virtually
async def test_a_new_leader_goes_on_with_a_plan_in_whose_middle_the_old_one_died(world: World):
    on = await stage(world, BY_HAND, "a:1", "b:1", "c:1", bundles=12)
    old = on.leader
    holder = next(broker for broker in on.brokers if broker is not old)
    to = next(broker for broker in on.brokers if broker not in (old, holder))
    await _give_all(on, holder)
    plan = await on.at(holder, lambda writer: writer.unload(Unload(broker=holder.name, to=to.name, wave=2), "ann", ""))
    await world.until(lambda: sum(on.owner(b) == to.name for b in on.bundles) >= 3, 20, "it is in its middle")
    old.process.crash()
    assert not all(on.owner(b) == to.name for b in on.bundles)
    await world.until(lambda: on.is_(plan.id, S.DONE), 60, "the next leader has done it")
    assert on.leader is not old
    assert {on.owner(bundle) for bundle in on.bundles} == {to.name}
    assert {outcome.status for outcome in on.plan(plan.id).outcomes} == {MoveStatus.DONE}


async def _give_all(on: Stage, to: Started) -> None:
    for bundle in on.bundles:
        if on.owner(bundle) != to.name:
            await to.ask(lambda bundle=bundle: to.node.current.operations.transfer(bundle, to.name))


@virtually
async def test_of_two_who_decide_at_the_same_moment_one_is_told_that_the_other_did(world: World):
    on = await stage(world, REVIEWED)
    plan = await proposed(world, on)
    a, b = on.brokers
    tries = [
        a.ask(lambda: OperatorActions(a.node.current.rebalancer).act(plan.id, P.APPROVE, "ann", "")),
        b.ask(lambda: OperatorActions(b.node.current.rebalancer).act(plan.id, P.REJECT, "bob", "")),
    ]
    results = await asyncio.gather(*tries, return_exceptions=True)
    [won] = [result for result in results if isinstance(result, Plan)]
    [lost] = [result for result in results if isinstance(result, Conflict)]
    assert won.steps[-1].author in str(lost)
    await world.until(lambda: on.is_(plan.id, won.state), 5, "all see the same")
    assert on.leader.node.plans.get(plan.id).state is won.state


@virtually
async def test_an_unload_goes_in_waves_each_of_which_waits_for_the_one_before(world: World):
    on = await stage(world, QUICK.model_copy(update={"balancing": False}), bundles=7)
    positions = {bundle: place for place, bundle in enumerate(on.bundles)}
    table = on.brokers[0].node.channel.table
    began_with: list[tuple[int, int]] = []

    def note(change: Change) -> None:
        if change.record.action is Action.TRANSFER:
            first = positions[change.record.subjects[0].bundle]
            unfinished = sum(entry.holder.name == "a:1" for b in on.bundles if (entry := table.get(b)) and entry.holder)
            began_with.append((first // 3, unfinished))

    on.brokers[0].node.channel.listen(note)
    plan = await on.at(on.follower, lambda writer: writer.unload(Unload(broker="a:1", to="b:1", wave=3), "ann", ""))
    await world.until(lambda: on.is_(plan.id, S.DONE), 30, "it is done")
    waves = {wave: max(left for w, left in began_with if w == wave) for wave, _ in began_with}
    assert waves == {0: 7, 1: 4, 2: 1}
    assert on.most_under_way == 3


@virtually
async def test_a_namespace_is_unloaded_to_nobody(world: World):
    on = await stage(world, BY_HAND, bundles=4)
    plan = await on.at(on.follower, lambda writer: writer.unload(Unload(namespace="shop/orders"), "ann", "fresh start"))
    await world.until(lambda: on.is_(plan.id, S.DONE), 20, "it is done")
    await world.until(lambda: {on.owner(b) for b in on.bundles} == {"nobody"}, 1, "the follower has read it too")
    assert {move.action for move in on.moves} == {Action.UNLOAD}
    assert {move.reason for move in on.moves} == {"fresh start"}
    with pytest.raises(Conflict, match="not only unloads to whatever broker a lookup chose"):
        await on.at(on.follower, lambda writer: writer.undo(plan.id, "ann", ""))


@virtually
async def test_a_cancelled_plan_begins_nothing_more_and_what_it_did_can_be_undone(world: World):
    on = await stage(world, BY_HAND, bundles=12)
    plan = await on.at(on.follower, lambda writer: writer.unload(Unload(broker="a:1", to="b:1"), "ann", ""))
    await world.until(lambda: len(on.moves) >= 3, 20, "it has begun")
    await on.at(on.follower, lambda writer: writer.act(plan.id, P.CANCEL, "ann", "enough"))
    await world.until(lambda: on.plan(plan.id).outcomes != (), 10, "it is known what it did")
    moved = [b for b in on.bundles if on.owner(b) == "b:1"]
    assert 3 <= len(moved) < 12
    begun = len(on.moves)
    assert begun == len(moved)
    await asyncio.sleep(5)
    assert len(on.moves) == begun
    back = await on.at(on.follower, lambda writer: writer.undo(plan.id, "ann", ""))
    assert [move.bundle for move in back.moves] == moved


@virtually
async def test_a_pause_holds_a_running_plan_and_its_end_lets_it_go_on(world: World):
    on = await stage(world, BY_HAND, bundles=8)
    plan = await on.at(on.follower, lambda writer: writer.unload(Unload(broker="a:1", to="b:1"), "ann", ""))
    await world.until(lambda: len(on.moves) >= 2, 20, "it has begun")
    await on.follower.ask(lambda: pause(on.follower.node.policies, Subject(namespace="shop/orders"), "ann", ""))
    await world.until(lambda: on.leader.node.policies.current().namespaces != {}, 2, "the leader has heard of it")
    await asyncio.sleep(0.1)
    begun = len(on.moves)
    await asyncio.sleep(8)
    assert len(on.moves) == begun < 8
    assert on.is_(plan.id, S.RUNNING)
    await on.follower.ask(lambda: resume(on.follower.node.policies, Subject(namespace="shop/orders"), "ann", ""))
    await world.until(lambda: on.is_(plan.id, S.DONE), 20, "it is done")


@virtually
async def test_a_plan_whose_destination_has_gone_fails_and_says_so(world: World):
    on = await stage(world, BY_HAND, "a:1", "b:1", "c:1", bundles=3)
    wish = Unload(broker="a:1", to="b:1")
    at = next(broker for broker in on.brokers if broker.name != "b:1")
    plan = await on.at(at, lambda writer: writer.unload(wish, "ann", "", review=True))
    await on.brokers[1].ask(lambda: on.brokers[1].node.drain(0))
    await world.until(lambda: on.leader.node.peers()["b:1"].registration.draining, 5, "the leader has heard of it")
    for action in (P.APPROVE, P.RUN):
        await on.at(at, lambda writer, action=action: writer.act(plan.id, action, "ann", ""))
    await world.until(lambda: on.is_(plan.id, S.FAILED), 20, "it has failed")
    assert {outcome.detail for outcome in on.plan(plan.id).outcomes} == {
        "it may not go to b:1: it takes no bundles now"
    }
    assert on.moves == []


@virtually
async def test_a_plan_waits_for_a_destination_that_starts_again_and_not_for_ever(world: World):
    on = await stage(world, BY_HAND, "a:1", "b:1", "c:1", bundles=2)
    at, to = (broker for broker in on.brokers if broker is not on.leader)
    await _give_all(on, at)
    wish = Unload(broker=at.name, to=to.name)
    plans = [await on.at(at, lambda writer: writer.unload(wish, "ann", "", review=True)) for _ in range(2)]
    for plan in plans:
        await on.at(at, lambda writer, plan=plan: writer.act(plan.id, P.APPROVE, "ann", ""))
    to.process.crash()
    await world.until(lambda: to.name not in on.leader.node.peers(), 20, "it is away")
    await on.at(at, lambda writer: writer.act(plans[0].id, P.RUN, "ann", ""))
    await asyncio.sleep(4)
    assert on.is_(plans[0].id, S.RUNNING)
    held = on.leader.node.current.rebalancer.running
    assert held is not None
    assert {each.rule for each in held.held[plans[0].id]} == {Rule.DESTINATION}
    await world.until(lambda: on.is_(plans[0].id, S.FAILED), 10, "it has waited long enough")
    on.nodes.start(to.name, process_name="again")
    await world.until(lambda: to.name in on.leader.node.peers(), 20, "it is there again")
    await on.at(at, lambda writer: writer.act(plans[1].id, P.RUN, "ann", ""))
    await world.until(lambda: on.is_(plans[1].id, S.DONE), 20, "the next start of it has everything")


def test_a_move_that_the_channel_refuses_again_and_again_has_failed(monkeypatch: pytest.MonkeyPatch):
    asked: list[Bundle] = []

    async def refuse(_executor: DutyExecutor, bundle: Bundle, *_: object) -> Refusal:
        asked.append(bundle)
        return Refusal(Reason.BAD_DESTINATION, "so it is")

    @virtually
    async def story(world: World) -> None:
        on = await stage(world, BY_HAND, bundles=1)
        monkeypatch.setattr(DutyExecutor, "move", refuse)
        plan = await on.at(on.follower, lambda writer: writer.unload(Unload(broker="a:1", to="b:1"), "ann", ""))
        await world.until(lambda: on.is_(plan.id, S.FAILED), 20, "it has failed")
        assert asked == on.bundles * ATTEMPTS
        assert on.plan(plan.id).outcomes[0].detail == "bad-destination: so it is"

    story()


@virtually
async def test_a_proposal_that_everybody_has_forgotten_expires(world: World):
    on = await stage(world, BY_HAND, bundles=2)
    plan = await on.at(
        on.follower, lambda writer: writer.unload(Unload(broker="a:1", to="b:1"), "ann", "", review=True)
    )
    for bundle in on.bundles:
        await on.follower.ask(lambda bundle=bundle: on.follower.node.current.operations.transfer(bundle, "b:1"))
    await world.until(lambda: on.is_(plan.id, S.EXPIRED), 10, "it is out of date")


class Scripted:
    """Decides whatever it is told."""

    name = "scripted"

    def __init__(self) -> None:
        self.moves: tuple[Move, ...] = ()
        self.given: list[object] = []

    def decide(self, model: object, settings: object, memory: object = None) -> Decision:
        self.given.append(memory)
        return Decision(self.moves, "as told", memory=len(self.given))


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scripted:
    """The strategy of `AS_TOLD` and `AS_TOLD_REVIEWED`."""
    strategy = Scripted()
    install(monkeypatch, tmp_path, {"scripted": lambda: strategy})
    return strategy


def test_rounds_leave_bundles_of_a_running_plan_alone(scripted: Scripted):
    @virtually
    async def story(world: World) -> None:
        on = await stage(world, AS_TOLD, "a:1", "b:1", "c:1", bundles=2)
        at = on.follower
        await at.ask(lambda: pause(at.node.policies, Subject(broker="b:1"), "ann", ""))
        await on.at(at, lambda writer: writer.unload(Unload(broker="a:1", to="b:1"), "ann", ""))
        a, c = (on.brokers[i].node.current.me for i in (0, 2))
        scripted.moves = (Move(on.bundles[0], a, c, "elsewhere"),)
        rebalancer = on.leader.node.current.rebalancer
        await world.until(lambda: rebalancer.last is not None and rebalancer.last.decision.moves != (), 20, "a round")
        assert rebalancer.last is not None
        assert rebalancer.last.outcomes[on.bundles[0]].outcome == rounds.IN_A_PLAN
        assert on.moves == []

    story()


def test_while_a_proposal_waits_only_what_is_urgent_is_proposed_besides(scripted: Scripted):
    @virtually
    async def story(world: World) -> None:
        on = await stage(world, AS_TOLD_REVIEWED, bundles=5)
        a, b = (broker.node.current.me for broker in on.brokers)

        def moves(*stages: MoveStage, group: int = 0) -> tuple[Move, ...]:
            pairs = zip(on.bundles, stages, strict=False)
            return tuple(
                Move(bundle, a, b, "", stage, group=group if n else 0) for n, (bundle, stage) in enumerate(pairs)
            )

        scripted.moves = moves(MoveStage.BALANCE)
        await proposed(world, on)
        scripted.moves = moves(MoveStage.BALANCE, MoveStage.BALANCE, MoveStage.SWAP)
        await asyncio.sleep(12)
        assert [len(plan.moves) for plan in on.follower.node.plans.open()] == [1]
        scripted.moves = moves(MoveStage.BALANCE, MoveStage.OVERLOAD, MoveStage.SWAP, group=4)
        await world.until(lambda: len(on.follower.node.plans.open()) == 2, 12, "another proposal")
        assert [move.bundle for move in on.follower.node.plans.open()[1].moves] == on.bundles[1:3]
        scripted.moves = moves(*[MoveStage.DRAIN] * 5)
        await world.until(lambda: len(on.follower.node.plans.open()) == 3, 12, "a third one")
        assert [move.bundle for move in on.follower.node.plans.open()[2].moves] == on.bundles[3:]

    story()


def test_a_term_begins_without_what_the_strategy_remembered_in_the_last_one(scripted: Scripted):
    @virtually
    async def story(world: World) -> None:
        on = await stage(world, AS_TOLD, "a:1", bundles=1)
        await world.until(lambda: len(scripted.given) >= 2, 20, "two rounds")
        assert scripted.given[:2] == [None, 1]
        world.set_down("log", True)
        await asyncio.sleep(15)
        world.set_down("log", False)
        table, before = on.brokers[0].node.channel.table, len(scripted.given)
        await world.until(lambda: table.lead(0).epoch > 1, 30, "the next term")
        await world.until(lambda: len(scripted.given) > before, 30, "a round of it")
        assert scripted.given[before] is None

    story()


@virtually
async def test_the_load_of_what_is_moved_is_remembered_with_the_move(world: World):
    on = await stage(world, BALANCED)
    await world.until(lambda: len(on.moves) >= 2, 30, "it is balanced")
    deciding, bundle = on.leader.node.current.rebalancer.deciding, on.moves[0].subjects[0].bundle
    await world.until(lambda: on.owner(bundle) == "b:1", 10, "it has arrived")
    await world.until(lambda: deciding.history.arrival(bundle, deciding.wall_ms()) is not None, 1, "the leader read it")
    arrival = deciding.history.arrival(bundle, deciding.wall_ms())
    assert arrival is not None
    load = deciding.history.load_moved(bundle, arrival)
    assert load is not None
    assert load[0] == pytest.approx(0.07)


@virtually
async def test_what_makes_no_sense_is_refused_with_what_to_do(world: World):
    on = await stage(world, BY_HAND, bundles=2)

    async def refused(work: Any) -> str:
        with pytest.raises((Conflict, Invalid, NotFound)) as caught:
            await on.at(on.follower, work)
        return str(caught.value)

    assert "name either" in await refused(lambda writer: writer.unload(Unload(), "ann", ""))
    assert "name either" in await refused(lambda d: d.unload(Unload(namespace="t/n", broker="a:1"), "ann", ""))
    assert "no namespace" in await refused(lambda writer: writer.unload(Unload(namespace="t/none"), "ann", ""))
    assert "no broker" in await refused(lambda writer: writer.unload(Unload(broker="z:1"), "ann", ""))
    assert "registered" in await refused(lambda writer: writer.unload(Unload(broker="a:1", to="z:1"), "ann", ""))
    assert "is at a:1" in await refused(lambda writer: writer.unload(Unload(broker="a:1", to="a:1"), "ann", ""))
    assert "no plan" in await refused(lambda writer: writer.act("none", P.RUN, "ann", ""))
    assert "there are" in await refused(lambda writer: writer.propose("ann", "", {"strategy": "guess"}))
    assert "tolerance" in await refused(lambda writer: writer.propose("ann", "", {"tolerance": "snug"}))
    assert "nothing to move" in await refused(lambda writer: writer.propose("ann", "", {}))
    plan = await on.at(on.follower, lambda writer: writer.unload(Unload(broker="a:1"), "ann", "", review=True))
    assert "only a plan that has run" in await refused(lambda writer: writer.undo(plan.id, "ann", ""))
    assert "until it has run" in await refused(lambda writer: writer.verify(plan.id, "ann"))


@virtually
async def test_hard_rules_hold_for_plans_too_when_they_are_made_and_when_they_run(world: World):
    on = await stage(world, BY_HAND, "a:1", "b:1", "c:1", bundles=3)
    at, first, second = on.follower, on.bundles[0], on.bundles[1]
    await exclude(at, first)
    plan = await on.at(at, lambda writer: writer.unload(Unload(broker="a:1", to="b:1"), "ann", "", review=True))
    assert [move.bundle for move in plan.moves] == list(on.bundles[1:])
    assert "excluded from b:1" in plan.left_out[str(first)]
    await exclude(at, second)
    for action in (P.APPROVE, P.RUN):
        await on.at(at, lambda writer, action=action: writer.act(plan.id, action, "ann", ""))
    await world.until(lambda: on.is_(plan.id, S.FAILED), 20, "it is over")
    assert [outcome.status for outcome in on.plan(plan.id).outcomes] == [MoveStatus.FAILED, MoveStatus.DONE]
    assert "excluded from b:1" in on.plan(plan.id).outcomes[0].detail


async def exclude(at: Started, bundle: Bundle) -> None:
    policy = BundlePolicy(exclude=("b:1",))
    await at.ask(lambda: at.node.policies.put(Kind.BUNDLE, str(bundle), policy, author="ann"))


@virtually
async def test_what_somebody_rejected_is_not_proposed_again_before_its_time(world: World):
    on = await stage(world, REVIEWED)
    plan = await proposed(world, on)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "PROPOSAL_LIFE_MS", 60_000)
        await on.at(on.follower, lambda writer: writer.act(plan.id, P.REJECT, "ann", "not now"))
        await asyncio.sleep(50)
        assert [each.id for each in on.follower.node.plans.all()] == [plan.id]
        await world.until(lambda: on.follower.node.plans.open() != [], 20, "it asks again")


def test_half_of_a_swap_is_not_made_when_the_other_half_moved_on(scripted: Scripted):
    @virtually
    async def story(world: World) -> None:
        on = await stage(world, AS_TOLD_REVIEWED, "a:1", "b:1", "c:1", bundles=3)
        a, b = (on.brokers[i].node.current.me for i in (0, 1))
        scripted.moves = tuple(Move(bundle, a, b, "", MoveStage.SWAP, group=3) for bundle in on.bundles[:2])
        plan = await proposed(world, on)
        scripted.moves = ()
        await on.follower.ask(lambda: on.follower.node.current.operations.transfer(on.bundles[0], "c:1"))
        for action in (P.APPROVE, P.RUN):
            await on.at(on.follower, lambda writer, action=action: writer.act(plan.id, action, "ann", ""))
        await world.until(lambda: on.is_(plan.id, S.FAILED), 20, "it is over")
        assert on.owner(on.bundles[1]) == "a:1"
        assert "only together with" in on.plan(plan.id).outcomes[1].detail

    story()


def test_what_was_held_back_does_not_begin_any_more_once_balancing_is_off(scripted: Scripted):
    @virtually
    async def story(world: World) -> None:
        one_by_one = AS_TOLD.model_copy(update={"balancing_moves_per_round": 1, "balancing_interval_s": 20.0})
        on = await stage(world, one_by_one, bundles=6)
        a, b = (broker.node.current.me for broker in on.brokers)
        scripted.moves = tuple(Move(bundle, a, b, "") for bundle in on.bundles)
        await world.until(lambda: len(on.moves) >= 2, 40, "it has begun")
        deciding = on.leader.node.current.rebalancer.deciding
        deciding.settings = lambda: one_by_one.model_copy(update={"balancing": False})
        begun = len(on.moves)
        await asyncio.sleep(10)
        assert len(on.moves) == begun < 6

    story()


def test_leader_that_hears_of_another_leader_says_nothing_about_a_plan(monkeypatch: pytest.MonkeyPatch):
    told: list[str] = []

    async def deposed(executor: DutyExecutor, bundle: Bundle, *_: object) -> Refusal:
        told.append(str(bundle))
        return Refusal(Reason.DEPOSED, "epoch 1; c:1 leads in 2")

    @virtually
    async def story(world: World) -> None:
        on = await stage(world, BY_HAND, bundles=1)
        monkeypatch.setattr(DutyExecutor, "move", deposed)
        plan = await on.at(on.follower, lambda writer: writer.unload(Unload(broker="a:1", to="b:1"), "ann", ""))
        await world.until(lambda: len(told) > ATTEMPTS, 20, "it has tried often")
        await asyncio.sleep(3)
        assert on.is_(plan.id, S.RUNNING)

    story()


def test_who_is_deposed_by_the_channel_ends_its_term_with_the_first_move():
    @virtually
    async def story(world: World) -> None:
        on = await stage(world, BY_HAND, bundles=1)
        leader, table = on.leader, on.brokers[0].node.channel.table
        at, epoch = on.follower, table.lead(0).epoch
        for partition in range(table.partitions):
            record = Record(
                "", Action.LEAD, at.node.current.me, Role.LEADER, epoch + 1,
                root=at.node.agreeing.root, seen_agreement=table.agreed(partition).revision,
            )  # fmt: skip
            await at.ask(lambda partition=partition, record=record: at.node.channel.publish(record, partition))
        await on.at(at, lambda writer: writer.unload(Unload(broker="a:1", to="b:1"), "ann", ""))
        await world.until(lambda: leader.told(f"epoch {epoch} ended"), 10, "its term is over")
        await world.until(lambda: on.owner(on.bundles[0]) == "b:1", 30, "a later term has done it")

    story()


def test_a_bundle_that_an_open_proposal_has_given_up_is_proposed_anew(scripted: Scripted):
    @virtually
    async def story(world: World) -> None:
        on = await stage(world, AS_TOLD_REVIEWED, "a:1", "b:1", "c:1", bundles=2)
        a, b, c = (broker.node.current.me for broker in on.brokers)
        scripted.moves = tuple(Move(bundle, a, b, "") for bundle in on.bundles)
        first = await proposed(world, on)
        await on.follower.ask(lambda: on.follower.node.current.operations.transfer(on.bundles[0], "c:1"))
        scripted.moves = (Move(on.bundles[0], c, b, "", MoveStage.OVERLOAD), Move(on.bundles[1], a, b, ""))
        await world.until(lambda: len(on.follower.node.plans.open()) == 2, 12, "an urgent proposal")
        assert on.is_(first.id, S.PROPOSED)
        assert [move.bundle for move in on.follower.node.plans.open()[1].moves] == on.bundles[:1]

    story()


@virtually
async def test_how_long_a_destination_was_away_the_last_time_does_not_count(world: World):
    on = await stage(world, BY_HAND, "a:1", "b:1", "c:1", bundles=2)
    at, to = (broker for broker in on.brokers if broker is not on.leader)
    await _give_all(on, at)
    wish = Unload(broker=at.name, to=to.name)
    plans = [await on.at(at, lambda writer: writer.unload(wish, "ann", "", review=True)) for _ in range(2)]
    for plan in plans:
        await on.at(at, lambda writer, plan=plan: writer.act(plan.id, P.APPROVE, "ann", ""))
    to.process.crash()
    await world.until(lambda: to.name not in on.leader.node.peers(), 20, "it is away")
    await on.at(at, lambda writer: writer.act(plans[0].id, P.RUN, "ann", ""))
    await asyncio.sleep(2)
    await on.at(at, lambda writer: writer.act(plans[0].id, P.CANCEL, "ann", ""))
    again = on.nodes.start(to.name, process_name="again")
    await world.until(lambda: to.name in on.leader.node.peers(), 20, "it is there again")
    await asyncio.sleep(60)
    again.process.crash()
    await world.until(lambda: to.name not in on.leader.node.peers(), 20, "it is away again")
    await on.at(at, lambda writer: writer.act(plans[1].id, P.RUN, "ann", ""))
    await asyncio.sleep(3)
    assert on.is_(plans[1].id, S.RUNNING)
