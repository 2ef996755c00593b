"""The audit log: each request that may change something leaves who, from where, what, before, after, and a result."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from loadmanager.cluster import journal
from loadmanager.cluster.audit_log import AuditLog
from loadmanager.model.policies.model import AccessRole
from loadmanager_api import audit
from loadmanager_api.audit import asked
from statechannel.errors import LogUnavailable
from tests.api.access.conftest import Guarded
from tests.api.access.test_roles import samples
from tests.api.conftest import WAIT_S, Cluster

ANN: dict[str, Any] = {"headers": {"X-Author": "ann"}}


async def entries(cluster: Cluster, **query: Any) -> list[dict[str, Any]]:
    """Newest first."""
    status, page, _ = await cluster.ask("GET", "/v1/audit", params={name: str(v) for name, v in query.items()})
    assert status == 200, page
    return page["entries"]


async def newest(cluster: Cluster, **query: Any) -> dict[str, Any]:
    return (await entries(cluster, **query))[0]


async def test_a_transfer_says_who_from_where_and_both_owners(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    bundle = await cluster.assign("t/n/x")
    owner = cluster.owner(bundle)
    to = cluster.other(owner)
    path = f"/admin/v2/namespaces/{bundle.namespace}/{bundle.range}/unload"
    assert (await cluster.ask("PUT", path, params={"destinationBroker": to.name}, **ANN))[0] == 204
    found = await newest(cluster)
    assert found["principal"] == "ann"
    assert (found["how"], found["address"]) == ("unverified", "127.0.0.1")
    assert (found["action"], found["about"], found["namespace"]) == ("unload_bundle", str(bundle), "t/n")
    assert found["before"]["owner"] == str(cluster.of(owner).node.current.me)
    assert found["after"]["owner"] == str(to.node.current.me)
    assert found["asked"]["destination"] == to.name
    assert (found["result"], found["status"], found["broker"]) == ("done", 204, cluster.brokers[0].name)
    assert abs(found["at_ms"] - cluster.brokers[0].node.world.wall_ms()) < 60_000


async def test_every_kind_of_change_has_its_state_before_and_after(cluster: Cluster) -> None:
    await cluster.start(2)

    async def change(method: str, path: str, wanted: int, **options: Any) -> tuple[Any, Any]:
        status, answer, _ = await cluster.ask(method, path, **options)
        assert status == wanted, answer
        found = await newest(cluster)
        assert found["result"] == "done"
        return found["before"], found["after"]

    namespace = "/admin/v2/namespaces/t/n"
    assert await change("PUT", namespace, 204, json={"numBundles": 2}) == (None, {"bundles": 2})
    half = "0x00000000_0x80000000"
    bundle = {"bundle": f"t/n/{half}", "state": "unassigned"}
    await cluster.assign(f"t/n/{_topic_in_lower_half()}")
    before, after = await change("PUT", f"{namespace}/{half}/unload", 204)
    assert (before["state"], after) == ("assigned", bundle)
    setting = "/v1/config/balancing_interval_s"
    assert await change("PUT", setting, 200, json={"value": 7}) == (None, 7)
    assert await change("DELETE", setting, 200) == (7, None)
    pulsars = "/admin/v2/brokers/configuration/loadBalancerSheddingIntervalMinutes"
    assert await change("POST", f"{pulsars}/2", 200) == (None, 120)
    policy = "/v1/policies/namespace/t/n"
    assert await change("PUT", policy, 200, json={"weight": 2.0}) == (None, {"weight": 2.0})
    assert await change("PATCH", policy, 200, json={"balancing": False}) == (
        {"weight": 2.0},
        {"balancing": False, "weight": 2.0},
    )
    group = f"{namespace}/antiAffinity"
    _, after = await change("POST", group, 204, json="g")
    assert after == {"balancing": False, "weight": 2.0, "anti_affinity_group": "g"}
    paused = "/v1/balancing/pause"
    before, after = await change("POST", paused, 200, json={"namespace": "t/n"})
    assert (before["namespaces"], after["namespaces"]) == ([], ["t/n"])
    here = cluster.brokers[0].name
    before, after = await change("PUT", f"/v1/brokers/{here}/drain", 202)
    assert before == {"draining": False}
    before, _ = await change("DELETE", namespace, 204)
    assert before == {"bundles": 2}
    assert (await newest(cluster))["after"] is None


def _topic_in_lower_half() -> str:
    from statechannel.law.bundle import Key

    return next(name for name in "abcdefgh" if Key.parse(f"t/n/{name}").position < 1 << 31)


async def test_what_was_refused_is_listed_with_the_reason(cluster: Cluster) -> None:
    await cluster.start()
    assert (await cluster.ask("DELETE", "/admin/v2/namespaces/no/such", **ANN))[0] == 404
    found = await newest(cluster)
    assert (found["result"], found["status"], found["about"]) == ("refused", 404, "no/such")
    assert "no/such" in found["detail"]


async def test_readings_previews_and_redirects_leave_no_entry(cluster: Cluster) -> None:
    await cluster.start(2)
    await cluster.create("t/n")
    await cluster.ask("GET", "/v1/policies")
    await cluster.ask("PUT", "/v1/policies/namespace/t/n?dry_run=true", json={"weight": 2.0})
    await cluster.ask("POST", "/v1/what-if", json={})
    await cluster.ask("POST", "/v1/lookup", json={"topics": ["t/n/x"]})
    assert (await cluster.ask("PUT", f"/v1/brokers/{cluster.brokers[1].name}/drain"))[0] == 307
    assert await entries(cluster) == []


async def test_each_route_that_may_change_something_leaves_an_entry(guarded: Guarded) -> None:
    await guarded.start()
    cluster = guarded.cluster
    await cluster.create("t/n")
    headers, seen, silent = guarded.bearer("root"), 0, []
    for sample in samples():
        if sample.method == "GET" or sample.rule.role.rank < AccessRole.OPERATOR.rank:
            continue
        options: dict[str, Any] = {} if sample.body is None else {"json": sample.body}
        if sample.path.startswith("/admin/v2/namespaces/t/n/antiAffinity") and sample.method == "POST":
            options = {"json": "some-group"}
        status, answer, _ = await cluster.ask(sample.method, sample.path, headers=headers, **options)
        if status == 400 or "policy: " in str(answer):  # what was asked for could not even be read
            continue
        found = (await guarded.ask("root", "GET", "/v1/audit?limit=1"))[1]["entries"]
        if not found or found[0]["status"] != status or found[0]["offset"] < seen or found[0]["principal"] != "root":
            silent.append(f"{sample.method} {sample.path}: {status} {answer}, {found}")
        seen = found[0]["offset"] + 1 if found else seen
    assert not silent, "\n".join(silent)
    assert seen > 20


# --- refusals at the gate


async def test_whoever_is_refused_at_the_gate_is_listed(guarded: Guarded) -> None:
    await guarded.start()
    path = "/admin/v2/namespaces/t/n"
    assert (await guarded.ask(None, "DELETE", path))[0] == 401
    assert (await guarded.ask("eve", "DELETE", path))[0] == 403
    wrong = guarded.bearer("root", aud="billing")
    assert (await guarded.cluster.ask("GET", "/v1/settings", headers=wrong | {"X-Author": "root"}))[0] == 401

    async def listed() -> list[dict[str, Any]]:
        return (await guarded.ask("root", "GET", "/v1/audit"))[1]["entries"]

    async with asyncio.timeout(WAIT_S):
        while len(await listed()) < 3:
            await asyncio.sleep(0.02)
    last, role, missing = await listed()
    assert (missing["principal"], missing["how"], missing["status"]) == ("somebody at 127.0.0.1", "unverified", 401)
    assert (role["principal"], role["how"], role["status"], role["about"]) == ("eve", "token", 403, path)
    assert (last["how"], last["about"]) == ("unverified", "/v1/settings"), "what nobody proved is marked"
    assert {each["result"] for each in (last, role, missing)} == {"refused"}


async def test_a_flood_of_refusals_is_counted_and_not_written(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "REFUSALS_WAITING", 3)
    await guarded.start()
    root = guarded.bearer("root")  # known before the storm, so that it is not shut out with the others

    async def listed() -> list[dict[str, Any]]:
        return (await guarded.cluster.ask("GET", "/v1/audit", headers=root))[1]["entries"]

    assert await listed() == []
    for _ in range(40):
        await guarded.ask(None, "GET", "/v1/settings")
    async with asyncio.timeout(WAIT_S):
        while not any("more refusals are not listed" in each["detail"] for each in await listed()):
            await guarded.ask(None, "GET", "/v1/settings")
    assert len(await listed()) < 40


async def test_who_may_read_the_audit_log(guarded: Guarded) -> None:
    await guarded.start()
    for name in ("t/n", "u/m"):
        assert (await guarded.ask("root", "PUT", f"/admin/v2/namespaces/{name}", json={}))[0] == 204
    await guarded.grant(AccessRole.ADMIN, "ann", "t/n")
    assert (await guarded.ask("ann", "GET", "/v1/audit"))[0] == 403
    found = (await guarded.ask("ann", "GET", "/v1/audit?namespace=t/n"))[1]["entries"]
    assert [each["namespace"] for each in found] == ["t/n"]


# --- reading


async def test_filters_and_pages(cluster: Cluster) -> None:
    await cluster.start()
    for number in range(5):
        await cluster.ask("PUT", f"/admin/v2/namespaces/t/n{number}", json={}, headers={"X-Author": f"p{number % 2}"})
    assert [each["about"] for each in await entries(cluster, by="p1")] == ["t/n3", "t/n1"]
    assert [each["about"] for each in await entries(cluster, namespace="t/n2")] == ["t/n2"]
    assert len(await entries(cluster, action="create_namespace", result="done")) == 5
    assert await entries(cluster, result="failed") == []
    third = (await entries(cluster))[2]
    assert len(await entries(cluster, since_ms=third["at_ms"])) >= 3
    assert await entries(cluster, since_ms=third["at_ms"] + 3_600_000) == []
    found: list[str] = []
    following: int | None = 1 << 40
    while following is not None:
        page = (await cluster.ask("GET", f"/v1/audit?limit=2&cursor={following}"))[1]
        found += [each["about"] for each in page["entries"]]
        following = page["next"]
    assert found == [f"t/n{number}" for number in (4, 3, 2, 1, 0)]


async def test_any_broker_lists_the_entries_of_all(cluster: Cluster) -> None:
    await cluster.start(2)
    for at in (0, 1):
        await cluster.ask("PUT", f"/admin/v2/namespaces/t/n{at}", json={}, at=at)
    for at in (0, 1):
        _, page, _ = await cluster.ask("GET", "/v1/audit", at=at)
        assert {each["broker"] for each in page["entries"]} == {broker.name for broker in cluster.brokers}


# --- faults and limits


async def test_if_the_log_does_not_take_it_the_answer_is_given_and_it_is_counted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.start()
    node = cluster.brokers[0].node

    async def gone(*_: object) -> None:
        raise LogUnavailable("the disk is full")

    monkeypatch.setattr(journal.Journal, "append", gone)
    caplog.set_level("INFO", "loadmanager.audit")
    assert (await cluster.ask("PUT", "/admin/v2/namespaces/t/n", json={}, **ANN))[0] == 204
    assert node.audit.lost == 1
    assert '"principal":"ann"' in caplog.text, "the process's own log has it"
    _, text, _ = await cluster.ask("GET", "/metrics")
    assert "loadmanager_audit_entries_lost_total 1.0" in text


async def test_a_client_that_goes_away_leaves_an_entry_all_the_same(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    host = cluster.brokers[0].host
    bundle = await cluster.assign("t/n/x")
    await cluster.ask("PUT", "/admin/v2/namespaces/t/n/unload")
    host.gate.clear()  # nobody acquires, so the transfer waits
    path = f"/admin/v2/namespaces/t/n/{bundle.range}/unload"
    params = {"destinationBroker": cluster.brokers[0].name}
    asking = asyncio.create_task(cluster.ask("PUT", path, params=params, **ANN))
    await cluster.until(lambda: _is_moving(cluster, bundle))
    asking.cancel()
    host.gate.set()
    async with asyncio.timeout(WAIT_S):
        while (await newest(cluster))["principal"] != "ann":
            await asyncio.sleep(0.02)
    found = await newest(cluster)
    assert (found["result"], found["status"]) == ("done", 204)


def _is_moving(cluster: Cluster, bundle: Any) -> bool:
    entry = cluster.brokers[0].node.channel.table.get(bundle)
    return entry is not None and entry.state not in ("unassigned", "assigned")


class _Body(BaseModel):
    names: list[str] = []
    password: str = ""
    note: str = ""


def test_an_entry_stays_small_and_has_no_secrets() -> None:
    body = _Body(names=[f"n{i}" for i in range(100_000)], password="hunter22", note="x" * 5_000)
    found = asked({"wanted": body, "force": False, "node": object(), "topic": "a", "count": 3})
    assert found["password"] == "***"
    assert found["names"][-1] == "and 99950 more"
    assert len(found["note"]) < 400
    assert (found["topic"], found["count"]) == ("a", 3)
    assert "node" not in found
    assert "force" not in found
    assert len(msgspec.json.encode(found)) < 2_000


def test_an_entry_can_be_written_whatever_was_asked() -> None:
    deep: Any = "end"
    for _ in range(100_000):
        deep = [deep]
    odd = {"a": "\ud800", "\ud800": 1, "big": 10**400, "large": -(1 << 63), "nan": float("nan"), "deep": deep}
    text = msgspec.json.encode(asked({"wanted": odd})).decode()
    assert len(text) < 500
    assert "\\\\ud800" in text


async def test_an_entry_of_another_release_is_skipped(cluster: Cluster) -> None:
    await cluster.start()
    log = cluster.brokers[0].node.world.log
    from statechannel.ports import Payload

    await log.append("audit", 0, [Payload(b"x", b"not json"), Payload(b"y", None)])
    await cluster.ask("PUT", "/admin/v2/namespaces/t/n", json={}, **ANN)
    assert [each["about"] for each in await entries(cluster)] == ["t/n"]


async def test_ids_differ_between_brokers(cluster: Cluster) -> None:
    await cluster.start(2)
    audits: list[AuditLog] = [broker.node.audit for broker in cluster.brokers]
    assert len({audit.next_id() for audit in audits for _ in range(3)}) == 6


@pytest.mark.slow
def test_what_is_asked_for_costs_little_however_it_is_nested() -> None:
    wide = [["x" * 1_000] * 50] * 50
    text = msgspec.json.encode(asked({"wanted": {"a": wide, "b": wide}}))
    assert len(text) < audit.VALUES * (audit.CHARACTERS + 10)


async def test_a_bug_in_what_it_is_about_changes_no_answer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.start()
    monkeypatch.setattr(audit, "_about", lambda *_: 1 / 0)
    assert (await cluster.ask("PUT", "/admin/v2/namespaces/t/n", json={}, **ANN))[0] == 204
    assert (await newest(cluster))["about"] == "t/n"
    assert "ZeroDivisionError" in caplog.text
