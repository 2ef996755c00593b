"""`/openapi.json` of a sidecar is valid OpenAPI 3.1, and describes each hook as it is sent, as a webhook."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import jsonschema
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from loadmanager.embedding.endpoints import listen
from loadmanager.sidecar.conformance.played_sidecar import Script
from loadmanager.sidecar.conformance.stage import hook_of
from loadmanager.sidecar.wire import Offer, Secret
from loadmanager_api.sidecar import application, served
from statechannel.law.bundle import Bundle
from statechannel.law.record import Token

BUNDLE = Bundle("demo/counters", 0x80000000, 0xFFFFFFFF)
ACQUIRE = {"token": str(Token(0, 3, 17)), "partition": 3, "hand_off": b"what was in memory"}
RELEASE = {"to": {"broker": "b:8080", "urls": {"http": "http://b:9000"}}}
MORE: dict[str, dict[str, Any]] = {"acquire": ACQUIRE, "release": RELEASE}
HOOKS = ("prepare", "acquire", "release", "abandon", "load", "positions", "rates")


@pytest.fixture
async def described() -> AsyncIterator[dict[str, Any]]:
    listening = listen("127.0.0.1:0")
    url = "http://{}:{}/openapi.json".format(*listening.getsockname())
    async with (
        served(application(Script(), Secret.new()), listening),
        aiohttp.ClientSession() as http,
        http.get(url) as answer,
    ):
        yield await answer.json()


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str):
            yield reference
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from references(each)


def test_it_is_valid(described: dict[str, Any]) -> None:
    assert described["openapi"].startswith("3.1.")
    assert not [error.message for error in OPENAPI_31_VALIDATOR.iter_errors(described)]
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    known = {f"#/components/schemas/{name}" for name in described["components"]["schemas"]}
    assert set(references(described)) <= known


def test_the_validator_finds_what_is_wrong(described: dict[str, Any]) -> None:
    del described["webhooks"]["acquire"]["post"]["requestBody"]["content"]
    assert [error.message for error in OPENAPI_31_VALIDATOR.iter_errors(described)]


def test_every_hook_is_a_webhook(described: dict[str, Any]) -> None:
    assert set(described["webhooks"]) == set(HOOKS) >= {str(offer) for offer in Offer}
    assert all(set(webhook) == {"post"} for webhook in described["webhooks"].values())


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_is_sent_as_it_is_described(described: dict[str, Any], kind: str) -> None:
    bundle = None if kind == "load" else BUNDLE
    hook = json.loads(hook_of(kind, "5f0c", 7, bundle, **MORE.get(kind, {})).body)
    shape = described["webhooks"][kind]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator({**shape, "components": described["components"]})
    validator.validate(hook)
    for field in hook["data"]:
        if field not in ("hand_off", "to"):  # whether what may be null must be there
            less = {**hook, "data": {name: value for name, value in hook["data"].items() if name != field}}
            assert not validator.is_valid(less), f"{field} is a part of every {kind}"


def test_requests_of_a_service_are_described(described: dict[str, Any]) -> None:
    asked = {(path, method) for path, methods in described["paths"].items() for method in methods}
    assert asked == {
        ("/v1/session", "post"),
        ("/v1/session/{session}", "delete"),
        ("/v1/session/{session}/lease", "get"),
        ("/v1/claims/{key}", "get"),
    }
