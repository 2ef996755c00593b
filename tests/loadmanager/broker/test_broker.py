"""The embedded broker: what a service sees of it, on real brokers that share a SQLite file."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from loadmanager import Broker, Bundle, BundleLoad, Destination, Moved, NotFound, NotServing, SyncBroker, Token
from loadmanager.broker.hooks import at_once
from loadmanager.embedding import control
from loadmanager.errors import Unavailable
from loadmanager.model.host import KeyRate
from statechannel.errors import ForeignCluster, InvalidName
from statechannel.law.transitions import State
from tests.loadmanager.embedded import NAMESPACE, PATIENT, TOPIC, Host, bundle_of, cluster, embedded, until

V = 2.0


async def test_a_service_that_blocks_its_loop_for_more_than_a_validity_loses_nothing(tmp_path: Path):
    async with cluster(tmp_path, Host()) as [broker]:
        bundle, before = bundle_of(broker), broker.node.current.me
        seen: list[bool] = []
        over = threading.Event()

        def watch() -> None:
            while not over.wait(0.01):
                seen.append(broker.serving(bundle))

        watcher = threading.Thread(target=watch)
        watcher.start()
        serving = broker.node.serving
        assert serving is not None
        proofs_s = {max(serving.until_s())}
        while max(proofs_s) - min(proofs_s) < 1.2 * broker.node.settings.proof_validity_s:
            proofs_s.add(max(serving.until_s()))
            time.sleep(0.01)  # noqa: ASYNC251 - blocks the service's loop: that is what is tested
        over.set()
        watcher.join()
        assert len(proofs_s) > 3
        assert seen
        assert all(seen)
        assert broker.serving(bundle)
        assert broker.node.current.me == before


async def test_a_claim_gives_bundle_and_token_and_a_stranger_gets_none(tmp_path: Path):
    host = Host()
    async with cluster(tmp_path, host, Host()) as [broker, other]:
        claim = broker.claim(TOPIC)
        assert claim is not None
        assert TOPIC in {TOPIC: claim.bundle}
        assert claim.token == host.held[claim.bundle]
        assert other.claim(TOPIC) is None
        assert broker.claim("nobody/knows/this") is None


async def test_a_request_before_the_broker_has_started_is_told_to_come_back(tmp_path: Path):
    """A service may listen before its broker is there, when it is started again under its former address."""
    broker = embedded(tmp_path)
    with pytest.raises(NotServing, match="has not started") as refused:
        async with broker.admit(TOPIC):
            pytest.fail("nothing is ours yet")
    assert refused.value.retry_after_s > 0
    assert broker.claim(TOPIC) is None


async def test_a_request_for_somebody_else_learns_where_to_go(tmp_path: Path):
    async with cluster(tmp_path, Host(), Host(), urls={"http": "http://shop.example"}) as [owner, other]:
        with pytest.raises(Moved) as moved:
            async with other.admit(TOPIC):
                pytest.fail("not ours")
        assert moved.value.broker == owner.name
        assert moved.value.urls == {"http": "http://shop.example"}
        assert moved.value.bundle == bundle_of(owner)


async def test_long_connection_hears_the_destination_and_the_move_waits_for_it(tmp_path: Path):
    async with cluster(tmp_path, Host(), Host(), urls={"http": "http://shop.example"}) as [source, target]:
        async with source.admit(TOPIC) as claim:
            assert TOPIC in claim
            assert f"{NAMESPACE}-2/alice" not in claim
            leaving = asyncio.create_task(source.left(claim))
            thread = asyncio.create_task(asyncio.to_thread(source.gate.left_blocking, claim, 60.0))
            assert await asyncio.to_thread(source.gate.left_blocking, claim, 0.0) is None
            assert not leaving.done()
            move = asyncio.create_task(source.transfer(claim.bundle, target.name))
            for place in (await leaving, await thread):
                assert isinstance(place, Moved)
                assert (place.broker, place.urls) == (target.name, {"http": "http://shop.example"})
            assert not target.serving(claim.bundle), "the connection has not ended yet"
        await move
        assert isinstance(await source.left(claim), Moved), "it has left already"


async def test_a_long_connection_is_told_of_a_split_and_of_the_end(tmp_path: Path):
    async with cluster(tmp_path, Host()) as [broker]:
        claim = broker.claim(TOPIC)
        assert claim is not None
        leaving = asyncio.create_task(broker.left(claim))
        await broker.ask(lambda node: node.current.operations.split(claim.bundle))
        place = await leaving
        assert isinstance(place, NotServing)
        assert "split" in str(place)
        async with broker.admit(TOPIC) as later:
            leaving = asyncio.create_task(broker.left(later))
        await broker.stop(0.0)
        assert isinstance(await leaving, NotServing)


async def test_a_move_waits_for_the_request_in_progress_and_lets_no_other_in(tmp_path: Path):
    async with cluster(tmp_path, Host(), Host()) as [source, target]:
        bundle = bundle_of(source)
        async with source.admit(TOPIC):
            move = asyncio.create_task(source.transfer(bundle, target.name))
            await until(lambda: not source.serving(bundle))
            with pytest.raises(Moved) as moved:
                await source.admit(TOPIC).__aenter__()
            assert moved.value.broker == target.name
            assert not target.serving(bundle)
            assert source.gate.in_progress(bundle) == 1
        await move
        assert target.serving(bundle)
        assert source.gate.in_progress(bundle) == 0


async def test_a_request_is_held_where_its_bundle_is_about_to_arrive(tmp_path: Path):
    arriving = Host()
    async with cluster(tmp_path, Host(), arriving) as [source, target]:
        bundle = bundle_of(source)
        async with source.admit(TOPIC):
            move = asyncio.create_task(source.transfer(bundle, target.name))
            await until(lambda: _state_at(target, bundle) is State.RELEASING)
            held = asyncio.create_task(_admitted(target))
            await asyncio.sleep(0)  # it has looked, and would have its answer now if it got one without waiting
            assert not held.done()
            assert not target.serving(bundle)
        await move
        assert await held == bundle
        assert arriving.handed[-1] == b"from " + source.name.encode()


async def _admitted(broker: Broker) -> Bundle:
    async with broker.admit(TOPIC) as claim:
        return claim.bundle


def _state_at(broker: Broker, bundle: Bundle) -> State | None:
    """As this broker has read it."""
    entry = broker.node.channel.table.get(bundle)
    return None if entry is None else entry.state


async def test_requests_through_fifty_moves_never_fail(tmp_path: Path):
    """Whoever follows `Moved` is always served, however the bundle wanders."""
    async with cluster(tmp_path, Host(), Host()) as brokers:
        bundle, by_name = bundle_of(brokers[0]), {broker.name: broker for broker in brokers}
        over, served = asyncio.Event(), 0

        async def client() -> None:
            nonlocal served
            asked = brokers[0]
            while not over.is_set():
                try:
                    async with asked.admit(TOPIC) as claim:
                        assert claim.bundle == bundle
                        await asyncio.sleep(0.001)
                        served += 1
                except Moved as moved:
                    asked = by_name[moved.broker]
                    await asyncio.sleep(0.001)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(8):
                tasks.create_task(client())
            for i in range(50):
                await brokers[0].transfer(bundle, brokers[(i + 1) % 2].name)
            over.set()
        assert served > 50
        assert all(not broker.gate.in_progress(bundle) for broker in brokers)


async def test_the_first_request_finds_an_owner_for_a_bundle_that_has_none(tmp_path: Path):
    broker = embedded(tmp_path, **PATIENT)
    async with broker:
        await broker.ensure_namespace(NAMESPACE, 2)
        async with broker.admit(TOPIC) as claim:
            assert broker.serving(claim.bundle)


async def test_what_makes_no_sense_is_refused_at_once(tmp_path: Path):
    async with cluster(tmp_path, Host()) as [broker]:
        with pytest.raises(NotFound, match="create it first"):
            await broker.admit("no/such/topic").__aenter__()
        with pytest.raises(InvalidName):
            broker.admit("nonsense")


class Slow(Host):
    """Takes nothing while `gate` is not set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        await self.gate.wait()


