"""`/openapi.json` is true: each status that can be provoked is declared, and each declared one can be provoked; HEAD,
OPTIONS and `Allow` are answered for every path.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from loadmanager_api.access.rules import RULES
from loadmanager_api.application import routes_of_all
from loadmanager_api.openapi import CHANGING, EVERYWHERE
from tests.api import declared
from tests.api.conftest import Cluster
from tests.api.declared import Operation

KNOWN = {
    "tenant": "t",
    "namespace": "n",
    "hash_range": "0x00000000_0x40000000",
    "bundle": "0x40000000_0x80000000",
    "domain": "persistent",
    "cluster": "standalone",
    "kind": "namespace",
    "topic": "x",
    "value": "5",
    "broker": "127.0.0.1:7002",
    "name": "balancing_strategy",
}
UNKNOWN = {
    **KNOWN,
    "tenant": "nobody",
    "namespace": "nothing",
    "hash_range": "0x00000000_0x10000000",
    "bundle": "0x00000000_0x10000000",
    "cluster": "other",
    "kind": "isolation",
    "broker": "nobody:1",
    "decision_id": "9.9",
}
BAD = dict.fromkeys((*UNKNOWN, "policy", "group"), "%20") | {
    "domain": "persistent",
    "kind": "bundle",
    "hash_range": "x",
}
BODIES = (None, {}, {"x": 1})
ENDLESS = "/v1/watch"
LEAVES = ("/admin/v2/brokers/shutdown", "/v1/brokers/{broker}/drain")
"""What makes the brokers leave, and is left out where all routes are asked in turn."""
GROUPS = "/v1/groups/{tenant}"
"""What the owner of a group answers, which is one of the two brokers: test_groups.py asks it."""


def filled(template: str, values: Mapping[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda found: values.get(found[1], "nothing"), template)


def requests(operation: Operation) -> Iterator[tuple[str, Any]]:
    """Paths and bodies: of what there is, of what there is not, and of what has no name."""
    for values in (KNOWN, UNKNOWN, BAD):
        for body in BODIES if operation.method != "GET" else BODIES[:1]:
            yield filled(operation.path, values), {"json": body} if body is not None else {}


_BUNDLE = "t/n/0x00000000_0x40000000"
_ISOLATION = "/admin/v2/clusters/standalone/namespaceIsolationPolicies"
_DOMAINS = "/admin/v2/clusters/standalone/failureDomains"
_UNSATISFIED = {"namespaces": ["t/n"], "primary": ["nobody.*"], "secondary": []}

PROVOKED: list[tuple[str, str, dict[str, Any], int]] = [
    ("PUT", "/admin/v2/namespaces/t/n", {"json": {"numBundles": 4}}, 204),
    ("DELETE", "/admin/v2/tenants/t", {}, 409),
    ("DELETE", "/admin/v2/brokers/configuration/advertised", {}, 412),
    ("DELETE", "/v1/config/advertised", {}, 412),
    ("DELETE", "/v1/config/balancing_strategy?version=7", {}, 409),
    ("POST", "/admin/v2/brokers/configuration/balancing_strategy/none", {}, 412),
    ("PUT", "/v1/config/none", {"json": {"value": 1}}, 404),
    ("PUT", "/v1/config/balancing_strategy", {"json": {"value": 1}}, 412),
    ("PUT", "/v1/config/balancing_strategy", {"json": {"value": "plan", "version": 7}}, 409),
    ("POST", f"{_ISOLATION}/p", {"json": _UNSATISFIED}, 409),
    ("POST", f"{_ISOLATION}/p", {"json": {**_UNSATISFIED, "primary": ["("]}}, 412),
    ("POST", f"{_ISOLATION.replace('standalone', 'other')}/p", {"json": _UNSATISFIED}, 404),
    ("POST", f"{_DOMAINS}/a", {"json": {"brokers": ["127.0.0.1:7001"]}}, 204),
    ("DELETE", f"{_DOMAINS}/a", {"headers": {"If-Match": '"7"'}}, 412),
    ("DELETE", f"{_ISOLATION}/p", {"headers": {"If-Match": "x"}}, 412),
    ("DELETE", "/admin/v2/namespaces/t/n/antiAffinity", {"headers": {"If-Match": "x"}}, 412),
    ("POST", f"{_DOMAINS}/b", {"json": {"brokers": ["127.0.0.1:7001"]}}, 409),
    ("POST", f"{_DOMAINS}/%20", {"json": {"brokers": []}}, 412),
    ("POST", f"{_DOMAINS.replace('standalone', 'other')}/b", {"json": {"brokers": []}}, 404),
    ("PUT", "/v1/policies/failure-domain/c", {"json": {"brokers": ["127.0.0.1:7001"]}}, 409),
    ("PATCH", "/v1/policies/failure-domain/c", {"json": {"brokers": ["127.0.0.1:7001"]}}, 409),
    ("DELETE", "/v1/policies/failure-domain/a?seen=7", {}, 409),
    ("DELETE", "/v1/policies/failure-domain/a", {"headers": {"If-Match": "x"}}, 412),
    ("PUT", "/v1/policies/bundle/t/n/0x00000000_0x10000000", {"json": {"pin": "127.0.0.1:7001"}}, 404),
    ("PATCH", "/v1/policies/bundle/t/n/0x00000000_0x10000000", {"json": {"pin": "127.0.0.1:7001"}}, 404),
    ("GET", "/v1/bundles?namespace=t/none", {}, 404),
    ("GET", "/v1/bundles?cursor=none", {}, 400),
    ("GET", "/v1/audit?cursor=none", {}, 400),
    ("GET", "/v1/decisions?cursor=none", {}, 400),
    ("GET", "/v1/channel/digests?partition=999", {}, 404),
    ("GET", "/v1/channel/digests?partition=0&namespace=none", {}, 412),
    ("GET", "/v1/explain/brokers/127.0.0.1:7001?at=none", {}, 412),
    ("GET", "/v1/explain/brokers/127.0.0.1:7001?at=1", {}, 410),
    ("GET", f"/v1/explain/bundles/{_BUNDLE}?at=1", {}, 410),
    ("GET", f"/v1/splitting/{_BUNDLE}", {}, 409),
    ("POST", "/v1/balancing/pause", {"json": {"namespace": "none"}}, 412),
    ("POST", "/v1/balancing/pause", {"json": {"namespace": "t/none"}}, 404),
    ("POST", "/v1/balancing/resume", {"json": {"namespace": "t/n", "broker": "b:1"}}, 412),
    ("POST", "/v1/bundles/merge", {"json": {"bundles": [_BUNDLE, "t/n/0x40000000_0x80000000"]}}, 409),
    (
        "POST",
        "/v1/bundles/merge",
        {"json": {"bundles": ["t/none/0x00000000_0x40000000", "t/none/0x40000000_0x80000000"]}},
        404,
    ),
    ("POST", "/v1/bundles/merge", {"json": {"bundles": [_BUNDLE, "none"]}}, 412),
    ("POST", f"/v1/bundles/{_BUNDLE}/cancel", {}, 409),
    ("POST", f"/v1/bundles/{_BUNDLE}/split", {}, 409),
    ("PUT", f"/admin/v2/namespaces/{_BUNDLE}/split", {}, 409),
    ("PUT", f"/admin/v2/namespaces/{_BUNDLE}/unload?destinationBroker=nobody:1", {}, 409),
    ("PUT", "/admin/v2/persistent/t/n/x/unload?destinationBroker=nobody:1", {}, 409),
    ("POST", "/v1/plans", {"json": {"strategy": "none"}}, 412),
    ("POST", "/v1/plans/unload", {"json": {"namespace": "t/none"}}, 404),
    ("POST", "/v1/plans/unload", {"json": {"namespace": "t/n"}}, 409),
    ("POST", "/v1/what-if", {"json": {"settings": {"none": 1}}}, 412),
    ("POST", "/v1/what-if?at=1", {"json": {}}, 410),
    ("PUT", "/admin/v2/persistent/t/n/p/partitions", {"json": 2}, 204),
    ("PUT", "/admin/v2/persistent/t/n/p/partitions", {"json": 2}, 409),
    ("PUT", "/admin/v2/persistent/t/none/p/partitions", {"json": 2}, 404),
    ("PUT", "/admin/v2/namespaces/t/n/unload?destinationBroker=nobody:1", {}, 412),
    ("POST", "/admin/v2/namespaces/t/none/antiAffinity", {"json": "g"}, 404),
]
_PLAN = "POST /v1/plans/{plan_id}/"
_TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
_ISOLATION_POLICY = "/admin/v2/clusters/{cluster}/namespaceIsolationPolicies/{policy}"
_BACKLOGS = ("", "/topics", "/partitions", "/filtered")
ELSEWHERE = {
    *(f"{_PLAN}{action} 409" for action in ("approve", "cancel", "reject", "run", "undo", "verify", "withdraw")),
    *(f"PUT {_TOPIC}{more} 412" for more in ("", "/partitions")),
    f"GET {_TOPIC}/partitions 412",
    *(f"{method} {_ISOLATION_POLICY} 409" for method in ("GET", "DELETE")),
    "GET /admin/v2/clusters/{cluster}/failureDomains/{domain} 409",
    "POST /v1/operations/{operation_id}/cancel 409",
    "POST /v1/plans/advice 409",
    "POST /v1/plans/advice 412",
    "PUT /v1/channel/readers/{name} 409",
    "PUT /admin/v2/namespaces/{tenant}/{namespace}/unload 409",
    # only another request at the same moment provokes these
    "DELETE /admin/v2/brokers/configuration/{name} 409",
    "POST /admin/v2/brokers/configuration/{name}/{value} 409",
    "DELETE /admin/v2/namespaces/{tenant}/{namespace} 409",
    *(f"{method} /admin/v2/namespaces/{{tenant}}/{{namespace}}/antiAffinity 409" for method in ("POST", "DELETE")),
    "POST /v1/balancing/pause 409",
    "POST /v1/balancing/resume 409",
    # test_backlog.py has groups
    *(f"GET /v1/backlog{part} {status}" for part in _BACKLOGS for status in (404, 412)),
    # nobody leads, or there is nothing to decide with
    "GET /admin/v2/brokers/leaderBroker 404",
    "GET /v1/plan 409",
    "GET /v1/plan 412",
    "POST /v1/what-if 409",
}
"""What other tests provoke, and what cannot be provoked by a request alone."""


@pytest.mark.slow
async def test_every_route_answers_what_it_declares_whatever_it_is_asked(cluster: Cluster) -> None:
    """`Cluster.ask` compares each answer with the document."""
    await cluster.start(2)
    await cluster.create("t/n")
    seen: dict[tuple[str, str], set[int]] = {}
    for each in declared.operations():
        if each.path not in (ENDLESS, *LEAVES) and not each.path.startswith(GROUPS):
            found = seen[each.method, each.path] = set()
            for path, options in requests(each):
                found.add((await cluster.ask(each.method, path, **options))[0])
    assert len(seen) > 100
    never = {
        f"{each.method} {each.path} {status}"
        for each in declared.operations()
        for status in set(map(int, each.responses)) - set(EVERYWHERE) - set(CHANGING) - {304, 422}
        if status > 299 and (each.method, each.path) in seen and status not in seen[each.method, each.path]
    }
    wrong: list[str] = []
    for method, path, options, status in PROVOKED:
        got, body, _ = await cluster.ask(method, path, **options)
        if got != status:
            wrong.append(f"{method} {path} {options} answers {got} {body}, not {status}")
        operation = declared.operation_of(method, path.partition("?")[0])
        assert operation is not None
        never.discard(f"{method} {operation.path} {status}")
    assert "\n".join(wrong) == ""
    assert "\n".join(sorted(never ^ ELSEWHERE)) == ""


def test_no_route_declares_what_it_never_answers() -> None:
    for each in declared.operations():
        keyed = any(parameter["name"] == "Idempotency-Key" for parameter in each.parameters)
        assert {"422", "default"} & set(each.responses) == ({"422"} if keyed else set()), each.path
        assert set(map(str, EVERYWHERE)) <= set(each.responses), each.path


@pytest.mark.slow
async def test_head_is_get_without_its_body(cluster: Cluster) -> None:
    await cluster.start()
    await cluster.create("t/n")
    for each in declared.operations():
        if each.method == "GET":
            path = filled(each.path, KNOWN)
            if each.path == ENDLESS:
                expected: tuple[int, str] = (200, "text/event-stream; charset=utf-8")
            else:
                status, _, headers = await cluster.ask("GET", path)
                expected = (status, headers["Content-Type"])
            status, body, headers = await cluster.ask("HEAD", path)
            assert ((status, headers["Content-Type"]), body) == (expected, ""), path
    assert (await cluster.ask("HEAD", "/v1/nothing"))[0] == 404
    assert (await cluster.ask("HEAD", "/v1/lookup"))[0] == 405


@pytest.mark.slow
async def test_options_and_405_name_all_methods_of_a_path(cluster: Cluster) -> None:
    await cluster.start()
    for template, rules in RULES.items():
        path = filled(re.sub(r":\w+}", "}", template), KNOWN)
        status, body, headers = await cluster.ask("OPTIONS", path)
        assert (status, body) == (204, "")
        allowed = set(headers["Allow"].split(", "))
        assert {*rules, "OPTIONS"} <= allowed
        assert ("HEAD" in allowed) == ("GET" in allowed)
        for method in {"GET", "PUT", "POST", "DELETE", "PATCH", "TRACE"} - allowed:
            status, _, headers = await cluster.ask(method, path)
            assert (status, set(headers["Allow"].split(", "))) == (405, allowed), f"{method} {path}"
    assert (await cluster.ask("OPTIONS", "/v1/nothing"))[0] == 404


@pytest.mark.parametrize(
    ("status", "body", "wrong"),
    [(418, b"", "does not declare"), (200, b"{}", "not of the declared shape"), (404, b"{}", "not declared")],
)
def test_an_answer_that_is_not_declared_is_noticed(status: int, body: bytes, wrong: str) -> None:
    with pytest.raises(AssertionError, match=wrong):
        declared.check("GET", "/v1/brokers/x", status, {"Content-Type": "application/json", "ETag": "x"}, body)


def test_no_two_shapes_have_one_name() -> None:
    """Generators of clients leave such shapes out; FastAPI tells them apart by their modules."""
    assert not [name for name in routes_of_all().openapi()["components"]["schemas"] if "__" in name]
