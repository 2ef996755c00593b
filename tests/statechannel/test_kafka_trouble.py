"""When a Kafka client counts as one that asks no server ever again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from statechannel.adapters.kafka.trouble import Trouble, watched


def statistics(**sources: str) -> str:
    brokers = {name: {"name": name, "source": source, "state": "DOWN"} for name, source in sources.items()}
    return json.dumps({"name": "client", "brokers": brokers, "topics": {}})


@pytest.mark.parametrize(
    ("sources", "stranded"),
    [
        ({}, True),
        ({"coordinator": "logical"}, True),
        ({"coordinator": "logical", "own": "internal"}, True),
        ({"first": "configured"}, False),
        ({"first": "learned", "coordinator": "logical"}, False),
    ],
)
def test_client_that_knows_no_server_of_its_own_is_stranded(sources: dict[str, str], stranded: bool):
    trouble = Trouble()
    watched({}, trouble)["stats_cb"](statistics(**sources))
    assert trouble.stranded is stranded
    trouble.count(statistics(first="learned"))
    assert not trouble.stranded, "it was too early to tell"


def test_statistics_that_the_user_asked_for_go_to_them_as_well():
    seen: list[str] = []
    theirs: dict[str, Any] = {"stats_cb": seen.append, "statistics.interval.ms": 500, "client.id": "c"}
    trouble = Trouble()
    settings = watched(theirs, trouble)
    settings["stats_cb"](statistics())
    assert (len(seen), trouble.stranded) == (1, True)
    assert (settings["statistics.interval.ms"], settings["client.id"]) == (500, "c")
