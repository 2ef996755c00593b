"""Clients send whatever they like: how far that delays proofs, the control loop and health, and what memory it takes.

Each attack has a broker of its own, once open and once with TLS and tokens, and comes from a process of its own. The
first row is without an attack: what the machine does by itself.
"""

from __future__ import annotations

import json
import multiprocessing
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import psutil

from bench.backends import carrier
from bench.cluster import BrokerProcess, create_namespace, late_turns, longest_own_turn_ms
from bench.figures import emit
from loadmanager.client import Credentials
from tests.api.access.issuing import Certificates, Issuer, jwks

ATTACK_S = 15.0
BUNDLES = 16_384
TOPICS = 1_000
PROBE_S = 0.05
HEALTHY_S = 1.0


class Attacked(msgspec.Struct, frozen=True):
    """Where an attack goes, and until when it lasts. Without `ca` it does not use TLS; some attacks use the token."""

    name: str = ""
    until_s: float = 0.0
    ca: str = ""
    token: str = ""

    def connect(self) -> socket.socket:
        """A connection that gives up after a while."""
        host, _, port = self.name.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=30)
        if not self.ca:
            return plain
        return ssl.create_default_context(cafile=self.ca).wrap_socket(plain, server_hostname=host)

    def head(self, first: str, *further: str, known: bool = True) -> bytes:
        """The head of a request, with the token unless it shall not be `known` who sends it."""
        bearer = (f"Authorization: Bearer {self.token}",) if self.token and known else ()
        return "\r\n".join((f"{first} HTTP/1.1", "Host: 127.0.0.1", *bearer, *further, "", "")).encode()


Attack = Callable[[Attacked, int], None]
"""What one of its clients does; called with the client's number."""


def nothing(attacked: Attacked, client: int) -> None:
    """No attack."""
    time.sleep(max(0.0, attacked.until_s - time.monotonic()))


def batches(attacked: Attacked, client: int) -> None:
    """Batch lookups of topics in unassigned bundles, one after another."""
    turn = 0
    while time.monotonic() < attacked.until_s:
        topics = [f"bench/attacks/{client}-{turn}-{number}" for number in range(TOPICS)]
        body = json.dumps({"topics": topics, "timeout_ms": 5_000}).encode()
        lines = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close")
        _send(attacked, attacked.head("POST /v1/lookup", *lines) + body)
        turn += 1


def strangers(attacked: Attacked, client: int) -> None:
    """Requests without credentials for paths of 300 characters, which the audit log gets to see."""
    request = attacked.head("GET /v1/" + ("pwd" * 100)[:296], "Connection: close", known=False)
    while time.monotonic() < attacked.until_s:
        _send(attacked, request)


def long_paths(attacked: Attacked, client: int) -> None:
    """Paths of 1,200 characters that look like secrets to a pattern that searches for them."""
    request = attacked.head("GET /v1/" + ("a" * 20 + "_token:" * 2) * 35, "Connection: close", known=False)
    while time.monotonic() < attacked.until_s:
        _send(attacked, request)
        time.sleep(0.02)


def watches(attacked: Attacked, client: int) -> None:
    """A watch that takes what it gets; it begins again when it is refused."""
    while time.monotonic() < attacked.until_s:
        _send(attacked, attacked.head("GET /v1/watch"), until_s=attacked.until_s)
        time.sleep(0.5)


LISTS = (
    "/v1/bundles",
    "/v1/bundles?namespace=bench/attacks",
    "/v1/bundles?order=load",
    "/admin/v2/namespaces/bench/attacks/bundles",
    "/admin/v2/namespaces/bench/attacks",
    "/v1/brokers",
    "/v1/balancing",
    "/v1/decisions",
    "/v1/policies",
    "/v1/splitting",
    "/v1/usage",
    "/v1/channel",
    "/v1/audit",
    "/metrics",
    "/openapi.json",
    "/v1/explain/bundles/bench/attacks/0x00000000_0x00040000",
    "/v1/bundles/bench/attacks/0x00000000_0x00040000/history",
)


def lists(attacked: Attacked, client: int) -> None:
    """Everything that has a long answer, one after another."""
    turn = client
    while time.monotonic() < attacked.until_s:
        _send(attacked, attacked.head(f"GET {LISTS[turn % len(LISTS)]}", "Connection: close"))
        turn += 1


def drips(attacked: Attacked, client: int) -> None:
    """A head, a byte at a time."""
    while time.monotonic() < attacked.until_s:
        with suppress(OSError), attacked.connect() as connection:
            for each in attacked.head("GET /v1/brokers", "X-Long: " + "x" * 1_000):
                connection.send(bytes((each,)))
                time.sleep(0.2)
                if time.monotonic() > attacked.until_s:
                    return


