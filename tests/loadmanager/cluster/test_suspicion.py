"""Suspicions on evidence: refused connections in a row suspect, anything else withdraws; bad addresses harm nobody.

A connection that ends counts as the first refusal, and the next probe follows at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest

from loadmanager.cluster.suspicion import OBSERVERS, Answer, Ring, Suspicion, SuspicionReport, probe_port
from loadmanager.model.registration import Peer, Registration
from statechannel.law.record import BrokerId
from statechannel.runtime.view import TableView
from tests.loadmanager.small_world import A, B, C, process, virtually
from tests.simulator.world import World

B2 = BrokerId("b:1", 2)


class Street:
    """What a looks at: `answers` by incarnation, open unless it says else. Those who die end their connections."""

    def __init__(self, *brokers: BrokerId) -> None:
        self.answers: dict[BrokerId, Answer] = {}
        self.peers = {b.name: Peer(b, Registration()) for b in brokers}
        self.probes = 0
        self.died = asyncio.Event()

    async def probe(self, peer: Peer, keep_s: float) -> Answer:
        self.probes += 1
        answer = self.answers.get(peer.broker, Answer.OPEN)
        if answer is Answer.OPEN:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.died.wait(), keep_s)
                return Answer.ENDED
        return answer

    def die(self, broker: BrokerId) -> None:
        self.answers[broker] = Answer.REFUSED
        self.died.set()


def suspicions(suspicion: Suspicion) -> list[tuple[BrokerId, BrokerId]]:
    return [(a.observer, a.suspect) for a in suspicion._view.values()]


@asynccontextmanager
async def looking(
    world: World, street: Street, refusals: int = 2, interval_s: float = 0.1
) -> AsyncGenerator[Suspicion]:
    view: TableView[SuspicionReport] = TableView(
        world.log_client(process(world, "a:1"), request_timeout_s=0.2),
        "accusations",
        decode=msgspec.json.Decoder(SuspicionReport).decode,
        encode=msgspec.json.encode,
        clock_ms=world.wall_ms,
        partitions=1,
        timeout_s=0.3,
    )
    await view.start()
    suspicion = Suspicion(A, lambda: street.peers, view, street.probe, interval_s=interval_s, refusals=refusals)
    tasks = [asyncio.ensure_future(view.run()), asyncio.ensure_future(suspicion.run())]
    yield suspicion
    assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()


@virtually
async def test_refusals_in_a_row_make_an_accusation_and_an_open_port_ends_it(world: World):
    street = Street(A, B, C)
    async with looking(world, street) as suspicion:
        street.answers[B] = Answer.REFUSED
        await world.until(lambda: suspicions(suspicion) == [(A, B)], 1, "b is suspected")
        street.answers.clear()
        await world.until(lambda: suspicions(suspicion) == [], 1, "it is withdrawn")


@virtually
async def test_a_process_that_dies_is_suspected_at_once(world: World):
    """Not after two probes: its end of the connection is closed."""
    street = Street(A, B)
    async with looking(world, street, interval_s=60.0) as suspicion:
        await world.until(lambda: street.probes > 0, 1, "b is looked at")
        street.die(B)
        await world.until(lambda: suspicions(suspicion) == [(A, B)], 1, "b is suspected")


@virtually
async def test_an_end_counts_as_one_refusal_and_is_none_alone(world: World):
    street = Street(A, B)
    async with looking(world, street, refusals=3, interval_s=10.0) as suspicion:
        await world.until(lambda: street.probes > 0, 1, "b is looked at")
        street.die(B)
        await asyncio.sleep(9)
        assert suspicions(suspicion) == []
        assert street.probes == 2
        await world.until(lambda: suspicions(suspicion) == [(A, B)], 2, "the second refusal came an interval later")


@virtually
async def test_a_port_that_ends_each_connection_is_open_and_not_pressed(world: World):
    street = Street(A, B)
    street.answers[B] = Answer.ENDED
    async with looking(world, street, refusals=1, interval_s=1.0) as suspicion:
        await asyncio.sleep(10.5)
        assert suspicions(suspicion) == []
        assert street.probes <= 12


class Board:
    """In place of the view: what was put."""

    def __init__(self) -> None:
        self.put_keys: asyncio.Queue[str] = asyncio.Queue()

    async def put(self, key: str, report: SuspicionReport) -> None:
        self.put_keys.put_nowait(key)


async def test_after_an_error_it_looks_at_everybody_again():
    faults = [RuntimeError("a fault")]

    async def probe(peer: Peer, keep_s: float) -> Answer:
        if faults:
            raise faults.pop()
        return Answer.REFUSED

    peers, board = {b.name: Peer(b, Registration()) for b in (A, B)}, Board()
    suspicion = Suspicion(A, lambda: peers, board, probe, interval_s=0.01, refusals=2)  # type: ignore[arg-type]
    with pytest.raises(ExceptionGroup):
        await suspicion.run()
    again = asyncio.ensure_future(suspicion.run())
    assert await asyncio.wait_for(board.put_keys.get(), 10) == "a:1>b:1"
    again.cancel()


@virtually
async def test_a_port_that_only_does_not_answer_accuses_nobody_and_breaks_the_row(world: World):
    street = Street(A, B)
    async with looking(world, street, refusals=3) as suspicion:
        for _ in range(10):
            street.answers[B] = Answer.REFUSED
            await asyncio.sleep(0.2)
            street.answers[B] = Answer.SILENT
            await asyncio.sleep(0.15)
            assert suspicions(suspicion) == []


@virtually
async def test_a_restarted_broker_is_accused_in_its_own_incarnation(world: World):
    """Both incarnations share a key: withdrawing the one must not withdraw the other."""
    street = Street(A, B)
    async with looking(world, street, refusals=1) as suspicion:
        street.answers = {B: Answer.REFUSED, B2: Answer.REFUSED}
        await world.until(lambda: suspicions(suspicion) == [(A, B)], 1, "the first is suspected")
        street.peers["b:1"] = Peer(B2, Registration())
        await world.until(lambda: suspicions(suspicion) == [(A, B2)], 1, "the second is suspected")
        await asyncio.sleep(1)
        assert suspicions(suspicion) == [(A, B2)]


@virtually
async def test_without_the_log_it_looks_on_and_tells_later(world: World):
    street = Street(A, B)
    async with looking(world, street) as suspicion:
        world.set_down("log", True)
        street.answers[B] = Answer.REFUSED
        await asyncio.sleep(3)
        world.set_down("log", False)
        await world.until(lambda: suspicions(suspicion) == [(A, B)], 2, "b is suspected")


@virtually
async def test_what_is_remembered_of_those_who_left_is_nothing(world: World):
    street = Street(A, B)
    async with looking(world, street) as suspicion:
        street.answers[B] = Answer.REFUSED
        await asyncio.sleep(0.5)
        del street.peers["b:1"]
        await world.until(lambda: not suspicion._watched and not suspicions(suspicion), 1, "it is forgotten")
        assert not suspicion._suspecting


NAMES = [f"h{i}.example:1" for i in range(50)]


def test_each_broker_is_observed_by_a_few_the_same_for_everybody():
    ring, other = Ring(NAMES), Ring(reversed(NAMES))
    for name in NAMES:
        observers = ring.observers_of(name)
        assert len(set(observers)) == OBSERVERS
        assert name not in observers
        assert observers == other.observers_of(name)
        assert all(name in ring.observed_by(each) for each in observers)
    assert Ring(["a:1"]).observers_of("a:1") == []
    assert Ring(["a:1", "b:1"]).observers_of("a:1") == ["b:1"]
    assert Ring(["b:1"]).observed_by("a:1") == [], "it does not see itself yet"


def test_all_observe_equally_many_and_a_loss_concerns_neighbours_only():
    ring = Ring(NAMES)
    assert {len(ring.observed_by(name)) for name in NAMES} == {OBSERVERS}
    fewer = Ring(NAMES[1:])
    changed = [name for name in NAMES[1:] if ring.observers_of(name) != fewer.observers_of(name)]
    assert len(changed) == OBSERVERS


@virtually
async def test_who_looks_at_whom_is_worked_out_when_somebody_came_or_went_only(world: World):
    street = Street(A, B, C)
    made: list[int] = []

    def counted(names: Iterable[str]) -> Ring:
        made.append(1)
        return Ring(names)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loadmanager.cluster.suspicion.Ring", counted)
        async with looking(world, street):
            await asyncio.sleep(1)
            assert len(made) == 1
            del street.peers["c:1"]
            await asyncio.sleep(1)
            assert len(made) == 2


async def test_a_port_is_open_ends_the_connection_or_refuses_it():
    taken: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()
    server = await asyncio.start_server(lambda _, writer: taken.put_nowait(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    peer = Peer(A, Registration(admin_url=f"http://127.0.0.1:{port}"))
    assert await probe_port(peer, 0.05) is Answer.OPEN
    (await taken.get()).close()
    probing = asyncio.ensure_future(probe_port(peer, 60.0))
    (await taken.get()).close()
    assert await probing is Answer.ENDED
    probing = asyncio.ensure_future(probe_port(peer, 60.0))
    (await taken.get()).transport.abort()
    assert await probing is Answer.ENDED
    server.close()
    await server.wait_closed()
    assert await probe_port(peer, 60.0) is Answer.REFUSED


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:99999", "http://127.0.0.1:-5", "nonsense", "http://[::", "http://x:y"]
)
async def test_an_address_that_is_none_is_silence_not_an_error(url: str):
    assert await probe_port(Peer(A, Registration(admin_url=url)), 0.1) is Answer.SILENT


def test_what_an_earlier_release_suspects_is_read():
    said = b'{"accuser":["a:1",1],"accused":["c:1",2]}'
    report = SuspicionReport(BrokerId("a:1", 1), BrokerId("c:1", 2))
    assert msgspec.json.decode(said, type=SuspicionReport) == report
    assert msgspec.json.encode(report) == said
