"""Explanations of a real cluster: over HTTP from any broker, on the command line, for past moments, and from the log
alone once no broker lives any more."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from click.testing import CliRunner, Result

from loadmanager import Broker, Bundle, BundleLoad, Destination, Token
from loadmanager.errors import Conflict, Unavailable
from loadmanager.testing.cluster import EmbeddedCluster, embedded_cluster
from loadmanager_api.cli.main import main
from loadmanager_api.routes.explain import moment
from statechannel.adapters.sqlite.log import SqliteLog
from tests.loadmanager.embedded import PATIENT

WAIT_S = 60.0
HOT_MSG_S, COLD_MSG_S = 1000.0, 10.0
SETTINGS: Mapping[str, Any] = {
    "balancing": True,
    "balancing_interval_s": 0.5,
    "balancing_budget": 1.0,
    "load_window_s": 0.5,
    "capacity": {"rate_msg_s": 5000.0},
    "weight_cpu": 0.0,
    **PATIENT,
}


class Host:
    """Some bundles are hot, whoever has them."""

    def __init__(self) -> None:
        self.hot: frozenset[Bundle] = frozenset()
        self.held: set[Bundle] = set()
        self.sick = False
        self.broker: Broker | None = None

    def attached(self, broker: Broker) -> None:
        self.broker = broker

    async def prepare(self, bundle: Bundle) -> None:
        """Nothing to warm up."""

    async def acquire(self, bundle: Bundle, token: Token, hand_off: bytes | None) -> None:
        if self.sick:
            raise OSError(30, "Read-only file system")
        self.held.add(bundle)

    async def release(self, bundle: Bundle, to: Destination | None) -> bytes | None:
        assert self.broker is not None
        await self.broker.quiesce(bundle)
        self.held.discard(bundle)
        return None

    async def abandon(self, bundle: Bundle) -> None:
        self.held.discard(bundle)

    async def load(self) -> Mapping[Bundle, BundleLoad]:
        return {each: BundleLoad(in_rate_msg_s=HOT_MSG_S if each in self.hot else COLD_MSG_S) for each in self.held}


class Asked:
    """A cluster, and a client that asks its last broker, which does not lead."""

    def __init__(self, cluster: EmbeddedCluster[Host], session: aiohttp.ClientSession) -> None:
        self.cluster = cluster
        self.session = session
        hot = frozenset(bundle for bundle in cluster.bundles() if cluster.owner(bundle) is cluster.brokers[0])
        for broker in cluster.brokers:
            cluster.host(broker).hot = hot
        self.urls = [broker.node.registration.admin_url for broker in cluster.brokers]

    async def ask(self, path: str, method: str = "GET", url: str = "", **more: Any) -> Any:
        async with self.session.request(method, (url or self.urls[-1]) + path, **more) as answer:
            return answer.status, json.loads(await answer.text())

    async def got(self, path: str, **more: Any) -> Any:
        status, body = await self.ask(path, **more)
        assert status < 300, body
        return body

    async def decisions(self) -> list[Any]:
        return (await self.got("/v1/decisions?limit=100"))["decisions"]

    async def next_round(self) -> Any:
        """The first decision after the last one that there is now."""
        before = {each["id"] for each in await self.decisions()}
        async with asyncio.timeout(WAIT_S):
            while not (new := [each for each in await self.decisions() if each["id"] not in before]):
                await asyncio.sleep(0.05)
        return new[-1]

    async def moved(self) -> tuple[Any, Any]:
        """A decision that moved something, and its first move."""
        async with asyncio.timeout(WAIT_S):
            while not (found := [each for each in await self.decisions() if each["moves"]]):
                await asyncio.sleep(0.05)
        record = await self.got(f"/v1/decisions/{found[-1]['id']}")
        return record, record["decision"]["moves"][0]

    def cli(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments), env={"LOADMANAGER_ADMIN_URL": self.urls[-1]})


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    async with (
        embedded_cluster(Host, brokers=2, bundles=8, **{**SETTINGS, "balancing": False}) as cluster,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAIT_S)) as session,
    ):
        yield Asked(cluster, session)


@pytest.fixture
async def balancing() -> AsyncIterator[Asked]:
    async with (
        embedded_cluster(Host, brokers=2, bundles=8, **SETTINGS) as cluster,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=WAIT_S)) as session,
    ):
        yield Asked(cluster, session)


async def test_a_broker_that_cannot_acquire_is_said_to_be_left_out_with_the_reason(asked: Asked):
    cluster = asked.cluster
    well, sick = cluster.brokers
    cluster.host(sick).sick = True
    here = [bundle for bundle in cluster.bundles() if cluster.owner(bundle) is well]
    for bundle in here:
        with suppress(Conflict, Unavailable):
            await cluster.transfer(bundle, sick)
    reason = f"{sick.name} is left out: it could not acquire 3 bundles in a row or more"
    async with asyncio.timeout(WAIT_S):
        while not (await asked.got(f"/v1/explain/brokers/{sick.name}"))["answer"].startswith(reason):
            await asyncio.sleep(0.05)
    notes = (await asked.got(f"/v1/explain/bundles/{here[0]}"))["notes"]
    assert any(note.startswith(reason) for note in notes)
    assert reason in (await asyncio.to_thread(asked.cli, "explain", sick.name)).output.replace("\n", " ")


async def test_a_move_is_explained_by_every_broker(balancing: Asked):
    record, move = await balancing.moved()
    assert record["strategy"] == "plan"
    assert record["brokers"] == 2
    for url in balancing.urls:
        found = await balancing.got(f"/v1/explain/bundles/{move['bundle']}", url=url)
        assert found["owner"]
        assert any(each["cause"] == record["id"] and move["reason"] == each["reason"] for each in found["because"])
        broker = await balancing.got(f"/v1/explain/brokers/{move['source']}", url=url)
        assert broker["usage"] is not None
    again = await balancing.got(f"/v1/decisions/{record['id']}/again")
    assert again["same"] is True, again


async def test_the_moment_of_the_move_says_that_it_moved_and_later_that_it_rests(balancing: Asked):
    record, move = await balancing.moved()
    async with asyncio.timeout(WAIT_S):
        while (await balancing.next_round())["moves"]:
            pass
    path = f"/v1/explain/bundles/{move['bundle']}"
    now = await balancing.got(path)
    assert "resting" in [each["rule"] for each in now["obstacles"]]
    at = (await balancing.cluster.brokers[0].ask(_taken(record["id"]))) or 0
    then = await balancing.got(f"{path}?at={at}")
    assert then["round"]["id"] == record["id"]
    assert then["moved"].startswith(f"moved from {move['source']} to {move['destination']}")
    as_decided = await balancing.got(f"{path}?at={record['at_ms']}")
    assert as_decided["round"]["id"] == record["id"]
    assert (as_decided["owner"], now["owner"]) == (move["source"], move["destination"])


def _taken(decision_id: str):
    async def taken(node: Any) -> int | None:
        found = await node.decisions.get(decision_id)
        return None if found is None else found.appended_ms

    return taken


@pytest.mark.slow
async def test_a_past_moment_is_explained_by_the_policies_of_then(balancing: Asked):
    bundle = str(balancing.cluster.bundles()[0])
    await balancing.moved()
    before_ms = (await balancing.next_round())["at_ms"]
    await balancing.got(f"/v1/policies/bundle/{bundle}", method="PUT", json={"pin": "*"})
    revision = (await balancing.decisions())[0]["id"]
    async with asyncio.timeout(WAIT_S):
        while "kept by policy" not in await _rules(balancing, bundle):
            await balancing.next_round()
    after = await balancing.got(f"/v1/explain/bundles/{bundle}")
    assert after["policies"] == ["pinned to where it is"]
    then = await balancing.got(f"/v1/explain/bundles/{bundle}?at={before_ms + 100}")
    assert "kept by policy" not in [each["rule"] for each in then["obstacles"]]
    assert then["policies"] == []
    assert then["round"]["id"] <= revision


async def _rules(asked: Asked, bundle: str) -> list[str]:
    return [each["rule"] for each in (await asked.got(f"/v1/explain/bundles/{bundle}?try=false"))["obstacles"]]


async def test_what_cannot_be_told_is_refused_with_what_to_do(balancing: Asked):
    bundle = str(balancing.cluster.bundles()[0])
    await balancing.next_round()
    for path, status, text in [
        (f"/v1/explain/bundles/{bundle}?at=1000", 410, "the week for which decisions are kept"),
        (f"/v1/explain/bundles/{bundle}?at=yesterday", 412, "is not a time"),
        (f"/v1/explain/bundles/{bundle}?at=99999999999999999999", 412, "outside"),
        ("/v1/explain/bundles/no/where/0x00000000_0x10000000", 404, "no bundle"),
        ("/v1/explain/bundles/no/where/nonsense", 412, "not a hash range"),
        ("/v1/explain/brokers/nobody:1", 404, "there are:"),
        ("/v1/decisions/9.9", 404, "no decision 9.9"),
        ("/v1/decisions/nonsense", 412, "epoch.round"),
    ]:
        assert (await balancing.ask(path))[0] == status, path
        assert text in (await balancing.ask(path))[1]["reason"]
    status, body = await balancing.ask("/v1/what-if", "POST", json={"settings": {"nonsense": 1}})
    assert (status, body["reason"]) == (412, "there is no setting nonsense")
    assert (await balancing.ask("/v1/what-if", "POST", json={"beer": 1}))[0] == 400


async def test_times_may_have_zones(balancing: Asked):
    bundle = str(balancing.cluster.bundles()[0])
    await balancing.next_round()
    for at in ("2200-01-01T00:00:00Z", "2200-01-01T00:00:00+02:00", "2200-01-01"):
        assert (await balancing.ask(f"/v1/explain/bundles/{bundle}?at={quote(at)}&try=false"))[0] == 200


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1700000000123", 1_700_000_000_123),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000),
        ("2023-11-14T22:13:20", 1_700_000_000_000),
        ("2023-11-15T00:13:20 02:00", 1_700_000_000_000),
    ],
)
def test_a_time_without_a_zone_is_utc_wherever_the_broker_runs(
    text: str, expected: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        assert moment(text) == expected
    finally:
        monkeypatch.undo()
        time.tzset()


async def test_decisions_are_listed_page_by_page(balancing: Asked):
    for _ in range(3):
        await balancing.next_round()
    first = await balancing.got("/v1/decisions?limit=2")
    then = await balancing.got(f"/v1/decisions?limit=2&cursor={first['next']}")
    numbers = [int(each["id"].split(".")[1]) for each in first["decisions"] + then["decisions"]]
    assert numbers == sorted(numbers, reverse=True)
    assert len(set(numbers)) == len(numbers)


async def test_before_any_round_there_is_what_one_would_see(asked: Asked):
    """Nobody has balanced here: still it is told what a round would do, and why nothing moved."""
    found = await asked.got("/v1/plan")
    assert found["strategy"] == "plan"
    assert len(found["projection"]["brokers"]) == 2
    status, body = await asked.ask("/v1/what-if", "POST", json={"add_brokers": 2})
    assert status == 200
    assert len(body["changed"]["brokers"]) == 4


async def test_rounds_that_are_switched_off_say_so(asked: Asked):
    bundle = str(asked.cluster.bundles()[0])
    await asked.got("/v1/policies/cluster/cluster", method="PUT", json={"paused": True, "reason": "a festival"})
    async with asyncio.timeout(WAIT_S):
        while not (found := await asked.got(f"/v1/explain/bundles/{bundle}?try=false"))["targets"]:
            await asyncio.sleep(0.05)  # until its load is reported
    assert found["owner"] == asked.cluster.brokers[0].name
    assert "paused" in found["obstacles"][0]["sentence"]


# --- the command line


@pytest.mark.slow
async def test_the_commands_say_what_the_routes_say(balancing: Asked):
    record, move = await balancing.moved()
    for arguments, expected in [
        (("explain", move["bundle"]), ("why it is there", f"[decision {record['id']}]", "where it might go")),
        (("explain", move["source"]), ("what it uses", "its hottest bundles")),
        (("decisions", "list"), (record["id"], "plan")),
        (("decisions", "show", record["id"], "--verify"), (move["bundle"], "the decision is the same")),
        (("what-if", "--add-brokers", "2", "--rested"), ("2 brokers more", "new-1:0", "compared")),
        (("what-if", "--set", "balancing_tolerance=tight"), ("balancing_tolerance = tight",)),
        (("plan", "preview"), ("plan would decide now", "brokers")),
    ]:
        result = await asyncio.to_thread(balancing.cli, *arguments)
        assert result.exit_code == 0, result.output
        for text in expected:
            assert text in result.stdout, (arguments, result.stdout)
        as_json = await asyncio.to_thread(balancing.cli, *arguments, "-o", "json")
        assert json.loads(as_json.stdout), arguments


async def test_wrong_usage_is_told(balancing: Asked):
    for arguments in (
        ("explain", "a/b"),
        ("explain", "a:1", "--at", "yesterday"),
        ("what-if", "--policy", "isolation/x"),
        ("what-if", "--policy", "isolation/x={"),
        ("what-if", "--capacity", "cpu=much"),
    ):
        result = await asyncio.to_thread(balancing.cli, *arguments)
        assert result.exit_code == 2, (arguments, result.output)


@pytest.mark.slow
async def test_without_any_broker_the_log_alone_explains(tmp_path: Path):
    log = f"sqlite:{tmp_path}/cluster.db"
    async with (
        embedded_cluster(Host, brokers=2, bundles=8, directory=tmp_path, **SETTINGS) as cluster,
        aiohttp.ClientSession() as session,
    ):
        asked = Asked(cluster, session)
        record, move = await asked.moved()
        await asked.next_round()
        at = int(time.time() * 1000)
        path = f"/v1/explain/bundles/{move['bundle']}?at={at}"
        living = await asked.got(path)
        broker = await asked.got(f"/v1/explain/brokers/{move['source']}?at={at}")

    def offline(*arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "--log", log])

    at_option = ("--at", time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at // 1000)) + f".{at % 1000:03d}")
    dead = await asyncio.to_thread(offline, "explain", move["bundle"], *at_option, "-o", "json")
    assert dead.exit_code == 0, dead.output
    assert json.loads(dead.stdout) == living
    dead = await asyncio.to_thread(offline, "explain", move["source"], *at_option, "-o", "json")
    assert json.loads(dead.stdout) == broker
    verified = await asyncio.to_thread(offline, "decisions", "show", record["id"], "--verify")
    assert "the decision is the same" in verified.stdout, verified.output
    listed = await asyncio.to_thread(offline, "decisions", "list", "-o", "json")
    assert record["id"] in [each["id"] for each in json.loads(listed.stdout)["decisions"]]
    other = await asyncio.to_thread(
        offline, "what-if", "--rested", "--policy", 'isolation/x={"namespaces": ["test/.*"], "primary": ["nobody"]}'
    )
    assert other.exit_code == 0, other.output
    assert "isolation policy 'x'" in other.stdout


def test_a_log_that_is_not_there_is_told(tmp_path: Path):
    result = CliRunner().invoke(main, ["explain", "a:1", "--log", f"sqlite:{tmp_path}/none.db"])
    assert result.exit_code == 1
    assert "there is no file" in result.stderr
    assert not (tmp_path / "none.db").exists()


@pytest.mark.slow
async def test_what_if_over_a_log_loads_no_web_framework(tmp_path: Path):
    log = SqliteLog(tmp_path / "cluster.db")
    await log.start(5)
    await log.close()
    code = (
        "import sys; from click.testing import CliRunner; from loadmanager_api.cli.main import main\n"
        "print(CliRunner().invoke(main, sys.argv[1:]).output)\n"
        "print([name for name in ('fastapi', 'starlette') if name in sys.modules])\n"
    )
    arguments = ("what-if", "--add-brokers", "1", "--log", f"sqlite:{tmp_path}/cluster.db")
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code, *arguments], capture_output=True)
    answer, loaded = done.stdout.decode().strip().rsplit("\n", 1)
    assert "no decision is recorded" in answer
    assert loaded == "[]"
