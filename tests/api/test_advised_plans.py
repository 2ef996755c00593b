"""Advice as a plan, over REST and the command line: bad advice is refused in words and changes nothing; good advice
waits."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from loadmanager.documents.fold import PLANS_TOPIC, Entry
from loadmanager.leader.plans.advice import Effect, Measure, Period
from loadmanager.leader.plans.plan import PlanState
from loadmanager_api.cli.main import main
from statechannel.ports import Payload
from tests.api.conftest import Cluster, Refused

DAY_MS = 86_400_000


def wish(**changes: Any) -> dict[str, Any]:
    now_ms = time.time_ns() // 1_000_000
    made: dict[str, Any] = {
        "change": {"type": "settings", "changes": [{"name": "balancing_tolerance", "was": "default", "to": 0.15}]},
        "reason": "replay of a week found it better",
        "expected": {"measure": "spread", "before": 0.3, "after": 0.2, "low": 0.05, "high": 0.15},
        "provenance": {
            "cluster": "standalone",
            "data_from_ms": now_ms - 7 * DAY_MS,
            "data_to_ms": now_ms - 1_000,
            "job": "history advise",
            "job_version": "0.1.0",
            "method": "replay",
            "tables": {"decision": 12},
        },
        "expires_ms": now_ms + DAY_MS,
    }
    for path, value in changes.items():
        *above, last = path.split("__")
        place = made
        for name in above:
            place = place[name]
        place[last] = value
    return made


def setting(name: str, was: Any, to: Any) -> dict[str, Any]:
    return {"type": "settings", "changes": [{"name": name, "was": was, "to": to}]}


def moves(**changes: Any) -> dict[str, Any]:
    now_ms = time.time_ns() // 1_000_000
    move = {"bundle": "t/n/0x00000000_0x40000000", "source": "a:1", "destination": "b:1", **changes}
    return {"type": "moves", "moves": [move], "not_before_ms": now_ms, "not_after_ms": now_ms + 1000}


async def listed(cluster: Cluster) -> list[dict[str, Any]]:
    status, found, _ = await cluster.ask("GET", "/v1/plans?kind=advice")
    assert status == 200
    return found


REFUSED: list[tuple[int, dict[str, Any], str]] = [
    (412, wish(change=setting("balancing_tolerance", "default", 0.5)), "may change it to 0.2, not to 0.5"),
    (412, wish(change=setting("balancing_tolerance", "default", 0.01)), "may change it to 0.05"),
    (412, wish(change=setting("weight_cpu", 1.0, 1e9)), "out of bounds"),
    (412, wish(change=setting("overloaded_percent", 85.0, 120.0)), "less than or equal to 100"),
    (412, wish(change=setting("balancing_strategy", "plan", "nonsense")), "is not installed here"),
    (412, wish(change=setting("balancing_tolerence", 0.1, 0.2)), "did you mean balancing_tolerance"),
    (412, wish(change=setting("balancing", True, False)), "advice may not change"),
    (412, wish(change=setting("advice_apply", False, True)), "advice may not change"),
    (412, wish(change=setting("drain_timeout_s", 60, 90)), "advice may not change"),
    (412, wish(change=setting("log", "a", "b")), "cannot change while a broker runs"),
    (412, wish(change=setting("balancing_tolerance", "default", True)), "is not a number"),
    (412, wish(change=setting("balancing_tolerance", "default", "default")), "there is nothing to change"),
    (412, wish(change={"type": "settings", "changes": []}), "change 1 to 8 settings"),
    (412, wish(provenance__cluster="another"), "of cluster 'another'"),
    (412, wish(provenance__data_to_ms=time.time_ns() // 1_000_000 + DAY_MS // 2), "ends in the future"),
    (412, wish(provenance__data_from_ms=time.time_ns() // 1_000_000), "later than data_from_ms"),
    (412, wish(expires_ms=time.time_ns() // 1_000_000 - 500), "stale"),
    (412, wish(expires_ms=time.time_ns() // 1_000_000 + 30 * DAY_MS), "at most 14 days"),
    (412, wish(expected__low=-0.1), "this improvement is not certain"),
    (412, wish(expected__high=0.06), "must lie between low and high"),
    (412, wish(reason="  "), "needs a reason"),
    (412, wish(id="0123456789abcdef"), "the digest of what it says"),
    (412, wish(format=2), "format 2"),
    (412, wish(change=moves(destination="a:1")), "is at a:1 already"),
    (412, wish(change=moves(bundle="t/n/nonsense")), "is not a bundle"),
    (412, wish(change={**moves(), "not_after_ms": 5}), "by at most a day"),
    (412, wish(change={"type": "splits", "namespace": "t/n", "was": 4, "cuts": []}), "cut 1 to 64"),
    (400, wish(reason="x" * 3_000), "reason"),
    (400, wish(change={"type": "settings", "changes": [{}] * 200}), "at most 100"),
    (400, wish(change={"type": "drop everything"}), "type"),
    (400, wish(expected__before="much"), "valid number"),
    (400, wish(wat=1), "there is no such field"),
    (412, wish(provenance__tables={f"t{n}": n for n in range(100)}), "at most 64"),
]


async def test_bad_advice_is_refused_in_words_and_nothing_is_changed(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(1)
    for status, body, says in REFUSED:
        assert says in (await refused(status, "POST", "/v1/plans/advice", json=body))["detail"], body
    huge = wish(reason="x" * 900_000)
    assert "reason" in (await refused(400, "POST", "/v1/plans/advice", json=huge))["detail"]
    assert await listed(cluster) == []
    status, config, _ = await cluster.ask("GET", "/v1/config")
    assert config["revision"] == -1


async def test_advice_is_published_once_and_waits_for_a_yes_at_every_broker(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(2)
    body = wish()
    answers = [await cluster.ask("POST", "/v1/plans/advice", json=body) for _ in range(2)]
    assert [status for status, _, _ in answers] == [201, 201]
    advice_id = answers[0][1]["id"]
    assert answers[1][1]["id"] == advice_id
    await cluster.until(lambda: all(broker.node.plans.all() for broker in cluster.brokers))
    status, found, _ = await cluster.ask("GET", "/v1/plans", at=1)
    assert [(each["id"], each["state"], each["what"], each["may"]) for each in found] == [
        (advice_id, "proposed", "balancing_tolerance: default → 0.15", ["approve", "reject"])
    ]
    with_author = {"headers": {"X-Author": "ann"}, "json": {"reason": "yes"}}
    status, shown, _ = await cluster.ask("POST", f"/v1/plans/{advice_id}/approve", at=1, **with_author)
    assert (status, shown["state"], shown["steps"][-1]["author"]) == (200, "approved", "ann")
    assert shown["advice"]["provenance"]["tables"] == {"decision": 12}
    rebalancers = [broker.node.current.rebalancer for broker in cluster.brokers]
    await cluster.until(lambda: any("5 are needed" in each.waiting.get(advice_id, "") for each in rebalancers))
    twice = await refused(409, "POST", f"/v1/plans/{advice_id}/approve", json={})
    assert "is approved: the operator cannot approve it; possible: cancel, reject" in twice["detail"]
    early = await refused(409, "POST", f"/v1/plans/{advice_id}/withdraw", json={})
    assert "possible: cancel, reject" in early["detail"]
    await refused(404, "GET", "/v1/plans/0123456789abcdef")
    await refused(404, "POST", "/v1/plans/0123456789abcdef/approve", json={})
    status, shown, _ = await cluster.ask("POST", f"/v1/plans/{advice_id}/reject", json={})
    assert (status, shown["state"], shown["may"]) == (200, "rejected", [])
    metrics = (await cluster.ask("GET", "/metrics"))[1]
    assert 'loadmanager_advice{state="rejected"} 1.0' in metrics


async def test_advice_that_is_not_what_its_id_says_is_passed_over(cluster: Cluster) -> None:
    await cluster.start(1)
    _, found, _ = await cluster.ask("POST", "/v1/plans/advice", json=wish())
    node = cluster.brokers[0].node
    plan = node.plans.get(found["id"])
    raw = msgspec.json.encode(plan)
    foreign = [
        _entry("g", raw.replace(b"0.15", b"0.9")),  # not what its id says
        _entry("h", msgspec.json.encode(msgspec.structs.replace(plan, id="h"))),  # called otherwise
        _entry("i", b"{}"),
        b"[" * 1_000,
    ]
    for number, value in enumerate(foreign, 1):
        await node.world.log.append(PLANS_TOPIC, 0, [Payload(None, value)])
        await cluster.until(lambda number=number: node.plans.documents.skipped == number)
    assert [each["id"] for each in await listed(cluster)] == [found["id"]]
    metrics = (await cluster.ask("GET", "/metrics"))[1]
    assert "loadmanager_plans_skipped_total 4.0" in metrics


def _entry(name: str, value: bytes) -> bytes:
    return msgspec.json.encode(Entry(f"x.{name}", name, 0, msgspec.Raw(value)))


async def test_an_effect_says_over_which_time_it_was_measured(cluster: Cluster) -> None:
    await cluster.start(1)
    _, found, _ = await cluster.ask("POST", "/v1/plans/advice", json=wish())
    node, begin_ms = cluster.brokers[0].node, 1_896_091_200_000
    measured = Period(begin_ms, begin_ms + 600_500, 7, 0.2, 0.01, 0.5, 0.01)
    effect = Effect(Measure.SPREAD, 0.3, measured.spread, -0.1, 0.03, harm=False, period=measured)
    kept = msgspec.structs.replace(node.plans.get(found["id"]), state=PlanState.DONE, effect=effect)
    await node.plans.documents.put(kept.id, kept, seen=None, author="leader", reason="keep")
    await cluster.until(lambda: node.plans.all()[0].effect is not None)
    _, shown, _ = await cluster.ask("GET", f"/v1/plans/{found['id']}")
    effect = shown["advice"]["effect"]
    times = effect["measured_from"], effect["measured_to"]
    assert times == ("2030-01-31T12:00:00Z", "2030-01-31T12:10:00.500000Z")
    given = ["--admin-url", cluster.brokers[0].url, "plans", "show", found["id"]]
    result = await asyncio.to_thread(CliRunner().invoke, main, given)
    assert re.search(r"measured +2030-01-31T12:00:00Z to 2030-01-31T12:10:00.500000Z", result.output)


@pytest.mark.parametrize("group", ["advice", "plan"])
def test_the_names_of_before_are_the_same_commands(group: str) -> None:
    told = CliRunner().invoke(main, [group, "--help"]).output
    assert told.replace(f"main {group}", "main plans") == CliRunner().invoke(main, ["plans", "--help"]).output
    assert "withdraw" in told


async def test_the_command_line_shows_and_decides(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.start(1)
    file = tmp_path / "advice.json"
    file.write_text(json.dumps({"advice": [{"kind": "settings", "title": "…", **wish()}], "left_out": {}}))

    async def command(*words: str) -> str:
        given = ["--admin-url", cluster.brokers[0].url, "plans", *words]
        result = await asyncio.to_thread(CliRunner().invoke, main, given)
        assert result.exit_code == 0, result.output
        return result.output

    assert "no plans" in await command("list")
    assert "is proposed: balancing_tolerance: default → 0.15" in await command("publish", str(file))
    [found] = json.loads(await command("list", "-o", "json"))
    shown = await command("show", found["id"])
    for part in ("better by 0.05 to 0.15", "history advise 0.1.0, replay", "decision v12", "approve, reject"):
        assert part in shown
    assert "is approved" in await command("approve", found["id"], "--reason", "yes")
    assert "is rejected" in await command("reject", found["id"])


@pytest.mark.parametrize("word", ["nonsense", "withdraw"])
async def test_the_command_line_passes_refusals_on(cluster: Cluster, word: str) -> None:
    await cluster.start(1)
    given = ["--admin-url", cluster.brokers[0].url, "plans", "withdraw", word]
    result = await asyncio.to_thread(CliRunner().invoke, main, given)
    assert (result.exit_code, "there is no plan" in result.output) == (1, True)
