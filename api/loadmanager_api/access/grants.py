"""What principals may do, from the access policies. Immutable, so that every thread may ask."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from loadmanager.model.policies.model import EVERYWHERE, AccessPolicy, AccessRole


class _Held:
    """What one policy gives: a rank in the cluster, in tenants, in namespaces."""

    __slots__ = ("cluster", "namespaces", "rank", "tenants")

    def __init__(self, rank: int, scopes: Iterable[str]) -> None:
        self.rank = rank
        self.cluster = False
        self.tenants: set[str] = set()
        self.namespaces: set[str] = set()
        for scope in scopes:
            if scope == EVERYWHERE:
                self.cluster = True
            elif scope.endswith(f"/{EVERYWHERE}"):
                self.tenants.add(scope.partition("/")[0])
            else:
                self.namespaces.add(scope)


class Grants:
    """The roles of all principals. What `before` already has of the same policies is taken from there."""

    def __init__(
        self, policies: Iterable[AccessPolicy] = (), superusers: Collection[str] = (), before: Grants | None = None
    ) -> None:
        self.by_policy: dict[int, tuple[AccessPolicy, _Held]] = {}
        """By the identity of the policy, which is kept with it."""
        self._held: dict[str, list[_Held]] = {}
        known = before.by_policy if before is not None else {}
        for policy in policies:
            found = known.get(id(policy)) or (policy, _Held(policy.role.rank, policy.namespaces))
            self.by_policy[id(policy)] = found
            for principal in policy.principals:
                self._held.setdefault(principal, []).append(found[1])
        everything = _Held(AccessRole.ADMIN.rank, (EVERYWHERE,))
        for principal in superusers:
            self._held.setdefault(principal, []).append(everything)
        self._everyone = self._held.get(EVERYWHERE, [])

    def in_cluster(self, principal: str, role: AccessRole) -> bool:
        """Whether the principal has this role, or a higher one, in the whole cluster."""
        rank = role.rank
        return any(held.rank >= rank and held.cluster for held in self._of(principal))

    def in_tenant(self, principal: str, role: AccessRole, tenant: str) -> bool:
        """Whether it has the role in all namespaces of a tenant."""
        rank = role.rank
        return any(held.rank >= rank and (held.cluster or tenant in held.tenants) for held in self._of(principal))

    def in_namespace(self, principal: str, role: AccessRole, namespace: str) -> bool:
        """Whether it has the role in `tenant/namespace`, whether or not that exists."""
        rank = role.rank
        return any(
            held.rank >= rank
            and (held.cluster or namespace in held.namespaces or namespace.partition("/")[0] in held.tenants)
            for held in self._of(principal)
        )

    def anywhere(self, principal: str, role: AccessRole) -> bool:
        """Whether it has the role in any namespace."""
        rank = role.rank
        return any(held.rank >= rank for held in self._of(principal))

    def _of(self, principal: str) -> list[_Held]:
        own = self._held.get(principal) if principal != EVERYWHERE else None
        return self._everyone if own is None else [*own, *self._everyone]

    def roles_of(self, principal: str) -> dict[AccessRole, list[str]]:
        """Where it has which role, by the words of the policies: `*`, `tenant/*`, `tenant/namespace`."""
        found: dict[AccessRole, set[str]] = {}
        for held in self._of(principal):
            role = next(role for role in AccessRole if role.rank == held.rank)
            tenants = {f"{tenant}/{EVERYWHERE}" for tenant in held.tenants}
            places = found.setdefault(role, set())
            places.update(held.namespaces, tenants, {EVERYWHERE} if held.cluster else set())
        return {role: sorted(found[role]) for role in AccessRole if role in found}
