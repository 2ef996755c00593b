"""Requests are counted by principal, with labels for the busiest only."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from loadmanager_api.access.sender import Principal
from loadmanager_api.http import counts
from loadmanager_api.http.counts import NAMED, Busiest, Requests
from tests.api.conftest import Cluster
from tests.api.test_own_routes import samples


@given(st.lists(st.integers(0, 60), max_size=600))
@settings(max_examples=60, deadline=None)
def test_no_request_is_lost_and_no_series_ever_falls(names: list[int]) -> None:
    busiest, before = Busiest(), dict[str, int]()
    for count, name in enumerate(names, 1):
        busiest.add(f"p{name}", "lookup")
        now = {each: counts["lookup"] for each, counts in busiest.named.items()} | {"": busiest.other["lookup"]}
        assert len(busiest.named) <= NAMED
        assert all(now[each] >= before[each] for each in now.keys() & before.keys())
        assert sum(now.values()) == count
        before = now


def test_the_busiest_have_names_although_they_come_late() -> None:
    busiest = Busiest()
    names = [f"rare-{number}" for number in range(200)] + [f"busy-{number % NAMED}" for number in range(2_000)]
    for name in names:
        busiest.add(name, "other")
    assert set(busiest.named) == {f"busy-{number}" for number in range(NAMED)}


def test_memory_is_bounded_however_many_principals_come(monkeypatch) -> None:
    monkeypatch.setattr(counts, "KNOWN", 50)
    busiest = Busiest()
    for number in range(1_000):
        busiest.add(f"p{number}", "other")
    assert len(busiest._totals) <= 51
    assert sum((sum(busiest.named.values(), Counter()) + busiest.other).values()) == 1_000


def test_long_names_are_cut() -> None:
    requests = Requests()
    requests.add(Principal("x" * 10_000, "token", 0.0), "other", None)
    assert [len(name) for name in requests.principals.named] == [counts.NAME_CHARACTERS]
    assert requests.statuses["other", "none"] == 1


async def test_requests_of_all_ways_are_counted(cluster: Cluster) -> None:
    """Lookups answered where they are parsed, lookups that wait, routes, and what nobody knows."""
    await cluster.start()
    await cluster.create("t/n")
    lookup = "/lookup/v2/topic/persistent/t/n/a"
    before = samples((await cluster.ask("GET", "/metrics"))[1])
    for path in (lookup, lookup, "/lookup/v2/topic/persistent/t/nowhere/a", "/v1/brokers", "/nothing", "/nothing"):
        await cluster.ask("GET", path)
    after = samples((await cluster.ask("GET", "/metrics"))[1])

    def counted(kind: str, code: str) -> float:
        name = f'loadmanager_http_requests_total{{code="{code}",kind="{kind}"}}'
        return after.get(name, 0.0) - before.get(name, 0.0)

    assert counted("lookup", "2xx") == 2
    assert counted("lookup", "4xx") == 1
    assert counted("other", "4xx") == 2
    assert counted("other", "2xx") == 2, "the brokers, and the first scrape"
    assert after['loadmanager_http_principal_requests_total{kind="lookup",principal="anonymous"}'] == 3
