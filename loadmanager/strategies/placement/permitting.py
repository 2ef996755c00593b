"""Which candidates may take an unassigned bundle: the same hard rules as for moves. Pure.

Anti-affinity is Pulsar's filter: of the candidates with room, those in the failure domains with the fewest namespaces
of the group, and of these the ones with the fewest themselves. Pauses do not count: a bundle without an owner needs
one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from loadmanager.model.cluster import ALLOWED
from loadmanager.model.policies.constraints import grouped
from loadmanager.model.policies.effective import Claims
from loadmanager.model.policies.model import Policies
from loadmanager.model.policies.permissions import Fleet, Permissions
from loadmanager.model.registration import Peer
from loadmanager.settings import Settings
from loadmanager.strategies.placement.placement import Candidate, RefusedCandidate
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId
from statechannel.law.table import OwnershipTable
from statechannel.law.transitions import State

SHOWN = 3


class Permitted(msgspec.Struct, frozen=True):
    """The candidates that may take a bundle, and the refused ones; shared by bundles with the same permissions."""

    candidates: tuple[Candidate, ...]
    refused: tuple[RefusedCandidate, ...] = ()

    def explain(self, reason: str) -> str:
        """Why there is no place: the placement's reason, and the rules that refused the others before it."""
        return f"{reason}; {self.why}" if self.candidates and self.refused else self.why or reason

    @property
    def why(self) -> str:
        """The rules that refused brokers, and how many each: `isolation policy 'pay' refuses b:1, c:1`."""
        by_rule: dict[str, list[str]] = {}
        for each in self.refused:
            by_rule.setdefault(each.rule, []).append(each.broker.name)
        return "; ".join(f"{rule} refuses {_few(names)}" for rule, names in by_rule.items())


class Permitting:
    """The permissions of one moment; `peers` are those of the candidates, in the same order.

    `holdings` gives how many bundles of a namespace each broker holds; it is called only for namespaces in groups.
    `claims` are those of the policies, if they are computed already.
    """

    def __init__(
        self,
        policies: Policies,
        peers: Sequence[Peer],
        candidates: Sequence[Candidate],
        settings: Settings,
        holdings: Callable[[str], Mapping[BrokerId, int]],
        claims: Claims | None = None,
    ) -> None:
        self.candidates = tuple(laid_down(policies, each) for each in candidates)
        fleet = _fleet(peers, self.candidates)
        self._anywhere = not (policies.isolation or policies.bundles or settings.prefer_later_versions)
        self._everybody = Permitted(self.candidates)
        self._permissions = Permissions(policies, fleet, newest_only=settings.prefer_later_versions)
        self._claims = Claims(policies.bundles) if claims is None else claims
        self._groups = grouped(policies.namespaces)
        self._holdings = holdings
        self._here: dict[str, Counter[str]] = {}
        self._domains = _domains(policies, peers)
        self._known: dict[object, Permitted] = {}

    @property
    def groups(self) -> bool:
        """Whether there are anti-affinity groups, so that the bundles just given matter."""
        return bool(self._groups)

    def of(self, bundle: Bundle) -> Permitted:
        """The permissions of the bundle."""
        group = self._groups.get(bundle.namespace)
        found = self._everybody if self._anywhere else self._by_rules(bundle)
        return found if group is None else self._apart(found, bundle.namespace, group)

    def _by_rules(self, bundle: Bundle) -> Permitted:
        claimed = tuple(policy for _, policy in self._claims.on(bundle))
        matched = self._permissions.matched(bundle.namespace)
        key = (matched, tuple(map(id, claimed)))  # the policies live as long as `_claims`
        found = self._known.get(key)
        if found is None:
            row = self._permissions.row(matched, claimed)
            found = self._known[key] = _permitted(self.candidates, row.tolist(), self._permissions.rules.texts())
        return found

    def closed(self, broker: BrokerId) -> str:
        """Why the broker takes nothing at all: drained, or full; empty if neither."""
        for each in self.candidates:
            if each.broker == broker:
                if each.draining:
                    return f"{broker.name} is drained"
                if not has_room(each):
                    return f"{broker.name} has {each.bundles} bundles of at most {each.max_bundles}"
        return ""

    def gave(self, bundle: Bundle, broker: BrokerId) -> None:
        """Count a bundle that was just given away, which the table does not show yet."""
        if bundle.namespace in self._groups:
            self._held(bundle.namespace)[broker.name] += 1

    def _apart(self, permitted: Permitted, namespace: str, group: str) -> Permitted:
        """The permitted candidates on which the group is spread best."""
        with_room = [each for each in permitted.candidates if not each.draining and has_room(each)]
        best = set(self._fewest(with_room, namespace, group))
        crowded = tuple(
            RefusedCandidate(each.broker, f"anti-affinity group '{group}'", "it has more namespaces of the group")
            for each in with_room
            if each.broker.name not in best
        )
        kept = tuple(each for each in with_room if each.broker.name in best)
        return Permitted(kept, (*permitted.refused, *crowded))

    def _fewest(self, candidates: Sequence[Candidate], namespace: str, group: str) -> list[str]:
        others = [name for name, its in self._groups.items() if its == group and name != namespace]
        names = [each.broker.name for each in candidates]
        by_domain: dict[str, set[str]] = {}
        by_broker: Counter[str] = Counter()
        for other in others:
            for name, held in self._held(other).items():
                if held > 0:
                    by_broker[name] += 1
                    by_domain.setdefault(self._domains.get(name, ""), set()).add(other)
        if any(self._domains.values()):
            names = _least(names, lambda name: len(by_domain.get(self._domains.get(name, ""), ())))
        return _least(names, lambda name: by_broker[name])

    def _held(self, namespace: str) -> Counter[str]:
        if namespace not in self._here:
            self._here[namespace] = Counter()
            for broker, count in self._holdings(namespace).items():
                self._here[namespace][broker.name] += count
        return self._here[namespace]


