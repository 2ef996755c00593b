"""Forked children: they close what belongs to their parent, and nothing else."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

CHILD_SEES = """
import logging, os, socket, stat, sys
from statechannel.runtime.forking import close_in_children, forget
logging.basicConfig(stream=sys.stdout, format="%(message)s")
closed = socket.socketpair()[0].detach()
close_in_children(closed)
os.close(closed)
if not os.fork():
    os._exit(0)  # nothing is held: no warning
os.wait()
(ours, other), (service, _) = socket.socketpair(), socket.socketpair()
close_in_children(ours.fileno())
numbers = ours.fileno(), service.fileno()
for _ in range(2):
    child = os.fork()
    if not child:
        for each in numbers:
            print("open" if stat.S_ISSOCK(os.fstat(each).st_mode) else "closed")
        with open(sys.argv[1], "w") as file:
            assert file.fileno() not in numbers
            ours.close()
            file.write("it was not closed with the parent's socket")
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
assert stat.S_ISSOCK(os.fstat(ours.fileno()).st_mode)
forget(ours.fileno())
"""


def test_a_child_closes_what_is_held_and_no_other_descriptor_and_one_warning_is_given(tmp_path: Path):
    command = [sys.executable, "-c", CHILD_SEES, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    warning, *seen = done.stdout.splitlines()
    assert "start method `spawn` or `forkserver`" in warning
    assert seen == ["closed", "open"] * 2


SERVICE = """
import multiprocessing, sys, time
from loadmanager import SyncBroker
class Service:
    def prepare(self, bundle): pass
    def acquire(self, bundle, token, hand_off): pass
    def release(self, bundle, to): pass
    def abandon(self, bundle): pass
    def load(self): return {}
if __name__ == "__main__":
    broker = SyncBroker(Service(), log=f"sqlite:{sys.argv[1]}/c.db", advertised="127.0.0.1:0", balancing=False)
    broker.start()
    print(broker.name, flush=True)
    sys.stdin.readline()
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    worker.start()
    print(worker.pid, flush=True)
    time.sleep(600)
"""


@contextmanager
def ending(process: subprocess.Popen[str]) -> Generator[None]:
    try:
        yield
    finally:
        process.kill()


@pytest.mark.slow
def test_a_killed_broker_is_noticed_at_once_although_its_forked_worker_lives(tmp_path: Path):
    (tmp_path / "service.py").write_text(SERVICE)
    command = [sys.executable, str(tmp_path / "service.py"), str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        host, _, port = (name := process.stdout.readline().strip()).rpartition(":")
        with ending(process), socket.create_connection((host, int(port)), 60) as watching:
            watching.sendall(f"GET /admin/v2/brokers/health HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
            assert watching.recv(9) == b"HTTP/1.1 ", "the broker has accepted it"
            process.stdin.write("\n")
            process.stdin.flush()
            worker = int(process.stdout.readline())
            try:
                process.kill()
                process.wait()
                watching.settimeout(60)
                with suppress(ConnectionResetError):
                    while watching.recv(1_000):
                        pass
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((host, int(port)), 60)
                os.kill(worker, 0)
            finally:
                os.kill(worker, signal.SIGKILL)
