"""The pytest plugin (entry point `pytest11`): the fixture `loadmanager_cluster`.

It is imported in every run of pytest where this package is installed, and therefore imports nothing else.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from loadmanager.testing.cluster import EmbeddedCluster

OpenCluster = Callable[..., "AbstractAsyncContextManager[EmbeddedCluster[Any]]"]


@pytest.fixture
def loadmanager_cluster(tmp_path: Path) -> OpenCluster:
    """`async with loadmanager_cluster(MyHost, brokers=3) as cluster:` in any asynchronous test.

    As `loadmanager.testing.embedded_cluster`, with its files in the test's `tmp_path`. It is a plain fixture:
    pytest-asyncio and anyio's plugin both run such a test, as does `asyncio.run` in one that is not asynchronous.
    """
    number = itertools.count()

    def open_cluster(*arguments: Any, **options: Any) -> AbstractAsyncContextManager[EmbeddedCluster[Any]]:
        from loadmanager.testing.cluster import embedded_cluster

        directory = tmp_path / f"loadmanager-{next(number)}"
        directory.mkdir()
        return embedded_cluster(*arguments, **{"directory": directory, **options})

    return open_cluster
