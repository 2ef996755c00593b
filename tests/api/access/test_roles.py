"""Every route with every role in every place: who gets in and who does not; and that no route lacks a rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from fastapi import APIRouter

from loadmanager.model.policies.model import AccessPolicy, AccessRole, Kind
from loadmanager_api import application
from loadmanager_api.access import access
from loadmanager_api.access.grants import Grants
from loadmanager_api.access.rules import RULES, Rule, Scope
from loadmanager_api.routing import ControlRouter
from tests.api.access.conftest import Guarded
from tests.api.conftest import Cluster

RANGE = "0x00000000_0x40000000"
NAMESPACES = "/admin/v2/namespaces/{tenant}/{namespace}"
MEMBER = "/v1/groups/{tenant}/{namespace}/{consumer_group}/members/{member}"
PLACES = {"cluster": ("*",), "tenant": ("t/*",), "namespace": ("t/n",), "elsewhere": ("u/m", "t/nx", "tx/*")}
WHERE: dict[Scope, set[str]] = {
    Scope.ANYWHERE: {"cluster", "tenant", "namespace", "elsewhere"},
    Scope.NAMESPACE: {"cluster", "tenant", "namespace"},
    Scope.TENANT: {"cluster", "tenant"},
    Scope.CLUSTER: {"cluster"},
}
VALUES = {
    "tenant": "t",
    "namespace": "n",
    "hash_range": RANGE,
    "bundle": RANGE,
    "domain": "persistent",
    "cluster": "standalone",
    "kind": "namespace",
    "broker": "nobody:1",
    "topic": "x",
    "matter": "retention",
    "file": "main.mjs",
    "value": "1",
}


class Sample(NamedTuple):
    """A request, and where its sender needs the role (one of the keys of `WHERE`)."""

    method: str
    path: str
    rule: Rule
    where: Scope
    body: Any = None


def _filled(template: str) -> str:
    name = "t/n" if template.startswith("/v1/policies") else "nothing"
    return re.sub(r"{(\w+)(:\w+)?}", lambda found: VALUES.get(found[1], name), template)


def samples() -> Iterator[Sample]:
    """One request for each route, two where the request itself says what it is about, one more with `force`."""
    for template, rules in RULES.items():
        path = _filled(template)
        for method, rule in rules.items():
            match rule.scope:
                case Scope.OPEN:
                    continue
                case Scope.QUERY:
                    yield Sample(method, f"{path}?namespace=t/n", rule, Scope.NAMESPACE)
                    yield Sample(method, f"{path}?namespace=u/m&namespace=t/n", rule, Scope.NAMESPACE)
                    yield Sample(method, path, rule, Scope.CLUSTER)
                case Scope.DOCUMENT:
                    yield Sample(method, path, rule, Scope.NAMESPACE)
                    yield Sample(method, path.replace("namespace/t/n", f"bundle/t/n/{RANGE}"), rule, Scope.NAMESPACE)
                    for kind in ("cluster/cluster", "access/readers", "isolation/t", "namespace/t/n/m", "bundle/t/n"):
                        yield Sample(method, path.replace("namespace/t/n", kind), rule, Scope.CLUSTER)
                case Scope.BODY:
                    yield from _with_bodies(method, path, rule)
                case _:
                    yield Sample(method, path, rule, rule.scope)
            if method != "GET" and rule.scope is not Scope.CLUSTER:
                yield Sample(method, f"{path}?force=true", rule, Scope.CLUSTER)


def _with_bodies(method: str, path: str, rule: Rule) -> Iterator[Sample]:
    match path:
        case "/v1/bundles/merge":
            inside = [f"t/n/{RANGE}", "t/n/0x40000000_0x80000000"]
            yield Sample(method, path, rule, Scope.NAMESPACE, {"bundles": inside})
            yield Sample(method, path, rule, Scope.CLUSTER, {"bundles": [*inside, f"x/y/{RANGE}"]})
        case "/v1/lookup":
            yield Sample(method, path, rule, Scope.ANYWHERE, {"topics": ["t/n/x"]})  # each topic has its own refusal
        case _:
            yield Sample(method, path, rule, Scope.NAMESPACE, {"namespace": "t/n"})
            yield Sample(method, path, rule, Scope.CLUSTER, {"broker": "nobody:1"})
            yield Sample(method, path, rule, Scope.CLUSTER, {"namespace": "t/n", "broker": "nobody:1"})
            if "balancing" in path:
                yield Sample(method, path, rule, Scope.CLUSTER, {})


@pytest.mark.parametrize(
    ("scope", "namespaces", "tenants"),
    [
        ("t/n", {"t/n"}, set[str]()),
        ("t/nx", {"t/nx"}, set[str]()),
        ("t/*", {"t/n", "t/nx", "t/x"}, {"t"}),
        ("tx/*", {"tx/n"}, {"tx"}),
        ("*", {"t/n", "t/nx", "t/x", "tx/n", "u/t"}, {"t", "tx", "u"}),
    ],
)
def test_a_grant_counts_for_what_it_names_and_not_for_longer_names(
    scope: str, namespaces: set[str], tenants: set[str]
) -> None:
    grants = Grants([AccessPolicy(AccessRole.OPERATOR, ("ann",), (scope,))])
    everywhere = {"t/n", "t/nx", "t/x", "tx/n", "u/t"}
    for role in (AccessRole.VIEWER, AccessRole.OPERATOR):
        assert {each for each in everywhere if grants.in_namespace("ann", role, each)} == namespaces
        assert {each for each in ("t", "tx", "u") if grants.in_tenant("ann", role, each)} == tenants
        assert grants.in_cluster("ann", role) is (scope == "*")
    for who, role in (("ann", AccessRole.ADMIN), ("anna", AccessRole.VIEWER), ("an", AccessRole.VIEWER)):
        assert not any(grants.in_namespace(who, role, each) for each in everywhere)


def test_a_route_without_a_rule_is_refused_when_it_is_made() -> None:
    router = ControlRouter()

    async def endpoint() -> None: ...

    with pytest.raises(RuntimeError, match=r"GET /v1/new has no rule: say in .*rules.py"):
        router.get("/v1/new")(endpoint)
    with pytest.raises(RuntimeError, match="POST /metrics has no rule"):
        router.post("/metrics")(endpoint)


def test_every_route_needs_a_rule_and_no_rule_is_left_over() -> None:
    described = application.routes_of_all().openapi()["paths"]
    served = {(method.upper(), path) for path, methods in described.items() for method in methods}
    ruled = {(method, re.sub(r":\w+}", "}", path)) for path, methods in RULES.items() for method in methods}
    assert ruled - served == {
        ("GET", "/openapi.json"),
        ("GET", "/"),
        ("GET", "/docs"),
        ("DELETE", MEMBER),
        ("POST", f"{MEMBER}/heartbeat"),
        ("POST", f"{MEMBER}/commit"),
        ("GET", "/dashboard/{file}"),
        ("GET", "/admin/namespaces/{cluster}/antiAffinity/{group}"),
        ("GET", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/{more}"),
        ("POST", "/admin/v2/{domain}/{tenant}/{namespace}/{topic}/{more}"),
        *((method, f"{NAMESPACES}/{{matter}}") for method in ("GET", "POST", "PUT", "DELETE")),
    }
    assert served - ruled == set()
    routers = [module.router for module in vars(application).values() if hasattr(module, "router")]
    assert len(routers) > 15
    for router in routers:
        assert isinstance(router, ControlRouter | APIRouter)
        assert all(type(route).__name__ in ("RuledRoute", "_IncludedRouter") for route in router.routes)


@pytest.mark.slow
@pytest.mark.parametrize("role", AccessRole)
async def test_each_route_takes_those_whom_its_rule_allows_and_no_others(guarded: Guarded, role: AccessRole) -> None:
    await guarded.start()
    await guarded.cluster.create("t/n")
    tokens = {place: guarded.bearer(place) for place in (*PLACES, "nobody")}
    for place, namespaces in PLACES.items():
        await guarded.grant(role, place, *namespaces)
    wrong: list[str] = []
    for sample in samples():
        for place, token in tokens.items():
            may = role.rank >= sample.rule.role.rank and place in WHERE[sample.where]
            options = {} if sample.body is None else {"json": sample.body}
            if may and (sample.method, sample.path.partition("?")[0]) in ENDLESS:
                continue
            status, *_ = await guarded.cluster.ask(sample.method, sample.path, headers=token, **options)
            if (status != 403) != may or status == 401:
                wrong.append(f"{sample.method} {sample.path} {sample.body or ''}: {role} in {place} got {status}")
    assert not wrong, "\n".join(wrong)


ENDLESS = {("GET", "/v1/watch")}


async def test_without_credentials_only_open_routes_answer(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "FAILURES_PER_S", 1e6)
    await guarded.start()
    for template, rules in RULES.items():
        for method, rule in rules.items():
            status, answer, headers = await guarded.ask(None, method, _filled(template))
            if rule.scope is Scope.OPEN:
                assert status == (307 if template == "/docs" else 200), template
            else:
                assert status == 401, template
                assert answer["type"] == "urn:loadmanager:problem:not-authenticated"
                assert headers["WWW-Authenticate"] == 'Bearer realm="loadmanager"'
    status, *_ = await guarded.ask(None, "GET", "/nothing-is-there")
    assert status == 401, "what there is, is nobody's business"


async def test_where_nobody_is_asked_every_route_is_open(cluster: Cluster) -> None:
    await cluster.start()
    for path in ("/metrics", "/v1/settings", "/openapi.json", "/v1/policies", "/v1/tasks"):
        assert (await cluster.ask("GET", path))[0] == 200


async def test_whoever_pauses_a_namespace_is_not_told_of_others(guarded: Guarded) -> None:
    await guarded.start()
    for name in ("t/n", "t/nx", "u/m"):
        await guarded.cluster.create(name)
        assert (await guarded.ask("root", "POST", "/v1/balancing/pause", json={"namespace": name}))[0] == 200
    await guarded.grant(AccessRole.OPERATOR, "ann", "t/n")
    for verb in ("pause", "resume"):
        _, mine, _ = await guarded.ask("ann", "POST", f"/v1/balancing/{verb}", json={"namespace": "t/n"})
        assert mine["namespaces"] == ["t/n"] * (verb == "pause")
    _, every, _ = await guarded.ask("root", "POST", "/v1/balancing/resume", json={"namespace": "u/m"})
    assert every["namespaces"] == ["t/nx"]


async def test_force_needs_the_role_in_the_cluster_however_it_is_spelt(
    guarded: Guarded, subtests: pytest.Subtests
) -> None:
    await guarded.start()
    await guarded.cluster.create("t/n")
    await guarded.grant(AccessRole.OPERATOR, "ann", "t/n")
    unload = f"/admin/v2/namespaces/t/n/{RANGE}/unload"
    for said in ["true", "True", "1", "on", "yes", "t", "y"]:
        with subtests.test(said=said):
            assert (await guarded.ask("ann", "PUT", f"{unload}?force={said}"))[0] == 403
            assert (await guarded.ask("ann", "PUT", f"{unload}?force=false"))[0] == 204


# --- grants


def grants(*policies: tuple[AccessRole, str, str]) -> Grants:
    return Grants([AccessPolicy(role, (who,), (where,)) for role, who, where in policies], {"root"})


def test_the_highest_of_several_roles_counts() -> None:
    found = grants((AccessRole.VIEWER, "ann", "*"), (AccessRole.ADMIN, "ann", "t/n"), (AccessRole.CLIENT, "ann", "t/n"))
    assert found.in_namespace("ann", AccessRole.ADMIN, "t/n")
    assert not found.in_namespace("ann", AccessRole.ADMIN, "t/m")
    assert found.in_namespace("ann", AccessRole.VIEWER, "t/m")
    assert not found.in_cluster("ann", AccessRole.OPERATOR)


def test_what_did_not_change_is_not_read_again() -> None:
    big = AccessPolicy(AccessRole.CLIENT, ("ann",), tuple(f"t/n{number}" for number in range(1_000)))
    before = Grants([big], {"root"})
    after = Grants([big, AccessPolicy(AccessRole.ADMIN, ("ann",), ("t/n",))], {"root"}, before)
    assert after.by_policy[id(big)] is before.by_policy[id(big)]
    assert after.in_namespace("ann", AccessRole.CLIENT, "t/n7")
    assert after.in_namespace("ann", AccessRole.ADMIN, "t/n")
    assert not Grants([], {"root"}, after).anywhere("ann", AccessRole.CLIENT)


def test_everyone_means_everyone_with_credentials() -> None:
    found = grants((AccessRole.CLIENT, "*", "t/*"))
    assert found.in_namespace("whoever", AccessRole.CLIENT, "t/n")
    assert not found.in_namespace("whoever", AccessRole.VIEWER, "t/n")
    assert not found.in_namespace("whoever", AccessRole.CLIENT, "tt/n")
    assert found.in_namespace("*", AccessRole.CLIENT, "t/n"), "the name of a token's subject is no wildcard"
    assert not grants((AccessRole.ADMIN, "ann", "*")).in_cluster("*", AccessRole.CLIENT)


def test_superusers_may_everything_and_nobody_else_without_a_policy() -> None:
    assert grants().in_cluster("root", AccessRole.ADMIN)
    assert not grants().anywhere("ann", AccessRole.CLIENT)


WRONG_POLICIES: list[tuple[dict[str, Any], str]] = [
    ({"role": "king", "principals": ["a"], "namespaces": ["*"]}, "role"),
    ({"role": "viewer", "principals": [], "namespaces": ["*"]}, "principals is empty"),
    ({"role": "viewer", "principals": ["a"], "namespaces": []}, "namespaces is empty"),
    ({"role": "viewer", "principals": ["a b"], "namespaces": ["*"]}, "not a principal"),
    ({"role": "viewer", "principals": ["a,b"], "namespaces": ["*"]}, "not a principal"),
    ({"role": "viewer", "principals": ["a"], "namespaces": ["t"]}, "namespace"),
    ({"role": "viewer", "principals": ["a"], "namespaces": ["*/n"]}, ""),
    ({"role": "viewer", "principals": ["a"], "namespaces": ["t/n*"]}, ""),
    ({"role": "viewer", "principals": ["a"]}, "namespaces"),
]


async def test_wrong_access_policies_are_refused(guarded: Guarded, subtests: pytest.Subtests) -> None:
    await guarded.start()
    for policy, says in WRONG_POLICIES:
        with subtests.test(policy=policy, says=says):
            status, answer, _ = await guarded.ask("root", "PUT", "/v1/policies/access/some", json=policy)
            assert status == 412, answer
            assert says in answer["detail"]
            assert not guarded.cluster.brokers[0].node.policies.current().access


async def test_a_role_holds_as_soon_as_its_policy_is_written_and_no_longer(guarded: Guarded) -> None:
    await guarded.start()
    await guarded.cluster.create("t/n")
    path, policy = "/v1/policies/access/ops", {"role": "operator", "principals": ["ann"], "namespaces": ["t/n"]}
    unload = "/admin/v2/namespaces/t/n/unload"
    status, answer, _ = await guarded.ask("ann", "PUT", unload)
    assert (status, answer["detail"]) == (
        403,
        "ann is not operator in t/n: an access policy would have to say so",
    )
    assert (await guarded.ask("ann", "PUT", path, json=policy))[0] == 403, "nobody gives themselves a role"
    assert (await guarded.ask("root", "PUT", path, json=policy))[0] == 200
    assert (await guarded.ask("ann", "PUT", unload))[0] == 204
    assert (await guarded.ask("root", "DELETE", path))[0] == 200
    assert (await guarded.ask("ann", "PUT", unload))[0] == 403
    history = guarded.cluster.brokers[0].node.policies.history(Kind.ACCESS, "ops")
    assert [each.author for each in history] == ["root", "root"]
