"""Splits by load over the endpoints: LARGEST and HOT, cuts by load, and what `/v1/splitting` tells."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from loadmanager.model.host import BundleLoad, KeyRate
from loadmanager_api.cli.main import main
from statechannel.law.bundle import Bundle
from tests.api.conftest import Cluster
from tests.api.test_reshaping import FIRST, PULSAR, SECOND, boundaries, owned

THIRD = "0x80000000_0xc0000000"


def load(cluster: Cluster, **by_range: BundleLoad) -> None:
    """What the service of the first broker measures from now on, by the first digits of a range."""
    host = cluster.brokers[0].host

    async def measured() -> dict[Bundle, BundleLoad]:
        return {bundle: by_range.get(f"r{bundle.lo:08x}"[:2], BundleLoad(keys=1)) for bundle in host.held}

    host.load = measured  # type: ignore[method-assign]


async def loaded(cluster: Cluster) -> None:
    """The second quarter is hottest, the third has the most keys; and the leader knows."""
    await owned(cluster, 2, load_window_s=0.2)  # what was measured before is soon forgotten
    load(cluster, r4=BundleLoad(keys=5, in_rate_msg_s=900), r8=BundleLoad(keys=70, in_rate_msg_s=20))
    name = cluster.brokers[0].name

    def known() -> bool:
        top = next((found for broker in cluster.brokers if (found := broker.node.views.bundles.get(name))), None)
        tables = [broker.node.channel.table for broker in cluster.brokers]
        read = {tuple(table.digest(partition) for partition in range(table.partitions)) for table in tables}
        rates = [] if top is None else [each.load.in_rate_msg_s for each in top.bundles]
        return len(read) == 1 and {900.0, 20.0} <= set(rates)

    await cluster.until(known)


@pytest.mark.parametrize("at", [0, 1])
async def test_largest_has_the_most_keys_and_hot_the_most_load_whomever_one_asks(cluster: Cluster, at: int) -> None:
    await loaded(cluster)
    status, body, _ = await cluster.ask("PUT", f"{PULSAR}/LARGEST/split", at=at)
    assert status == 204, body
    assert "0xa0000000" in await boundaries(cluster, at)
    status, body, _ = await cluster.ask("POST", "/v1/bundles/t/n/HOT/split", at=at)
    assert status == 200
    assert body["children"] == ["t/n/0x40000000_0x60000000", "t/n/0x60000000_0x80000000"]


@pytest.mark.parametrize("at", [0, 1])
async def test_bundles_are_listed_by_load_whomever_one_asks(cluster: Cluster, at: int) -> None:
    await loaded(cluster)

    async def rates(**params: str) -> list[tuple[str, float | None]]:
        status, page, _ = await cluster.ask("GET", "/v1/bundles", at=at, params={"order": "load", **params})
        assert (status, page["next"]) == (200, None)
        return [(row["range"][:4], row["rate_msg_s"]) for row in page["bundles"]]

    assert (await rates())[:2] == [("0x40", 900.0), ("0x80", 20.0)]
    assert await rates(limit="1") == [("0x40", 900.0)]
    assert await rates(namespace="t/n", owner=cluster.brokers[0].name, state="assigned", limit="1") == [("0x40", 900.0)]
    assert await rates(state="splitting") == []
    assert await rates(owner="127.0.0.1:1") == []
    _, page, _ = await cluster.ask("GET", "/v1/bundles", at=at)
    assert [row["rate_msg_s"] for row in page["bundles"]][1:3] == [900.0, 20.0], "by name as well"


async def test_without_any_load_reported_nobody_knows_which_is_hot(cluster: Cluster) -> None:
    await owned(cluster, load_window_s=0.2)  # what was measured before is soon forgotten
    load(cluster)
    name = cluster.brokers[0].name
    views = cluster.brokers[0].node.views.bundles
    await cluster.until(lambda: (top := views.get(name)) is not None and top.count == 4 and top.total.rate_msg_s == 0)
    status, body, _ = await cluster.ask("POST", "/v1/bundles/t/n/HOT/split")
    assert status == 409
    assert "no load was reported for any bundle of t/n; name the bundle by its range" in body["detail"]
    assert (await cluster.ask("POST", "/v1/bundles/t/unknown/HOT/split"))[0] == 409
    assert (await cluster.ask("POST", "/v1/bundles/t/n/WARM/split"))[0] == 412


async def test_an_administrator_cuts_by_load_where_the_service_knows_rates(cluster: Cluster) -> None:
    await owned(cluster)
    host: Any = cluster.brokers[0].host
    host.rates = lambda bundle: [
        KeyRate(bundle.lo + 10, 5.0),
        KeyRate(bundle.lo + 20, 5.0),
        (bundle.lo + 40, 40.0, 0.0),
    ]
    path = f"{PULSAR}/{FIRST}/split"
    assert (await cluster.ask("PUT", path, params={"splitAlgorithmName": "load_equally_divide"}))[0] == 204
    assert (await boundaries(cluster))[1] == "0x0000001e"
    body = {"algorithm": "hot_key_divide"}
    children = (await cluster.ask("POST", f"/v1/bundles/t/n/{SECOND}/split", json=body))[1]["children"]
    assert children[1] == "t/n/0x40000028_0x40000029"
    status, refused, _ = await cluster.ask(
        "PUT", f"{PULSAR}/{THIRD}/split", params={"splitAlgorithmName": "flow_or_qps_equally_divide"}
    )
    assert status == 409
    assert "not 10% above its limits" in refused["detail"]


async def run(cluster: Cluster, *arguments: str) -> Result:
    environment = {"LOADMANAGER_ADMIN_URL": cluster.brokers[0].url}
    return await asyncio.to_thread(CliRunner().invoke, main, list(arguments), env=environment)


async def test_the_command_line_splits_the_largest(cluster: Cluster) -> None:
    await loaded(cluster)
    done = await run(cluster, "namespaces", "split-bundle", "t/n", "-bt", "largest")
    assert done.exit_code == 0, done.output
    assert "0x80000000_0xa0000000, 0xa0000000_0xc0000000" in done.output
    for wrong in ((), ("-bt", "HOT", "-b", FIRST)):
        refused = await run(cluster, "namespaces", "split-bundle", "t/n", *wrong)
        assert refused.exit_code == 2
        assert "either --bundle or --bundle-type" in refused.output


async def test_what_was_decided_and_why_the_rest_stays_can_be_asked(cluster: Cluster) -> None:
    quick = {"balancing": True, "split_interval_s": 0.1, "split_hits": 100_000, "split_max_keys": 50}
    await cluster.start(1, merge=True, **quick)
    bundles = await cluster.create("t/n")
    for bundle in bundles:
        await cluster.brokers[0].node.current.operations.transfer(bundle, cluster.brokers[0].name)
    load(cluster, r8=BundleLoad(keys=70))
    journal = cluster.brokers[0].node.current.splitting.journal
    await cluster.until(lambda: bool(journal.split_decision and journal.split_decision.kept))
    _, found, _ = await cluster.ask("GET", "/v1/splitting")
    assert [kept["bundle"] for kept in found["above_limits"]] == [f"t/n/{THIRD}"]
    assert found["above_limits"][0]["detail"].startswith("70 keys of 50 in ")
    assert found["not_split"]["not long enough"] == 1
    assert (found["idle"], found["suspects"]) == ("", [])
    _, one, _ = await cluster.ask("GET", f"/v1/splitting/t/n/{FIRST}")
    assert one["split"] == "too few keys: 1 keys; a cut would not make it cooler"
    assert "merge_rest_s: cold for" in one["merge"]
    assert (await cluster.ask("GET", "/v1/splitting/t/n/0x00000000_0x00000001"))[0] == 404
    shown = await run(cluster, "splitting", "show")
    assert shown.exit_code == 0, shown.output
    assert f"t/n/{THIRD}" in shown.output
    assert "not long enough" in shown.output
    as_json = await run(cluster, "splitting", "show", "-o", "json")
    assert json.loads(as_json.output)["above_limits"]
    why = await run(cluster, "splitting", "why", f"t/n/{FIRST}")
    assert "too few keys" in why.output


async def test_who_does_not_hold_a_bundle_says_who_does(cluster: Cluster) -> None:
    await owned(cluster, 2)
    status, body, _ = await cluster.ask("GET", f"/v1/splitting/t/n/{FIRST}", at=1)
    assert status == 409
    assert f"ask {cluster.brokers[0].name}, which holds it" in body["detail"]
    await run(cluster, "namespaces", "split-bundle", "t/n", "-b", FIRST)
    _, found, _ = await cluster.ask("GET", "/v1/splitting")
    assert found["events"][0]["what"] == "split"
    assert found["events"][0]["why"] == "into 2 parts: an administrator asked for it"


async def test_metrics_count_splits_by_reason(cluster: Cluster) -> None:
    await owned(cluster)
    assert (await cluster.ask("PUT", f"{PULSAR}/{FIRST}/split"))[0] == 204
    async with cluster.session.get(f"{cluster.brokers[0].url}/metrics") as answer:
        text = await answer.text()
    assert 'loadmanager_splits_total{reason="Admin",result="Success"} 1.0' in text
    assert 'loadmanager_splits_total{reason="MsgRate",result="Failure"} 0.0' in text
    assert 'loadmanager_bundles_not_split{rule="too few keys"}' in text
