"""Scripted runs: defects that random seeds found, and corners that they seldom reach, each as a short schedule."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial

import pytest

from loadmanager.errors import Conflict
from statechannel.law.bundle import Bundle, even_boundaries
from statechannel.law.record import Action, BrokerId, Record, Role, Subject
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Ownership, Verdict
from tests.simulation.protocol_bugs import BUGS
from tests.simulation.scripts import follower, isolate, leader, scripted, settle
from tests.simulator.checks import Checks, Violation
from tests.simulator.cluster import SETTINGS, Life
from tests.simulator.network import Latency
from tests.simulator.run import Run
from tests.simulator.simulated_host import Behaviour, cells_of, topic_in

VALIDITY_S = SETTINGS.proof_validity_s
NAMESPACE = "t/a"


def serves_nothing(checks: Checks, life: Life) -> bool:
    return not checks.served(life)


def test_a_fenced_incarnation_is_followed_by_the_next_in_the_same_process() -> None:
    async def script(run: Run) -> None:
        life = follower(run)
        assert life.node is not None
        node, me = life.node, life.node.current.me
        life.process.pause()
        await run.world.until(lambda: run.checks.auditor.table.count_held_by(me) == 0, 30, "its bundles are moved")
        life.process.resume()
        await run.world.until(lambda: life.ready and node.current.me != me, 10, "the next incarnation is ready")

    scripted(script)


def test_a_leader_that_is_fenced_does_not_keep_the_lead_in_its_session() -> None:
    async def script(run: Run) -> None:
        life = leader(run)
        assert life is not None
        name, first = life.name, run.world.coordination.current_epoch
        run.world.coordination.start_incarnation(name, 0)  # as by a second process of that name, which then dies
        await run.world.until(lambda: run.world.coordination.current_epoch > first, 20, "somebody else is elected")
        await settle(run)

    scripted(script)


def test_undraining_a_broker_that_was_fenced_meanwhile_is_no_error() -> None:
    async def script(run: Run) -> None:
        life = follower(run)
        assert life.node is not None
        run.world.coordination.start_incarnation(life.name, 0)
        await life.spawn(life.node.undrain)

    scripted(script)


def test_a_broker_that_is_stopping_cannot_be_told_to_stay() -> None:
    async def script(run: Run) -> None:
        life = follower(run)
        assert life.node is not None
        node, me = life.node, life.node.current.me
        life.host.behaviour = Behaviour(slow_chance=1.0, slow_s=0.5)
        life.process.run(node.stop)
        await asyncio.sleep(0.1)
        undrained = life.spawn(node.undrain)
        await run.world.until(undrained.done, 5, "it has an answer")
        assert isinstance(undrained.exception(), Conflict)
        await run.world.until(lambda: life.process.dead, 30, "it has left")
        assert run.checks.auditor.table.held_by(me) == ()

    scripted(script)


def test_hooks_of_one_bundle_never_overlap_when_it_comes_again_before_they_have_ended() -> None:
    async def script(run: Run) -> None:
        holder = follower(run)
        bundle = run.checks.served(holder)[0].bundle
        target = next(life for life in run.cluster.ready() if life is not holder)
        assert target.node is not None
        target.host.behaviour = Behaviour(slow_chance=1.0, slow_s=2.9)
        for action, to in [(Action.TRANSFER, target.node.current.me), (Action.CANCEL, None)] * 3:
            entry = run.checks.auditor.table.get(bundle)
            assert entry is not None
            assert isinstance(await publish(holder, action, entry, to), Change)
            await asyncio.sleep(0.05)

    scripted(script)


async def publish(life: Life, action: Action, entry: Ownership, to: BrokerId | None) -> Verdict:
    assert life.node is not None
    node, subjects = life.node, (Subject(entry.bundle, entry.revision),)
    record = Record("", action, node.current.me, Role.ADMIN, subjects=subjects, to=to)
    return await life.spawn(lambda: node.channel.publish(record))


async def ignoring(work: Awaitable[object]) -> None:
    try:
        await work
    except Exception:  # noqa: BLE001 # refusals are not what this is about
        return


def test_who_is_cut_off_from_both_servers_stops_within_the_validity_of_its_proofs() -> None:
    async def script(run: Run) -> None:
        life = follower(run)
        isolate(run, life)
        assert not serves_nothing(run.checks, life)
        await asyncio.sleep(VALIDITY_S * (1 + SETTINGS.clock_drift) + 0.01)
        assert serves_nothing(run.checks, life)

    scripted(script)


@pytest.mark.parametrize("server", ["log", "coordination"])
def test_an_outage_of_one_server_alone_stops_nobody(server: str) -> None:
    async def script(run: Run) -> None:
        before = {claim.bundle for life in run.cluster.ready() for claim in run.checks.served(life)}
        run.world.set_down(server, True)
        for _ in range(80):
            await asyncio.sleep(0.25)
            after_s = run.world.now_s
            served = {claim.bundle for life in run.cluster.ready() for claim in run.checks.served(life)}
            assert served == before, after_s
        run.world.set_down(server, False)

    scripted(script)


def test_a_crash_costs_detection_and_the_validity_of_a_proof_not_a_session() -> None:
    async def script(run: Run) -> None:
        life = follower(run)
        assert life.node is not None
        me = life.node.current.me
        held = set(run.checks.auditor.table.held_by(me))
        began_s = run.world.now_s
        run.fault_phase._kill(life)

        def moved() -> bool:
            served = {claim.bundle for other in run.cluster.ready() for claim in run.checks.served(other)}
            return held <= served

        await run.world.until(moved, 10, "its bundles are served again")
        assert run.world.now_s - began_s < VALIDITY_S + 2.0

    scripted(script)


def test_two_owners_are_seen_even_without_comparing_them_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Checks` finds most breaches by the log, before there are two owners; here only the owners are compared."""
    monkeypatch.setattr(Checks, "_check_named", lambda self, life, claim: None)
    monkeypatch.setattr("tests.simulator.checks.Checks.write", lambda self, *request: None)
    BUGS["the_leader_does_not_wait"](monkeypatch)

    async def script(run: Run) -> None:
        life = follower(run)
        life.lied_about = True
        await asyncio.sleep(VALIDITY_S / 4)  # a suspicion takes half a second: its proof is to last longer than that
        isolate(run, life)
        await asyncio.sleep(VALIDITY_S)

    with pytest.raises(Violation, match="TWO OWNERS"):
        scripted(script)