async def test_a_bundle_that_does_not_come_in_time_is_not_served(tmp_path: Path):
    async with embedded(tmp_path, slow := Slow(), **PATIENT) as broker:
        await broker.ensure_namespace(NAMESPACE, 1)
        with pytest.raises(NotServing, match="did not come here within") as refused:
            await broker.admit(TOPIC, timeout_s=0.3).__aenter__()
        assert refused.value.retry_after_s > 0
        slow.gate.set()


async def test_a_release_that_hangs_is_overtaken_by_abandon(tmp_path: Path):
    class Stuck(Host):
        async def release(self, bundle: Bundle, to: Destination | None) -> bytes | None:
            await asyncio.Event().wait()
            return None

    stuck = Stuck()
    async with cluster(tmp_path, stuck, Host(), host_acquire_timeout_s=0.4) as [source, target]:
        bundle = bundle_of(source)
        await source.transfer(bundle, target.name)
        assert target.serving(bundle)
        await until(lambda: stuck.abandoned == [bundle])


async def test_a_bundle_that_the_host_declines_goes_elsewhere(tmp_path: Path):
    class Picky(Host):
        async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
            raise RuntimeError("no room")

    async with cluster(tmp_path, Host(), Picky()) as [owner, picky]:
        bundle = bundle_of(owner)
        with pytest.raises(Exception, match="did not arrive"):
            await owner.transfer(bundle, picky.name)
        await owner.transfer(bundle, owner.name)
        assert owner.serving(bundle)
        assert not picky.serving(bundle)


