"""How many partitions a session makes of what it shuffles. Each case has a JVM of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASKED = "from loadmanager.history.session import Spark, session; "
ASKED += "print('has', session(Spark(master='local[3]', conf={given})).conf.get('spark.sql.shuffle.partitions'))"


@pytest.mark.parametrize(
    ("given", "submitted", "has"),
    [({}, "", 3), ({"spark.sql.shuffle.partitions": "7"}, "", 7), ({}, "spark.sql.shuffle.partitions 16", 16)],
    ids=["cores", "conf", "spark-submit"],
)
def test_as_many_partitions_as_cores_unless_told(
    tmp_path: Path, given: dict[str, str], submitted: str, has: int
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(submitted)  # as a properties file of spark-submit
    program = ASKED.format(given=given)
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert f"has {has}\n" in run.stdout, run.stderr
