"""An ingest from a Kafka that wants a password under TLS: the settings are the brokers' own, from the environment."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner, Result

from loadmanager.errors import Invalid
from loadmanager.history.ingest import Ingest, Options
from loadmanager.history.lake import Lake
from loadmanager.history.sources import TOPICS, KafkaSource
from loadmanager_api.cli.main import main
from stack.kafka_security import SCRAM, TLS
from stack.servers import HOST, KafkaServer
from tests.history.engines.submitting import options, write
from tests.history.ingest import material
from tests.history.ingest.comparing import missed
from tests.servers import topic_prefix

PASSWORD = "a password of its own"
WRONG_PASSWORD = "Authentication failed: Invalid username or password"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
OTHER_AUTHORITY = trustme.CA().cert_pem.bytes().decode()
LOG = material.records(31, reports=20, steps=20)

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Generator[KafkaServer]:
    server = KafkaServer(tmp_path_factory.mktemp("guarded-kafka"), users={"loadmanager": PASSWORD})
    server.start()
    yield server
    server.kill()


def settings(server: KafkaServer, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    """As brokers have them."""
    assert server.security is not None
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.username": "loadmanager",
        "sasl.password": password,
        "ssl.ca.location": str(server.security.certificate),
    }


@pytest.fixture
def source(guarded: KafkaServer) -> KafkaSource:
    """Topics with records, on the listener with TLS."""
    address = f"{HOST}:{guarded.listener_port(TLS)}"
    made = KafkaSource(address, topic_prefix("history.security"), settings(guarded, "PLAIN"))
    write(made, LOG)
    return made


def ingest(source: KafkaSource, lake: Lake, kafka: dict[str, str]) -> Result:
    command = ["history", "ingest", *options(source, Path(lake.root)), "--set", "start_timeout_s=10"]
    return CliRunner().invoke(main, command, env={"LOADMANAGER_KAFKA": json.dumps(kafka)})


@pytest.mark.parametrize("mechanism", ["PLAIN", SCRAM])
def test_a_login_under_tls_is_the_brokers_own(guarded, source, spark, lake, mechanism):
    done = ingest(source, lake, settings(guarded, mechanism))
    assert done.exit_code == 0, done.output
    assert missed(lake, source.read(spark, TOPICS)) == ""


@pytest.mark.parametrize("mechanism", ["PLAIN", SCRAM])
def test_a_wrong_password_is_named_before_anything_is_read(guarded, source, lake, mechanism):
    done = ingest(source, lake, settings(guarded, mechanism, "wrong one"))
    assert done.exit_code == 3
    [said] = done.output.splitlines()
    assert "authentication failed" in said.lower()
    assert "wrong one" not in done.output
    assert not lake.exists("bronze")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"kafka.sasl.jaas.config": f'{LOGIN} required username="loadmanager" password="wrong one";'}, WRONG_PASSWORD),
        ({"kafka.ssl.truststore.certificates": OTHER_AUTHORITY}, "SSL handshake failed"),
    ],
    ids=["password", "authority"],
)
def test_what_only_sparks_client_is_refused_for_is_named_too(source, lake, changed, says):
    other = KafkaSource(source.bootstrap, source.prefix, {**source.options, **changed})
    with pytest.raises(Invalid, match=f"Kafka refused Spark's client: {says}. Correct the setting `kafka`") as refused:
        Ingest(lake, other, Options(partitions=material.PARTITIONS)).run_available()
    assert "wrong one" not in str(refused.value)
