"""All checks, in the order in which they are run."""

from __future__ import annotations

from types import ModuleType

from loadmanager.sidecar.conformance.checking import Check
from loadmanager.sidecar.conformance.checks import attaching, crossing, hooks, leases, leaving, optional, requests


def _of(module: ModuleType) -> list[Check]:
    return [value for value in vars(module).values() if isinstance(value, Check)]


CHECKS: tuple[Check, ...] = tuple(
    check for module in (attaching, hooks, crossing, optional, leases, requests, leaving) for check in _of(module)
)
