"""A small cluster in columns: five brokers of one rack each, and bundles of a few namespaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from loadmanager.model.cluster import ALLOWED, NOWHERE, UNLIMITED, Brokers, Bundles, Constraints
from loadmanager.model.policies.constraints import constraints_for, with_policies
from loadmanager.model.policies.model import Policies
from loadmanager.settings import Settings
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId

NAMES = ("a:1", "b:1", "c:1", "d:1", "e:1")
SETTINGS = Settings(bundle_rest_s=100.0)


def brokers(
    names: Sequence[str] = NAMES, *, usage: Mapping[str, float] = {}, versions: Mapping[str, str] = {}
) -> Brokers:
    n = len(names)
    used = np.zeros((n, 5))
    used[:, 0] = [10 * usage.get(name, 0.0) for name in names]
    return Brokers(
        ids=tuple(BrokerId(name, 1) for name in names),
        capacity=np.full((n, 5), 10.0),
        used=used,
        known=np.ones(n, np.bool_),
        draining=np.zeros(n, np.bool_),
        paused=np.zeros(n, np.bool_),
        bundles=np.zeros(n, np.int64),
        max_bundles=np.full(n, UNLIMITED),
        rate_msg_s=np.zeros(n),
        throughput_bytes_s=np.zeros(n),
        domains=tuple("" for _ in names),
        versions=tuple(versions.get(name, "1.0.0") for name in names),
    )


def bundles(placed: Mapping[str, str], names: Sequence[str] = NAMES) -> Bundles:
    """Bundles by name, with the broker that holds each, "" for none."""
    ids = [Bundle.parse(name) for name in placed]
    namespaces = tuple(dict.fromkeys(each.namespace for each in ids))
    m = len(ids)
    return Bundles(
        ids=ids,
        namespaces=namespaces,
        namespace=np.array([namespaces.index(each.namespace) for each in ids], np.int64),
        owner=np.array([names.index(b) if b else NOWHERE for b in placed.values()], np.int64),
        load=np.ones((m, 5)),
        rate_msg_s=np.zeros(m),
        throughput_bytes_s=np.zeros(m),
        in_flight=np.zeros(m, np.bool_),
        moved_s=np.full(m, np.inf),
        changed=np.zeros(m, np.bool_),
        left={},
    )


class Judged:
    """The constraints of bundles by name, as sentences ask for them."""

    def __init__(
        self,
        policies: Policies,
        placed: Mapping[str, str],
        fleet: Brokers | None = None,
        settings: Settings = SETTINGS,
        holdings: Mapping[str, Mapping[BrokerId, int]] = {},
    ) -> None:
        self.brokers = with_policies(policies, fleet or brokers())
        names = [each.name for each in self.brokers.ids]
        self.names = list(placed)
        self.constraints: Constraints = constraints_for(
            policies, self.brokers, bundles(placed, names), holdings, settings
        )

    def allowed(self, bundle: str) -> set[str]:
        row = self.constraints.forbidden[self.constraints.kind[self.names.index(bundle)]]
        return {each.name for each, rule in zip(self.brokers.ids, row, strict=True) if rule == ALLOWED}

    def rule(self, bundle: str, broker: str) -> str:
        row = self.constraints.forbidden[self.constraints.kind[self.names.index(bundle)]]
        number = int(row[[each.name for each in self.brokers.ids].index(broker)])
        return "" if number == ALLOWED else self.constraints.rules[number]

    def fixed(self, bundle: str) -> str:
        number = int(self.constraints.fixed[self.names.index(bundle)])
        return "" if number < 0 else self.constraints.rules[number]
