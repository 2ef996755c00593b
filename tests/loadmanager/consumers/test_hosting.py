"""What the host of the coordinator refuses before it opens anything."""

from __future__ import annotations

import pytest

from loadmanager.consumer.hosting import GroupHost
from loadmanager.errors import Invalid
from loadmanager.settings import Settings

KAFKA = "kafka://127.0.0.1:1"


def test_a_port_that_others_reach_is_refused() -> None:
    with pytest.raises(Invalid, match=r"LOADMANAGER_GROUPS_LISTEN=0.0.0.0:8090 can be reached from other machines"):
        GroupHost(Settings(log=KAFKA), "0.0.0.0:8090")


def test_groups_need_a_kafka() -> None:
    with pytest.raises(Invalid, match="not on Kafka"):
        GroupHost(Settings(log="sqlite:cluster.db"), "127.0.0.1:0")


def test_an_address_has_a_port() -> None:
    with pytest.raises(ValueError, match="write host:port"):
        GroupHost(Settings(log=KAFKA), "127.0.0.1")
