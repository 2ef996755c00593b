"""A broker's place, identity and stores; all fixed while it runs."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic_settings import BaseSettings

from loadmanager.settings.describing import fixed


class Place(BaseSettings):
    """Cluster, addresses, identity."""

    cluster: str = fixed("standalone", "name of the cluster; tied to its log for ever", pattern=r"^[\w.-]+$")
    advertised: str = fixed("127.0.0.1:0", "host:port by which others know this broker; its name")
    log: str = fixed("sqlite:loadmanager.db", "sqlite:FILE or kafka://host:port[,host:port…]", "needs no server")
    coordination: str | None = fixed(None, "sqlite:FILE or zookeeper://host:port[,…][/root]; default: as log")
    partitions: int | None = fixed(
        None, "of the channel, at creation; default 4, Kafka 16", "more than brokers: their work spreads", ge=1, le=1024
    )
    topic_prefix: str = fixed(
        "loadmanager.", "prefix of every Kafka topic of this cluster", "several clusters can share a Kafka"
    )
    replication: int = fixed(3, "of Kafka topics at creation", "one lost machine loses nothing", ge=1)
    min_insync_replicas: int = fixed(2, "of Kafka topics at creation", "one machine down stops no writes", ge=1)
    development: bool = fixed(
        False,
        "accept a Kafka without replication, and a ZooKeeper that everybody may change",
        "a lost disk must not lose the channel",
    )
    kafka: Mapping[str, str] = fixed(dict, "passed through to librdkafka (SASL, TLS)")
    zookeeper: Mapping[str, str] = fixed(dict, "passed through to kazoo (auth, TLS)")
    insecure: bool = fixed(
        False,
        "listen where other machines reach it, although anybody may do anything or read what is sent, "
        "and use a ZooKeeper that everybody may change",
        "a broker without authentication and TLS is for one machine",
    )
    history_dir: str | None = fixed(
        None, "folder in which the load history's jobs publish; served below /v1/history", "only who runs them has one"
    )
    start_timeout_s: float = fixed(
        60.0,
        "until log and coordination must have answered at start",
        "servers that start at the same time get their minute",
        gt=0,
    )

    failure_domain: str = fixed("", "rack or zone")
    capacity: Mapping[str, float] = fixed(dict, "declared: cpu (cores), memory_bytes, …", "else what is measured")
    properties: Mapping[str, str] = fixed(dict, "free; their names are shown, their values are not")
