"""One Spark session in each worker for all tests of the load history: a session is a JVM of its own.

Tests of one file run on one worker: what a file makes once (a lake, with all that is ingested into it) is made once.
Those that need Kafka or ZooKeeper run where these are, see `tests/servers.py`.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from loadmanager.history.jars import bring
from loadmanager.history.lake import Lake
from loadmanager.history.session import Spark, session

HERE = "tests/history/"
SOCKETS = (
    "ignore:unclosed <socket.socket:ResourceWarning",
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning",
)
"""PySpark leaves the closing of its sockets to the garbage collector."""

PATIENCE_S = 900
"""A test of some dozens of small jobs takes a minute where nothing else runs, and many where much does."""

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
}
"""A test has a few rows: compiling a query for them takes longer than to interpret it. With one compiler the JVM would
keep 48 MB for compiled code, which a few hundred tests fill; it compiles nothing more then, and crawls."""


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(HERE) and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.slow)
            if not any(item.get_closest_marker(mark) for mark in ("kafka", "zookeeper", "xdist_group")):
                item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0].removeprefix(HERE)))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(PATIENCE_S))
            for ignored in SOCKETS:
                item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Generator[SparkSession]:
    bring(s3=True)
    warehouse = tmp_path_factory.mktemp("warehouse")
    made = session(Spark(memory="1g", conf={"spark.sql.warehouse.dir": str(warehouse)} | QUICK))
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """An empty lakehouse."""
    return Lake(spark, str(tmp_path / "lake"))
