"""The client side: finds the owner of a key, follows it when it moves, retries within a budget."""

from loadmanager.client.credentials import Credentials
from loadmanager.client.http import HttpAnswer, HttpRouter
from loadmanager.client.redirection import Moved, NotServing
from loadmanager.client.route import Route
from loadmanager.client.router import BudgetSpent, Router
from loadmanager.client.sync_router import SyncRouter

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
