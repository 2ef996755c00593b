"""Checks that brokers, namespaces and other policies can satisfy a policy document. Pure.

Each refusal is a sentence that names the rule and what it conflicts with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loadmanager.model.policies.claims import Claims
from loadmanager.model.policies.findings import Findings, Known
from loadmanager.model.policies.isolation import brokers_of
from loadmanager.model.policies.matching import matches_broker, matches_namespace
from loadmanager.model.policies.model import BrokerPolicy, BundlePolicy, FailureDomain, IsolationPolicy, Policies
from loadmanager.model.policies.permissions import WHEREVER
from statechannel.law.bundle import Bundle

SHOWN = 5


def of_isolation(name: str, policy: IsolationPolicy, others: Policies, known: Known) -> Findings:
    """Check an isolation policy against the other policies."""
    refused: list[str] = []
    brokers = sorted(known.brokers)
    if not any(matches_broker((*policy.primary, *policy.secondary), broker) for broker in brokers):
        refused.append(
            f"isolation policy '{name}': no registered broker matches primary or secondary ({_few(brokers)})"
        )
    rest = {key: each for key, each in others.isolation.items() if key != name}
    claimed = sorted(each for each in known.namespaces if matches_namespace(policy.namespaces, each))
    refused += _disjoint(name, policy, rest, claimed, brokers)
    stranding = _homeless(name, policy, rest, known, brokers)
    refused += stranding
    notes = [
        f"no broker matches {pattern!r} at present" for pattern in _idle((*policy.primary, *policy.secondary), brokers)
    ]
    if not claimed:
        notes.append(f"no namespace matches {', '.join(policy.namespaces)} at present")
    return Findings(tuple(refused), tuple(notes), tuple(stranding))


def _disjoint(
    name: str, policy: IsolationPolicy, rest: dict[str, IsolationPolicy], claimed: list[str], brokers: list[str]
) -> list[str]:
    """Refuse if another policy claims the same namespace, and they have no primary broker in common."""
    refused: list[str] = []
    mine = {broker for broker in brokers if matches_broker(policy.primary, broker)}
    for other, each in rest.items():
        shared = [namespace for namespace in claimed if matches_namespace(each.namespaces, namespace)]
        theirs = {broker for broker in brokers if matches_broker(each.primary, broker)}
        if shared and mine and theirs and not mine & theirs:
            refused.append(
                f"isolation policies '{name}' and '{other}' both claim {_few(shared)}, and no broker is primary in both"
            )
    return refused


def _homeless(
    name: str, policy: IsolationPolicy, rest: dict[str, IsolationPolicy], known: Known, brokers: list[str]
) -> list[str]:
    """Refuse if every broker becomes a primary, but some namespaces have no policy."""
    homeless = _sharing_nothing({**rest, name: policy}, known, brokers)
    if not homeless:
        return []
    return [f"isolation policy '{name}' leaves no shared broker, so that nobody may own {_few(homeless)}"]


def _sharing_nothing(policies: Mapping[str, IsolationPolicy], known: Known, brokers: Sequence[str]) -> list[str]:
    """Namespaces under none of the policies, if every broker is a primary of some."""
    reserved = [pattern for each in policies.values() for pattern in each.primary]
    if not brokers or not all(matches_broker(reserved, broker) for broker in brokers):
        return []
    patterns = [pattern for each in policies.values() for pattern in each.namespaces]
    return sorted(each for each in known.namespaces if not matches_namespace(patterns, each))


def of_isolation_gone(name: str, others: Policies, known: Known) -> Findings:
    """Check the deletion of an isolation policy."""
    rest = {key: each for key, each in others.isolation.items() if key != name}
    before = _sharing_nothing(others.isolation, known, tuple(known.brokers))
    homeless = [each for each in _sharing_nothing(rest, known, tuple(known.brokers)) if each not in before]
    if not homeless:
        return Findings()
    refused = f"without isolation policy '{name}' nobody may own {_few(homeless)}: every broker is reserved by another"
    return Findings((refused,))


def of_failure_domain(name: str, domain: FailureDomain, others: Policies, known: Known) -> Findings:
    """Check a failure domain against the others."""
    refused = [
        f"failure domain '{other}' has {broker} already, and a broker is in one domain"
        for other, each in sorted(others.failure_domains.items())
        for broker in each.brokers
        if other != name and broker in domain.brokers
    ]
    return Findings(tuple(refused), unregistered(domain.brokers, known))


def of_bundle(bundle: Bundle, policy: BundlePolicy, others: Policies, known: Known) -> Findings:
    """Check a bundle's policy against the isolation of its namespace and the policies of overlapping ranges."""
    refused: list[str] = []
    pin = policy.pin if policy.pin != WHEREVER else ""
    if pin and brokers_of(others.isolation, bundle.namespace, (pin,)) == ():
        refused.append(f"{bundle} cannot be pinned to {pin}: {why_isolated(others, bundle.namespace, pin)}")
    for other, each in Claims(others.bundles).on(bundle):
        if other == bundle or not pin:
            continue
        if each.pin not in ("", WHEREVER, pin):
            refused.append(f"{other}, which overlaps {bundle}, is pinned to {each.pin}")
        if pin in each.exclude:
            refused.append(f"{other}, which overlaps {bundle}, is excluded from {pin}")
    able = brokers_of(others.isolation, bundle.namespace, tuple(sorted(known.brokers)))
    if policy.exclude and able and set(able) <= set(policy.exclude):
        refused.append(f"{bundle} would be excluded from every broker that its namespace may be on: {_few(able)}")
    named = (*policy.exclude, *((pin,) if pin else ()))
    return Findings(tuple(refused), unregistered(named, known))


