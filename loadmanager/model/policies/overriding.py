"""Settings that a namespace or a bundle overrides. Pure; the values were checked when written."""

from __future__ import annotations

from collections.abc import Mapping

from loadmanager.model.policies.model import BundlePolicy, Policies
from loadmanager.settings import Settings

NAMESPACE_SETTINGS = frozenset(
    {
        "bundle_rest_s",
        "load_change_percent",
        "merge",
        "merge_below_percent",
        "merge_rest_s",
        "namespace_max_bundles",
        "namespace_min_bundles",
        "quarantine_deaths",
        "split",
        "split_algorithm",
        "split_children",
        "split_hits",
        "split_max_bandwidth_bytes_s",
        "split_max_keys",
        "split_max_rate_msg_s",
        "split_max_sessions",
    }
)
"""Settings that a namespace's policy may override."""

BUNDLE_SETTINGS = NAMESPACE_SETTINGS - {"namespace_max_bundles", "namespace_min_bundles"}
"""Settings that a bundle's policy may override."""

Overrides = Mapping[str, float | int | str | bool]


def overrides_for(policies: Policies, namespace: str, claimed: tuple[BundlePolicy, ...] = ()) -> Overrides:
    """The overrides: the namespace's, and over them the bundle's."""
    named = policies.namespaces.get(namespace)
    overrides = dict(named.settings) if named is not None else {}
    for each in reversed(claimed):  # the smallest range takes precedence
        overrides.update(each.settings)
    return overrides


def settings_for(
    settings: Settings, policies: Policies, namespace: str, claimed: tuple[BundlePolicy, ...] = ()
) -> Settings:
    """The settings for a namespace, or for a bundle in it with these policies."""
    overrides = overrides_for(policies, namespace, claimed)
    return settings.model_copy(update=dict(overrides)) if overrides else settings


def balances(policies: Policies, namespace: str, claimed: tuple[BundlePolicy, ...] = ()) -> bool:
    """Whether automatic moves, splits and merges apply: the bundle's value, else the namespace's, else yes.

    The cluster's switches and pauses apply in addition.
    """
    for each in claimed:
        if each.balancing is not None:
            return each.balancing
    named = policies.namespaces.get(namespace)
    return named is None or named.balancing is None or named.balancing


def why_paused(policies: Policies, namespace: str, claimed: tuple[BundlePolicy, ...] = ()) -> str:
    """The quarantine or pause that stops all automatic decisions on a bundle, drains included; empty if none."""
    quarantined = next((each.quarantined for each in claimed if each.quarantined), "")
    if quarantined:
        return f"quarantined: {quarantined}"
    if policies.cluster.paused:
        return "the cluster is paused" + (f": {policies.cluster.reason}" if policies.cluster.reason else "")
    named = policies.namespaces.get(namespace)
    return f"namespace {namespace} is paused" if named is not None and named.paused else ""


def why_left_alone(policies: Policies, namespace: str, claimed: tuple[BundlePolicy, ...] = ()) -> str:
    """The rule that stops automatic splits, merges and moves of a bundle; empty if there is none."""
    return why_paused(policies, namespace, claimed) or (
        "" if balances(policies, namespace, claimed) else "balancing is off for it"
    )
