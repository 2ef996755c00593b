"""For tests of a service that embeds a broker: whole clusters in one process, in a temporary directory.

    async with embedded_cluster(Shop, brokers=3) as cluster:
        await cluster.kill(cluster.owner("test/service/alice"))
        await cluster.settled()

With pytest the fixture `loadmanager_cluster` exists as soon as this package is installed: it is the same, in the test's
own `tmp_path`. This package needs neither pytest nor an event loop plugin. See docs/testing-your-service.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loadmanager.on_demand import on_demand

if TYPE_CHECKING:
    from loadmanager.testing.cluster import NAMESPACE, EmbeddedCluster, embedded_cluster

__all__ = ["NAMESPACE", "EmbeddedCluster", "embedded_cluster"]


# pytest imports this package in every run, wherever it is installed
__getattr__ = on_demand(__name__, dict.fromkeys(__all__, f"{__name__}.cluster"))
