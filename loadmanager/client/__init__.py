"""The client side: finds the owner of a key, follows it when it moves, retries within a budget.

Names are loaded when they are first used: brokers use `redirection.py` alone.
"""

from typing import TYPE_CHECKING

from loadmanager.on_demand import on_demand

if TYPE_CHECKING:
    from loadmanager.client.credentials import Credentials
    from loadmanager.client.http_router import HttpAnswer, HttpRouter, SyncRouter
    from loadmanager.client.redirection import Moved, NotServing
    from loadmanager.client.route import Route
    from loadmanager.client.router import BudgetSpent, Router

__all__ = [
    "BudgetSpent",
    "Credentials",
    "HttpAnswer",
    "HttpRouter",
    "Moved",
    "NotServing",
    "Route",
    "Router",
    "SyncRouter",
]

__getattr__ = on_demand(
    __name__,
    {
        "BudgetSpent": f"{__name__}.router",
        "Credentials": f"{__name__}.credentials",
        "HttpAnswer": f"{__name__}.http_router",
        "HttpRouter": f"{__name__}.http_router",
        "Moved": f"{__name__}.redirection",
        "NotServing": f"{__name__}.redirection",
        "Route": f"{__name__}.route",
        "Router": f"{__name__}.router",
        "SyncRouter": f"{__name__}.http_router",
    },
)