def pours(attacked: Attacked, client: int) -> None:
    """Heads without an end, and bodies of 64 MiB."""
    begins = attacked.head("GET /v1/brokers")[:-2] + b"X-Long: "
    if client % 2:
        begins = attacked.head("POST /v1/lookup", "Content-Type: application/json", "Transfer-Encoding: chunked")
        begins += b"4000000\r\n"
    while time.monotonic() < attacked.until_s:
        with suppress(OSError), attacked.connect() as connection:
            connection.sendall(begins)
            for _ in range(1_024):
                connection.sendall(b"x" * 65_536)


ATTACKS: Sequence[tuple[Attack, int]] = (
    (nothing, 1),
    (batches, 64),
    (strangers, 4),
    (long_paths, 4),
    (watches, 600),
    (lists, 64),
    (drips, 200),
    (pours, 8),
)
"""Each with the number of its clients."""


def run(kind: str) -> None:
    """All figures of this bench."""
    with tempfile.TemporaryDirectory() as folder:
        issuer, certificates = Issuer("k"), Certificates(Path(folder) / "tls")
        keys = Path(folder) / "keys.json"
        keys.write_bytes(jwks(issuer))
        certificate, key = certificates.issue("broker", "127.0.0.1")
        settings = (f"tls_certificate={certificate}", f"tls_key={key}", f"token_keys={keys}", "superusers=root")
        token = issuer.token("root")
        for attack, clients in ATTACKS:
            _attack(kind, attack, clients, (), Attacked())
            _attack(kind, attack, clients, settings, Attacked(ca=certificates.ca, token=token))


def _attack(kind: str, attack: Attack, clients: int, settings: Sequence[str], attacked: Attacked) -> None:
    credentials = Credentials(token=attacked.token, ca=attacked.ca) if attacked.ca else None
    with carrier(kind) as where:
        broker = BrokerProcess(where, "balancing=false", *settings, credentials=credentials)
        try:
            broker.await_ready()
            create_namespace(broker, "bench/attacks", BUNDLES)
            _measure(kind, attack, clients, broker, attacked)
        finally:
            broker.end()


def _measure(kind: str, attack: Attack, clients: int, broker: BrokerProcess, attacked: Attacked) -> None:
    process = psutil.Process(broker.process.pid)
    lapses, late = _lapses(broker), late_turns(broker)
    before = most = process.memory_info().rss
    attacked = msgspec.structs.replace(attacked, name=broker.name, until_s=time.monotonic() + ATTACK_S)
    attacking = multiprocessing.get_context("fork").Process(target=_clients, args=(attack, clients, attacked))
    attacking.start()
    slowest, unhealthy, gap_s, healthy_s = 0.0, 0, 0.0, time.monotonic()
    while attacking.is_alive():
        begin = time.monotonic()
        status = broker.ask("GET", "/admin/v2/brokers/health")[0]
        now = time.monotonic()
        slowest = max(slowest, now - begin)
        gap_s = max(gap_s, now - healthy_s)
        if status == 200:
            healthy_s = now
        else:
            unhealthy += 1
        most = max(most, process.memory_info().rss)
        time.sleep(PROBE_S)
    attacking.join()
    lapsed, how = _lapses(broker) - lapses, "open" if broker.credentials is None else "TLS and tokens"
    emit(
        "attacks", f"{attack.__name__}, {clients} clients, {how}, {kind}", lapsed, "lapses of proofs",
        target="0, health < 1 s", met=not lapsed and not unhealthy and slowest < HEALTHY_S,
        slowest_health_s=round(slowest, 3), not_healthy=unhealthy, longest_without_health_s=round(gap_s, 2),
        longest_own_turn_ms=round(longest_own_turn_ms(broker), 1), turns_over_20_ms=late_turns(broker) - late,
        memory_mib=round(before / 2**20), memory_grown_mib=round((most - before) / 2**20),
    )  # fmt: skip


def _lapses(broker: BrokerProcess) -> float:
    return sum(broker.samples("loadmanager_proof_lapses_total"))


def _clients(attack: Attack, clients: int, attacked: Attacked) -> None:
    threads = [threading.Thread(target=attack, args=(attacked, number)) for number in range(clients)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def _send(attacked: Attacked, request: bytes, until_s: float | None = None) -> None:
    """Send it and take everything that comes, until the end or this time."""
    with suppress(OSError), attacked.connect() as connection:
        connection.sendall(request)
        while until_s is None or time.monotonic() < until_s:
            if until_s is not None:
                connection.settimeout(max(0.1, until_s - time.monotonic()))
            if not connection.recv(1 << 20):
                break
