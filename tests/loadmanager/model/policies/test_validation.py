"""What is refused before it is written, and in which words; read as a list of mistakes."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
import pytest

from loadmanager.errors import Conflict, Invalid, NotFound
from loadmanager.model.policies.model import (
    NO_POLICIES,
    BrokerPolicy,
    BundlePolicy,
    ClusterPolicy,
    FailureDomain,
    IsolationPolicy,
    Kind,
    NamespacePolicy,
    Policies,
    Policy,
)
from loadmanager.model.policies.patterns import matches_namespace
from loadmanager.model.policies.validation import (
    PATTERN_CHARACTERS,
    Findings,
    Known,
    check,
    check_deletion,
    patched,
    read,
)
from loadmanager.settings import Settings
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle

LEFT, RIGHT = Bundle("shop/x", 0, 1 << 31), Bundle("shop/x", 1 << 31, (1 << 32) - 1)
BUNDLES = {"shop/x": (LEFT, RIGHT), "pay/x": (Bundle("pay/x", 0, (1 << 32) - 1),)}
KNOWN = Known(("a:1", "b:1", "c:1"), BUNDLES.keys(), lambda name: BUNDLES.get(name, ()), Settings())
PAY = IsolationPolicy(namespaces=("pay/.*",), primary=("a:1",))


def checked(kind: Kind, name: str, policy: Policy, others: Policies = NO_POLICIES) -> Findings:
    return check(kind, name, policy, others, KNOWN)


def isolating(**changed: Any) -> IsolationPolicy:
    return msgspec.structs.replace(PAY, **changed)


# --- never right


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (isolating(namespaces=()), "namespaces is empty: name at least one"),
        (isolating(primary=()), "primary is empty: name at least one"),
        (
            isolating(namespaces=("pay/(.*",)),
            "namespaces: 'pay/(.*' is not a regular expression (in RE2's syntax): missing )",
        ),
        (
            isolating(primary=("*",)),
            "primary: '*' is not a regular expression (in RE2's syntax): no argument for repetition",
        ),
        (isolating(secondary=("a{99999999999}",)), "secondary: 'a{99999999999}' is not a regular expression"),
        (isolating(secondary=("",)), "secondary: a pattern has 1 to"),
        (isolating(primary=("a" * (PATTERN_CHARACTERS + 1),)), "primary: a pattern has 1 to"),
        (isolating(primary=("a",) * 1001), "primary has 1001 patterns"),
        (isolating(min_available=0), "min_available is 0: at least 1"),
        (isolating(usage_threshold_percent=0), "usage_threshold_percent is 0: above 0, at most 100"),
        (isolating(usage_threshold_percent=101), "usage_threshold_percent is 101"),
        (isolating(usage_threshold_percent=float("nan")), "usage_threshold_percent is nan"),
        (FailureDomain(brokers=()), "brokers is empty"),
        (FailureDomain(brokers=("a",)), "brokers: 'a' is not a broker's name; write host:port"),
        (NamespacePolicy(weight=0), "weight is 0: it must be a number above 0"),
        (NamespacePolicy(weight=float("inf")), "weight is inf"),
        (NamespacePolicy(anti_affinity_group="a b"), "anti_affinity_group: 'a b' is not a valid name"),
        (NamespacePolicy(settings={"colour": "red"}), "'colour' does not exist; here may be set: bundle_rest_s"),
        (NamespacePolicy(settings={"balancing_interval_s": 3}), "'balancing_interval_s' holds for the whole cluster"),
        (NamespacePolicy(settings={"bundle_rest_s": -1}), "settings.bundle_rest_s: Input should be greater"),
        (NamespacePolicy(settings={"bundle_rest_s": "7"}), "settings.bundle_rest_s: '7' is of another type"),
        (NamespacePolicy(settings={"split": 1}), "settings.split: 1 is of another type"),
        (NamespacePolicy(settings={"split_max_keys": True}), "settings.split_max_keys: True is of another type"),
        (NamespacePolicy(settings={"split_max_keys": 1.5}), "settings.split_max_keys: 1.5 is not a whole number"),
        (NamespacePolicy(settings={"split_hits": 1}), "settings: split_hits cannot be set: fixed at 3"),
        (
            NamespacePolicy(settings={"split_algorithm": "luck"}),
            "there is no 'luck' for automatic splits; there are",
        ),
        (BundlePolicy(pin="a:1", exclude=("b:1", "a:1")), "pin and exclude both name a:1"),
        (BundlePolicy(pin="a"), "pin: 'a' is not a broker's name"),
        (BundlePolicy(exclude=("*",)), "exclude: '*' is not a broker's name"),
        (BundlePolicy(weight=-1), "weight is -1"),
        (BundlePolicy(settings={"namespace_max_bundles": 3}), "'namespace_max_bundles' holds for the whole cluster"),
        (BundlePolicy(quarantined="x" * 1001), "quarantined has 1001 characters"),
        (BrokerPolicy(max_bundles=0), "max_bundles is 0: at least 1; to empty a broker, drain it"),
        (BrokerPolicy(capacity={"cpu": 0}), "capacity.cpu is 0"),
        (BrokerPolicy(capacity={"cpu": 1e-300}), "capacity.cpu is 1e-300: it must be from 1e-06 to 1e+18"),
        (BundlePolicy(weight=1e300), "weight is 1e+300: it must be from 1e-06 to 1e+18"),
        (BundlePolicy(pin="a:65536"), "pin: 'a:65536' is not a broker's name"),
        (BundlePolicy(settings={"split_algorithm": "specified_positions_divide"}), "for automatic splits"),
        (BundlePolicy(settings={"split_max_keys": 10**30}), "split_max_keys must not be above 1e+15"),
        (BrokerPolicy(capacity={"disk": 1}), "there is no resource 'disk'; there are cpu, memory_bytes"),
        (ClusterPolicy(paused=True, reason="x" * 1001), "reason has 1001 characters"),
    ],
)
def test_what_can_never_be_right_is_invalid(policy: Policy, words: str):
    names = {
        IsolationPolicy: (Kind.ISOLATION, "pay"),
        FailureDomain: (Kind.FAILURE_DOMAIN, "rack"),
        NamespacePolicy: (Kind.NAMESPACE, "shop/x"),
        BundlePolicy: (Kind.BUNDLE, str(LEFT)),
        BrokerPolicy: (Kind.BROKER, "a:1"),
        ClusterPolicy: (Kind.CLUSTER, "cluster"),
    }
    with pytest.raises(Invalid) as refused:
        checked(*names[type(policy)], policy)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Kind.ISOLATION, "a/b"),
        (Kind.ISOLATION, ""),
        (Kind.FAILURE_DOMAIN, "rack 1"),
        (Kind.NAMESPACE, "shop"),
        (Kind.BUNDLE, "shop/x"),
        (Kind.BUNDLE, "shop/x/0x0000000A_0x80000000"),
        (Kind.BROKER, "a"),
        (Kind.CLUSTER, "standalone"),
    ],
)
def test_a_name_that_is_none_is_refused(kind: Kind, name: str):
    policies: dict[Kind, Policy] = {
        Kind.ISOLATION: PAY,
        Kind.FAILURE_DOMAIN: FailureDomain(brokers=("a:1",)),
        Kind.NAMESPACE: NamespacePolicy(),
        Kind.BUNDLE: BundlePolicy(),
        Kind.BROKER: BrokerPolicy(),
        Kind.CLUSTER: ClusterPolicy(),
    }
    with pytest.raises((Invalid, InvalidName)):
        checked(kind, name, policies[kind])


def test_what_is_about_something_that_is_not_there_is_not_found():
    with pytest.raises(NotFound, match="there is no namespace no/such; create it first"):
        checked(Kind.NAMESPACE, "no/such", NamespacePolicy(paused=True))
    with pytest.raises(NotFound, match="there is no namespace no/such"):
        checked(Kind.BUNDLE, "no/such/0x00000000_0xffffffff", BundlePolicy(pin="a:1"))
    with pytest.raises(NotFound, match="shop/x has 0x00000000_0x80000000, 0x80000000_0xffffffff"):
        checked(Kind.BUNDLE, "shop/x/0x00000000_0xffffffff", BundlePolicy(pin="a:1"))


def test_the_policy_of_a_bundle_that_was_split_since_may_still_be_changed():
    whole = Bundle("shop/x", 0, (1 << 32) - 1)
    before = Policies(bundles={whole: BundlePolicy(pin="a:1")})
    assert checked(Kind.BUNDLE, str(whole), BundlePolicy(pin="b:1"), before) == Findings()


# --- not satisfied at present


def test_an_isolation_that_no_broker_matches_is_refused_unless_it_is_forced():
    found = checked(Kind.ISOLATION, "pay", isolating(primary=("x:1",), secondary=("y",)))
    assert found.refused == (
        "isolation policy 'pay': no registered broker matches primary or secondary (a:1, b:1, c:1)",
    )
    with pytest.raises(Conflict, match=r"isolation policy 'pay'.*--force"):
        found.refuse(force=False)
    found.refuse(force=True)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("^(?!pay/).*", "(?!"),
        (r"(a)\1", "\\1"),
        ("a*+", "*+"),
        (r"pay/x\Z", "\\Z"),
        ("a{1,1001}", "1001"),
        ("a{,3}", "write {0,n}"),
        ("(.{1,30}){1,30}", "too large"),
        (r"(\pL{0,30}){0,30}", "too large"),
        ("\ud800", "surrogates"),
    ],
)
def test_a_pattern_that_cannot_be_matched_in_time_is_never_right(pattern: str, words: str):
    with pytest.raises(Invalid, match=re.escape(words)):
        checked(Kind.ISOLATION, "pay", isolating(namespaces=(pattern,)))


@pytest.mark.parametrize(
    "pattern",
    [
        "(?i)x/(aa|Aa)*=",
        "(a+)+b",
        "(a|aa)+b",
        "(a?){30}a{30}b",
        ".*a.*a.*a.*a.*b",
        "(.*a.{12})*b",
        "((a{0,20}){0,20})*b",
    ],
)
def test_whatever_is_allowed_is_matched_in_no_time(pattern: str):
    assert checked(Kind.ISOLATION, "pay", isolating(namespaces=(pattern,)))
    begin = time.process_time()
    for name in ("x/" + "a" * 200, "a" * 200, "ab" * 100 + "c"):
        matches_namespace((pattern,), name)
    assert time.process_time() - begin < 1.0, "what is tried again and again takes hours"


def test_what_re2_refuses_is_not_written_to_standard_error(capfd: pytest.CaptureFixture[str]):
    for pattern in ("(?!x)", "(.{1,30}){1,30}", "(" * 200):
        with pytest.raises(Invalid):
            checked(Kind.ISOLATION, "pay", isolating(namespaces=(pattern,)))
    assert capfd.readouterr() == ("", "")


def test_without_an_isolation_policy_somebody_may_be_left_without_any_broker():
    others = Policies(
        isolation={
            "pay": IsolationPolicy(namespaces=("shop/.*",), primary=("a:1",)),
            "all": IsolationPolicy(namespaces=("pay/.*",), primary=(".*",)),
        }
    )
    found = check_deletion(Kind.ISOLATION, "pay", others, KNOWN)
    assert found.refused == ("without isolation policy 'pay' no broker may own shop/x: each is reserved by another",)
    assert check_deletion(Kind.ISOLATION, "all", others, KNOWN) == Findings()


def test_a_drain_that_leaves_an_isolated_namespace_nowhere_is_refused():
    others = Policies(isolation={"pay": IsolationPolicy(namespaces=("pay/.*",), primary=("a:1",))})
    found = checked(Kind.BROKER, "a:1", BrokerPolicy(drain=True), others)
    assert found.refused == ("drain of a:1: isolation policy 'pay' has no other broker that takes bundles",)
    others = Policies(isolation={"pay": IsolationPolicy(namespaces=("pay/.*",), primary=("b:1", "c:1"))})
    found = checked(Kind.BROKER, "a:1", BrokerPolicy(drain=True), others)
    assert found.refused == ("drain of a:1: no other broker is shared, so that no broker may own shop/x",)
    assert checked(Kind.BROKER, "b:1", BrokerPolicy(drain=True), others).refused == ()
    already = Policies(isolation=others.isolation, brokers={"a:1": BrokerPolicy(drain=True)})
    assert checked(Kind.BROKER, "a:1", BrokerPolicy(drain=True, max_bundles=3), already).refused == ()


def test_an_isolation_that_only_a_secondary_matches_is_remarked():
    found = checked(Kind.ISOLATION, "pay", isolating(primary=("x:1",), secondary=("b",)))
    assert found == Findings((), ("no broker matches 'x:1' at present",))


def test_two_isolations_of_one_namespace_must_have_a_primary_in_common():
    others = Policies(isolation={"money": IsolationPolicy(namespaces=("pay/x",), primary=("b:1",))})
    found = checked(Kind.ISOLATION, "pay", PAY, others)
    assert found.refused == ("isolation policies 'pay' and 'money' both claim pay/x, and no broker is primary in both",)
    assert checked(Kind.ISOLATION, "pay", isolating(primary=("a:1", "b:1")), others).refused == ()
    assert checked(Kind.ISOLATION, "money", isolating(primary=("c:1",)), others).refused == (), "it replaces that one"


def test_an_isolation_must_leave_brokers_for_the_namespaces_under_none():
    found = checked(Kind.ISOLATION, "pay", isolating(primary=(".*",)))
    assert found.refused == ("isolation policy 'pay' leaves no shared broker, so that no broker may own shop/x",)
    assert checked(Kind.ISOLATION, "pay", isolating(namespaces=(".*",), primary=(".*",))).refused == ()


def test_a_broker_is_in_one_failure_domain():
    others = Policies(failure_domains={"rack-1": FailureDomain(brokers=("a:1",))})
    both = FailureDomain(brokers=("b:1", "a:1", "z:9"))
    found = checked(Kind.FAILURE_DOMAIN, "rack-2", both, others)
    assert found.refused == ("failure domain 'rack-1' has a:1 already, and a broker is in one domain",)
    assert found.notes == ("z:9 is not registered at present: this holds as soon as it is",)
    assert checked(Kind.FAILURE_DOMAIN, "rack-1", both, others).refused == ()


def test_a_bundle_is_not_pinned_to_where_isolation_forbids_it():
    others = Policies(isolation={"pay": isolating(secondary=("b:1",))})
    (pay,) = BUNDLES["pay/x"]
    found = checked(Kind.BUNDLE, str(pay), BundlePolicy(pin="c:1"), others)
    assert found.refused == (f"{pay} cannot be pinned to c:1: isolation policy 'pay' has it on other brokers",)
    assert checked(Kind.BUNDLE, str(pay), BundlePolicy(pin="b:1"), others).refused == ()
    found = checked(Kind.BUNDLE, str(LEFT), BundlePolicy(pin="a:1"), others)
    assert found.refused == (f"{LEFT} cannot be pinned to a:1: it is reserved by isolation policy 'pay'",)


def test_a_bundle_is_not_excluded_from_all_that_it_may_be_on():
    others = Policies(isolation={"pay": isolating(secondary=("b:1",))})
    (pay,) = BUNDLES["pay/x"]
    found = checked(Kind.BUNDLE, str(pay), BundlePolicy(exclude=("a:1", "b:1")), others)
    assert found.refused == (f"{pay} would be excluded from every broker that its namespace may be on: a:1, b:1",)
    assert checked(Kind.BUNDLE, str(pay), BundlePolicy(exclude=("a:1",)), others).refused == ()


def test_policies_of_overlapping_ranges_must_not_contradict_each_other():
    child = Bundle("shop/x", 0, 1 << 30)
    others = Policies(bundles={child: BundlePolicy(pin="a:1", exclude=("c:1",))})
    found = checked(Kind.BUNDLE, str(LEFT), BundlePolicy(pin="b:1"), others)
    assert found.refused == (f"{child}, which overlaps {LEFT}, is pinned to a:1",)
    found = checked(Kind.BUNDLE, str(LEFT), BundlePolicy(pin="c:1"), others)
    assert f"{child}, which overlaps {LEFT}, is excluded from c:1" in found.refused
    assert checked(Kind.BUNDLE, str(LEFT), BundlePolicy(pin="a:1"), others).refused == ()


def test_the_last_broker_is_not_drained():
    others = Policies(brokers={"b:1": BrokerPolicy(drain=True), "c:1": BrokerPolicy(drain=True)})
    assert checked(Kind.BROKER, "a:1", BrokerPolicy(drain=True), others).refused == (
        "drain of a:1: no other broker takes bundles",
    )
    assert checked(Kind.BROKER, "b:1", BrokerPolicy(drain=True), others).refused == ()


def test_brokers_that_are_not_there_yet_are_remarked():
    found = checked(Kind.BUNDLE, str(LEFT), BundlePolicy(pin="new:1"))
    assert found == Findings((), ("new:1 is not registered at present: this holds as soon as it is",))
    assert checked(Kind.BROKER, "new:1", BrokerPolicy(max_bundles=3)).notes != ()


# --- reading


def test_a_document_is_read_strictly():
    assert read(Kind.NAMESPACE, b'{"weight": 2}') == NamespacePolicy(weight=2.0)
    for bad in (b'{"wait": 2}', b'{"weight": "2"}', b"[]", b"{", b'{"weight": null}'):
        with pytest.raises(Invalid, match="no namespace policy"):
            read(Kind.NAMESPACE, bad)


def test_a_patch_leaves_what_it_does_not_name():
    before = BundlePolicy(pin="a:1", weight=2.0)
    assert patched(Kind.BUNDLE, before, {"exclude": ["b:1"]}) == BundlePolicy("a:1", ("b:1",), weight=2.0)
    assert patched(Kind.BUNDLE, before, {"pin": None}) == BundlePolicy(weight=2.0)
    assert patched(Kind.BUNDLE, None, {"pin": None, "weight": 3}) == BundlePolicy(weight=3.0)
    with pytest.raises(Invalid):
        patched(Kind.BUNDLE, before, {"pinned": "b:1"})
