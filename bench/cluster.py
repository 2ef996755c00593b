"""A cluster of real broker processes for the benches, and two plain HTTP clients that cost as little as Python can."""

from __future__ import annotations

import http.client
import json
import os
import selectors
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.backends import Carrier
from loadmanager.client import Credentials
from stack.servers import free_port
from statechannel.law.bundle import Bundle, Key, tile

COMMAND = str(Path(sys.executable).parent / "loadmanager")
START_S = 60.0


class BrokerProcess:
    """One `loadmanager broker`."""

    def __init__(
        self, carrier: Carrier, *settings: str, host: str | None = None, credentials: Credentials | None = None
    ) -> None:
        self.credentials = credentials
        """With these it is asked over TLS."""
        self.name = f"127.0.0.1:{free_port()}"
        arguments = ["--advertised", self.name, "--log", carrier.log, "--coordination", carrier.coordination]
        if host is not None:
            arguments += ["--host", host]
        overrides = [part for setting in settings for part in ("--set", setting)]
        self.began_s, self.ready_s = time.monotonic(), 0.0
        self.process = subprocess.Popen(
            [COMMAND, "broker", *arguments, *carrier.options, *overrides],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def ask(self, method: str, path: str, body: object = None, timeout_s: float = 30.0) -> tuple[int, Any]:
        """One request on a connection of its own: status, and the JSON or text of the answer."""
        connection, headers = http.client.HTTPConnection(self.name, timeout=timeout_s), dict[str, str]()
        if self.credentials is not None:
            tls = self.credentials.context()
            connection = http.client.HTTPSConnection(self.name, timeout=timeout_s, context=tls)
            headers = self.credentials.headers(f"https://{self.name}")
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, headers | ({"Content-Type": "application/json"} if data else {}))
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        try:
            return response.status, json.loads(text) if text else None
        except json.JSONDecodeError:
            return response.status, text

    def await_ready(self) -> float:
        """Seconds from the start of the process to its first `ready`."""
        await_true(lambda: self._answers("/admin/v2/brokers/ready"), START_S, f"{self.name} is ready")
        self.ready_s = time.monotonic() - self.began_s
        return self.ready_s

    def _answers(self, path: str) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"broker {self.name} ended with exit code {self.process.returncode}")
        try:
            return self.ask("GET", path, timeout_s=2.0)[0] == 200
        except OSError:
            return False

    def samples(self, name: str) -> list[float]:
        """The values of a metric, one for each of its label sets."""
        lines = self.ask("GET", "/metrics")[1].splitlines()
        return [float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))]

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal and wait for the end."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait(30)


@contextmanager
def cluster(carrier: Carrier, brokers: int, *settings: str, host: str | None = None) -> Iterator[list[BrokerProcess]]:
    """Ready brokers, ended afterwards."""
    processes = [BrokerProcess(carrier, *settings, host=host) for _ in range(brokers)]
    try:
        for each in processes:
            each.await_ready()
        await_true(
            lambda: len(processes[0].ask("GET", "/admin/v2/brokers")[1]) == brokers, START_S, "all see each other"
        )
        yield processes
    finally:
        for each in processes:
            each.end(signal.SIGKILL)


def await_true(holds: Callable[[], bool], within_s: float, what: str, pause_s: float = 0.002) -> float:
    """Seconds until the condition held. Raises TimeoutError."""
    begin = time.monotonic()
    while not holds():
        if time.monotonic() - begin > within_s:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        time.sleep(pause_s)
    return time.monotonic() - begin


def create_namespace(broker: BrokerProcess, namespace: str, bundles: int) -> None:
    """Create it over REST."""
    status, answer = broker.ask("PUT", f"/admin/v2/namespaces/{namespace}", {"bundles": {"numBundles": bundles}})
    assert status == 204, (status, answer)


def longest_turn_ms(broker: BrokerProcess) -> float:
    """The longest turn of its control loop in the last minute or two."""
    return broker.samples("loadmanager_loop_longest_turn_seconds")[0] * 1e3


def longest_own_turn_ms(broker: BrokerProcess) -> float:
    """The same without the time for which the machine gave the loop no processor."""
    return broker.samples("loadmanager_loop_longest_own_turn_seconds")[0] * 1e3


