"""Settings over HTTP: ours with versions, and Pulsar's, on a cluster of two."""

from __future__ import annotations

from tests.api.conftest import Cluster, Refused

CONFIG, PULSAR = "/v1/config", "/admin/v2/brokers/configuration"


async def test_every_setting_is_shown_with_what_is_allowed_and_without_secrets(cluster: Cluster) -> None:
    await cluster.start(kafka={"sasl.password": "secret"}, balancing_budget=0.5)
    status, answer, _ = await cluster.ask("GET", CONFIG)
    assert (status, answer["revision"]) == (200, -1)
    shown = {each["name"]: each for each in answer["settings"]}
    assert "secret" not in str(answer)
    budget = shown["balancing_budget"]
    assert (budget["value"], budget["source"], budget["default"], budget["live"]) == (0.5, "start", 0.2, True)
    assert budget["bounds"] == ["> 0", "<= 1"]
    interval = shown["balancing_interval_s"]
    assert (interval["unit"], interval["source"]) == ("s", "default")
    assert interval["pulsar"] == {"loadBalancerSheddingIntervalMinutes": 1.0}
    assert not shown["proof_validity_s"]["live"]
    assert (await cluster.ask("GET", f"{CONFIG}/loadBalancerSheddingIntervalMinutes"))[1] == interval


async def test_a_change_is_the_whole_clusters_and_its_history_tells_who_and_why(cluster: Cluster) -> None:
    await cluster.start(2)
    one, other = (broker.node for broker in cluster.brokers)
    body = {"value": 30, "version": 0, "reason": "calm"}
    status, shown, _ = await cluster.ask(
        "PUT", f"{CONFIG}/balancing_interval_s", json=body, headers={"X-Author": "ann"}
    )
    assert (status, shown["value"], shown["version"], shown["source"]) == (200, 30.0, 1, "cluster")
    await cluster.until(lambda: one.settings.balancing_interval_s == other.settings.balancing_interval_s == 30.0)
    status, shown, _ = await cluster.ask("DELETE", f"{CONFIG}/balancing_interval_s?version=1&reason=enough")
    assert (status, shown["value"], shown["version"], shown["source"]) == (200, 60.0, 2, "default")
    changes = (await cluster.ask("GET", f"{CONFIG}/loadBalancerSheddingIntervalMinutes/history"))[1]
    assert [(each["old"], each["value"], each["set"], each["reason"]) for each in changes] == [
        (None, 30.0, True, "calm"),
        (30.0, None, False, "enough"),
    ]
    assert changes[0]["author"] == "ann"
    await cluster.until(lambda: other.settings.balancing_interval_s == 60.0)


async def test_what_is_refused_says_what_to_do(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    said = await refused(404, "PUT", f"{CONFIG}/load_ttl_s", json={"value": 100})
    assert said["detail"] == "load_ttl_s cannot be set: twice load_report_max_interval_s"
    assert "twice load_report_max_interval_s" in (await refused(404, "GET", f"{CONFIG}/load_ttl_s"))["detail"]
    said = await refused(412, "PUT", f"{CONFIG}/balancing_budget", json={"value": "much"})
    assert "balancing_budget=much: input should be a valid number" in said["detail"]
    said = await refused(412, "PUT", f"{CONFIG}/log", json={"value": "sqlite:other.db"})
    assert "where the broker is started" in said["detail"]
    said = await refused(404, "PUT", f"{CONFIG}/balancing_strateg", json={"value": "plan"})
    assert "did you mean balancing_strategy" in said["detail"]
    said = await refused(404, "POST", f"{PULSAR}/loadBalancerDebugModeEnabled/true")
    assert "loadmanager explain" in said["detail"]
    said = await refused(404, "POST", f"{PULSAR}/loadBalancerServiceUnitStateTombstoneDelayTimeInSeconds/20")
    assert "cannot be set: fixed at 3,600 s" in said["detail"]
    said = await refused(404, "DELETE", f"{PULSAR}/loadBalancerTransferEnabled")
    assert "cannot be set: always on" in said["detail"]
    await refused(404, "DELETE", f"{PULSAR}/loadBalancerAutoBundleSplitEnabled")
    await refused(400, "PUT", f"{CONFIG}/split", json={"value": False, "versoin": 1})
    await refused(400, "PUT", f"{CONFIG}/split", json={"value": [False]})


async def test_who_is_late_is_told_who_was_faster(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    await cluster.ask("PUT", f"{CONFIG}/split", json={"value": False, "version": 0}, headers={"X-Author": "ann"})
    said = await refused(409, "PUT", f"{CONFIG}/split", json={"value": True, "version": 0})
    assert "version 1 by ann" in said["detail"]
    await refused(409, "DELETE", f"{CONFIG}/split?version=0")


async def test_pulsars_tools_find_their_names_and_units(cluster: Cluster) -> None:
    await cluster.start()
    names = (await cluster.ask("GET", PULSAR))[1]
    assert {"loadBalancerSheddingGracePeriodMinutes", "bundle_rest_s"} <= set(names)
    assert "proof_validity_s" not in names
    assert (await cluster.ask("GET", f"{PULSAR}/values"))[1] == {}
    assert (await cluster.ask("POST", f"{PULSAR}/loadBalancerSheddingGracePeriodMinutes/45"))[0] == 200
    values = (await cluster.ask("GET", f"{PULSAR}/values"))[1]
    assert values == {"bundle_rest_s": "2700", "loadBalancerSheddingGracePeriodMinutes": "45"}
    runtime = (await cluster.ask("GET", f"{PULSAR}/runtime"))[1]
    assert runtime["loadBalancerSheddingGracePeriodMinutes"] == "45"
    assert runtime["loadBalancerSheddingIntervalMinutes"] == "1"
    assert runtime["loadBalancerSheddingConditionHitCountThreshold"] == "3"
    assert runtime["loadBalancerAutoBundleSplitEnabled"] == "true"
    assert (await cluster.ask("DELETE", f"{PULSAR}/loadBalancerSheddingGracePeriodMinutes"))[0] == 200
    assert (await cluster.ask("GET", f"{PULSAR}/values"))[1] == {}
    assert (await cluster.ask("GET", "/admin/v2/brokers/standalone"))[0] == 200


async def test_a_namespace_that_names_no_number_gets_pulsars_four_bundles(cluster: Cluster) -> None:
    await cluster.start()
    assert (await cluster.ask("PUT", "/admin/v2/namespaces/t/n"))[0] == 204
    assert (await cluster.ask("GET", "/admin/v2/namespaces/t/n/bundles"))[1]["numBundles"] == 4
