"""What `loadmanager check` says of settings, of the machine, and of stores that hang or fail."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadmanager import Broker
from loadmanager.broker.wiring import auditors, open_coordination, open_log
from loadmanager.diagnostics.broker_clocks import Report, judge_clocks
from loadmanager.diagnostics.check import (
    Clocks,
    Versions,
    check,
    check_clocks,
    check_versions,
    read_clocks,
    read_versions,
    worst,
)
from loadmanager.diagnostics.settings_check import check_settings, failover_s
from loadmanager.diagnostics.topics import topics_of
from loadmanager.model.load import BROKERS_TOPIC, BrokerLoadData
from loadmanager.settings import Settings
from statechannel.audit import Finding, Severity
from statechannel.errors import LogUnavailable
from statechannel.law.record import BrokerId
from statechannel.ports import Log, Payload, TopicSpec
from statechannel.runtime.view import wall_clock_ms
from tests.servers import KafkaServer, ZooKeeperServer, coordination_root, topic_prefix

KAFKA: dict[str, Any] = {"log": "kafka://k:9092", "coordination": "zookeeper://z:2181", "advertised": "b1:8080"}


def severities(findings: Sequence[Finding]) -> dict[str, Severity]:
    return {finding.subject: finding.severity for finding in findings}


def of(subject: str, findings: Sequence[Finding]) -> Finding:
    [found] = [finding for finding in findings if finding.subject == subject]
    return found


def test_the_defaults_are_fine():
    assert worst(check_settings(Settings())) is Severity.OK
    assert worst(check_settings(Settings(**KAFKA))) is Severity.OK


@pytest.mark.parametrize(
    ("subject", "advice", "given"),
    [
        ("settings: sessions", "twice proof_validity_s", {"session_timeout_s": 3, "proof_validity_s": 2}),
        ("settings: failover", "503", {"lookup_timeout_s": 1}),
        ("settings: moves", "above host_acquire_timeout_s", {"host_acquire_timeout_s": 40}),
        ("settings: drain", "stays behind", {"drain_timeout_s": 12}),
        ("settings: retention", "a day", {"log_retention_s": 3600}),
        ("settings: address", "all others reach", {**KAFKA, "advertised": "127.0.0.1:8080"}),
        ("settings: stores", "one machine", {**KAFKA, "coordination": "sqlite:x"}),
        ("settings: endpoints", "trusted", {"insecure": True}),
        ("settings: replication", "production", {**KAFKA, "development": True}),
        ("settings: replication", "stops all writes", {**KAFKA, "replication": 3, "min_insync_replicas": 3}),
    ],
)
def test_what_would_cost_availability_is_a_warning_that_says_what_to_set(
    subject: str, advice: str, given: dict[str, object]
):
    found = of(subject, check_settings(Settings.model_validate(given)))
    assert found.severity is Severity.WARNING
    assert advice in found.advice


@pytest.mark.parametrize(
    ("subject", "advice", "given"),
    [
        ("settings: replication", "refuses to start", {**KAFKA, "min_insync_replicas": 1}),
        ("settings: placement", "least-loaded", {"placement": "nonsense"}),
        ("settings: balancing_strategy", "plan", {"balancing_strategy": "nonsense"}),
    ],
)
def test_what_keeps_a_broker_from_starting_is_an_error(subject: str, advice: str, given: dict[str, object]):
    found = of(subject, check_settings(Settings.model_validate(given)))
    assert found.severity is Severity.ERROR
    assert advice in found.advice


def test_the_time_of_a_failover_grows_with_the_proofs():
    assert failover_s(Settings(proof_validity_s=4)) - failover_s(Settings(proof_validity_s=2)) == pytest.approx(2.1)


# --- the machine


def test_this_machine_has_the_clock_that_proofs_need():
    assert read_clocks().boot
    assert severities(list(check_clocks(Clocks(boot=True, kept=True)))) == {"clock": Severity.OK}


def test_it_is_said_what_tells_of_a_pause_of_this_machine():
    assert read_clocks().outside
    found = list(check_clocks(Clocks(boot=True, kept=True, outside=("the clock of its KVM host",))))
    assert "the clock of its KVM host tells whether this machine was paused" in found[-1].found


def test_clocks_that_are_missing_or_left_alone_are_told():
    assert worst(list(check_clocks(Clocks(boot=False, kept=None)))) is Severity.ERROR
    assert worst(list(check_clocks(Clocks(boot=True, kept=False)))) is Severity.WARNING


def test_the_versions_here_are_good_enough():
    assert worst(list(check_versions(read_versions(), Settings(**KAFKA)))) is Severity.OK
    assert worst(list(check_versions(read_versions(), Settings()))) is Severity.OK


def test_old_or_missing_versions_are_errors_only_where_they_are_needed():
    bare = Versions(python=(3, 11, 0), sqlite=(3, 31, 1), confluent_kafka=None, librdkafka=None, kazoo=None)
    told = [finding.advice for finding in check_versions(bare, Settings(**KAFKA)) if finding.advice]
    extras = ("kafka", "zookeeper", "planner")
    assert told == [f"pip install 'loadmanager[{extra}]'" for extra in extras]
    [found] = [finding for finding in check_versions(bare, Settings()) if finding.severity is Severity.ERROR]
    assert "3.35" in found.advice


# --- a round


async def test_hanging_or_failing_store_is_an_error_and_others_are_checked():
    ended: list[str] = []

    async def hangs() -> AsyncIterator[Finding]:
        try:
            yield Finding("before", Severity.OK, "fine")
            await asyncio.Event().wait()
        finally:
            ended.append("hangs")

    async def fails() -> AsyncIterator[Finding]:
        yield Finding("so far", Severity.OK, "fine")
        raise LogUnavailable("no Kafka\nat k:9092")

    async def works() -> AsyncIterator[Finding]:
        yield Finding("third", Severity.OK, "fine")

    found = await check(Settings(), {"first": hangs, "second": fails, "third": works}, timeout_s=0.05)
    assert "0.05 s" in of("first", found).found
    assert of("before", found).severity is Severity.OK
    assert ended == ["hangs"]
    assert of("second", found).found == "no Kafka at k:9092"
    assert of("so far", found).severity is Severity.OK
    assert of("third", found).severity is Severity.OK
    assert worst(found) is Severity.ERROR


def test_a_client_that_is_not_installed_is_one_line_that_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    for module in list(sys.modules):
        if module.startswith(("statechannel.adapters.kafka", "statechannel.adapters.zookeeper.coordination")):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    monkeypatch.setitem(sys.modules, "kazoo", None)
    for module in [name for name in sys.modules if name.startswith(("kazoo.", "confluent_kafka."))]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ValueError, match=r"pip install 'loadmanager\[kafka\]'"):
        open_log(Settings(**KAFKA))
    with pytest.raises(ValueError, match=r"pip install 'loadmanager\[zookeeper\]'"):
        open_coordination(Settings(**KAFKA))


def test_there_is_an_auditor_for_each_store():
    for settings in (Settings(), Settings(**KAFKA)):
        assert set(auditors(settings)) == {"log", "coordination"}
    for given, says in (
        ({"log": "kafka://k:9092"}, "zookeeper://host:port"),
        ({"log": "nonsense:x", "coordination": "sqlite:x"}, "nonsense:x"),
        ({**KAFKA, "log": "kafka://k"}, "kafka://host:port"),
        ({**KAFKA, "coordination": "zookeeper://"}, "zookeeper://host:port"),
        ({**KAFKA, "coordination": "kafka://k:1"}, "no coordination"),
    ):
        with pytest.raises(ValueError, match=says):
            auditors(Settings.model_validate(given))


async def test_the_topics_that_are_looked_at_are_those_that_a_broker_opens(tmp_path: Path):
    settings = Settings(log=f"sqlite:{tmp_path / 'lm.db'}", partitions=3, advertised="127.0.0.1:0")
    async with Broker(settings=settings, endpoint=False):
        pass
    with sqlite3.connect(tmp_path / "lm.db") as db:
        there = {TopicSpec(*row) for row in db.execute("SELECT name, partitions, compacted FROM topics")}
    db.close()
    assert there == {
        msgspec.structs.replace(spec, compacted=int(spec.compacted), followed=False) for spec in topics_of(settings)
    }


async def say_loads(log: Log) -> None:
    """Load reports of two brokers whose clocks are a minute wrong, and of one whose clock is right."""
    for name, off_ms in (("ahead:1", 60_000), ("behind:1", -60_000), ("right:1", 0)):
        load = BrokerLoadData(BrokerId(name, 1), wall_clock_ms() + off_ms)
        await log.append(BROKERS_TOPIC, 0, [Payload(name.encode(), msgspec.json.encode(load))])


def test_clocks_within_the_bound_are_one_finding():
    reports = {"a:1": Report(100_000, 100_500), "b:1": Report(129_000, 100_000)}
    [found] = judge_clocks(reports)
    assert (found.severity, found.found) == (Severity.OK, "2 within 30 s of Kafka's, at their last load reports")
    assert not list(judge_clocks({}))


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.zookeeper
async def test_real_servers_are_looked_at_before_and_after_there_is_a_cluster(
    kafka_server: KafkaServer, zookeeper_server: ZooKeeperServer
):
    settings = Settings(
        log=f"kafka://{kafka_server.address}",
        coordination=f"zookeeper://{zookeeper_server.address}{coordination_root('check')}",
        topic_prefix=topic_prefix("check"),
        advertised="127.0.0.1:0",
        development=True,
        partitions=2,
    )
    before = await check(settings, auditors(settings))
    assert not [f for f in before if f.severity is Severity.ERROR and "settings" not in f.subject]
    async with Broker(settings=settings, endpoint=False) as broker:
        during = await check(settings, auditors(settings))
        await broker.ask(lambda node: say_loads(node.world.log))
        with_wrong_clocks = await check(settings, auditors(settings))
    assert not [f for f in during if f.severity is Severity.ERROR]
    clocks = [f for f in with_wrong_clocks if f.subject == "clocks of brokers"]
    assert {f.severity for f in clocks} == {Severity.WARNING}
    assert [re.sub(r"\d+ s", "N s", f.found) for f in clocks] == [
        "the clock of ahead:1 was N s ahead of Kafka's at its last load report",
        "the clock of behind:1 was N s behind Kafka's at its last load report",
    ]
    assert "within 30 s is fine" in clocks[0].advice
    assert any(settings.topic_prefix in f.subject + f.found for f in during)
    assert any(f.subject.startswith("zookeeper") for f in during)
