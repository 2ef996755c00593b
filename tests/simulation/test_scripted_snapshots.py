"""Scripted runs about snapshots and trimming: owners struck in the middle, brokers that fell behind, everybody gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from loadmanager.cluster.readers import ReaderRegistry
from loadmanager.errors import LoadManagerError
from statechannel.law.bundle import Bundle
from statechannel.law.record import Action, Record, Role
from statechannel.law.transitions import State
from statechannel.law.verdict import Change, Refusal, Unknown
from statechannel.ports import Payload
from tests.simulation.scripts import follower, scripted, settle
from tests.simulator.audits import CHANNEL_TOPIC
from tests.simulator.cluster import PARTITIONS, SETTINGS, Life
from tests.simulator.faults import Trap
from tests.simulator.network import Faults
from tests.simulator.run import Run
from tests.simulator.simulated_coordination import COORDINATION_SERVER
from tests.simulator.simulated_host import CELL_SIZE
from tests.simulator.simulated_log import LOG_SERVER, Step

Strike = Callable[[Run, Life], None]


# --- faults that somebody suffers


def crash(run: Run, life: Life) -> None:
    run.fault_phase._kill(life)
    run.world.loop.call_later(3.0, run.fault_phase._start_again, life.name)


def sleep_beyond_a_session(run: Run, life: Life) -> None:
    life.process.pause()
    run.world.loop.call_later(SETTINGS.session_timeout_s + 7.0, life.process.resume)


def lose_the_log(run: Run, life: Life) -> None:
    run.world.network.faults = Faults(late=1.0)  # what it asked for arrives late
    run.world.cut(str(life), LOG_SERVER)
    run.world.loop.call_later(10.0, run.world.heal, str(life), LOG_SERVER)


def lose_the_session(run: Run, life: Life) -> None:
    run.world.expire_session(str(life))


# --- what happens meanwhile


async def traffic(run: Run) -> None:
    """Somebody who is well writes, so that there is something to snapshot and to trim."""
    for life in run.cluster.ready():
        assert life.node is not None
        if not run.world.network.is_cut(str(life), LOG_SERVER):
            node = life.node
            for partition in range(PARTITIONS):
                life.spawn(lambda n=node, p=partition: n.channel.read_back(p, n.current.me))
            break
    run.look_after_the_dead()
    run.checks.raise_if_broken()
    await asyncio.sleep(0.2)


async def under_traffic(run: Run, holds: Callable[[], bool], within_s: float, what: str) -> None:
    ends_s = run.world.now_s + within_s
    while not holds():
        assert run.world.now_s < ends_s, f"not within {within_s} s: {what}"
        await traffic(run)


def begins(run: Run) -> tuple[int, ...]:
    return run.world.log.begins(CHANNEL_TOPIC)


async def until_trimmed(run: Run, ends: tuple[int, ...]) -> None:
    """Return when nothing of what the log has up to these offsets is left."""

    def trimmed() -> bool:
        return all(begin >= end for begin, end in zip(begins(run), ends, strict=True))

    await under_traffic(run, trimmed, 60, "the log is trimmed")


# --- owners


def test_the_log_is_snapshot_and_trimmed_and_stays_short() -> None:
    async def script(run: Run) -> None:
        for _ in range(150):
            await traffic(run)
        log, audit = run.world.log, run.checks.auditor.snapshots
        assert audit.written >= 2 * 30 / SETTINGS.snapshot_interval_s * 0.7
        for begin, end in zip(begins(run), log.ends(CHANNEL_TOPIC), strict=True):
            assert begin > 50
            kept = log.read(CHANNEL_TOPIC, 0, begins(run)[0])
            assert run.world.wall_ms() - kept[0].appended_ms < 1000 * (
                SETTINGS.log_retention_s + 4 * SETTINGS.snapshot_interval_s
            )
            assert end - begin < 200

    scripted(script)


@pytest.mark.parametrize("strike", [crash, sleep_beyond_a_session, lose_the_log, lose_the_session])
@pytest.mark.parametrize("step", list(Step))
def test_snapshots_and_trimming_go_on_whoever_is_struck_at_whichever_step(step: Step, strike: Strike) -> None:
    async def script(run: Run) -> None:
        struck: list[Life] = []

        def suffer(life: Life) -> None:
            struck.append(life)
            strike(run, life)

        if step is Step.READ:  # owners read when they take lease, and what they have written
            await under_traffic(run, lambda: run.checks.auditor.snapshots.written > 0, 20, "there is a snapshot")
        run.fault_phase._ambush.traps.append(Trap(step, suffer))
        await under_traffic(run, lambda: bool(struck), 40, f"somebody is at {step}")
        ends = run.world.log.ends(CHANNEL_TOPIC)
        await until_trimmed(run, ends)

    scripted(script)


def test_a_deposed_owner_that_wakes_is_fenced_and_the_snapshots_do_not_go_back() -> None:
    async def script(run: Run) -> None:
        audit = run.checks.auditor.snapshots
        await under_traffic(run, lambda: audit.written > 3, 30, "snapshots are written")
        owner = next(x for x in run.cluster.ready() if x.node is not None and x.node.current.channel_owner.keepers)
        owner.process.pause()
        written = audit.written
        await under_traffic(run, lambda: audit.written > written + 6, 60, "somebody else writes in its place")
        run.world.cut(str(owner), COORDINATION_SERVER)  # so that only the log can tell it
        owner.process.resume()
        await under_traffic(run, lambda: told(run, "another client writes them"), 20, "it hears that it is fenced")
        run.world.heal(str(owner), COORDINATION_SERVER)
        await until_trimmed(run, run.world.log.ends(CHANNEL_TOPIC))

    scripted(script)


def told(run: Run, what: str) -> bool:
    return any(what in line for line in run.world.trace.lines())


def test_nothing_is_trimmed_that_a_registered_reader_still_wants() -> None:
    async def script(run: Run) -> None:
        life = follower(run)
        assert life.node is not None
        node = life.node
        readers = ReaderRegistry(node.views.readers, node.world.log, node.channel.topic, node.world.wall_ms)
        wanted = (await life.spawn(lambda: readers.register("history", None))).positions
        for _ in range(100):
            await traffic(run)
            assert all(begin <= position for begin, position in zip(begins(run), wanted, strict=True))
        await life.spawn(lambda: readers.remove("history"))
        await until_trimmed(run, run.world.log.ends(CHANNEL_TOPIC))

    scripted(script)


# --- replicas


def test_after_a_blackout_everything_goes_on_from_the_snapshots() -> None:
    async def script(run: Run) -> None:
        await until_trimmed(run, run.world.log.ends(CHANNEL_TOPIC))
        names = list(run.cluster.current)
        for life in run.cluster.alive():
            life.process.crash()
        loads = run.checks.loads
        for name in names:
            run.cluster.start(name)
        await settle(run)
        assert run.checks.loads >= loads + 3 * PARTITIONS

    scripted(script)


def test_a_broker_that_slept_until_the_log_was_trimmed_is_loaded_anew() -> None:
    async def script(run: Run) -> None:
        life = follower(run)
        life.process.pause()
        await until_trimmed(run, tuple(end + 50 for end in run.world.log.ends(CHANNEL_TOPIC)))
        reloads = run.checks.reloads
        life.process.resume()
        await under_traffic(run, lambda: run.checks.reloads > reloads and life.ready, 30, "it is back")
        await settle(run)

    scripted(script)


async def fall_behind(run: Run, life: Life, meanwhile: Callable[[], object] = lambda: None) -> None:
    """It reaches the log no more, but writes its liveness node and stays who it is; then it reaches it again."""
    run.world.cut(str(life), LOG_SERVER)
    await traffic(run)  # what is under way to it arrives in the end; what comes after this does not
    meanwhile()
    await until_trimmed(run, tuple(end + 20 for end in run.world.log.ends(CHANNEL_TOPIC)))
    reloads = run.checks.reloads
    run.world.heal(str(life), LOG_SERVER)
    await under_traffic(run, lambda: run.checks.reloads > reloads, 10, "it is loaded anew")


def test_who_fell_behind_lets_go_of_what_was_merged_or_split_meanwhile() -> None:
    async def script(run: Run) -> None:
        life = follower(run)
        assert life.node is not None
        me = life.node.current.me
        other = next(x for x in run.cluster.ready() if x is not life)
        assert other.node is not None
        operations = other.node.current.operations
        held = sorted(run.checks.auditor.table.held_by(me))
        for bundle in run.checks.auditor.table.namespace(held[0].namespace).bundles:  # type: ignore[union-attr]
            entry = run.checks.auditor.table.get(bundle)
            if entry is not None and entry.holder != me:
                await other.spawn(lambda b=bundle: operations.transfer(b, life.name))
        parts = [b for b in run.checks.auditor.table.held_by(me) if b.namespace == held[0].namespace]
        assert len(parts) > 1
        await fall_behind(run, life, lambda: other.spawn(lambda: operations.merge(parts)))
        assert life.node.current.me == me
        await settle(run)
        claims = [claim.bundle for claim in run.checks.served(life)]
        assert not set(parts) & set(claims)

    scripted(script)


def test_a_late_copy_is_no_verdict_for_who_did_not_read_the_first_one() -> None:
    """What stood where it fell behind is not known to it, so a copy that is refused later says nothing."""

    async def script(run: Run) -> None:
        life = follower(run)
        assert life.node is not None
        channel, me = life.node.channel, life.node.current.me
        bundle = Bundle("t/fresh", 0, 4 * CELL_SIZE)
        create = Record("", Action.CREATE_NAMESPACE, me, Role.ADMIN, namespace="t/fresh", boundaries=(0, 0xFFFFFFFF))
        run.world.cut(str(life), LOG_SERVER, requests=False)
        await traffic(run)  # what is under way to it arrives in the end; what comes after this does not
        verdict = await life.spawn(lambda: channel.publish(create))
        assert isinstance(verdict, Unknown)
        assert isinstance(run.checks.auditor.verdict_of(verdict.record_id), Change)
        partition = run.checks.auditor.table.partition_of(bundle.namespace)
        log = run.world.log
        first = next(
            entry
            for entry in log.read(CHANNEL_TOPIC, partition, begins(run)[partition])
            if verdict.record_id.encode() in (entry.value or b"")
        )
        await fall_behind(run, life)
        log.append(CHANNEL_TOPIC, partition, [Payload(first.key, first.value)])
        copy = log.ends(CHANNEL_TOPIC)[partition]
        await under_traffic(run, lambda: channel.table.next_offset(partition) >= copy, 10, "it has read the copy")
        assert not isinstance(channel.settled(verdict.record_id), Refusal)

    scripted(script)


def test_a_namespace_that_was_deleted_before_the_snapshot_cannot_be_created_by_an_old_record() -> None:
    async def script(run: Run) -> None:
        life = follower(run)
        assert life.node is not None
        operations = life.node.current.operations
        for _ in range(2):
            await life.spawn(lambda: operations.create_namespace("t/fresh", (0, 0xFFFFFFFF)))
            await life.spawn(lambda: operations.delete_namespace("t/fresh"))
        await until_trimmed(run, run.world.log.ends(CHANNEL_TOPIC))
        for each in run.cluster.alive():
            each.process.crash()
        for name in list(run.cluster.current):
            life = run.cluster.start(name)
        await settle(run)
        assert life.node is not None
        channel, me = life.node.channel, life.node.current.me
        stale = Record("", Action.CREATE_NAMESPACE, me, Role.ADMIN, namespace="t/fresh", boundaries=(0, 0xFFFFFFFF))
        assert isinstance(await life.spawn(lambda: channel.publish(stale)), Refusal)

    scripted(script)


def test_a_split_that_is_under_way_goes_through_a_snapshot() -> None:
    """Its holder sleeps; by the time it is dead to the others only a snapshot says that it was to cut, and how."""

    async def script(run: Run) -> None:
        life = follower(run)
        other = next(x for x in run.cluster.ready() if x is not life)
        assert other.node is not None
        operations, bundle = other.node.current.operations, run.checks.served(life)[0].bundle
        life.process.pause()
        other.spawn(lambda: ignoring(operations.split(bundle, parts=2, algorithm="topic_count_equally_divide")))
        await run.world.until(lambda: state_of(run, bundle) is State.SPLITTING, 5, "the split begins")
        await until_trimmed(run, run.world.log.ends(CHANNEL_TOPIC))
        life.process.resume()

    scripted(script)


def state_of(run: Run, bundle: Bundle) -> State | None:
    entry = run.checks.auditor.table.get(bundle)
    return entry.state if entry is not None else None


async def ignoring(work: Awaitable[object]) -> None:
    with contextlib.suppress(LoadManagerError):
        await work
