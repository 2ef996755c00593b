"""Which settings Kafka's clients always have, and what of them reaches the log of a process."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from statechannel.adapters.kafka.clients import (
    CLIENTS_FORM,
    PROTECTED,
    Sparing,
    check_client_settings,
    connection_settings,
    consumer_settings,
    exclusive_settings,
    producer_settings,
    reading_settings,
)
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.errors import LogError
from statechannel.runtime.batching import BatchSettings

WRITES: dict[str, Any] = {"acks": "all", "enable.idempotence": True}
READS: dict[str, Any] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
}
THEIRS: dict[str, Any] = {
    "acks": "1",
    "enable.idempotence": False,
    "auto.offset.reset": "latest",
    "enable.auto.commit": True,
    "enable.auto.offset.store": True,
    "isolation.level": "read_uncommitted",
}


def test_client_logs_each_thing_once_in_ten_seconds_and_no_trivia():
    sparing = Sparing()

    def passes(created: float, message: str, *args: object) -> bool:
        record = logging.LogRecord("kafka", logging.WARNING, "", 0, message, args, None)
        record.created = created
        return sparing.filter(record)

    assert passes(100, CLIENTS_FORM, "FAIL", "client", "refused")
    assert not passes(101, CLIENTS_FORM, "FAIL", "client", "refused again")
    assert passes(101, CLIENTS_FORM, "REQTMOUT", "client", "timed out")
    assert passes(111, CLIENTS_FORM, "FAIL", "client", "refused")
    assert passes(101, "ours %s", "a")
    assert not passes(102, "ours %s", "b")
    ignored = "Configuration property linger.ms is a producer property and will be ignored by this consumer instance"
    assert not passes(101, CLIENTS_FORM, "CONFWARN", "client", ignored)


@pytest.mark.parametrize("theirs", [{}, THEIRS], ids=["defaults", "overridden"])
def test_all_replicas_take_an_entry_and_readers_never_jump_whatever_the_settings_of_the_connection(theirs):
    connection = connection_settings("k:9092", theirs, 30.0)
    for writes in (producer_settings(connection, 30.0), exclusive_settings(connection, 30.0, "w")):
        assert {name: writes[name] for name in WRITES} == WRITES
    for reads in (consumer_settings(connection), reading_settings(connection)):
        assert {name: reads[name] for name in READS} == READS


@pytest.mark.parametrize("name", sorted(THEIRS))
def test_a_setting_on_which_guarantees_depend_is_refused_by_name(name: str):
    assert name in PROTECTED
    with pytest.raises(LogError, match=f"must not contain {name}: the channel needs its own values"):
        check_client_settings({name: str(THEIRS[name]), "compression.type": "zstd"})
    check_client_settings({"compression.type": "zstd"})


def test_a_batch_is_not_older_than_an_append_may_wait():
    longest = BatchSettings(batch_max_delay_ms=4_999)
    KafkaLog("kafka:9092", batching=longest, request_timeout_s=5.0)
    with pytest.raises(LogError, match=r"batch_max_delay_ms is 5,000, .* after 5 s \(request_timeout_s\)"):
        KafkaLog("kafka:9092", batching=BatchSettings(batch_max_delay_ms=5_000), request_timeout_s=5.0)
    KafkaLog("kafka:9092", batching=BatchSettings(batch_max_delay_ms=5_000), client_settings={"linger.ms": "0"})
