"""1,000 clients watch one broker while 100 changes a second happen: how long it takes until the last one is told.

The clients are connections of one process that reads and parses as little as possible. A change's time is from its
record's own time (`at_ms`) until the last client has read its event, on the machine's one clock.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import selectors
import socket
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

import numpy as np

from bench.backends import carrier
from bench.cluster import BrokerProcess, create_namespace, longest_turn_ms, request_bytes
from bench.figures import emit, percentile

SUBSCRIBERS = int(os.environ.get("SUBSCRIBERS", "1000"))
RATE_S, CHANGES, WRITERS = 100.0, 2_000, 4
BUNDLES = 64
TARGET_MS = 250.0
WARM_S, END_S = 2.0, 5.0

OFFSET = b'"offset":'
CHANGE = re.compile(rb'"offset":(\d+),.*?"at_ms":(\d+)')


def run(kind: str) -> None:
    """All figures of this bench."""
    with carrier(kind) as where:
        broker = BrokerProcess(where, "partitions=1", "http_requests=4096")
        try:
            broker.await_ready()
            create_namespace(broker, "bench/watched", BUNDLES)
            _measure(kind, broker)
        finally:
            broker.end()


def _measure(kind: str, broker: BrokerProcess) -> None:
    spawn = multiprocessing.get_context("spawn")
    results, theirs = spawn.Pipe(duplex=False)
    ready, over = spawn.Event(), spawn.Event()
    reader = spawn.Process(target=read_all, args=(broker.name, SUBSCRIBERS, ready, over, theirs))
    reader.start()
    assert ready.wait(120), "not all clients have the table"
    time.sleep(WARM_S)
    lasted_s = _change(broker)
    time.sleep(END_S)
    over.set()
    took_ms, missed, ended = results.recv()
    reader.join()
    p99 = percentile(took_ms, 99)
    emit(
        "subscribers", f"until the last of {SUBSCRIBERS:,} watches is told, p99, {kind}", p99, "ms",
        target=f"≤ {TARGET_MS:g}", met=p99 <= TARGET_MS and not missed and not ended,
        p50_ms=round(percentile(took_ms, 50), 1), max_ms=round(max(took_ms), 1), changes=len(took_ms),
        changes_not_seen_by_all=missed, watches_ended=ended, changes_per_s=round(CHANGES / lasted_s, 1),
        longest_turn_ms=round(longest_turn_ms(broker), 1),
    )  # fmt: skip


def _change(broker: BrokerProcess) -> float:
    """Create namespaces and delete them, at the rate; returns how long that took."""
    begin = time.monotonic()

    def write(writer: int) -> None:
        for number in range(writer, CHANGES, WRITERS):
            time.sleep(max(0.0, begin + number / RATE_S - time.monotonic()))
            path = f"/admin/v2/namespaces/bench/of-{writer}"
            if number // WRITERS % 2 == 0:
                assert broker.ask("PUT", path, {"bundles": {"numBundles": 1}})[0] == 204
            else:
                assert broker.ask("DELETE", path)[0] == 204

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return time.monotonic() - begin


class _Client:
    """One watch. `told` is the last offset that each read brought, and when."""

    def __init__(self, name: str) -> None:
        host, _, port = name.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.sendall(request_bytes("/v1/watch"))
        self.socket.setblocking(False)
        self.has_table = False
        self.told: list[tuple[int, float]] = []
        self._rest = b""

    def read(self) -> bytes:
        """The whole events that came. Raises ConnectionError at the end."""
        more = self.socket.recv(1 << 20)
        if not more:
            raise ConnectionError
        data = self._rest + more
        whole = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
        self._rest, events = data[whole:], data[:whole]
        self.has_table = self.has_table or b"snapshot-end" in events
        place = events.rfind(OFFSET)
        if place >= 0:
            begin = place + len(OFFSET)
            self.told.append((int(events[begin : events.index(b",", begin)]), time.time() * 1e3))
        return events


def read_all(name: str, count: int, ready: Event, over: Event, results: Connection) -> None:
    """Be all the clients, until `over`; then send what each change took, in ms. The first client reads the changes."""
    gc.disable()
    selector = selectors.DefaultSelector()
    clients = [_Client(name) for _ in range(count)]
    for client in clients:
        selector.register(client.socket, selectors.EVENT_READ, client)
    changes: list[tuple[int, int]] = []
    ended = 0
    while not over.is_set():
        for key, _ in selector.select(0.1):
            try:
                events = key.data.read()
            except ConnectionError:
                ended += 1
                selector.unregister(key.fileobj)
                continue
            if key.data is clients[0]:
                changes += [(int(offset), int(at_ms)) for offset, at_ms in CHANGE.findall(events)]
        if not ready.is_set() and all(client.has_table for client in clients):
            changes.clear()
            ready.set()
    offsets = np.array([offset for offset, _ in changes])
    told_ms = np.zeros(len(changes))
    for client in clients:
        lasts = np.array([offset for offset, _ in client.told])
        when_ms = np.array([*(at_ms for _, at_ms in client.told), np.inf])
        told_ms = np.maximum(told_ms, when_ms[np.searchsorted(lasts, offsets)])
    took_ms = told_ms - np.array([at_ms for _, at_ms in changes])
    seen = np.isfinite(took_ms)
    results.send((took_ms[seen].tolist(), int((~seen).sum()), ended))
