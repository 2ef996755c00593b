"""Brokers that nobody reaches, that cannot start or cannot read the log, and two clusters of one job, have a real
Prometheus fire."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path

import pytest

from loadmanager.embedding.broker import Broker
from loadmanager.testing.cluster import embedded_cluster
from stack.servers import KafkaServer, free_port
from statechannel.errors import StateChannelError
from tests.faults import Cut, proxy_to
from tests.observability.conftest import Scraping, group, until
from tests.observability.real import ended, ends, fires, run, scraped

PROXY = "PROXY"
ROOT = re.compile(r"^agreed: root +(\w+)$", re.MULTILINE)
START_S, PAUSE_S = 3.0, 2.0


async def test_a_broker_whose_address_leads_nowhere(prometheus: Scraping, tmp_path: Path) -> None:
    """Its port is forwarded, as a container's is, and the forwarding ends."""
    job, bind = "loadmanager-nowhere", f"127.0.0.1:{free_port()}"
    async with scraped(prometheus, job, tmp_path) as cluster, proxy_to(bind) as forwarding:
        port = forwarding.port
        [broker] = await cluster.add(advertised=forwarding.address, bind=bind)
        bundle = await cluster.transfer(cluster.bundles()[0], broker)
        await forwarding.aclose()
        await fires(prometheus, job, "Suspicion")
        await cluster.until(lambda: cluster.owner(bundle) not in (None, broker))
        async with proxy_to(bind, port):
            await ends(prometheus, job, "Suspicion")
            await cluster.transfer(bundle, broker)


async def test_a_broker_whose_log_is_away_starts_again_and_again(prometheus: Scraping, tmp_path: Path) -> None:
    """It is not ready, also in the pauses in which it does not run."""
    job, name = "loadmanager-starting", f"127.0.0.1:{free_port()}"
    prometheus.scrape([group(job, name)])

    async def start() -> None:
        """As whoever supervises processes does."""
        while True:
            broker = Broker(
                None, log=f"kafka://127.0.0.1:{free_port()}", coordination=f"sqlite:{tmp_path}/coordination",
                advertised=name, development=True, start_timeout_s=START_S,
            )  # fmt: skip
            with suppress(StateChannelError):
                await broker.start()
            await asyncio.sleep(PAUSE_S)

    starting = asyncio.create_task(start())
    both = {"LoadManagerBrokerNotReady", "LoadManagerBrokerDown"}
    await until(lambda: both <= prometheus.firing().get(job, set()))
    await ended(starting)


async def test_two_clusters_of_one_job(prometheus: Scraping, tmp_path: Path) -> None:
    """A cluster cannot have two leaders for a minute: the log ends the term of the earlier one. Two clusters can."""
    job = "loadmanager-two"
    async with embedded_cluster(brokers=1) as other, scraped(prometheus, job, tmp_path) as cluster:
        both = [broker.name for each in (cluster, other) for broker in each.brokers]
        prometheus.scrape([group(job, *both)])
        await fires(prometheus, job, "TwoLeaders")
        said = [await run("channel", "status", at=each.brokers[0]) for each in (cluster, other)]
        assert len({root for each in said for root in ROOT.findall(each)}) == 2


@pytest.mark.kafka
async def test_a_broker_that_cannot_read_the_log(prometheus: Scraping, tmp_path: Path) -> None:
    job, port = "loadmanager-behind", free_port()
    kafka = KafkaServer(tmp_path / "kafka", proxied_at={PROXY: port})
    kafka.start()
    try:
        settings = {
            "log": f"kafka://{kafka.address}", "coordination": f"sqlite:{tmp_path}/coordination",
            "development": True, "publish_timeout_s": 1.0,
        }  # fmt: skip
        async with (
            proxy_to(f"127.0.0.1:{kafka.listener_port(PROXY)}", port) as way,
            scraped(prometheus, job, tmp_path, **settings) as cluster,
        ):
            [broker] = await cluster.add(log=f"kafka://{way.address}")
            prometheus.scrape([group(job, *(each.name for each in cluster.brokers))])
            way.cut(Cut.BLACKHOLE)
            await fires(prometheus, job, "BrokerBehind")
            listed = await run("brokers", "list", at=cluster.brokers[0])
            assert [line.split()[0] for line in listed.splitlines() if " behind " in line] == [broker.name]
            way.heal()
            await ends(prometheus, job, "BrokerBehind")
    finally:
        kafka.kill()