async def test_quiesce_gives_up_after_its_time(tmp_path: Path):
    async with cluster(tmp_path, Host()) as [broker]:
        async with broker.admit(TOPIC) as claim:
            assert not await broker.quiesce(claim.bundle, timeout_s=0.05)
        assert await broker.quiesce(claim.bundle, timeout_s=0.05)


async def test_release_that_waits_in_vain_ends_before_it_is_overtaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hosts = Host(), Host()
    assert control.QUIESCE_SHARE < 0.9, "there is time for the rest of a release"
    monkeypatch.setattr(control, "QUIESCE_SHARE", 0.02)  # and all that a busy machine may need for it
    async with cluster(tmp_path, *hosts, host_acquire_timeout_s=100.0) as [source, target]:
        async with source.admit(TOPIC) as claim:
            await source.transfer(claim.bundle, target.name)
            assert target.serving(claim.bundle)
        assert hosts[1].handed == [b"from " + source.name.encode()]
        assert not hosts[0].abandoned


async def test_a_request_that_is_cancelled_while_it_is_held_is_not_counted(tmp_path: Path):
    async with embedded(tmp_path, slow := Slow(), **PATIENT) as broker:
        await broker.ensure_namespace(NAMESPACE, 1)
        held = asyncio.create_task(_admitted(broker))
        await until(lambda: bool(broker.gate._arrivals._waiting))
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        assert not broker.gate._in_progress
        assert not broker.gate._arrivals._waiting
        slow.gate.set()


async def test_stopping_moves_everything_away_and_sends_latecomers_on(tmp_path: Path):
    leaving = Host()
    async with cluster(tmp_path, leaving, Host()) as [source, target]:
        await source.stop()
        assert not leaving.held
        async with target.admit(TOPIC) as claim:
            assert target.serving(claim.bundle)
        with pytest.raises(Moved) as moved:
            await source.admit(TOPIC).__aenter__()
        assert moved.value.broker == target.name
        await source.stop()
        with pytest.raises(Exception, match="not running"):
            await source.locate(TOPIC)


async def test_stopping_twice_is_as_good_as_once(tmp_path: Path):
    unstarted, used = embedded(tmp_path), embedded(tmp_path)
    for broker in (unstarted, used):
        if broker is used:
            await broker.start()
        await broker.stop()
        await broker.stop()
        await asyncio.gather(broker.stop(), broker.stop())
        await broker.ended()
        with pytest.raises(Unavailable, match="was stopped"):
            await broker.start()


async def test_stopping_returns_even_if_the_control_thread_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("loadmanager.embedding.control.STOP_GRACE_S", 0.2)
    go_on, hangs = threading.Event(), threading.Event()

    @at_once
    def load() -> dict[Bundle, BundleLoad]:
        hangs.set()
        go_on.wait(100)
        return {}

    broker = embedded(tmp_path, host := Host())
    host.load = load  # type: ignore[method-assign]
    await broker.start()
    try:
        assert await asyncio.to_thread(hangs.wait, 60)
        async with asyncio.timeout(60):
            await broker.stop(0.1)
        with pytest.raises(Unavailable, match="did not leave in time"):
            await broker.ended()
    finally:
        go_on.set()
    await asyncio.to_thread(broker._control._thread.join, 30)
    assert not broker._control._thread.is_alive()


async def test_draining_keeps_the_broker_but_not_its_bundles(tmp_path: Path):
    async with cluster(tmp_path, Host(), Host()) as [source, target]:
        progress = await source.drain(60.0)
        assert (progress.total, progress.left, progress.done) == (4, 0, True)
        located = await source.locate(TOPIC)
        assert located.owner.name == target.name


