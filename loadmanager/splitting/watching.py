"""Feeds a node's count of deadly bundles: from the channel, what is read at the start too, and from pardons."""

from __future__ import annotations

from collections.abc import Callable

from loadmanager.documents.model import Version
from loadmanager.policies.model import BundlePolicy, Kind, Policy
from loadmanager.policies.store import PolicyStore
from loadmanager.policies.stored import named
from loadmanager.settings import Settings
from loadmanager.splitting.quarantine import Quarantine
from statechannel.bundle import Bundle
from statechannel.service import Channel


def count_deaths(channel: Channel, policies: PolicyStore, settings: Callable[[], Settings]) -> Quarantine:
    """A count that follows both for as long as they run; call it before either does."""
    quarantine = Quarantine()

    def changed(key: str, old: Version[Policy] | None, new: Version[Policy]) -> None:
        kind, name = named(key)
        if kind is Kind.BUNDLE and _is_locked(old) and not _is_locked(new):
            quarantine.pardon(Bundle.parse(name), new.at_ms)

    channel.listen(lambda change: quarantine.observe(change, settings().quarantine_window_s))
    policies.documents.on_change(changed)
    return quarantine


def _is_locked(version: Version[Policy] | None) -> bool:
    return version is not None and isinstance(version.value, BundlePolicy) and bool(version.value.quarantined)
