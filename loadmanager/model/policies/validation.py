"""Validates a policy document before it is written: by itself, and against the cluster. Pure.

What can never be right raises Invalid, which names the field. A reference to something that does not exist raises
NotFound. A rule that nothing satisfies at present becomes a Conflict, which names it and what it conflicts with. It can
be forced, since brokers may be about to come. Everything else that the author should know is a note, e.g. on unknown
brokers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, assert_never

import msgspec
from pydantic import ValidationError

from loadmanager.errors import Conflict, Invalid, NotFound
from loadmanager.model.policies.constraints import CAPACITIES
from loadmanager.model.policies.effective import BUNDLE_SETTINGS, NAMESPACE_SETTINGS, Claims, Overrides
from loadmanager.model.policies.model import (
    CLUSTER,
    EVERYWHERE,
    TYPES,
    AccessPolicy,
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
from loadmanager.model.policies.patterns import Unmatchable, compiled, matches_broker, matches_namespace
from loadmanager.model.policies.permissions import WHEREVER, brokers_of
from loadmanager.settings import MAX_PORT, Settings, descriptions
from loadmanager.settings.choices import AUTOMATIC
from loadmanager.settings.removed import why_removed
from statechannel.law.bundle import DOTS, Bundle, check_namespace


class Known(msgspec.Struct, frozen=True):
    """The present cluster."""

    brokers: Collection[str]
    """The names of the registered brokers."""
    namespaces: Collection[str]
    bundles_of: Callable[[str], Sequence[Bundle]]
    """The bundles of a namespace; none if there is no such namespace."""
    settings: Settings


class Findings(msgspec.Struct, frozen=True):
    """The result: `refused` names rules that nothing can satisfy at present, one sentence each; `notes` are remarks.

    `stranding` are those of `refused` that leave namespaces, other than the document's own, without any broker.
    """

    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stranding: tuple[str, ...] = ()

    def refuse(self, *, force: bool, strand: bool = False) -> None:
        """Raises Conflict with the refused rules, unless forced; `strand` lets those pass that are `stranding`."""
        refused = [each for each in self.refused if not (strand and each in self.stranding)]
        if refused and not force:
            raise Conflict(f"{'; '.join(refused)}. Change it, or insist (?force=true, --force)")

    def plus(self, other: Findings) -> Findings:
        """Both findings together."""
        return Findings(
            (*self.refused, *other.refused), (*self.notes, *other.notes), (*self.stranding, *other.stranding)
        )


PATTERN_CHARACTERS = 1_000
PATTERNS = 1_000
REASON_CHARACTERS = 1_000
LEAST, MOST = 1e-6, 1e18
"""Beyond these bounds, sums and quotients of weights and capacities could overflow in a strategy."""
_DEFAULTS = Settings.model_construct()
_NAME = re.compile(r"[\w.=:-]{1,200}", re.ASCII)
_PRINCIPAL = re.compile(r"[^\s,]{1,200}")
_BROKER = re.compile(r"[^\s/#]+:\d{1,5}", re.ASCII)


def read(kind: Kind, data: bytes) -> Policy:
    """The document in this JSON. Raises Invalid."""
    try:
        return msgspec.json.decode(data, type=TYPES[kind])
    except msgspec.DecodeError as error:
        raise Invalid(f"no {kind} policy: {error}") from None


def patched(kind: Kind, before: Policy | None, patch: Mapping[str, object]) -> Policy:
    """The document with some fields changed; null removes a field. Raises Invalid."""
    fields: dict[str, object] = {} if before is None else dict(msgspec.to_builtins(before))
    for name, value in patch.items():
        if name not in TYPES[kind].__struct_fields__:
            raise Invalid(
                f"no {kind} policy has a field {name!r}; there are {', '.join(TYPES[kind].__struct_fields__)}"
            )
        fields[name] = value
        if value is None:
            del fields[name]
    try:
        return read(kind, msgspec.json.encode(fields))
    except (ValueError, OverflowError, RecursionError) as error:
        raise Invalid(f"no {kind} policy: {error}") from None


def check_name(kind: Kind, name: str) -> None:
    """Raises Invalid, InvalidName."""
    match kind:
        case Kind.ISOLATION | Kind.FAILURE_DOMAIN | Kind.ACCESS:
            if _NAME.fullmatch(name) is None or name in DOTS:
                raise Invalid(
                    f"{name!r} is not a valid name: up to 200 letters, digits, and _ - = : . are allowed, not . or .."
                )
        case Kind.NAMESPACE:
            check_namespace(name)
        case Kind.BUNDLE:
            if str(Bundle.parse(name)) != name:
                raise Invalid(f"write {Bundle.parse(name)}")  # one bundle, one document
        case Kind.BROKER:
            _broker("the name", name)
        case Kind.CLUSTER:
            if name != CLUSTER:
                raise Invalid(f"there is one cluster policy, and its name is {CLUSTER!r}")
        case _:
            assert_never(kind)


def check_fields(policy: Policy, settings: Settings | None = None) -> None:
    """Raises Invalid. Without settings it only checks that the document is usable, whichever release wrote it."""
    match policy:
        case IsolationPolicy():
            _isolation(policy)
        case FailureDomain():
            _some("brokers", policy.brokers)
            for broker in policy.brokers:
                _broker("brokers", broker)
        case NamespacePolicy():
            if policy.anti_affinity_group and _NAME.fullmatch(policy.anti_affinity_group) is None:
                raise Invalid(f"anti_affinity_group: {policy.anti_affinity_group!r} is not a valid name")
            if settings is not None and policy.anti_affinity_group in DOTS:
                raise Invalid(f"anti_affinity_group: {policy.anti_affinity_group!r} is not a valid name for a group")
            _above_zero("weight", policy.weight)
            _settings(policy.settings, NAMESPACE_SETTINGS, settings)
        case BundlePolicy():
            _bundle(policy)
            _settings(policy.settings, BUNDLE_SETTINGS, settings)
        case BrokerPolicy():
            _broker_policy(policy)
        case ClusterPolicy():
            _short("reason", policy.reason)
        case AccessPolicy():
            _access(policy)
        case _:
            assert_never(policy)


def _isolation(policy: IsolationPolicy) -> None:
    _some("namespaces", policy.namespaces)
    _some("primary", policy.primary)
    for field in ("namespaces", "primary", "secondary"):
        _patterns(field, getattr(policy, field))
    if policy.min_available < 1:
        raise Invalid(f"min_available is {policy.min_available}: at least 1 primary broker must be wanted")
    if not 0 < policy.usage_threshold_percent <= 100:
        raise Invalid(f"usage_threshold_percent is {policy.usage_threshold_percent:g}: above 0, at most 100")


def _bundle(policy: BundlePolicy) -> None:
    if policy.pin and policy.pin != WHEREVER:
        _broker("pin", policy.pin)
    for broker in policy.exclude:
        _broker("exclude", broker)
    if policy.pin in policy.exclude:
        raise Invalid(f"pin and exclude both name {policy.pin}: it cannot be kept on a broker that it does not go to")
    _short("quarantined", policy.quarantined)
    _above_zero("weight", policy.weight)


def _broker_policy(policy: BrokerPolicy) -> None:
    if policy.max_bundles is not None and policy.max_bundles < 1:
        raise Invalid(f"max_bundles is {policy.max_bundles}: at least 1; to empty a broker, drain it")
    for resource, value in policy.capacity.items():
        if resource not in CAPACITIES:
            raise Invalid(f"capacity: there is no resource {resource!r}; there are {', '.join(CAPACITIES)}")
        _above_zero(f"capacity.{resource}", value)


def _access(policy: AccessPolicy) -> None:
    for field, values in (("principals", policy.principals), ("namespaces", policy.namespaces)):
        _some(field, values)
        if len(values) > PATTERNS:
            raise Invalid(f"{field} has {len(values)} entries, at most {PATTERNS}")
    for principal in policy.principals:
        if _PRINCIPAL.fullmatch(principal) is None:
            raise Invalid(f"principals: {principal!r} is not a principal: 1 to 200 characters, no blanks, no commas")
    for scope in policy.namespaces:
        if scope != EVERYWHERE:
            check_namespace(f"{scope.removesuffix(EVERYWHERE)}any" if scope.endswith(f"/{EVERYWHERE}") else scope)


def _settings(overrides: Overrides, allowed: Collection[str], wanted: Settings | None) -> None:
    settings = wanted or _DEFAULTS
    for name, value in overrides.items():
        if (why := why_removed(name)) is not None:
            raise Invalid(f"settings: {why}")
        if name not in allowed:
            why = "holds for the whole cluster" if name in descriptions() else "does not exist"
            raise Invalid(f"settings: {name!r} {why}; here may be set: {', '.join(sorted(allowed))}")
        present = getattr(settings, name)
        if isinstance(value, str) != isinstance(present, str) or isinstance(value, bool) != isinstance(present, bool):
            raise Invalid(f"settings.{name}: {value!r} is of another type; write a value such as {present!r}")
        if isinstance(present, int) and not isinstance(value, int):
            raise Invalid(f"settings.{name}: {value!r} is not a whole number")
        if name == "split_algorithm" and value not in AUTOMATIC:
            raise Invalid(
                f"settings.{name}: there is no {value!r} for automatic splits; there are {', '.join(AUTOMATIC)}"
            )
    if wanted is not None:
        _together(overrides, wanted)


def _together(overrides: Mapping[str, Any], settings: Settings) -> None:
    if not overrides:
        return
    try:
        together: dict[str, Any] = {**settings.model_dump(), **overrides}
        type(settings)(**together)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(("settings", *map(str, first["loc"])))
        raise Invalid(f"{where}: {first['msg'].removeprefix('Value error, ')}") from None


def _patterns(field: str, patterns: Sequence[str]) -> None:
    if len(patterns) > PATTERNS:
        raise Invalid(f"{field} has {len(patterns)} patterns, at most {PATTERNS}")
    for pattern in patterns:
        if not pattern or len(pattern) > PATTERN_CHARACTERS:
            raise Invalid(f"{field}: a pattern has 1 to {PATTERN_CHARACTERS} characters, not {len(pattern)}")
        try:
            compiled(pattern)
        except Unmatchable as error:
            raise Invalid(f"{field}: {pattern!r} is not a regular expression (in RE2's syntax): {error}") from None


def _some(field: str, values: Sequence[str]) -> None:
    if not values:
        raise Invalid(f"{field} is empty: name at least one")


def _broker(field: str, name: str) -> None:
    if _BROKER.fullmatch(name) is None or int(name.rpartition(":")[2]) > MAX_PORT:
        raise Invalid(f"{field}: {name!r} is not a broker's name; write host:port")


def _above_zero(field: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise Invalid(f"{field} is {value:g}: it must be a number above 0")
    if not LEAST <= value <= MOST:
        raise Invalid(f"{field} is {value:g}: it must be from {LEAST:g} to {MOST:g}")


def _short(field: str, text: str) -> None:
    if len(text) > REASON_CHARACTERS:
        raise Invalid(f"{field} has {len(text)} characters, at most {REASON_CHARACTERS}")


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
    return [f"isolation policy '{name}' leaves no shared broker, so that no broker may own {_few(homeless)}"]


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
    refused = f"without isolation policy '{name}' no broker may own {_few(homeless)}: each is reserved by another"
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
        refused.append(f"drain of {name}: no other broker is shared, so that no broker may own {_few(homeless)}")
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


def check(kind: Kind, name: str, policy: Policy, others: Policies, known: Known) -> Findings:
    """Check a document; `others` are the present policies. Raises Invalid, NotFound."""
    check_name(kind, name)
    check_fields(policy, known.settings)
    match policy:
        case IsolationPolicy():
            return of_isolation(name, policy, others, known)
        case FailureDomain():
            return of_failure_domain(name, policy, others, known)
        case BrokerPolicy():
            return of_broker(name, policy, others, known)
        case BundlePolicy():
            bundle = Bundle.parse(name)
            if bundle not in others.bundles:  # a bundle that was split or merged since keeps its policy
                _exists(bundle, known)
            return of_bundle(bundle, policy, others, known)
        case _:
            if kind is Kind.NAMESPACE and name not in known.namespaces:
                raise NotFound(f"there is no namespace {name}; create it first")
            return Findings()


def check_deletion(kind: Kind, name: str, others: Policies, known: Known) -> Findings:
    """Check the deletion of a present document."""
    return of_isolation_gone(name, others, known) if kind is Kind.ISOLATION else Findings()


def _exists(bundle: Bundle, known: Known) -> None:
    bundles = known.bundles_of(bundle.namespace)
    if not bundles:
        raise NotFound(f"there is no namespace {bundle.namespace}; create it first")
    if bundle not in bundles:
        shown = ", ".join(each.range for each in bundles[:SHOWN]) + (" …" if len(bundles) > SHOWN else "")
        raise NotFound(f"there is no bundle {bundle}; {bundle.namespace} has {shown}")