async def test_a_broker_that_cannot_start_says_why(tmp_path: Path):
    async with embedded(tmp_path):
        with pytest.raises(ForeignCluster, match="correct --cluster"):
            await embedded(tmp_path, cluster="another").start()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        occupied = embedded(tmp_path, advertised=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(OSError, match="in use"):
            await occupied.start()
        await occupied.stop()
    with pytest.raises(TypeError, match="not both"):
        Broker(Host(), embedded(tmp_path)._control.settings, cluster="twice")


async def test_broker_does_not_start_on_a_root_of_another_cluster_or_log(tmp_path: Path):
    north = embedded(tmp_path, cluster="north")
    await north.start()
    await north.stop(0)
    root = f"sqlite:{tmp_path}/cluster.db.coordination"
    for name in ("south", "north"):
        stranger = embedded(tmp_path, cluster=name, log=f"sqlite:{tmp_path}/{name}.db", coordination=root)
        with pytest.raises(ForeignCluster):
            await stranger.start()
    again = embedded(tmp_path, cluster="north")
    await again.start()
    await again.stop(0)


async def test_a_second_process_of_the_same_name_fences_the_first(tmp_path: Path):
    host = Host()
    async with cluster(tmp_path, host, Host()) as [first, second]:
        bundle = bundle_of(first)
        me = first.node.current.me
        await second.ask(lambda node: node.world.coordination.start_incarnation(me.name, me.incarnation))
        await until(lambda: not first.serving(bundle))
        await until(lambda: first.node.current.me.incarnation > me.incarnation + 1)
        assert host.abandoned


class ThreadedHost:
    """A host of plain functions; notes on which threads they run."""

    broker: SyncBroker

    def __init__(self) -> None:
        self.held: dict[Bundle, Token] = {}
        self.threads: set[str] = set()

    def prepare(self, bundle: Bundle) -> None:
        self.threads.add(threading.current_thread().name)

    def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        self.threads.add(threading.current_thread().name)
        self.held[bundle] = token

    def release(self, bundle: Bundle, to: Destination | None) -> bytes | None:
        self.broker.quiesce(bundle)
        del self.held[bundle]
        return None

    def abandon(self, bundle: Bundle) -> None:
        self.held.pop(bundle, None)

    def load(self) -> Mapping[Bundle, BundleLoad]:
        return {bundle: BundleLoad() for bundle in list(self.held)}


def threaded(directory: Path, host: ThreadedHost | None) -> SyncBroker:
    broker = SyncBroker(host, log=f"sqlite:{directory}/cluster.db", endpoint=False, drain_timeout_s=5.0, **PATIENT)
    if host is not None:
        host.broker = broker
    return broker


def test_a_service_of_threads_is_served_held_and_moved(tmp_path: Path):
    host = ThreadedHost()
    with threaded(tmp_path, host) as source, threaded(tmp_path, ThreadedHost()) as target:
        source.ensure_namespace(NAMESPACE, 1)
        bundle = source.locate(TOPIC).bundle
        if not source.serving(bundle):
            source.transfer(bundle, source.name)
        with source.admit(TOPIC) as claim:
            assert claim == source.claim(TOPIC)
            move = threading.Thread(target=source.transfer, args=(bundle, target.name))
            move.start()
            while source.serving(bundle):
                threading.Event().wait(0.002)
            got: list[Bundle] = []
            held = threading.Thread(target=lambda: got.append(_admitted_by(target)))
            held.start()
            assert not target.serving(bundle)
        move.join()
        held.join()
        assert got == [bundle]
        assert target.serving(bundle)
        assert all(name.startswith("bundle-host") for name in host.threads)
        with pytest.raises(Moved):
            source.admit(TOPIC).__enter__()


def _admitted_by(broker: SyncBroker) -> Bundle:
    while True:
        try:
            with broker.admit(TOPIC) as claim:
                return claim.bundle
        except Moved:
            threading.Event().wait(0.005)


def test_a_service_without_a_host_reports_the_rate_of_its_requests(tmp_path: Path):
    with threaded(tmp_path, None) as broker:
        broker.ensure_namespace(NAMESPACE, 1)
        for _ in range(100):
            with broker.admit(TOPIC) as claim:
                bundle = claim.bundle
        load = broker.node.host.load()
        assert load[bundle].in_rate_msg_s > 0  # type: ignore[index]


def test_stopping_a_broker_of_threads_twice_is_as_good_as_once(tmp_path: Path):
    broker = SyncBroker(log=f"sqlite:{tmp_path}/cluster.db", endpoint=False)
    broker.stop()
    broker.stop()
    with pytest.raises(Unavailable, match="was stopped"):
        broker.start()


def test_coroutine_hooks_are_not_for_a_service_of_threads(tmp_path: Path):
    with pytest.raises(TypeError, match="use Broker"):
        SyncBroker(Host(), log=f"sqlite:{tmp_path}/cluster.db")

    class Asked(ThreadedHost):
        async def rates(self, bundle: Bundle) -> list[KeyRate]:
            return []

    with pytest.raises(TypeError, match="rates is a coroutine function: use Broker"):
        SyncBroker(Asked(), log=f"sqlite:{tmp_path}/cluster.db")
