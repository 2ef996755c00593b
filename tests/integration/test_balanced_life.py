"""The counter service on real Kafka and ZooKeeper under a load that drifts: it is balanced by itself and stays so,
every decision can be asked about, a policy moves only what it misplaces, and a plan is proposed, run and undone.

Balance is by message rate alone, of which each broker has declared the same capacity: CPU of a few processes on a busy
machine is no measure.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from loadmanager.client import HttpRouter, Router
from loadmanager.demo.counter.load import Load
from loadmanager.demo.counter.traffic import Traffic
from stack.servers import KafkaServer, ZooKeeperServer
from tests.integration.long_life.cluster import Cluster
from tests.integration.long_life.commands import loadmanager
from tests.integration.long_life.waiting import until_told
from tests.servers import coordination_root, topic_prefix

NAMESPACE = "life/counters"
BUNDLES = 24
RATE_S, TOPICS, SKEW, DRIFT_S = 240.0, 240, 0.6, 2.0
PATIENCE_S, BALANCED_S = 60.0, 180.0
TOLERANCE, ROUNDS_TO_STAY = 0.25, 12
"""The estimates are means over some seconds of requests that come at random: closer than that is noise."""

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.zookeeper,
    pytest.mark.timeout(900),
    pytest.mark.slow,
]


def settings_on(kafka: KafkaServer, zookeeper: ZooKeeperServer) -> dict[str, object]:
    return {
        "cluster": "life",
        "log": f"kafka://{kafka.address}",
        "coordination": f"zookeeper://{zookeeper.address}{coordination_root('balance')}",
        "topic_prefix": topic_prefix("balance"),
        "partitions": 3,
        "development": True,
        "session_timeout_s": 4.0,
        "capacity": {"rate_msg_s": 200.0},
        "weight_cpu": 0.0,
        "load_window_s": 5.0,
        "load_top_bundles": BUNDLES,
        "balancing_interval_s": 1.0,
        "balancing_tolerance": TOLERANCE,
        "bundle_rest_s": 8.0,
        "split": False,
        "merge": False,
    }


class Balanced:
    """The cluster, asked as an operator would."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def ask(self, method: str, path: str, body: object = None, **query: str) -> Any:
        """The answer of the first broker; anything but success fails the test."""
        answer = await self.cluster.ask(self.cluster.members[0], method, path, body, **query)
        assert 200 <= answer.status < 300, (method, path, answer)
        return answer.body

    async def decisions(self) -> list[dict[str, Any]]:
        """The newest first."""
        return (await self.ask("GET", "/v1/decisions", limit="500"))["decisions"]

    async def owners(self) -> dict[str, str]:
        return {each["bundle"]: each["owner"] for each in await self.cluster.bundles(NAMESPACE)}

    async def until_rounds(self, count: int) -> list[dict[str, Any]]:
        """As many decisions as are made from now on, newest first."""
        last = (await self.decisions() or [{"id": ""}])[0]["id"]

        async def since() -> list[dict[str, Any]]:
            ids = [each["id"] for each in found] if (found := await self.decisions()) else []
            return found[: ids.index(last) if last in ids else len(ids)]

        async def enough() -> bool:
            return len(await since()) >= count

        await until_told(enough, f"{count} rounds")
        return await since()

    async def until_round_with_moves(self) -> None:
        """While reports are late the spread may be zero for a moment: nothing has been balanced then."""

        async def moved() -> bool:
            return any(each["moves"] for each in await self.decisions())

        await until_told(moved, "a round moves something", BALANCED_S)

    async def until_balanced(self) -> None:
        async def within() -> bool:
            shown = await self.ask("GET", "/v1/balancing")
            return shown["spread"] <= TOLERANCE and shown["in_flight"]["total"] == 0

        await until_told(within, "the spread is within the tolerance", BALANCED_S)

    async def until_owned(self, holds: Callable[[dict[str, str]], bool], what: str) -> None:
        """Until it holds of the owners as the broker that is asked knows them: it may hear of a move after others."""

        async def known() -> bool:
            return holds(await self.owners())

        await until_told(known, what)

    async def until_nothing_moves(self) -> None:
        async def still() -> bool:
            return (await self.ask("GET", "/v1/balancing"))["in_flight"]["total"] == 0

        await until_told(still, "nothing moves any more")

    async def config(self, name: str, value: object) -> None:
        await self.ask("PUT", f"/v1/config/{name}", {"value": value, "reason": "test"})


@asynccontextmanager
async def drifting(cluster: Cluster) -> AsyncGenerator[Load]:
    """Requests whose hot keys change all the time; none may fail."""
    async with HttpRouter(Router(f"http://{member.name}" for member in cluster.members)) as http:
        traffic = Traffic(NAMESPACE, rate_s=RATE_S, topics=TOPICS, skew=SKEW, drift_s=DRIFT_S)
        load = Load(http, traffic, PATIENCE_S)
        sending = asyncio.create_task(load.run())
        try:
            yield load
        finally:
            load.stop()
            await sending
    assert load.failures == []


