"""Feeds a node's evidence on deadly bundles: from the channel, including the replay at the start, and from unlocks."""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.cluster.membership import Membership
from loadmanager.cluster.policy_store import PolicyStore
from loadmanager.leader.quarantine.quarantine import Quarantine
from loadmanager.model.policies.model import BundlePolicy, Kind, Policy
from loadmanager.model.policies.stored import named
from loadmanager.settings import Settings
from loadmanager.settings.documents.model import Version
from statechannel.law.bundle import Bundle
from statechannel.runtime.service import Channel


def collect_evidence(
    channel: Channel, policies: PolicyStore, membership: Membership, settings: Callable[[], Settings]
) -> Quarantine:
    """The evidence, which follows channel and policies; call this before either of them runs."""
    quarantine = Quarantine(lambda: max(len(membership.peers), len(channel.table.holders())))

    def changed(key: str, old: Version[Policy] | None, new: Version[Policy]) -> None:
        kind, name = named(key)
        if kind is Kind.BUNDLE and _is_locked(old) and not _is_locked(new):
            quarantine.pardon(Bundle.parse(name), new.at_ms)

    channel.listen(lambda change: quarantine.observe(change, settings().quarantine_window_s))
    policies.documents.on_change(changed)
    return quarantine


def _is_locked(version: Version[Policy] | None) -> bool:
    return version is not None and isinstance(version.value, BundlePolicy) and bool(version.value.quarantined)
