"""Live, undisturbed brokers on a machine whose processors are all busy: how often one is taken for dead.

Three brokers own bundles for CALM_S (in the environment, an hour by default) while a busy loop runs on each core. Each
is asked every half second whether it suspects another one, and in the end how often its proofs ran out and whether its
incarnation is the first. ZooKeeper tells how many requests all of this is, pings included. CALM_SET has settings that
are not the default ones, as `proof_validity_s=2`; CALM_LOOPS=0 for a machine that is busy already.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from bench.backends import Carrier, carrier
from bench.cluster import BrokerProcess, await_true, cluster, create_namespace
from bench.figures import emit, percentile

BROKERS = 3
BUNDLES = 256
CALM_S = float(os.environ.get("CALM_S", "3600"))
SETTINGS = os.environ.get("CALM_SET", "").split()
LOOK_S = 0.5
LOOPS = int(os.environ.get("CALM_LOOPS", psutil.cpu_count() or 1))
REMAINING = "loadmanager_proof_remaining_seconds"
LAPSES = "loadmanager_proof_lapses_total"
SUSPECTED = "loadmanager_members_suspected"
NUMBER = "loadmanager_incarnation"


def run(kind: str) -> None:
    """All figures of this bench."""
    with carrier(kind) as where, cluster(where, BROKERS, *SETTINGS) as brokers:
        create_namespace(brokers[0], "bench/calm", BUNDLES)
        for broker in brokers:
            await_true(lambda broker=broker: broker.samples(REMAINING) != [], 60, "every broker has proofs")
        cpu_s, requests, begin = _cpu_s(brokers), _received(where), time.monotonic()
        left: list[float] = []
        loads: list[float] = []
        suspected = 0
        with _busy():
            while time.monotonic() - begin < CALM_S:
                for broker in brokers:
                    left.append(min(broker.samples(REMAINING), default=0.0))
                    suspected += sum(broker.samples(SUSPECTED)) > 0
                loads.append(os.getloadavg()[0])
                time.sleep(LOOK_S)
        took_s = time.monotonic() - begin
        requests_s = (_received(where) - requests) / took_s / BROKERS
        lapses = round(sum(sum(broker.samples(LAPSES)) for broker in brokers))
        ended = sum(broker.samples(NUMBER) != [1.0] for broker in brokers)
        emit(
            "calm", f"suspicions, proofs that ran out, incarnations that ended, {kind}", suspected + lapses + ended, "",
            target="0", met=not (suspected or lapses or ended), suspicions=suspected, lapses=lapses, ended=ended,
            seconds=round(took_s), looks=len(left), settings=SETTINGS, p1_left_s=round(percentile(left, 1), 3),
            load=round(sum(loads) / len(loads), 1), cpu_percent=round(100 * (_cpu_s(brokers) - cpu_s) / took_s, 2),
            zookeeper_requests_s_of_a_broker=round(requests_s, 2),
        )  # fmt: skip


def _received(where: Carrier) -> int:
    """How many packets of clients ZooKeeper has received; 0 without one."""
    scheme, _, address = where.coordination.partition("://")
    if scheme != "zookeeper":
        return 0
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), 10) as connection, connection.makefile() as said:
        connection.sendall(b"srvr")
        return next(int(line.split()[1]) for line in said if line.startswith("Received:"))


def _cpu_s(brokers: list[BrokerProcess]) -> float:
    times = [psutil.Process(broker.process.pid).cpu_times() for broker in brokers]
    return sum(each.user + each.system for each in times)


@contextmanager
def _busy() -> Iterator[None]:
    """The busy loops run."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()
