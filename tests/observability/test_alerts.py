"""A real Prometheus with our rules fires each alert, and no other: on what real brokers answer, with a fault in it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.api.access.conftest import Guarded, guarded
from tests.api.conftest import cluster
from tests.observability.cases import CASES
from tests.observability.conftest import Scraping, until, up
from tests.observability.exporting import exporting
from tests.observability.rules import METRIC, rules

__all__ = ["cluster", "guarded"]

HEALTHY = "healthy"
ALSO = {"LoadManagerNoBroker": {"LoadManagerBrokerDown"}}
"""What fires for the same fault."""


@pytest.fixture
async def answers(guarded: Guarded) -> Mapping[str, str]:
    """What two healthy brokers answer, after a move and a request that was refused."""
    await guarded.start(2)
    cluster = guarded.cluster
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/a")
    to = cluster.other(cluster.owner(bundle))
    await cluster.brokers[0].node.current.operations.transfer(bundle, to.name)
    await cluster.until(lambda: all(len(broker.node.channel.ends) > 0 for broker in cluster.brokers))
    for at in range(2):
        assert (await guarded.ask("root", "GET", "/v1/brokers", at=at, headers=guarded.bearer("root", exp=1)))[0] == 401
    return {name: (await guarded.ask("root", "GET", "/metrics", at=at))[1] for at, name in enumerate("ab")}


async def test_each_alert_fires_for_its_fault_and_no_other(answers: Mapping[str, str], prometheus: Scraping) -> None:
    cases = {name: firing for name, (firing, _) in CASES.items()}
    expected = {f"loadmanager-{name}": {name, *ALSO.get(name, ())} for name in cases}
    async with exporting(answers, {**cases, HEALTHY: []}) as targets:
        prometheus.scrape(targets)
        try:
            await until(lambda: prometheus.firing() == expected and up(prometheus, f"loadmanager-{HEALTHY}") == 2)
        except TimeoutError:
            found = prometheus.firing()
            wrong = {job: found.get(job) for job in found.keys() | expected if found.get(job) != expected.get(job)}
            pytest.fail(f"these fire what they should not, or nothing, or the healthy were not scraped: {wrong}")
        prometheus.scrape([])  # and wait: a connection that comes while the targets close would stay open
        await until(lambda: not prometheus.query("up"))


async def test_a_metric_that_no_broker_has_is_noticed(answers: Mapping[str, str]) -> None:
    series = {"series": 'loadmanager_leader{job="loadmanager",instance="a",renamed="yes"}', "values": "0x60"}
    with pytest.raises(AssertionError, match="renamed"):
        async with exporting(answers, {"LoadManagerNoLeader": [series]}):
            pass


async def test_the_rules_use_only_what_brokers_expose(answers: Mapping[str, str]) -> None:
    used = {name for rule in rules() for name in METRIC.findall(rule["expr"])}
    exposed = {line.partition("{")[0].partition(" ")[0] for line in answers["a"].splitlines()}
    assert used <= exposed
