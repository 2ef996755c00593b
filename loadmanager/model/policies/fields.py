"""Checks a policy document by itself, whatever the cluster has: raises Invalid, which names the field. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, assert_never

import msgspec
from pydantic import ValidationError

from loadmanager.errors import Invalid
from loadmanager.model.policies.constraining import CAPACITIES
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
    Policy,
)
from loadmanager.model.policies.overriding import BUNDLE_SETTINGS, NAMESPACE_SETTINGS, Overrides
from loadmanager.model.policies.pattern import Unmatchable, compiled
from loadmanager.model.policies.permissions import WHEREVER
from loadmanager.settings import MAX_PORT, Settings
from loadmanager.settings.algorithms import AUTOMATIC
from statechannel.law.bundle import DOTS, Bundle, check_namespace

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
                    f"{name!r} is no name: letters, digits, and _ - = : . are allowed, 200 at most, not . or .."
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
    """Raises Invalid. Without settings it only checks that the document is usable, whoever wrote it."""
    match policy:
        case IsolationPolicy():
            _isolation(policy)
        case FailureDomain():
            _some("brokers", policy.brokers)
            for broker in policy.brokers:
                _broker("brokers", broker)
        case NamespacePolicy():
            if policy.anti_affinity_group and _NAME.fullmatch(policy.anti_affinity_group) is None:
                raise Invalid(f"anti_affinity_group: {policy.anti_affinity_group!r} is no name")
            if settings is not None and policy.anti_affinity_group in DOTS:
                raise Invalid(f"anti_affinity_group: {policy.anti_affinity_group!r} is no name for a group")
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
            raise Invalid(f"principals: {principal!r} is no principal: 1 to 200 characters, no blanks and no commas")
    for scope in policy.namespaces:
        if scope != EVERYWHERE:
            check_namespace(f"{scope.removesuffix(EVERYWHERE)}any" if scope.endswith(f"/{EVERYWHERE}") else scope)


def _settings(overrides: Overrides, allowed: Collection[str], wanted: Settings | None) -> None:
    settings = wanted or _DEFAULTS
    for name, value in overrides.items():
        if name not in allowed:
            known = name in type(settings).model_fields
            why = "holds for the whole cluster" if known else "does not exist"
            raise Invalid(f"settings: {name!r} {why}; here may be set: {', '.join(sorted(allowed))}")
        present = getattr(settings, name)
        if isinstance(value, str) != isinstance(present, str) or isinstance(value, bool) != isinstance(present, bool):
            raise Invalid(f"settings.{name}: {value!r} is of another type; write a value such as {present!r}")
        if isinstance(present, int) and not isinstance(value, int):
            raise Invalid(f"settings.{name}: {value!r} is no whole number")
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
            raise Invalid(f"{field}: {pattern!r} is no regular expression (in RE2's syntax): {error}") from None


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
