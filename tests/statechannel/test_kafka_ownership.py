"""A client of Kafka is ended once, and never while a call is in it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from statechannel.adapters.kafka.ownership import ClientClosed, Owned

WAIT_S = 30.0


class Client:
    """Counts how often it was ended, and whether a call was in it then."""

    def __init__(self) -> None:
        self.calls = 0
        self.ended = threading.Event()
        self.ended_by: list[str] = []
        self.in_use = False

    def end(self) -> None:
        self.in_use = self.in_use or self.calls > 0
        self.ended_by.append(threading.current_thread().name)
        self.ended.set()


class Owner:
    """Whoever asked for the client."""


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def owned(client: Client) -> Owned[Client]:
    return Owned(client, Client.end)


def on_a_thread(job: Callable[[], object], name: str = "other") -> threading.Thread:
    thread = threading.Thread(target=job, name=name)
    thread.start()
    return thread


def within(owned: Owned[Client], entered: threading.Event, leave: threading.Event) -> None:
    with owned.lent() as client:
        client.calls += 1
        entered.set()
        leave.wait(WAIT_S)
        client.calls -= 1


def test_a_client_is_ended_by_close_and_not_lent_after_it(client, owned):
    with owned.lent() as lent:
        assert lent is client
    owned.close()
    owned.close()
    assert len(client.ended_by) == 1
    with pytest.raises(ClientClosed), owned.lent():
        pass


def test_close_waits_for_calls_and_lets_no_further_one_in(client, owned):
    entered, leave = threading.Event(), threading.Event()
    call = on_a_thread(lambda: within(owned, entered, leave))
    assert entered.wait(WAIT_S)
    closing = on_a_thread(owned.close)
    while not owned.closing:
        pass
    with pytest.raises(ClientClosed), owned.lent():
        pass
    assert closing.is_alive()
    assert not client.ended_by
    leave.set()
    closing.join(WAIT_S)
    call.join(WAIT_S)
    assert (len(client.ended_by), client.in_use) == (1, False)


def test_close_gives_up_waiting_and_the_last_call_ends_the_client(client, owned):
    entered, leave = threading.Event(), threading.Event()
    call = on_a_thread(lambda: within(owned, entered, leave), "caller")
    assert entered.wait(WAIT_S)
    owned.close(timeout_s=0.0)
    assert not client.ended_by
    leave.set()
    call.join(WAIT_S)
    assert (client.ended_by, client.in_use) == (["caller"], False)


def test_callback_that_closes_its_own_client_does_not_wait_for_itself(client, owned):
    with owned.lent():
        owned.close()
        assert not client.ended_by
    assert len(client.ended_by) == 1


def test_many_threads_that_borrow_and_close_end_it_once():
    for _ in range(50):
        client = Client()
        owned = Owned(client, Client.end)
        ready = threading.Barrier(6)

        def borrow(owned: Owned[Client] = owned, ready: threading.Barrier = ready) -> None:
            ready.wait(WAIT_S)
            try:
                while True:
                    with owned.lent() as lent:
                        lent.calls += 1
                        lent.calls -= 1
            except ClientClosed:
                pass

        def close(owned: Owned[Client] = owned, ready: threading.Barrier = ready, client: Client = client) -> None:
            ready.wait(WAIT_S)
            owned.close()
            assert client.ended.is_set()

        threads = [on_a_thread(job) for job in (borrow, borrow, borrow, borrow, close, close)]
        for thread in threads:
            thread.join(WAIT_S)
        assert len(client.ended_by) == 1


def test_client_of_an_owner_that_is_freed_is_closed_on_a_thread_of_its_own(client, owned):
    owner = Owner()
    owner.itself = owner  # pyright: ignore[reportAttributeAccessIssue] - freed by the garbage collector alone
    owned.close_with(owner)
    del owner
    on_a_thread(gc.collect, "collects").join(WAIT_S)
    assert client.ended.wait(WAIT_S)
    assert client.ended_by == ["kafka-closing"]


def test_client_is_ended_before_the_interpreter_is():
    code = """
import atexit, threading
atexit.register(print, "interpreter")  # called after what was registered later
from statechannel.adapters.kafka.ownership import ClientClosed, Owned
def use():
    try:
        while True:
            with owned.lent(): pass
    except ClientClosed: pass
owned = Owned("client", print)
threading.Thread(target=use, daemon=True).start()
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.split() == ["client", "interpreter"]
