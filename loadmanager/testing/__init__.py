"""For tests of a service that embeds a broker: whole clusters in one process, in a temporary directory.

    async with embedded_cluster(Shop, brokers=3) as cluster:
        await cluster.kill(cluster.owner("test/service/alice"))
        await cluster.settled()

With pytest the fixture `loadmanager_cluster` exists as soon as this package is installed: it is the same, in the test's
own `tmp_path`. This package needs neither pytest nor an event loop plugin. See docs/testing-your-service.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loadmanager.testing.cluster import NAMESPACE, EmbeddedCluster, embedded_cluster

__all__ = ["NAMESPACE", "EmbeddedCluster", "embedded_cluster"]


def __getattr__(name: str) -> Any:  # pytest imports this package in every run, wherever it is installed
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("loadmanager.testing.cluster"), name)