def test_a_namespace_that_is_deleted_while_its_bundles_move_is_gone_everywhere() -> None:
    async def script(run: Run) -> None:
        life = follower(run)
        assert life.node is not None
        operations = life.node.current.operations
        await life.spawn(lambda: operations.create_namespace("t/short", even_boundaries(2)))
        for other in run.cluster.ready():
            assert other.node is not None
        await life.spawn(lambda: operations.delete_namespace("t/short"))
        assert not any(entry.bundle.namespace == "t/short" for entry in run.checks.auditor.table)
        assert run.checks.auditor.table.in_state(State.REVOKING) == ()

    scripted(script)


@pytest.mark.parametrize("seed", [1, 14, 21, 40, 49, 54, 55, 68])
def test_a_graceful_stop_leaves_nothing_behind_though_others_place_bundles_on_it(seed: int) -> None:
    """Others hear late that it leaves, and give it what they have just unloaded."""

    async def script(run: Run) -> None:
        run.world.network.latency = Latency(mean_s=0.01)
        life = follower(run)
        assert life.node is not None
        me = life.node.current.me
        others = [other for other in run.cluster.ready() if other is not life]
        for entry in run.checks.auditor.table:
            other = run.random.choice(others)
            other.spawn(partial(move_about, other, entry.bundle))
        await asyncio.sleep(run.random.uniform(0, 0.08))
        life.process.run(life.node.stop)
        await run.world.until(lambda: life.process.dead, 30, "it has left")
        await asyncio.sleep(0.5)
        assert run.checks.auditor.table.held_by(me) == ()

    scripted(script, seed)


async def move_about(life: Life, bundle: Bundle) -> None:
    assert life.node is not None
    now = life.node.current
    await ignoring(now.operations.unload(bundle))
    await ignoring(now.lookup.locate(topic_in(bundle.namespace, cells_of(bundle)[0]), 3))
