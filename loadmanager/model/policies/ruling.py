"""The settings and policies for bundles that may be split or merged, computed once for each kind of bundle. Pure."""

from __future__ import annotations

from collections.abc import Hashable

from loadmanager.model.policies.claims import Claims
from loadmanager.model.policies.model import BundlePolicy, Policies
from loadmanager.model.policies.overriding import settings_for, why_left_alone
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle

_Kind = tuple[str, tuple[Bundle, ...]]
"""A namespace, and the bundles whose policies hold."""


class Ruling:
    """The settings and policies of one moment, for the bundles of this owner."""

    def __init__(self, settings: Settings, policies: Policies, owner: str = "") -> None:
        self.settings = settings
        self.policies = policies
        self._claims = Claims(policies.bundles)
        self._owner = owner
        self._settings: dict[_Kind, Settings] = {}
        self._alone: dict[_Kind, str] = {}

    def settings_of(self, bundle: Bundle) -> Settings:
        """The settings for this bundle."""
        kind, claimed = self._kind(bundle)
        found = self._settings.get(kind)
        if found is None:
            found = self._settings[kind] = settings_for(self.settings, self.policies, bundle.namespace, claimed)
        return found

    def why_left_alone(self, bundle: Bundle) -> str:
        """The policy that stops automatic splits and merges of the bundle, empty if there is none."""
        kind, claimed = self._kind(bundle)
        if kind not in self._alone:
            owner = self.policies.brokers.get(self._owner)
            paused = f"broker {self._owner} is paused" if owner is not None and owner.paused else ""
            self._alone[kind] = paused or why_left_alone(self.policies, bundle.namespace, claimed)
        return self._alone[kind]

    def quarantined(self, bundle: Bundle) -> str:
        """Why no broker may be given the bundle, empty if one may."""
        return next((policy.quarantined for policy in self._kind(bundle)[1] if policy.quarantined), "")

    def policies_of(self, bundle: Bundle) -> Hashable:
        """A value that is equal for bundles of a namespace under the same policies."""
        return self._kind(bundle)[0][1]

    def _kind(self, bundle: Bundle) -> tuple[_Kind, tuple[BundlePolicy, ...]]:
        named = self._claims.on(bundle)
        return (bundle.namespace, tuple(each for each, _ in named)), tuple(policy for _, policy in named)
