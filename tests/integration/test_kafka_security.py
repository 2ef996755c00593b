"""A Kafka that asks who is there: what `client_settings` says reaches each of the adapter's clients."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from stack.kafka_security import PROTOCOLS, SASL, TLS
from stack.servers import HOST, KafkaServer
from statechannel.adapters.kafka.audit import audit_kafka
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.audit import Severity
from statechannel.errors import LogError, LogUnavailable
from statechannel.ports import Payload, TopicSpec
from tests.servers import topic_prefix

pytestmark = pytest.mark.kafka

WAIT_S = 60
PASSWORD = "a password of its own"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Generator[KafkaServer]:
    directory: Path = tmp_path_factory.mktemp("guarded-kafka")
    users = {"loadmanager": PASSWORD, "stranger": PASSWORD}
    server = KafkaServer(directory, users=users, powerless={"stranger"})
    server.start()
    yield server
    server.kill()


@pytest.fixture
def prefix() -> str:
    return topic_prefix("kafka-security")


def credentials(server: KafkaServer, listener: str, password: str = PASSWORD) -> dict[str, str]:
    settings = {
        "security.protocol": PROTOCOLS[listener],
        "sasl.mechanism": "PLAIN",
        "sasl.username": "loadmanager",
        "sasl.password": password,
    }
    if listener == TLS:
        assert server.security is not None
        settings["ssl.ca.location"] = str(server.security.certificate)
    return settings


def stranger(server: KafkaServer) -> dict[str, str]:
    return credentials(server, SASL) | {"sasl.username": "stranger"}


def log_at(server: KafkaServer, listener: str, prefix: str, settings: dict[str, str]) -> KafkaLog:
    address = f"{HOST}:{server.listener_port(listener)}"
    return KafkaLog(address, topic_prefix=prefix, development=True, client_settings=settings, request_timeout_s=30.0)


@asynccontextmanager
async def started(
    server: KafkaServer, listener: str, prefix: str, settings: dict[str, str]
) -> AsyncGenerator[KafkaLog]:
    log = log_at(server, listener, prefix, settings)
    await log.start(timeout_s=WAIT_S)
    try:
        yield log
    finally:
        await log.close()


@pytest.mark.slow
@pytest.mark.parametrize("listener", [SASL, TLS])
async def test_every_client_says_who_it_is(guarded, prefix, listener):
    async with asyncio.timeout(WAIT_S), started(guarded, listener, prefix, credentials(guarded, listener)) as log:
        assert await log.open_topic(TopicSpec("channel", 1)) == 1
        await log.append("channel", 0, [Payload(None, b"appended")])
        writer = await log.exclusive("writer")
        await writer.commit("channel", 0, [Payload(None, b"committed")])
        async with aclosing(log.tail("channel", [0])) as tail:
            tailed = [e.value for e in await anext(tail)]
        assert tailed[:1] == [b"appended"]
        assert [e.value async for b in log.read("channel", 0, 0) for e in b] == [b"appended", b"committed"]
        await log.trim("channel", 0, 1)
        assert await log.begins("channel") == (1,)


@pytest.mark.slow
@pytest.mark.parametrize("listener", [SASL, TLS])
async def test_a_wrong_password_is_named_as_the_cause(guarded, prefix, listener, caplog):
    log = log_at(guarded, listener, prefix, credentials(guarded, listener, "wrong"))
    with pytest.raises(LogUnavailable, match=r"(?i)authentication failed.*invalid username or password"):
        await log.start(timeout_s=5)
    await log.close()
    assert "wrong" not in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("listener", [SASL, TLS])
async def test_no_password_at_all_is_named_as_the_cause(guarded, prefix, listener):
    log = log_at(guarded, listener, prefix, {})
    with pytest.raises(LogUnavailable, match=r"security\.protocol or sasl\.mechanism"):
        await log.start(timeout_s=5)
    await log.close()


@pytest.mark.slow
async def test_a_certificate_that_nobody_vouches_for_is_refused_and_named(guarded, prefix):
    settings = credentials(guarded, TLS) | {"ssl.ca.location": ssl.get_default_verify_paths().cafile or ""}
    log = log_at(guarded, TLS, prefix, {name: value for name, value in settings.items() if value})
    with pytest.raises(LogUnavailable, match=r"(?i)certificate verify failed|issuer"):
        await log.start(timeout_s=5)
    await log.close()


# --- rights
@pytest.mark.slow
async def test_a_user_without_rights_is_told_which_it_needs_and_at_once(guarded, prefix, monkeypatch):
    monkeypatch.setattr("statechannel.adapters.kafka.topics.OPEN_TIMEOUT_S", 2 * WAIT_S)
    monkeypatch.setattr("statechannel.adapters.kafka.transactions.TAKE_OVER_S", 2 * WAIT_S)
    async with asyncio.timeout(WAIT_S), started(guarded, SASL, prefix, stranger(guarded)) as log:
        with pytest.raises(LogUnavailable, match=r"(?i)authorization failed.*allow this user"):
            await log.open_topic(TopicSpec("channel", 1))
        with pytest.raises(LogUnavailable, match=r"(?i)authorization failed"):
            await log.append("channel", 0, [Payload(None, b"appended")])
        with pytest.raises(LogError, match=r"(?i)authorization failed.*transactional ids"):
            await log.exclusive("writer")


async def test_an_audit_without_rights_says_what_it_may_not_see(guarded, prefix):
    address = f"{HOST}:{guarded.listener_port(SASL)}"
    findings = await audit_kafka(
        address, [TopicSpec("channel")], topic_prefix=prefix, development=True, client_settings=stranger(guarded)
    )
    severities = {finding.subject: finding.severity for finding in findings}
    assert severities[f"kafka: topic {prefix}channel"] is Severity.ERROR
    assert severities["kafka: brokers"] is Severity.WARNING


async def test_an_audit_with_a_wrong_password_says_so(guarded, monkeypatch):
    monkeypatch.setattr("statechannel.adapters.kafka.audit.CONNECT_TIMEOUT_S", 2.0)
    address = f"{HOST}:{guarded.listener_port(TLS)}"
    [found] = await audit_kafka(address, [], client_settings=credentials(guarded, TLS, "wrong"))
    assert found.severity is Severity.ERROR
    assert "invalid username or password" in found.found.lower()


# --- noise
async def test_settings_that_only_some_clients_know_cause_no_noise(guarded, prefix, caplog):
    settings = credentials(guarded, SASL) | {"compression.type": "lz4", "fetch.min.bytes": "1"}
    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(WAIT_S), started(guarded, SASL, prefix, settings) as log:
            await log.open_topic(TopicSpec("channel", 1))
            await log.append("channel", 0, [Payload(None, b"appended")])
            async with aclosing(log.tail("channel", [0])) as tail:
                assert [e.value for e in await anext(tail)] == [b"appended"]
    assert "CONFWARN" not in caplog.text
