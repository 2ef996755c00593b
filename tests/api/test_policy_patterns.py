"""A policy's regular expressions at a running broker: none holds it up, and what the log has of others stops nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from loadmanager.documents.fold import POLICIES_TOPIC, Entry
from loadmanager.model.policies.codec import encode, key_of
from loadmanager.model.policies.model import IsolationPolicy, Kind
from loadmanager_api.cli.main import main
from statechannel.adapters.sqlite.log import SqliteLog
from statechannel.ports import Payload, TopicSpec
from tests.api.conftest import Cluster
from tests.api.test_cli import broker_process, ready_name

PATIENCE_S = 30.0
EVIL = ("(?i)x/(aa|Aa)*=", "(?i)x/(a|A)*(a|A)*(a|A)*(a|A)*=", "x/(a?){60}a{60}=")
LONG = "x/" + "a" * 60


async def command(url: str, *arguments: str) -> Result:
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.to_thread(CliRunner().invoke, main, ["--admin-url", url, *arguments])


def policy(*namespaces: str) -> str:
    return json.dumps({"namespaces": namespaces, "primary": ["nobody:1"]})


@pytest.mark.slow
async def test_no_pattern_holds_a_broker_up(tmp_path: Path):
    """A backtracking matcher needs hours for each of them, and then again after each restart."""
    async with broker_process(tmp_path, "--listen", "127.0.0.1:0") as process:
        url = f"http://{await ready_name(process)}"
        assert (await command(url, "namespaces", "create", LONG, "--bundles", "1")).exit_code == 0
        for number, pattern in enumerate(EVIL):
            made = await command(url, "policies", "set", "isolation", f"evil-{number}", policy(pattern), "--force")
            assert made.exit_code == 0, made.output
        found = await command(url, "topics", "lookup", f"{LONG}/t", "-o", "json")
    assert found.exit_code == 0, found.output


async def written_before(path: Path, documents: Sequence[tuple[str, IsolationPolicy]]) -> None:
    """As a release wrote them that took such patterns."""
    log = SqliteLog(path)
    await log.start(PATIENCE_S)
    try:
        await log.open_topic(TopicSpec(POLICIES_TOPIC, 1, compacted=False))
        seen: dict[str, int] = {}
        for number, (name, isolation) in enumerate(documents):
            key = key_of(Kind.ISOLATION, name)
            entry = Entry(f"old.{number}", key, seen.get(key, 0), msgspec.Raw(encode(isolation)), "ann")
            seen[key] = entry.seen + 1
            await log.append(POLICIES_TOPIC, 0, [Payload(key.encode(), msgspec.json.encode(entry))])
    finally:
        await log.close()


@pytest.mark.slow
async def test_a_pattern_in_the_log_that_is_refused_today_stops_nobody_and_is_told(tmp_path: Path):
    def isolating(*namespaces: str) -> IsolationPolicy:
        return IsolationPolicy(namespaces=namespaces, primary=("nobody:1",))

    before = isolating("pay/.*")
    await written_before(
        tmp_path / "lm.db",
        [
            ("pay", before),
            ("pay", isolating("pay/(?!test).*")),
            ("new", isolating("(?!infra/).*")),
            ("large", isolating(*["(.{1,30}){1,30}"] * 3)),
            ("slow", isolating("(?i)x/(aa|Aa)*=")),
        ],
    )
    async with broker_process(tmp_path, "--listen", "127.0.0.1:0") as process:
        url = f"http://{await ready_name(process)}"
        assert (await command(url, "namespaces", "create", LONG, "--bundles", "1")).exit_code == 0
        assert (await command(url, "topics", "lookup", f"{LONG}/t")).exit_code == 0, (
            "what is not in force forbids nothing"
        )
        listed = json.loads((await command(url, "policies", "list", "-o", "json")).stdout)["policies"]
        defects = {each["name"]: each["defect"] for each in listed}
        assert "(?!" in defects["pay"]
        assert "(?!" in defects["new"]
        assert "too large" in defects["large"]
        assert defects["slow"] == ""
        assert [each["policy"] for each in listed if each["name"] == "pay"] == [json.loads(msgspec.json.encode(before))]
        shown = await command(url, "policies", "show", "isolation", "new")
        assert "not in force" in shown.stdout
        assert (await command(url, "ns-isolation-policy", "get", "standalone", "new")).exit_code == 1
        assert (await command(url, "policies", "delete", "isolation", "new")).exit_code == 0
        again = await command(url, "policies", "set", "isolation", "pay", policy("pay/x"), "--force", "-o", "json")
        assert json.loads(again.stdout)["version"] == 3


async def test_a_pattern_that_is_refused_is_told_in_one_line(cluster: Cluster, subtests: pytest.Subtests):
    await cluster.start()
    for pattern in ("(?!pay/).*", "(.{1,30}){1,30}"):
        with subtests.test(pattern=pattern):
            refused = await command(cluster.brokers[0].url, "policies", "set", "isolation", "p", policy(pattern))
            assert refused.exit_code == 1
            assert "not a regular expression (in RE2's syntax)" in refused.stderr
            assert refused.stderr.count("\n") == 1
