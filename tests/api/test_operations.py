"""`Idempotency-Key`, `Prefer: respond-async` and `/v1/operations`: what is sent twice is done once, by one broker."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from loadmanager.model.policies.model import AccessRole
from loadmanager_api import operations
from statechannel.errors import LogUnavailable
from statechannel.law.bundle import Bundle
from tests.api.access.conftest import Guarded, guarded
from tests.api.conftest import Cluster, Refused
from tests.api.test_cli import loadmanager

__all__ = ["guarded"]

KEY = {"Idempotency-Key": "4f1c"}
ASYNC = {"Prefer": "respond-async"}


async def one_owner(cluster: Cluster, count: int = 2, **settings: Any) -> tuple[Bundle, ...]:
    """Brokers, of which the first owns the two bundles of t/n."""
    await cluster.start(count, balancing=False, **settings)
    bundles = await cluster.create("t/n", 2)
    for bundle in bundles:
        await cluster.brokers[0].node.current.operations.transfer(bundle, cluster.brokers[0].name)
    await cluster.until(lambda: not tuple(cluster.brokers[-1].node.channel.table.in_flight()))
    return bundles


def transfer(bundle: Bundle, to: str) -> str:
    return f"/admin/v2/namespaces/t/n/{bundle.range}/unload?destinationBroker={to}"


def count(cluster: Cluster) -> int:
    known = cluster.brokers[0].node.channel.table.namespace("t/n")
    assert known is not None
    return known.count


async def until_state(cluster: Cluster, path: str, state: str, at: int = 0) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (found := (await cluster.ask("GET", path, at=at))[1])["state"] != state:
            await asyncio.sleep(0.01)
    return found


@pytest.mark.parametrize("at", [0, 1])
async def test_a_request_that_is_sent_twice_is_carried_out_once(cluster: Cluster, at: int) -> None:
    await one_owner(cluster)
    body: dict[str, Any] = {"json": {"parts": 4}}
    path = f"/v1/bundles/{Bundle.of('t/n', '0x00000000_0x80000000')}/split"
    first = await cluster.ask("POST", path, headers=KEY, **body)
    assert (first[0], "Idempotency-Replayed" in first[2]) == (200, False)
    again = await cluster.ask("POST", path, headers=KEY, at=at, **body)
    assert (again[0], again[1], again[2]["Idempotency-Replayed"]) == (200, first[1], "true")
    assert (await cluster.ask("POST", path, at=at, **body))[0] == 404, "without the key it would have been tried again"


async def test_of_many_at_once_one_is_carried_out(cluster: Cluster) -> None:
    await one_owner(cluster, 3)
    body = {"json": {"namespace": "t/n", "review": True}}
    asked = [cluster.ask("POST", "/v1/plans/unload", headers=KEY, at=at % 3, **body) for at in range(9)]
    found = await asyncio.gather(*asked)
    assert {each[0] for each in found} == {201}
    assert len({each[1]["id"] for each in found}) == 1
    assert sum("Idempotency-Replayed" in each[2] for each in found) == 8
    assert len((await cluster.ask("GET", "/v1/plans"))[1]) == 1


async def test_a_key_is_of_one_request_and_one_principal(cluster: Cluster, refused: Refused) -> None:
    await one_owner(cluster)

    def headers(who: str) -> Mapping[str, str]:
        return {**KEY, "X-Author": who}

    body = {"namespace": "t/n", "review": True}
    _, mine, _ = await cluster.ask("POST", "/v1/plans/unload", headers=headers("ann"), json=body)
    other = {**body, "reason": "another"}
    said = await refused(422, "POST", "/v1/plans/unload", headers=headers("ann"), json=other)
    assert "another request" in said["detail"]
    _, theirs, _ = await cluster.ask("POST", "/v1/plans/unload", headers=headers("ben"), json=body)
    assert theirs["id"] != mine["id"]


async def test_another_condition_makes_another_request(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    path, body = "/v1/config/balancing_tolerance", {"value": 0.2}
    assert (await cluster.ask("PUT", path, headers={**KEY, "If-None-Match": "*"}, json=body))[0] == 200
    await refused(422, "PUT", path, headers={**KEY, "If-Match": '"1"'}, json=body)


async def test_a_refusal_that_changed_nothing_frees_the_key(cluster: Cluster) -> None:
    first, _ = await one_owner(cluster)
    path = f"/v1/bundles/{first}/split"
    assert (await cluster.ask("POST", path, headers=KEY, json={"prts": 1}))[0] == 400
    assert (await cluster.ask("POST", "/v1/plans/unload", headers=KEY, json={"namespace": "t/none"}))[0] == 404
    assert (await cluster.ask("POST", path, headers=KEY, json={"parts": 2}))[0] == 200
    assert count(cluster) == 3


async def test_a_key_that_is_none_is_refused(cluster: Cluster, refused: Refused) -> None:
    await cluster.start()
    for key in ("", '"', "a b", "x" * 201, "ä"):
        await refused(400, "POST", "/v1/balancing/pause", headers={"Idempotency-Key": key}, json={})


async def test_a_dry_run_is_no_operation(cluster: Cluster) -> None:
    await cluster.start()
    path = "/v1/policies/cluster/cluster?dry_run=true"
    status, _, headers = await cluster.ask("PUT", path, headers={**KEY, **ASYNC}, json={"paused": True})
    assert (status, "Location" in headers) == (200, False)
    assert (await cluster.ask("GET", "/v1/operations"))[1] == []


async def test_who_does_not_wait_sees_progress_at_any_broker(cluster: Cluster) -> None:
    bundle, _ = await one_owner(cluster)
    target = cluster.brokers[1]
    target.host.gate.clear()
    status, shown, headers = await cluster.ask("PUT", transfer(bundle, target.name), headers=ASYNC)
    assert (status, headers["Preference-Applied"]) == (202, "respond-async")
    assert (shown["state"], shown["action"], shown["about"]) == ("running", "unload_bundle", str(bundle))
    where = headers["Location"]
    assert where == f"/v1/operations/{shown['id']}"
    await cluster.until(lambda: bool(tuple(cluster.brokers[1].node.channel.table.in_flight())))
    now = await until_state(cluster, where, "running", at=1)
    assert now["progress"]["state"] != "assigned"
    assert (now["status"], now["ended_ms"]) == (None, None)
    target.host.gate.set()
    for at in (0, 1):
        done = await until_state(cluster, where, "done", at)
        assert (done["status"], done["result"]) == (204, None)
        assert done["progress"] == {"state": "assigned", "owner": target.name}


async def test_the_answer_of_who_did_not_wait_is_kept_also_a_refusal(cluster: Cluster) -> None:
    bundle, _ = await one_owner(cluster)
    _, _, headers = await cluster.ask("PUT", transfer(bundle, cluster.brokers[0].name), headers=ASYNC)
    found = await until_state(cluster, headers["Location"], "failed")
    assert (found["status"], found["result"]["status"]) == (409, 409)
    asked = await cluster.ask("POST", f"/v1/bundles/{bundle}/split", headers=ASYNC, json={"parts": 2})
    found = await until_state(cluster, asked[2]["Location"], "done")
    assert (found["status"], len(found["result"]["children"])) == (200, 2)
    assert count(cluster) == 3
    assert [each["state"] for each in (await cluster.ask("GET", "/v1/operations"))[1]] == ["done", "failed"]
    assert len((await cluster.ask("GET", "/v1/operations?state=failed"))[1]) == 1
    assert (await cluster.ask("GET", "/v1/operations?by=nobody"))[1] == []


async def test_what_is_not_valid_is_refused_at_once(cluster: Cluster, refused: Refused) -> None:
    bundle, _ = await one_owner(cluster)
    await refused(400, "POST", f"/v1/bundles/{bundle}/split", headers=ASYNC, json={"prts": 1})
    assert (await cluster.ask("GET", "/v1/operations"))[1] == []


async def test_any_broker_cancels(cluster: Cluster, refused: Refused) -> None:
    bundle, _ = await one_owner(cluster)
    cluster.brokers[1].host.gate.clear()
    asked = await cluster.ask("PUT", transfer(bundle, cluster.brokers[1].name), headers={**KEY, **ASYNC})
    where = asked[2]["Location"]
    await cluster.until(lambda: bool(tuple(cluster.brokers[0].node.channel.table.in_flight())))
    status, found, _ = await cluster.ask("POST", f"{where}/cancel", at=1, headers={"X-Author": "ben"})
    assert (status, found["cancelled_by"]) == (202, "ben")
    found = await until_state(cluster, where, "failed")
    assert found["status"] == 409
    assert "it was cancelled" in found["result"]["detail"]
    cluster.brokers[1].host.gate.set()
    await cluster.until(lambda: not tuple(cluster.brokers[0].node.channel.table.in_flight()))
    await refused(409, "POST", f"{where}/cancel")
    _, audit, _ = await cluster.ask("GET", "/v1/audit?action=unload_bundle")
    assert audit["entries"][0]["status"] == 499


@pytest.mark.slow
async def test_an_operation_of_a_dead_broker_is_lost_and_not_repeated(cluster: Cluster, refused: Refused) -> None:
    bundle, _ = await one_owner(cluster)
    cluster.brokers[0].host.gate.clear()
    await cluster.brokers[1].node.current.operations.transfer(bundle, cluster.brokers[1].name)
    path = transfer(bundle, cluster.brokers[0].name)
    where = (await cluster.ask("PUT", path, at=1, headers={**KEY, **ASYNC}))[2]["Location"]
    await cluster.until(lambda: bool(tuple(cluster.brokers[0].node.channel.table.in_flight())))
    dead = cluster.brokers[1]
    dead.running.cancel()
    await asyncio.wait({dead.running})
    await cluster.until(lambda: dead.name not in cluster.brokers[0].node.membership.peers)
    assert (await until_state(cluster, where, "lost"))["status"] is None
    cluster.brokers[0].host.gate.set()
    await cluster.until(lambda: not tuple(cluster.brokers[0].node.channel.table.in_flight()))
    assert "a broker that is gone" in (await refused(422, "PUT", path, headers=KEY))["detail"]
    cluster.brokers.remove(dead)


async def test_work_goes_on_when_its_client_has_left(cluster: Cluster) -> None:
    bundle, _ = await one_owner(cluster)
    target = cluster.brokers[1]
    target.host.gate.clear()
    url = cluster.brokers[0].url + transfer(bundle, target.name)
    with pytest.raises(TimeoutError):
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.3)) as session:
            await session.put(url, headers=KEY)
    target.host.gate.set()
    status, _, headers = await cluster.ask("PUT", transfer(bundle, target.name), headers=KEY)
    assert (status, headers["Idempotency-Replayed"]) == (204, "true")
    assert cluster.owner(bundle) == target.name


async def test_a_drain_of_another_broker_keeps_its_key(cluster: Cluster) -> None:
    await one_owner(cluster)
    path = f"/v1/brokers/{cluster.brokers[1].name}/drain"
    status, _, _ = await cluster.ask("PUT", path, headers=KEY)
    assert status == 307
    assert (await cluster.ask("PUT", path, at=1, headers=KEY))[0] == 202
    again = await cluster.ask("PUT", path, at=1, headers=KEY)
    assert (again[0], again[2]["Idempotency-Replayed"]) == (202, "true")
    assert (await cluster.ask("PUT", path, headers=ASYNC))[0] == 307, "it answers at once, where it is done"


async def test_operations_that_run_are_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    bundles = await one_owner(cluster)
    target = cluster.brokers[1]
    target.host.gate.clear()
    monkeypatch.setattr(operations, "AT_ONCE", 1)
    where = (await cluster.ask("PUT", transfer(bundles[0], target.name), headers=ASYNC))[2]["Location"]
    for headers in (KEY, ASYNC):
        status, problem, said = await cluster.ask("PUT", transfer(bundles[1], target.name), headers=headers)
        assert (status, "1 operations run" in problem["detail"], "Retry-After" in said) == (503, True, True)
    target.host.gate.set()
    await until_state(cluster, where, "done")
    async with asyncio.timeout(60):
        while (await cluster.ask("PUT", transfer(bundles[1], target.name), headers=KEY))[0] != 204:
            await asyncio.sleep(0.01)


async def test_without_the_log_nothing_is_begun(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, _ = await one_owner(cluster)

    async def unavailable(*_: object) -> None:
        raise LogUnavailable("the log is away")

    reader = cluster.brokers[0].node.operation_log._reader
    with monkeypatch.context() as patched:
        patched.setattr(reader, "append", unavailable)
        before = cluster.history()
        assert (await cluster.ask("POST", f"/v1/bundles/{bundle}/split", headers=KEY, json={"parts": 2}))[0] == 503
        assert cluster.history() == before
    assert (await cluster.ask("POST", f"/v1/bundles/{bundle}/split", headers=KEY, json={"parts": 2}))[0] == 200


async def test_an_end_that_the_log_did_not_take_is_written_later(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, _ = await one_owner(cluster)
    monkeypatch.setattr(operations, "END_RETRY_S", 0.02)
    log = cluster.brokers[0].node.operation_log
    end, failures = log.end, iter((True, True, False))

    async def failing(*given: Any) -> None:
        if next(failures):
            raise LogUnavailable("the log is away")
        await end(*given)

    monkeypatch.setattr(log, "end", failing)
    path = f"/v1/bundles/{bundle}/split"
    assert (await cluster.ask("POST", path, headers=KEY, json={"parts": 2}))[0] == 200
    assert "Idempotency-Replayed" in (await cluster.ask("POST", path, at=1, headers=KEY, json={"parts": 2}))[2]


async def test_operations_are_seen_by_who_asked_and_by_viewers_of_the_cluster(guarded: Guarded) -> None:
    await guarded.start()
    for name in ("ann", "ben"):
        await guarded.grant(AccessRole.OPERATOR, name, "t/n")
    await guarded.grant(AccessRole.VIEWER, "vic", "*")
    await guarded.cluster.create("t/n")
    path = "/admin/v2/namespaces/t/n/unload"
    status, _, headers = await guarded.ask("ann", "PUT", path, headers=ASYNC)
    assert status == 202
    where = headers["Location"]
    seen = {name: (await guarded.ask(name, "GET", where))[0] for name in ("ann", "ben", "vic", "root")}
    assert seen == {"ann": 200, "ben": 404, "vic": 200, "root": 200}
    listed = {name: len((await guarded.ask(name, "GET", "/v1/operations"))[1]) for name in ("ann", "ben", "vic")}
    assert listed == {"ann": 1, "ben": 0, "vic": 1}
    assert (await guarded.ask("ben", "POST", f"{where}/cancel"))[0] == 404
    assert (await guarded.ask("vic", "POST", f"{where}/cancel"))[0] == 403


async def test_the_command_line_shows_and_cancels_operations(cluster: Cluster) -> None:
    bundle, _ = await one_owner(cluster)
    assert "no operations" in (await loadmanager(cluster, "operations", "list")).output
    cluster.brokers[1].host.gate.clear()
    asked = await cluster.ask("PUT", transfer(bundle, cluster.brokers[1].name), headers=ASYNC)
    shown = asked[1]
    row = (await loadmanager(cluster, "operations", "list", "--state", "running")).stdout.splitlines()[2]
    assert row.split()[:4] == [shown["id"], "running", "unload_bundle", str(bundle)]
    assert str(bundle) in (await loadmanager(cluster, "operations", "show", shown["id"])).stdout
    cancelled = await loadmanager(cluster, "operations", "cancel", shown["id"])
    assert cancelled.exit_code == 0, cancelled.output
    await until_state(cluster, f"/v1/operations/{shown['id']}", "failed")
    again = await loadmanager(cluster, "operations", "cancel", shown["id"])
    assert (again.exit_code, "has ended" in again.stderr) == (1, True)
