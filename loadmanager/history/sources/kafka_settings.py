"""The setting `kafka` in the words of Kafka's Java client, which Spark uses: brokers use librdkafka, and its names.

What is about security is translated, or refused with a word on what to write instead: a job must not connect with less
than brokers do. The rest (compression, buffers, time-outs of producers) means nothing to a reader and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loadmanager.errors import Invalid

JAVA = "kafka."
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_STORES = {
    "ssl.ca": ("ssl.truststore.type", "ssl.truststore.certificates"),
    "ssl.certificate": ("ssl.keystore.type", "ssl.keystore.certificate.chain"),
    "ssl.key": ("ssl.keystore.type", "ssl.keystore.key"),
}
"""Each is given as `….location`, a file, or `….pem`, its content. Spark gets the content: executors lack the file."""
_NAMES = {"security.protocol": "security.protocol", "ssl.key.password": "ssl.key.password", "client.id": "client.id"}
_MECHANISM, _MECHANISMS = "sasl.mechanism", "sasl.mechanisms"
_IDENTIFICATION = "ssl.endpoint.identification.algorithm"
_SECURITY = ("sasl.", "ssl.", "security.", "enable.ssl", "enable.sasl", "oauthbearer")


def librdkafka_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Those that are librdkafka's own."""
    return {name: value for name, value in settings.items() if not name.startswith(JAVA)}


def java_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """The Java client's, each with `kafka.` before it. Raises Invalid for what has no counterpart there."""
    given = {name: value for name, value in settings.items() if name.startswith(JAVA)}
    ours = librdkafka_settings(settings)
    found: dict[str, str] = {}
    for name, value in ours.items():
        found |= _translated(name, value)
    if _MECHANISM in found and f"{JAVA}sasl.jaas.config" not in given:
        found["sasl.jaas.config"] = _login(found[_MECHANISM], ours)
    return {JAVA + name: value for name, value in found.items()} | given


def _translated(name: str, value: str) -> dict[str, str]:
    store, _, kind = name.rpartition(".")
    if name in _NAMES:
        return {_NAMES[name]: value.upper() if name == "security.protocol" else value}
    if name in (_MECHANISM, _MECHANISMS):
        return {_MECHANISM: value}
    if name == _IDENTIFICATION:
        return {name: "" if value == "none" else value}
    if store in _STORES and kind in ("location", "pem"):
        type_name, content_name = _STORES[store]
        return {type_name: "PEM", content_name: _content(value) if kind == "location" else value}
    if name.startswith(_SECURITY) and name not in ("sasl.username", "sasl.password"):
        instead = f"give the Java client's own setting as well, as `{JAVA}…`"
        raise Invalid(f"librdkafka's setting {name} has no counterpart in Spark's Kafka client: {instead}")
    return {}


def _login(mechanism: str, settings: Mapping[str, str]) -> str:
    if mechanism not in _LOGIN_MODULES:
        raise Invalid(
            f"Spark's Kafka client needs a Java setting to log in by {mechanism}: give {JAVA}sasl.jaas.config too"
        )
    user, password = (_quoted(settings.get(f"sasl.{part}", "")) for part in ("username", "password"))
    return f"{_LOGIN_MODULES[mechanism]} required username={user} password={password};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Invalid(f"the setting `kafka` names a file that cannot be read: {error}") from error