def holdings_of(table: OwnershipTable, namespace: str) -> Mapping[BrokerId, int]:
    """How many bundles of a namespace each broker holds, moves in flight counted as done."""
    known = table.namespace(namespace)
    held: Counter[BrokerId] = Counter()
    for entry in () if known is None else known.entries:
        on_its_way = entry.state in (State.TRANSFERRING, State.RELEASING)
        broker = entry.target if on_its_way else entry.holder
        if broker is not None:
            held[broker] += 1
    return held


def laid_down(policies: Policies, candidate: Candidate) -> Candidate:
    """The candidate with the drain and limit that policies give it."""
    policy = policies.brokers.get(candidate.broker.name)
    most = candidate.max_bundles
    if policy is not None and policy.max_bundles is not None:
        most = policy.max_bundles
    draining = candidate.draining or (policy is not None and policy.drain)
    if (most, draining) == (candidate.max_bundles, candidate.draining):
        return candidate
    return msgspec.structs.replace(candidate, max_bundles=most, draining=draining)


def _permitted(candidates: Sequence[Candidate], row: Sequence[int], rules: Sequence[str]) -> Permitted:
    return Permitted(
        tuple(each for each, rule in zip(candidates, row, strict=True) if rule == ALLOWED),
        tuple(
            RefusedCandidate(each.broker, rules[rule], "a policy")
            for each, rule in zip(candidates, row, strict=True)
            if rule != ALLOWED
        ),
    )


def _fleet(peers: Sequence[Peer], candidates: Sequence[Candidate]) -> Fleet:
    return Fleet(
        names=tuple(peer.broker.name for peer in peers),
        versions=tuple(peer.registration.version for peer in peers),
        draining=np.array([each.draining for each in candidates], np.bool_),
        usage=np.array([each.usage or 0.0 for each in candidates], np.float64),
    )


def _domains(policies: Policies, peers: Sequence[Peer]) -> dict[str, str]:
    said = {peer.broker.name: peer.registration.failure_domain for peer in peers}
    return said | {name: domain for domain, each in policies.failure_domains.items() for name in each.brokers}


def has_room(candidate: Candidate) -> bool:
    """Whether it holds fewer bundles than its limit."""
    return candidate.max_bundles is None or candidate.bundles < candidate.max_bundles


def _least(names: Sequence[str], measure: Callable[[str], int]) -> list[str]:
    fewest = min(map(measure, names), default=0)
    return [name for name in names if measure(name) == fewest]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
