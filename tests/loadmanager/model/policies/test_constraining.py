"""What each policy means for who may hold what; read as a table of rules."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
import pytest

from loadmanager.model.cluster import UNLIMITED
from loadmanager.model.policies.constraints import constraints_for, fleet_of, with_policies
from loadmanager.model.policies.model import (
    NO_POLICIES,
    BrokerPolicy,
    BundlePolicy,
    ClusterPolicy,
    FailureDomain,
    IsolationPolicy,
    NamespacePolicy,
    Policies,
)
from loadmanager.model.policies.patterns import compiled
from loadmanager.model.policies.permissions import Isolation
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from tests.loadmanager.counting import counted
from tests.loadmanager.model.policies.small_fleet import NAMES, SETTINGS, Judged, brokers, bundles

ALL = set(NAMES)
PAY, SHOP, LEFT, RIGHT = (
    "pay/x/0x00000000_0xffffffff",
    "shop/x/0x00000000_0xffffffff",
    "shop/y/0x00000000_0x80000000",
    "shop/y/0x80000000_0xffffffff",
)


def isolating(**changed: object) -> Policies:
    policy = IsolationPolicy(namespaces=("pay/.*",), primary=("a:1", "b"), secondary=("c:.*",))
    return Policies(isolation={"pay": msgspec.structs.replace(policy, **changed)})


def on(bundle: str, policy: BundlePolicy) -> Policies:
    return Policies(bundles={Bundle.parse(bundle): policy})


# --- isolation


def test_without_policies_everything_may_go_anywhere():
    judged = Judged(NO_POLICIES, {PAY: "a:1", SHOP: ""})
    assert judged.allowed(PAY) == judged.allowed(SHOP) == ALL
    assert judged.constraints.forbidden.shape == (1, 5)
    assert judged.constraints.rules == ()


def test_isolated_namespace_uses_primaries_and_others_use_shared_brokers():
    judged = Judged(isolating(), {PAY: "", SHOP: ""})
    assert judged.allowed(PAY) == {"a:1", "b:1"}  # b by its host alone
    assert judged.rule(PAY, "d:1") == "isolation policy 'pay'"
    assert judged.constraints.isolated is not None
    assert judged.constraints.isolated.tolist() == [True, False]
    assert judged.allowed(SHOP) == {"c:1", "d:1", "e:1"}  # a secondary is shared, as in Pulsar
    assert judged.rule(SHOP, "a:1") == "reserved by isolation policy 'pay'"


def test_patterns_match_as_a_whole():
    judged = Judged(isolating(namespaces=("pay",), primary=("a",)), {PAY: "", SHOP: ""})
    assert judged.allowed(PAY) == ALL - {"a:1"}, "'pay' is not the whole of pay/x"


def test_secondaries_open_while_fewer_primaries_than_wanted_are_there():
    assert Judged(isolating(min_available=2), {PAY: ""}).allowed(PAY) == {"a:1", "b:1"}
    without_a = brokers(NAMES[1:])
    assert Judged(isolating(min_available=2), {PAY: ""}, without_a).allowed(PAY) == {"b:1", "c:1"}


def test_a_primary_that_drains_or_is_full_is_not_there():
    drained = msgspec.structs.replace(isolating(min_available=2), brokers={"a:1": BrokerPolicy(drain=True)})
    assert "c:1" in Judged(drained, {PAY: ""}).allowed(PAY)
    full = brokers(usage={"a:1": 0.9})
    assert "c:1" in Judged(isolating(min_available=2, usage_threshold_percent=80), {PAY: ""}, full).allowed(PAY)


def test_bundles_that_left_full_primaries_do_not_return_at_first_relief():
    policy = isolating(min_available=2, usage_threshold_percent=80)
    relieved = brokers(usage={"a:1": 0.7, "b:1": 0.7})
    stayed, other = "pay/x/0x00000000_0x80000000", "pay/x/0x80000000_0xffffffff"
    judged = Judged(policy, {stayed: "c:1", other: "a:1"}, relieved)
    assert judged.allowed(stayed) == {"a:1", "b:1", "c:1"}
    assert judged.allowed(other) == {"a:1", "b:1"}, "newcomers are refused already"
    cool = brokers(usage={"a:1": 0.5, "b:1": 0.5})
    assert Judged(policy, {stayed: "c:1"}, cool).allowed(stayed) == {"a:1", "b:1"}


def test_all_policies_that_match_a_namespace_hold():
    both = Policies(
        isolation={
            "one": IsolationPolicy(namespaces=("pay/.*",), primary=("a:1", "b:1")),
            "two": IsolationPolicy(namespaces=("pay/x",), primary=("b:1", "c:1")),
        }
    )
    judged = Judged(both, {PAY: ""})
    assert judged.allowed(PAY) == {"b:1"}
    assert judged.rule(PAY, "a:1") == "isolation policy 'two'"


def test_where_every_broker_is_reserved_a_shared_namespace_has_no_place():
    assert Judged(isolating(primary=(".*",)), {SHOP: "a:1"}).allowed(SHOP) == set()


# --- pins, exclusions, quarantine


def test_a_pinned_bundle_goes_to_its_broker_and_is_kept_there():
    judged = Judged(on(LEFT, BundlePolicy(pin="d:1")), {LEFT: "a:1", RIGHT: "a:1"})
    assert judged.allowed(LEFT) == {"d:1"}
    assert judged.rule(LEFT, "a:1") == "pinned to d:1"
    assert judged.fixed(LEFT) == "", "it is not there yet: it must be able to go"
    assert judged.allowed(RIGHT) == ALL
    assert Judged(on(LEFT, BundlePolicy(pin="d:1")), {LEFT: "d:1"}).fixed(LEFT) == "pinned to d:1"


def test_pin_overrules_isolation_unless_its_broker_is_away_or_draining():
    policies = msgspec.structs.replace(isolating(), bundles={Bundle.parse(PAY): BundlePolicy(pin="e:1")})
    assert Judged(policies, {PAY: "a:1"}).allowed(PAY) == {"e:1"}
    assert Judged(policies, {PAY: "a:1"}, brokers(NAMES[:4])).allowed(PAY) == {"a:1", "b:1"}
    drained = msgspec.structs.replace(policies, brokers={"e:1": BrokerPolicy(drain=True)})
    judged = Judged(drained, {PAY: "e:1"})
    assert judged.allowed(PAY) == {"a:1", "b:1"}
    assert judged.fixed(PAY) == ""


def test_a_bundle_that_is_pinned_to_where_it_is_stays_but_for_a_drain():
    policies = on(LEFT, BundlePolicy(pin="*"))
    judged = Judged(policies, {LEFT: "b:1"})
    assert judged.fixed(LEFT) == "pinned to where it is"
    assert judged.allowed(LEFT) == ALL
    drained = msgspec.structs.replace(policies, brokers={"b:1": BrokerPolicy(drain=True)})
    assert Judged(drained, {LEFT: "b:1"}).fixed(LEFT) == ""


def test_an_excluded_broker_is_refused_by_name():
    judged = Judged(on(LEFT, BundlePolicy(exclude=("a:1", "gone:1"))), {LEFT: "a:1"})
    assert judged.allowed(LEFT) == ALL - {"a:1"}
    assert judged.rule(LEFT, "a:1") == "excluded from a:1"


def test_a_quarantined_bundle_goes_nowhere_whatever_else_is_laid_down():
    judged = Judged(on(LEFT, BundlePolicy(pin="d:1", quarantined="3 brokers died")), {LEFT: "a:1"})
    assert judged.allowed(LEFT) == set()
    assert judged.rule(LEFT, "d:1") == judged.fixed(LEFT) == "quarantined: 3 brokers died"


def test_children_of_a_split_inherit_the_policies_of_their_range():
    child, whole = "shop/y/0x40000000_0x80000000", "shop/y/0x00000000_0xffffffff"
    policies = on(LEFT, BundlePolicy(pin="d:1", weight=2.0))
    assert Judged(policies, {child: "", RIGHT: ""}).allowed(child) == {"d:1"}
    assert Judged(policies, {child: "", RIGHT: ""}).allowed(RIGHT) == ALL
    assert Judged(policies, {whole: ""}).allowed(whole) == {"d:1"}, "and so does what they are merged into"
    assert Judged(policies, {"shop/z/0x00000000_0x80000000": ""}).allowed("shop/z/0x00000000_0x80000000") == ALL


def test_several_bundle_policies_on_one_bundle_hold_together():
    whole = "shop/y/0x00000000_0xffffffff"
    policies = Policies(
        bundles={
            Bundle.parse(LEFT): BundlePolicy(exclude=("a:1",), weight=2.0),
            Bundle.parse(RIGHT): BundlePolicy(exclude=("b:1",), weight=3.0),
        }
    )
    judged = Judged(policies, {whole: "", LEFT: ""})
    assert judged.allowed(whole) == ALL - {"a:1", "b:1"}
    assert judged.constraints.weight.tolist() == [6.0, 2.0]


# --- what stays, rests and weighs


@pytest.mark.parametrize(
    ("policies", "rule"),
    [
        (Policies(cluster=ClusterPolicy(paused=True, reason="release night")), "the cluster is paused: release night"),
        (Policies(namespaces={"shop/y": NamespacePolicy(paused=True)}), "namespace shop/y is paused"),
        (Policies(namespaces={"shop/y": NamespacePolicy(balancing=False)}), "balancing is off for it"),
        (on(LEFT, BundlePolicy(balancing=False)), "balancing is off for it"),
    ],
)
def test_what_is_paused_or_not_balanced_stays(policies: Policies, rule: str):
    assert Judged(policies, {LEFT: "a:1"}).fixed(LEFT) == rule


def test_a_drain_overrules_balancing_but_no_pause():
    drain = {"a:1": BrokerPolicy(drain=True)}
    off = Policies(namespaces={"shop/y": NamespacePolicy(balancing=False)}, brokers=drain)
    paused = Policies(namespaces={"shop/y": NamespacePolicy(paused=True)}, brokers=drain)
    assert Judged(off, {LEFT: "a:1", RIGHT: "b:1"}).fixed(LEFT) == ""
    assert Judged(off, {LEFT: "a:1", RIGHT: "b:1"}).fixed(RIGHT) == "balancing is off for it"
    assert Judged(paused, {LEFT: "a:1"}).fixed(LEFT) == "namespace shop/y is paused"


def test_a_bundle_may_be_balanced_although_its_namespace_is_not():
    policies = Policies(
        namespaces={"shop/y": NamespacePolicy(balancing=False)},
        bundles={Bundle.parse(LEFT): BundlePolicy(balancing=True)},
    )
    judged = Judged(policies, {LEFT: "a:1", RIGHT: "a:1"})
    assert (judged.fixed(LEFT), judged.fixed(RIGHT)) == ("", "balancing is off for it")


def test_rest_and_weight_are_those_of_the_bundle_or_its_namespace():
    policies = Policies(
        namespaces={"shop/y": NamespacePolicy(weight=3.0, settings={"bundle_rest_s": 7})},
        bundles={Bundle.parse(LEFT): BundlePolicy(weight=2.0, settings={"bundle_rest_s": 5})},
    )
    judged = Judged(policies, {LEFT: "", RIGHT: "", SHOP: ""})
    assert judged.constraints.rest_s.tolist() == [5.0, 7.0, 100.0]
    assert judged.constraints.weight.tolist() == [6.0, 3.0, 1.0]


# --- releases


def test_bundles_prefer_the_newest_release_but_stay_on_the_older_one():
    mixed = brokers(versions={"a:1": "0.9.0", "b:1": "0.10.0", "c:1": "0.9.0", "d:1": "0.10.0", "e:1": "0.10.0rc1"})
    preferring = Settings(prefer_later_versions=True)
    judged = Judged(NO_POLICIES, {LEFT: "a:1", RIGHT: ""}, mixed, preferring)
    assert judged.allowed(RIGHT) == {"b:1", "d:1"}
    assert judged.allowed(LEFT) == {"a:1", "b:1", "d:1"}, "a rolling upgrade must not pour all on the first one"
    assert judged.rule(LEFT, "c:1") == "prefer_later_versions: it runs an older release"
    assert Judged(NO_POLICIES, {LEFT: "a:1"}, mixed).allowed(LEFT) == ALL


def test_the_newest_release_is_looked_for_where_the_bundle_may_go_at_all():
    mixed = brokers(versions={"e:1": "2.0.0"})
    assert Judged(isolating(), {PAY: ""}, mixed, Settings(prefer_later_versions=True)).allowed(PAY) == {"a:1", "b:1"}


# --- brokers


def test_brokers_are_what_is_laid_down_about_them():
    policies = Policies(
        brokers={
            "a:1": BrokerPolicy(drain=True, max_bundles=7, capacity={"cpu": 4.0, "out_rate_bytes_s": 9.0}),
            "b:1": BrokerPolicy(paused=True),
        },
        failure_domains={"rack-1": FailureDomain(brokers=("a:1", "c:1"))},
    )
    found = with_policies(policies, brokers())
    assert found.draining.tolist() == [True, False, False, False, False]
    assert found.paused.tolist() == [False, True, False, False, False]
    assert found.max_bundles.tolist() == [7, *[UNLIMITED] * 4]
    assert found.capacity[0].tolist() == [4.0, 10.0, 10.0, 9.0, 10.0]
    assert found.domains == ("rack-1", "", "rack-1", "", "")


def test_brokers_without_policies_are_the_same_object():
    fleet = brokers()
    assert with_policies(NO_POLICIES, fleet) is fleet


# --- anti-affinity


def test_a_group_counts_the_namespaces_on_each_broker_by_the_whole_table():
    apart = NamespacePolicy(anti_affinity_group="db")
    policies = Policies(
        namespaces={"db/one": apart, "db/two": apart, "x/y": NamespacePolicy()},
        failure_domains={"rack-1": FailureDomain(brokers=("a:1",))},
    )
    a, b = BrokerId("a:1", 1), BrokerId("b:1", 1)
    one = "db/one/0x00000000_0xffffffff"
    holdings = {"db/one": {a: 3}, "db/two": {a: 1, b: 2, BrokerId("gone:1", 4): 5, BrokerId("c:1", 1): 0}}
    judged = Judged(policies, {one: "a:1", SHOP: "b:1"}, holdings=holdings)
    found = judged.constraints
    assert found.groups == ("db",)
    assert found.group.tolist() == [0, -1]
    assert found.presence is not None
    assert found.presence.tolist() == [[2, 1, 0, 0, 0]]
    assert found.namespace_here is not None
    assert found.namespace_here.tolist() == [[3, 0, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert found.spread_over_domains
    assert not Judged(Policies(namespaces={"db/one": apart}), {one: "a:1"}).constraints.spread_over_domains


# --- size


def test_a_hundred_thousand_bundles_under_many_policies_cost_little():
    n, namespaces, per = 1_000, 1_000, 100
    names = tuple(f"broker-{at}:6650" for at in range(n))
    edges = [*(at * ((1 << 32) // per) for at in range(per)), 0xFFFFFFFF]
    placed = [Bundle(f"tenant-{ns % 10}/ns-{ns}", lo, hi) for ns in range(namespaces) for lo, hi in pairwise(edges)]
    model = msgspec.structs.replace(
        bundles({}, names),
        ids=placed,
        namespaces=tuple(dict.fromkeys(each.namespace for each in placed)),
        namespace=np.repeat(np.arange(namespaces), per),
        owner=np.arange(len(placed)) % n,
    )
    policies = Policies(
        isolation={
            f"p{at}": IsolationPolicy(namespaces=(f"tenant-{at}/.*",), primary=(f"broker-{at}..:.*",))
            for at in range(1, 10)
        },
        bundles={placed[at * 997]: BundlePolicy(pin=names[at]) for at in range(100)},
    )
    fleet = brokers(names)
    found, calls = counted(lambda: constraints_for(policies, with_policies(policies, fleet), model, {}, SETTINGS))
    assert len(found.forbidden) == 110, "ten isolations, and a pin each"
    assert calls < 5 * len(placed)


@pytest.mark.parametrize(
    ("pattern", "tenant"),
    [
        ("pay/.*", "pay"),
        ("pay/x", "pay"),
        (r"p\.y/.*", "p.y"),
        ("pay.*", None),
        ("pay?/.*", None),
        ("pay/.*|shop/.*", None),
        ("(pay|shop)/.*", None),
        ("(?i)pay/.*", None),
        ("^pay/.*", "pay"),
        (".*", None),
        ("pay/{2}x", "pay"),
        (r"\Qpay/\Ex", "pay"),
        ("pay/x|pay/y", "pay"),
        ("pay(/x)?", None),
    ],
)
def test_a_pattern_is_tried_with_the_tenants_that_it_may_match(pattern: str, tenant: str | None):
    assert compiled(pattern).tenant == tenant
    policies = Policies(isolation={"p": IsolationPolicy(namespaces=(pattern, "z/z"), primary=("a:1",))})
    for name in ("pay/x", "shop/x", "PAY/x", "p.y/x", "pa/x", "z/z"):
        wanted = compiled(pattern).matches(name) or name == "z/z"
        judged = Judged(policies, {f"{name}/0x00000000_0x80000000": "b:1"})
        assert (judged.allowed(f"{name}/0x00000000_0x80000000") == {"a:1"}) is wanted


def test_many_policies_of_many_tenants_cost_a_namespace_little():
    policies = {f"p{t}": IsolationPolicy(namespaces=(f"t{t}/.*",), primary=("a:1",)) for t in range(1000)}
    isolation = Isolation(policies, fleet_of(brokers(), SETTINGS))
    wanted = [(f"p{number % 1000}",) for number in range(10_000)]
    found, calls = counted(lambda: [isolation.matched(f"t{number % 1000}/n{number}") for number in range(10_000)])
    assert found == wanted
    assert calls < 50 * len(wanted), "none is tried with every pattern"


def test_primary_usage_is_weighted_by_resource_as_in_placement():
    policies = isolating(primary=("a:1",), secondary=("c:1",), usage_threshold_percent=80.0)
    fleet = brokers()
    fleet.used[0] = (1, 9, 0, 0, 0)  # much memory, which counts for nothing by default
    assert Judged(policies, {PAY: "a:1"}, fleet).allowed(PAY) == {"a:1"}
    remembering = Settings(bundle_rest_s=100.0, weight_memory=1.0)
    assert Judged(policies, {PAY: "a:1"}, fleet, remembering).allowed(PAY) == {"a:1", "c:1"}
