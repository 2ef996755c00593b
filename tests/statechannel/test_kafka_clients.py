"""What of Kafka's clients reaches the log of a process."""

from __future__ import annotations

import logging

from statechannel.adapters.kafka.clients import CLIENTS_FORM, Sparing


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
