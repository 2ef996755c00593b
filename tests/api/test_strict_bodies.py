"""A body that does not say what it means is refused in words that a stranger understands, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.conftest import Cluster, Refused

FIRST = "0x00000000_0x40000000"
SPLIT = f"/v1/bundles/t/n/{FIRST}/split"
PULSAR = "/admin/v2/namespaces/t/n"


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("POST", SPLIT, {"parts": True}, "body.parts: Input should be a valid integer"),
        ("POST", SPLIT, {"parts": "3"}, "body.parts: Input should be a valid integer"),
        ("POST", SPLIT, {"positions": ["0x5"]}, "'0x5' is no position; write an integer, or eight hexadecimal digits"),
        ("POST", SPLIT, {"positions": [*range(1, 300)]}, "body.positions: at most 256 are allowed, not 299"),
        ("POST", SPLIT, {"part": 3}, "body.part: there is no such field"),
        ("POST", "/v1/bundles/merge", {"bundles": [f"t/n/{FIRST}"]}, "at least 2 are needed, not 1"),
        ("POST", "/v1/bundles/merge", {}, "body.bundles is missing"),
        ("POST", "/v1/bundles/merge", None, "this needs a JSON body"),
        ("PUT", f"{PULSAR}2", {"numBundles": True}, "body.numBundles: Input should be a valid integer"),
        ("PUT", f"{PULSAR}2", {"bundles": {"numBundles": "4"}}, "valid integer"),
    ],
)
async def test_it_says_what_is_wrong(
    cluster: Cluster, refused: Refused, method: str, path: str, body: Any, says: str
) -> None:
    await cluster.start(1)
    await cluster.create("t/n")
    assert says in (await refused(400, method, path, json=body))["detail"]


async def test_a_body_on_which_the_parser_gives_up_is_no_json(cluster: Cluster, refused: Refused) -> None:
    await cluster.start(1)
    deep = {"data": b"[" * 100_000, "headers": {"Content-Type": "application/json"}}
    assert "not readable JSON" in (await refused(400, "POST", SPLIT, **deep))["detail"]
