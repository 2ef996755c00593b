"""One cluster and one Kafka and ZooKeeper for all tests here, and a namespace for each."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack.kubernetes.cluster import Cluster
from tests.kubernetes.release import Release
from tests.servers import shared_kafka, shared_zookeeper


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("pods get file systems of their own here (mount namespaces), for which one has to be root")
    folder = Path(tempfile.mkdtemp(prefix="loadmanager-kubernetes-"))
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        if not os.environ.get("KEEP"):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def release(cluster: Cluster, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Release]:
    """With a namespace, and nothing installed in it."""
    kafka, zookeeper = shared_kafka(request.config), shared_zookeeper(request.config)
    release = Release(cluster, tmp_path, f"localhost:{kafka.port}", f"localhost:{zookeeper.port}")
    release.create_namespace()
    yield release
    release.remove()


@pytest.fixture
def installed(release: Release) -> Release:
    """With three brokers."""
    release.deploy("install", release.values())
    return release
