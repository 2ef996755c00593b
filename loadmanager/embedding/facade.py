"""The common part of the asyncio and the threaded facade: making a `Control`, and requests to the node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from loadmanager.broker.drain import DrainProgress
from loadmanager.broker.lookup import Located
from loadmanager.broker.node import Node
from loadmanager.embedding.control import Control
from loadmanager.embedding.endpoints import Endpoint, closed_endpoint, installed_endpoint
from loadmanager.embedding.stateless import StatelessHost
from loadmanager.errors import Conflict, MissingExtra
from loadmanager.model.host import BundleHost
from loadmanager.settings import Settings
from loadmanager.settings.given import Given, settings_of
from statechannel.law.bundle import even_boundaries, parse_key

ADMIT_TIMEOUT_S = 5.0
"""How long a request waits for a bundle on its way here; a failover at default settings takes less."""

_log = logging.getLogger("loadmanager")

__all__ = ["ADMIT_TIMEOUT_S", "draining", "embed", "ensuring", "locating"]


def embed(
    host: BundleHost | None,
    settings: Settings | None,
    urls: Mapping[str, str] | None,
    endpoint: Endpoint | bool | None,
    bind: str | None,
    more: Given,
) -> Control:
    """The control thread, not started, for the arguments of a `Broker`. Raises TypeError, Invalid."""
    if settings is None:
        settings = settings_of(more)
    elif more:
        raise TypeError(f"give settings, or {', '.join(more)} by name, not both")
    stateless = StatelessHost()
    control = Control(host or stateless, settings, urls or {}, _endpoint(endpoint), bind or settings.advertised)
    stateless.control = control
    return control


def _endpoint(endpoint: Endpoint | bool | None) -> Endpoint:
    if endpoint is None:
        try:
            return installed_endpoint()
        except MissingExtra as missing:
            _log.warning("%s; give endpoint=False to run without it", missing)
            return closed_endpoint
    return installed_endpoint() if endpoint is True else closed_endpoint if endpoint is False else endpoint


def locating(topic: str, timeout_s: float | None) -> Callable[[Node], Coroutine[Any, Any, Located]]:
    """Look a key up; the default time-out is the setting's."""
    parsed = parse_key(topic)
    return lambda node: node.current.lookup.locate(
        parsed, node.settings.lookup_timeout_s if timeout_s is None else timeout_s
    )


def draining(timeout_s: float | None) -> Callable[[Node], Coroutine[Any, Any, DrainProgress]]:
    """Move all bundles away; the default time-out is the setting's."""
    return lambda node: node.drain(node.settings.drain_timeout_s if timeout_s is None else timeout_s)


def ensuring(namespace: str, bundles: int | None) -> Callable[[Node], Coroutine[Any, Any, None]]:
    """Create a namespace unless it exists; the default number of bundles is `namespace_default_bundles`."""

    async def ensure(node: Node) -> None:
        known = node.channel.table.namespace(namespace)
        if known is not None and known.exists:
            return
        try:
            count = node.settings.namespace_default_bundles if bundles is None else bundles
            await node.current.operations.create_namespace(namespace, even_boundaries(count))
        except Conflict:
            return  # another process created it at the same moment

    return ensure
