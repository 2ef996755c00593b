"""The host of the coordinator refuses a log that is not on Kafka before it opens anything."""

from __future__ import annotations

import pytest

from loadmanager.consumer.hosting import GroupHost
from loadmanager.errors import Invalid
from loadmanager.settings import Settings


def test_groups_need_a_kafka() -> None:
    with pytest.raises(Invalid, match="not on Kafka"):
        GroupHost(Settings(log="sqlite:cluster.db"))
