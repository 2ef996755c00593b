"""A cluster for the tests of a file, and what they compare with: the same command in this process's session."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from loadmanager.history.jars import bring
from loadmanager_api.cli.main import main
from tests.history.engines.standalone import Standalone, standalone

Here = Callable[..., None]


@pytest.fixture
def here(spark: SparkSession) -> Here:
    """Run a command in this process's session on Spark, and publish its result in a folder."""

    def run(folder: Path, command: str, *arguments: str) -> None:
        engine = ("--engine", "spark") if command == "analyse" else ()
        done = CliRunner().invoke(main, ["history", command, *arguments, *engine, "--publish", str(folder)])
        assert done.exit_code == 0, done.output

    return run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Standalone]:
    """A master without workers."""
    bring()
    with standalone(tmp_path_factory.mktemp("standalone")) as made:
        yield made