async def test_it_is_balanced_and_stays_so_and_says_why(
    tmp_path: Path, kafka_server: KafkaServer, zookeeper_server: ZooKeeperServer
):
    async with Cluster(tmp_path, settings_on(kafka_server, zookeeper_server)) as cluster:
        await cluster.start()
        here = Balanced(cluster)
        await loadmanager(
            *("namespaces", "create", NAMESPACE, "--bundles", str(BUNDLES)),
            *("--admin-url", f"http://{cluster.members[0].name}"),
        )
        async with drifting(cluster):
            await _piled_on_one(here)
            await here.until_round_with_moves()
            await here.until_balanced()
            await _stays_balanced(here)
            await _explains_itself(here)
            await _moves_only_what_is_misplaced(here)
            await _runs_a_plan_and_undoes_it(here)
        assert cluster.refused == []


async def _piled_on_one(here: Balanced) -> None:
    """All bundles on one broker: the worst that a restart can leave."""
    await until_told(lambda: here.cluster.is_whole(NAMESPACE), "every bundle has an owner")
    await here.config("balancing", value=False)
    await here.until_rounds(2)
    await here.until_nothing_moves()
    target = here.cluster.members[0].name
    await here.ask("POST", "/v1/plans/unload", {"namespace": NAMESPACE, "to": target, "wave": 50})

    async def piled() -> bool:
        return set((await here.owners()).values()) == {target}

    async def reported() -> bool:
        return (await here.ask("GET", "/v1/balancing"))["spread"] > TOLERANCE

    await until_told(piled, "one broker has all")
    await until_told(reported, "the load of the pile is reported")  # until then nothing is known, and that is even
    await here.config("balancing", value=True)


async def _stays_balanced(here: Balanced) -> None:
    rounds = await here.until_rounds(ROUNDS_TO_STAY)
    after = sorted(each["spread_after"] for each in rounds)
    assert after[len(after) // 2] <= TOLERANCE, after
    await here.until_balanced()


async def _explains_itself(here: Balanced) -> None:
    """Each decision has its reason and comes out again from its record; each bundle says why it is where it is."""
    decisions = await here.decisions()
    assert any(each["moves"] for each in decisions)
    for each in decisions[:20]:
        assert each["reason"]
        again = await here.ask("GET", f"/v1/decisions/{each['id']}/again")
        assert again["same"] is True or again["why"] == "the setting balancing is off", again
    moved = next(each for each in decisions if each["moves"])
    whole = await here.ask("GET", f"/v1/decisions/{moved['id']}")
    bundle = whole["decision"]["moves"][0]["bundle"]
    explained = await here.ask("GET", f"/v1/explain/bundles/{bundle}")
    assert any(event["cause"] == moved["id"] for event in explained["because"]), explained
    then = await here.ask("GET", f"/v1/explain/bundles/{bundle}", at=str(whole["at_ms"]))
    assert (then["round"]["id"], bool(then["moved"])) == (moved["id"], True), then


async def _moves_only_what_is_misplaced(here: Balanced) -> None:
    await here.config("balancing_tolerance", 1.0)
    await here.until_rounds(2)
    await here.until_nothing_moves()
    before = await here.owners()
    allowed = [member.name for member in here.cluster.members[:2]]
    policy = {"namespaces": ["life/.*"], "primary": allowed}
    misplaced = {bundle for bundle, owner in before.items() if owner not in allowed}
    assert misplaced
    told = await here.ask("PUT", "/v1/policies/isolation/life", policy, dry_run="true")
    assert {move["bundle"] for move in told["preview"]["moves"]} == misplaced
    assert await here.owners() == before
    await here.ask("PUT", "/v1/policies/isolation/life", policy)

    async def placed() -> bool:
        return set((await here.owners()).values()) == set(allowed)

    await until_told(placed, "the policy holds")
    after = await here.owners()
    assert {bundle for bundle in before if after[bundle] != before[bundle]} == misplaced
    answer = await here.cluster.ask(
        *(here.cluster.members[0], "PUT", "/v1/policies/isolation/bad", {"namespaces": ["life/("], "primary": allowed})
    )
    assert answer.status == 412
    assert "life/(" in str(answer.body)
    await here.ask("DELETE", "/v1/policies/isolation/life")
    await here.config("balancing_tolerance", TOLERANCE)
    await here.until_balanced()


async def _runs_a_plan_and_undoes_it(here: Balanced) -> None:
    await here.config("balancing", value=False)
    await here.until_rounds(2)
    await here.until_nothing_moves()
    before = await here.owners()
    empty = here.cluster.members[2].name
    to = here.cluster.members[0].name
    made = await here.ask("POST", "/v1/plans/unload", {"broker": empty, "to": to, "review": True, "reason": "a trial"})
    assert made["state"] == "proposed"
    plan = made["id"]
    for action, state in (("approve", "approved"), ("run", "running")):
        assert (await here.ask("POST", f"/v1/plans/{plan}/{action}", {"author": "ada"}))["state"] == state

    async def done(which: str) -> bool:
        return (await here.ask("GET", f"/v1/plans/{which}"))["state"] == "done"

    await until_told(lambda: done(plan), "the plan is done")
    await here.until_owned(lambda owners: empty not in owners.values(), f"nothing is left at {empty}")
    assert (await here.ask("POST", f"/v1/plans/{plan}/verify", {}))["verification"]["holding"] == made["moves"]
    back = (await here.ask("POST", f"/v1/plans/{plan}/undo", {"author": "ada"}))["id"]
    for action in ("approve", "run"):
        await here.ask("POST", f"/v1/plans/{back}/{action}", {"author": "ada"})
    await until_told(lambda: done(back), "the plan is undone")
    await here.until_owned(lambda owners: owners == before, "all is where it was")
