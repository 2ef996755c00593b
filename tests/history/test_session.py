"""What a session is told beside its configuration. Each case has a JVM of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASKED = """
from loadmanager.history.session import Spark, session
print(session(Spark(master="local[3]", conf={given})).conf.get("spark.sql.shuffle.partitions"))
"""
CLEANED = """
from loadmanager.history.session import keep_stdout, session
spark = session()
keep_stdout(spark)
spark.range(1).write.format("delta").save("{path}")
spark.sql("VACUUM delta.`{path}` RETAIN 200 HOURS")
print("the answer")
"""


@pytest.mark.parametrize(
    ("given", "submitted", "has"),
    [({}, "", 3), ({"spark.sql.shuffle.partitions": "7"}, "", 7), ({}, "spark.sql.shuffle.partitions 16", 16)],
    ids=["cores", "conf", "spark-submit"],
)
def test_as_many_partitions_as_cores_unless_told(
    tmp_path: Path, given: dict[str, str], submitted: str, has: int
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(submitted)  # as a properties file of spark-submit
    assert printed(ASKED.format(given=given), SPARK_CONF_DIR=str(tmp_path)) == f"{has}\n"


def test_standard_output_has_the_answer_alone(tmp_path: Path) -> None:
    assert printed(CLEANED.format(path=tmp_path / "table")) == "the answer\n"


def printed(program: str, **environment: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout
