"""A load manager for sharded services: who owns which bundle of keys, moved without a failed request.

A service embeds a `Broker` (or, with threads, a `SyncBroker`) and implements `BundleHost`; its clients use
`loadmanager.client`. Names are loaded when they are first used, so that a client does not pay for the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from loadmanager.on_demand import on_demand

if TYPE_CHECKING:
    __version__: str
    from loadmanager.broker.serving import Claim
    from loadmanager.client import BudgetSpent, Credentials, HttpRouter, Router, SyncRouter
    from loadmanager.client.redirection import Moved, NotServing
    from loadmanager.embedding.broker import Broker, SyncBroker
    from loadmanager.errors import Conflict, Forbidden, Gone, Invalid, LoadManagerError, NotFound, Unavailable
    from loadmanager.fencing.fences import FencedOut
    from loadmanager.model.host import BundleHost, BundleLoad, Destination
    from loadmanager.settings import Settings
    from statechannel.errors import Error, InvalidName, StateChannelError
    from statechannel.law.bundle import Bundle, Key
    from statechannel.law.record import Token
    from statechannel.runtime.auto_batch import AutoBatch
    from statechannel.runtime.batching import BatchSettings

__all__ = [
    "AutoBatch",
    "BatchSettings",
    "Broker",
    "BudgetSpent",
    "Bundle",
    "BundleHost",
    "BundleLoad",
    "Claim",
    "Conflict",
    "Credentials",
    "Destination",
    "Error",
    "FencedOut",
    "Forbidden",
    "Gone",
    "HttpRouter",
    "Invalid",
    "InvalidName",
    "Key",
    "LoadManagerError",
    "Moved",
    "NotFound",
    "NotServing",
    "Router",
    "Settings",
    "StateChannelError",
    "SyncBroker",
    "SyncRouter",
    "Token",
    "Unavailable",
]

_HOMES = {
    "loadmanager.client": ("BudgetSpent", "Credentials", "HttpRouter", "Router", "SyncRouter"),
    "loadmanager.embedding.broker": ("Broker", "SyncBroker"),
    "loadmanager.errors": ("Conflict", "Forbidden", "Gone", "Invalid", "LoadManagerError", "NotFound", "Unavailable"),
    "loadmanager.fencing.fences": ("FencedOut",),
    "loadmanager.model.host": ("BundleHost", "BundleLoad", "Destination"),
    "loadmanager.client.redirection": ("Moved", "NotServing"),
    "loadmanager.broker.serving": ("Claim",),
    "loadmanager.settings": ("Settings",),
    "statechannel.law.bundle": ("Bundle", "Key"),
    "statechannel.errors": ("Error", "InvalidName", "StateChannelError"),
    "statechannel.law.record": ("Token",),
    "statechannel.runtime.auto_batch": ("AutoBatch",),
    "statechannel.runtime.batching": ("BatchSettings",),
}
_others = on_demand(__name__, {name: module for module, names in _HOMES.items() for name in names})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # takes a moment to import

        return version("loadmanager")
    return _others(name)
