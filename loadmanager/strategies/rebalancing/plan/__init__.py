"""The default strategy: one objective, hard rules as filters, six stages, a certificate. See docs/balancing.md."""

from loadmanager.strategies.rebalancing.plan.planner import Plan

__all__ = ["Plan"]
