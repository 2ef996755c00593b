"""429: a client that sends more than it may, and an address that sends too many wrong credentials."""

from __future__ import annotations

import aiohttp
import pytest

from loadmanager_api.access import access, rates
from loadmanager_api.access.rates import BURST_S, CLIENTS_KEPT, Rates
from statechannel.law.bundle import Key
from tests.api.access.conftest import Guarded
from tests.api.conftest import Cluster

LOOKUP = "/lookup/v2/topic/persistent/t/n/x"


def test_a_bucket_holds_two_seconds_and_fills_again() -> None:
    now = [100.0]
    found = Rates(5.0, lambda: now[0])
    assert [found.wait_s("a") for _ in range(10)] == [0.0] * 10
    assert found.wait_s("a") == 0.2
    assert found.wait_s("b") == 0.0, "each client has its own"
    now[0] += 0.1
    assert round(found.wait_s("a"), 6) == 0.1, "a refused request costs nothing"
    now[0] += 0.1
    assert found.has_some("a")
    assert found.wait_s("a") == 0.0
    now[0] += 3_600
    assert sum(found.wait_s("a") == 0.0 for _ in range(100)) == 5 * BURST_S


def test_less_than_one_request_a_second_is_possible() -> None:
    now = [0.0]
    found = Rates(0.1, lambda: now[0])
    assert found.wait_s("a") == 0.0
    assert found.wait_s("a") == 10.0


def test_many_clients_do_not_fill_the_memory() -> None:
    found = Rates(1.0, lambda: 0.0)
    for number in range(3 * CLIENTS_KEPT):
        found.wait_s(f"{number}")
    assert len(found._left) <= CLIENTS_KEPT


async def test_requests_beyond_the_rate_are_429_and_lookups_have_their_own(cluster: Cluster) -> None:
    await cluster.start(1, http_request_rate=0.001)
    await cluster.create("t/n")
    assert (await cluster.ask("GET", "/v1/brokers"))[0] == 200
    status, problem, headers = await cluster.ask("GET", "/v1/brokers", headers={"X-Author": "somebody else"})
    assert (status, problem["type"]) == (429, "urn:loadmanager:problem:too-many-requests")
    assert 100 < int(headers["Retry-After"]) <= 1000
    assert (await cluster.ask("GET", LOOKUP))[0] == 200
    status, _, headers = await cluster.ask("GET", LOOKUP)
    assert status == 429
    assert int(headers["Retry-After"]) <= 100, "a client may look up ten times as often"
    assert (await cluster.ask("GET", "/admin/v2/brokers/ready"))[0] == 200, "probes have no rate"


async def test_lookups_beyond_the_rate_are_429_on_the_fast_path_too(cluster: Cluster) -> None:
    await cluster.start(1, http_request_rate=0.001)
    await cluster.create("t/n")
    await cluster.brokers[0].node.current.lookup.locate(_key(), 60.0)
    async with aiohttp.ClientSession() as session:
        found = []
        for _ in range(4):
            async with session.get(cluster.brokers[0].url + LOOKUP) as answer:
                found.append(answer.status)
    assert found == [200, 429, 429, 429]
    assert (await cluster.ask("POST", "/v1/lookup", json={"topics": ["t/n/x"]}))[0] == 429
    assert (await cluster.ask("GET", "/v1/brokers"))[0] == 200


def _key() -> Key:
    return Key.parse("t/n/x")


async def test_a_rate_is_a_principals_whatever_its_address(guarded: Guarded) -> None:
    await guarded.start(1, http_request_rate=0.001, superusers="root,boss")
    assert (await guarded.ask("root", "GET", "/v1/brokers"))[0] == 200
    assert (await guarded.ask("root", "GET", "/v1/brokers"))[0] == 429
    assert (await guarded.ask("boss", "GET", "/v1/brokers"))[0] == 200


async def test_wrong_credentials_in_a_storm_are_not_even_verified(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "FAILURES_PER_S", 0.01)
    monkeypatch.setattr(rates, "BURST_S", 300.0)
    await guarded.start()
    good = guarded.bearer("root")
    assert (await guarded.cluster.ask("GET", "/v1/brokers", headers=good))[0] == 200
    found = [
        (await guarded.ask("root", "GET", "/v1/brokers", headers={"Authorization": "Bearer x"}))[0] for _ in "1234"
    ]
    assert found == [401, 401, 401, 429]
    assert (await guarded.cluster.ask("GET", "/v1/brokers", headers=good))[0] == 200, "who was known goes on"
    assert (await guarded.ask("root", "GET", "/v1/brokers", headers=guarded.bearer("root", jti="new")))[0] == 429
