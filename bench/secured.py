"""Lookups over TLS with a token, against those without, and many log-ins: two brokers of one run, in turns."""

from __future__ import annotations

import ssl
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path

from bench.backends import carrier
from bench.cluster import (
    BrokerProcess,
    create_namespace,
    late_turns,
    longest_own_turn_ms,
    longest_turn_ms,
    lookup_path,
    request_bytes,
    requests_on_connections,
    requests_on_one_connection,
    topics_of_bundles,
)
from bench.figures import emit, median, percentile
from loadmanager.broker.control_loop import WINDOW_S
from loadmanager.client import Credentials
from loadmanager_api.access.access import REMEMBERED
from tests.api.access.issuing import Certificates, Issuer, jwks

BUNDLES = 64
REQUESTS = 10_000
PAIRS = 5
LOG_IN_S = 2 * WINDOW_S + 5.0
"""By then a broker's longest turn is one of the storm."""
CLIENTS = 4
GOOD, BAD = 200, 20
"""Requests of a client in turns: good tokens on one connection, and bad ones on a connection each."""
TURN_MS = 20.0


def run(kind: str) -> None:
    """All figures of this bench."""
    with tempfile.TemporaryDirectory() as folder:
        issuer, certificates = Issuer("k"), Certificates(Path(folder) / "tls")
        keys = Path(folder) / "keys.json"
        keys.write_bytes(jwks(issuer))
        certificate, key = certificates.issue("broker", "127.0.0.1")
        token = issuer.token("root")
        settings = (
            *(f"tls_certificate={certificate}", f"tls_key={key}"),
            *(f"token_keys={keys}", "superusers=root"),
        )
        credentials = Credentials(token=token, ca=certificates.ca)
        with carrier(kind) as one, carrier(kind) as two:
            open_, secured = BrokerProcess(one), BrokerProcess(two, *settings, credentials=credentials)
            try:
                _compare(kind, open_, secured, token)
                _log_ins(kind, open_, secured, issuer)
            finally:
                open_.end()
                secured.end()


def _compare(kind: str, open_: BrokerProcess, secured: BrokerProcess, token: str) -> None:
    assert secured.credentials is not None
    tls = secured.credentials.context()
    plain, signed = _prepared(open_), _prepared(secured, token)
    for connections in (1, 16):
        rates: dict[str, list[float]] = {"open": [], "secured": []}
        for _ in range(PAIRS):
            rates["open"].append(_rate(open_, plain, connections, None))
            rates["secured"].append(_rate(secured, signed, connections, tls))
        without, with_ = median(rates["open"]), median(rates["secured"])
        emit(
            "secured", f"lookups with TLS and token, {connections} connections, {kind}", with_, "1/s",
            target="≥ 50 % of those without", met=with_ >= without / 2, floor=without,
        )  # fmt: skip


def _prepared(broker: BrokerProcess, token: str = "") -> list[bytes]:
    """Requests for all bundles of a namespace, which are owned by now."""
    broker.await_ready()
    create_namespace(broker, "bench/secured", BUNDLES)
    boundaries = broker.ask("GET", "/admin/v2/namespaces/bench/secured/bundles")[1]["boundaries"]
    topics = topics_of_bundles("bench/secured", boundaries)
    for topic in topics:
        assert broker.ask("GET", lookup_path(topic))[0] == 200
    return [request_bytes(lookup_path(topics[number % BUNDLES]), token) for number in range(REQUESTS)]


def _rate(broker: BrokerProcess, requests: Sequence[bytes], connections: int, tls: ssl.SSLContext | None) -> float:
    if connections > 1:
        return requests_on_connections(broker.name, requests, connections, tls)[0]
    begin = time.perf_counter()
    return len(requests_on_one_connection(broker.name, requests, tls)) / (time.perf_counter() - begin)


def _log_ins(kind: str, idle: BrokerProcess, broker: BrokerProcess, issuer: Issuer) -> None:
    """How soon `health`, which needs fresh proofs, is answered while others log in as fast as they can.

    And the longest turn of the control loop; that of an idle broker on the same machine is the floor.
    """
    assert broker.credentials is not None
    tls, logged_in = broker.credentials.context(), [0] * CLIENTS
    tokens = [issuer.token("root", jti=f"{number}") for number in range(3 * REMEMBERED)]  # none is known when it comes
    good = [request_bytes("/v1/brokers", token) for token in tokens]
    bad = [request_bytes("/v1/brokers", Issuer("k").token("root")) for _ in range(BAD)]

    def log_in(number: int) -> None:
        for begin in cycle(range(number * GOOD, len(good), CLIENTS * GOOD)):
            if time.monotonic() > until_s:
                return
            some = good[begin : begin + GOOD]
            requests_on_one_connection(broker.name, some, tls)
            for place, each in enumerate(bad):  # from so many addresses that none is turned away unread
                with suppress(RuntimeError):  # refused, as it should be
                    requests_on_one_connection(broker.name, [each], tls, f"127.0.{number + 1}.{place + 1}")
            logged_in[number] += len(some) + len(bad)

    until_s = time.monotonic() + LOG_IN_S
    threads = [threading.Thread(target=log_in, args=(number,)) for number in range(CLIENTS)]
    for each in threads:
        each.start()
    took: list[float] = []
    refused, late = 0, late_turns(broker)
    while time.monotonic() < until_s:
        begin = time.perf_counter()
        refused += broker.ask("GET", "/admin/v2/brokers/health")[0] != 200
        took.append(time.perf_counter() - begin)
        time.sleep(0.01)
    for each in threads:
        each.join()
    emit(
        "secured", f"health without a fresh proof during many log-ins, {kind}", refused, "answers", target="0",
        met=refused == 0, asked=len(took), p99_ms=round(percentile(took, 99) * 1e3, 1),
        log_ins_per_s=round(sum(logged_in) / LOG_IN_S),
    )  # fmt: skip
    own_ms, floor_ms = longest_own_turn_ms(broker), longest_own_turn_ms(idle)
    emit(
        "secured", f"longest turn during many log-ins, {kind}", own_ms, "ms", target=f"< {TURN_MS:g}",
        met=own_ms < TURN_MS, floor=floor_ms, with_waits_for_a_processor_ms=longest_turn_ms(broker),
        idle_with_waits_ms=longest_turn_ms(idle), turns_over_20_ms=late_turns(broker) - late,
    )  # fmt: skip
