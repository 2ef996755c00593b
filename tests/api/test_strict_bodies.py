"""A body that does not say what it means is refused in words that a stranger understands, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from statechannel.law.bundle import Key
from tests.api.conftest import Cluster, Refused

FIRST = "0x00000000_0x40000000"
SPLIT = f"/v1/bundles/t/n/{FIRST}/split"
PULSAR = "/admin/v2/namespaces/t/n"


WRONG: list[tuple[str, str, Any, str]] = [
    ("POST", SPLIT, {"parts": True}, "body.parts: Input should be a valid integer"),
    ("POST", SPLIT, {"parts": "3"}, "body.parts: Input should be a valid integer"),
    ("POST", SPLIT, {"positions": ["0x5"]}, "'0x5' is not a position; write an integer, or eight hexadecimal digits"),
    ("POST", SPLIT, {"positions": [*range(1, 300)]}, "body.positions: at most 256 are allowed, not 299"),
    ("POST", SPLIT, {"part": 3}, "body.part: there is no such field"),
    ("POST", "/v1/bundles/merge", {"bundles": [f"t/n/{FIRST}"]}, "at least 2 are needed, not 1"),
    ("POST", "/v1/bundles/merge", {}, "body.bundles is missing"),
    ("POST", "/v1/bundles/merge", None, "this needs a JSON body"),
    ("PUT", f"{PULSAR}2", {"numBundles": True}, "body.numBundles: Input should be a valid integer"),
    ("PUT", f"{PULSAR}2", {"bundles": {"numBundles": "4"}}, "valid integer"),
    ("PUT", f"{PULSAR}2", {"numBundels": 4}, "unknown: numBundels"),
    ("POST", SPLIT, {"parts": 2.5}, "body.parts: Input should be a valid integer"),
    ("POST", SPLIT, {"unload": 0}, "body.unload: Input should be a valid boolean"),
    ("POST", "/v1/plans/unload", {"namespace": "t/n", "review": 0}, "body.review: Input should be a valid boolean"),
    ("POST", "/v1/plans/unload", {"namespace": "t/n", "wave": True}, "body.wave: Input should be a valid integer"),
    ("POST", "/v1/plans", {"tolerance": True}, "body.tolerance"),
    ("POST", "/v1/what-if", {"rested": 0}, "body.rested: Input should be a valid boolean"),
    ("POST", "/v1/what-if", {"loads": {"t/n": "2"}}, "body.loads.t/n: Input should be a valid number"),
    (
        "POST",
        "/v1/lookup",
        {"topics": ["t/n/x"], "timeout_ms": False},
        "timeout_ms: Input should be a valid integer",
    ),
    ("PUT", "/v1/config/split", {"value": True, "version": False}, "body.version: Input should be a valid integer"),
    ("PUT", "/v1/channel/readers/r", {"positions": [False]}, "body.positions.0: Input should be a valid integer"),
    ("PUT", "/admin/v2/persistent/t/n/p/partitions", True, "body: Input should be a valid integer"),
]


async def test_it_says_what_is_wrong(cluster: Cluster, refused: Refused, subtests: pytest.Subtests) -> None:
    await cluster.start(1)
    await cluster.create("t/n")
    for method, path, body, says in WRONG:
        with subtests.test(path=path, says=says):
            assert says in (await refused(400, method, path, json=body))["detail"]


async def test_a_number_with_a_fraction_of_zero_is_an_integer(cluster: Cluster, subtests: pytest.Subtests) -> None:
    await cluster.start(1)
    for namespace in ("t/n", "t/m"):  # each of the first two requests splits the first bundle of its own
        await cluster.create(namespace)
        await cluster.assign(next(t for i in range(99) if Key.parse(t := f"{namespace}/{i}").position < 0x40000000))
    requests: list[tuple[str, str, Any, int]] = [
        ("POST", SPLIT, {"positions": [1.0]}, 200),
        ("PUT", f"/admin/v2/namespaces/t/m/{FIRST}/split", [536870912.0], 204),
        ("PUT", f"{PULSAR}2", {"numBundles": 4.0, "properties": {}}, 204),
        ("POST", "/v1/lookup", {"topics": ["t/n/x"], "timeout_ms": 1000.0}, 200),
        ("POST", "/v1/plans/unload", {"namespace": "t/n", "wave": 1.0}, 201),
        ("POST", "/v1/what-if", {"add_brokers": 1.0}, 200),
        ("PUT", "/v1/config/split", {"value": True, "version": 0.0}, 200),
        ("PUT", "/v1/channel/readers/r", {"positions": [0.0] * 4}, 200),
        ("PUT", "/admin/v2/persistent/t/n/p/partitions", 2.0, 204),
    ]
    for method, path, body, status in requests:
        with subtests.test(path=path, body=body):
            got, answer, _ = await cluster.ask(method, path, json=body)
            assert got == status, answer


async def test_a_body_on_which_the_parser_gives_up_is_no_json(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(1)
    deep = {"data": b"[" * 100_000, "headers": {"Content-Type": "application/json"}}
    assert "not readable JSON" in (await refused(400, "POST", SPLIT, **deep))["detail"]
