"""The brokers' setting `kafka` in Spark's words: with the same security, or not at all."""

from __future__ import annotations

import pytest

from loadmanager.errors import Invalid
from loadmanager.history.sources.kafka import java_settings, librdkafka_settings


def test_a_login_is_one_line_of_javas():
    settings = {"security.protocol": "sasl_ssl", "sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "ann"}
    assert java_settings({**settings, "sasl.password": 'a "\\ b'}) == {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ann" password="a \\"\\\\ b";',
    }


def test_certificates_go_along_by_content(tmp_path):
    (tmp_path / "ca.pem").write_text("authority")
    given = {"ssl.ca.location": f"{tmp_path}/ca.pem", "ssl.certificate.pem": "mine", "ssl.key.pem": "key"}
    assert java_settings({**given, "ssl.endpoint.identification.algorithm": "none"}) == {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "authority",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.certificate.chain": "mine",
        "kafka.ssl.keystore.key": "key",
        "kafka.ssl.endpoint.identification.algorithm": "",
    }


def test_what_is_not_about_security_is_left_out_and_what_is_javas_own_goes_over_the_rest():
    settings = {"compression.type": "lz4", "client.id": "x", "kafka.client.id": "y", "kafka.fetch.max.wait.ms": "100"}
    assert java_settings(settings) == {"kafka.client.id": "y", "kafka.fetch.max.wait.ms": "100"}
    assert librdkafka_settings(settings) == {"compression.type": "lz4", "client.id": "x"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"enable.ssl.certificate.verification": "false"}, "has no counterpart"),
        ({"ssl.keystore.location": "x.p12"}, "has no counterpart"),
        ({"sasl.mechanism": "GSSAPI"}, "give kafka.sasl.jaas.config"),
        ({"ssl.ca.location": "nowhere.pem"}, "cannot be read"),
    ],
)
def test_what_cannot_be_said_in_javas_words_is_refused(settings, says):
    with pytest.raises(Invalid, match=says):
        java_settings(settings)


def test_a_login_in_javas_own_words_is_taken_as_it_is():
    given = {"kafka.sasl.jaas.config": "Krb5 required;"}
    assert java_settings({"sasl.mechanism": "GSSAPI", **given}) == {"kafka.sasl.mechanism": "GSSAPI", **given}