def late_turns(broker: BrokerProcess) -> int:
    """How many turns of its control loop took more than 20 ms since its start."""
    late = "loadmanager_loop_late_seconds"
    return round(broker.samples(f"{late}_count")[0] - broker.samples(f'{late}_bucket{{le="0.02"}}')[0])


def records_read(broker: BrokerProcess) -> int:
    """How many records of the channel it has read since its start."""
    return round(sum(broker.samples("loadmanager_channel_records_total")))


def topics_of_bundles(namespace: str, boundaries: Sequence[str]) -> list[str]:
    """One topic for each bundle, in the bundles' order."""
    bundles = tile(namespace, [int(boundary, 16) for boundary in boundaries])
    found: dict[Bundle, str] = {}
    number = 0
    while len(found) < len(bundles):
        topic = Key.parse(f"{namespace}/t{number}")
        number += 1
        index = min(topic.position * len(bundles) >> 32, len(bundles) - 1)
        bundle = next(b for b in bundles[max(0, index - 1) : index + 2] if topic.position in b)
        found.setdefault(bundle, topic.full_name.removeprefix("persistent://"))
    return [found[bundle] for bundle in bundles]


def request_bytes(path: str, token: str = "") -> bytes:
    """A GET on a connection that stays open."""
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{bearer}\r\n".encode()


def lookup_path(topic: str) -> str:
    """Pulsar's lookup of a topic."""
    return f"/lookup/v2/topic/persistent/{topic}"


def requests_on_one_connection(
    name: str, requests: Sequence[bytes], tls: ssl.SSLContext | None = None, source: str = ""
) -> list[float]:
    """Seconds that each request took, one after another. Raises RuntimeError unless all were answered 200.

    `source` is the client's address, by default that of the broker.
    """
    took: list[float] = []
    with _connect(name, tls, source) as connection:
        for request in requests:
            begin = time.perf_counter()
            connection.sendall(request)
            _check(_read_answer(connection))
            took.append(time.perf_counter() - begin)
    return took


def requests_on_connections(
    name: str, requests: Sequence[bytes], connections: int, tls: ssl.SSLContext | None = None
) -> tuple[float, list[float]]:
    """Requests per second over several connections, each with one request under way; and what each request took."""
    selector = selectors.DefaultSelector()
    sockets = [_connect(name, tls) for _ in range(connections)]
    waiting = iter(requests)
    began: dict[socket.socket, float] = {}
    took: list[float] = []
    begin = time.perf_counter()
    for each in sockets:
        selector.register(each, selectors.EVENT_READ)
        began[each] = time.perf_counter()
        each.sendall(next(waiting))
    while began:
        for key, _ in selector.select():
            each = key.fileobj
            assert isinstance(each, socket.socket)
            _check(_read_answer(each))
            now = time.perf_counter()
            took.append(now - began.pop(each))
            following = next(waiting, None)
            if following is not None:
                began[each] = now
                each.sendall(following)
    rate = len(took) / (time.perf_counter() - begin)
    for each in sockets:
        each.close()
    return rate, took


def _connect(name: str, tls: ssl.SSLContext | None = None, source: str = "") -> socket.socket:
    host, _, port = name.rpartition(":")
    connection = socket.create_connection((host, int(port)), source_address=(source, 0) if source else None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection if tls is None else tls.wrap_socket(connection, server_hostname=host)


def _read_answer(connection: socket.socket) -> bytes:
    data, whole = b"", -1
    while whole < 0 or len(data) < whole:
        more = connection.recv(1 << 20)
        if not more:
            raise RuntimeError(f"the connection was closed after {data[:200]!r}")
        data += more
        if whole < 0 and (head := data.find(b"\r\n\r\n")) >= 0:
            lower = data[:head].lower()
            begin = lower.find(b"content-length:")
            length = int(lower[begin + 15 :].split(b"\r\n", 1)[0]) if begin >= 0 else 0
            whole = head + 4 + length
    return data


def _check(answer: bytes) -> None:
    if not answer.startswith(b"HTTP/1.1 20"):
        raise RuntimeError(f"unexpected answer: {answer[:300]!r}")