def of_broker(name: str, policy: BrokerPolicy, others: Policies, known: Known) -> Findings:
    """Check a broker's policy against those of the other brokers."""
    staying = [
        broker
        for broker in known.brokers
        if broker != name and not (broker in others.brokers and others.brokers[broker].drain)
    ]
    refused = [f"drain of {name}: no other broker takes bundles"] if policy.drain and not staying else []
    if policy.drain and staying and not (name in others.brokers and others.brokers[name].drain):
        refused += _only_there(name, others, known, tuple(staying))
    return Findings(tuple(refused), unregistered((name,), known))


def _only_there(name: str, others: Policies, known: Known, staying: tuple[str, ...]) -> list[str]:
    """Refuse if this broker is the only one that namespaces of some isolation policy may use."""
    refused: list[str] = []
    for policy, each in others.isolation.items():
        patterns = (*each.primary, *each.secondary)
        if matches_broker(patterns, name) and not any(matches_broker(patterns, broker) for broker in staying):
            refused.append(f"drain of {name}: isolation policy '{policy}' has no other broker that takes bundles")
    homeless = _sharing_nothing(others.isolation, known, staying) if others.isolation else []
    if homeless and name in known.brokers and not _sharing_nothing(others.isolation, known, (name,)):
        refused.append(f"drain of {name}: no other broker is shared, so that nobody may own {_few(homeless)}")
    return refused


def why_isolated(policies: Policies, namespace: str, broker: str) -> str:
    """The isolation policy that permanently keeps a namespace off a broker, in words; empty if there is none."""
    for name, each in policies.isolation.items():
        named = matches_namespace(each.namespaces, namespace)
        if named and not matches_broker((*each.primary, *each.secondary), broker):
            return f"isolation policy '{name}' has it on other brokers"
    if not any(matches_namespace(each.namespaces, namespace) for each in policies.isolation.values()):
        for name, each in policies.isolation.items():
            if matches_broker(each.primary, broker):
                return f"it is reserved by isolation policy '{name}'"
    return ""


def unregistered(named: Sequence[str], known: Known) -> tuple[str, ...]:
    """Notes on brokers that are not registered."""
    absent = [broker for broker in dict.fromkeys(named) if broker not in known.brokers]
    return tuple(f"{broker} is not registered at present: this holds as soon as it is" for broker in absent)


def _idle(patterns: Sequence[str], brokers: Sequence[str]) -> list[str]:
    return [pattern for pattern in patterns if not any(matches_broker((pattern,), broker) for broker in brokers)]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "") or "none"
