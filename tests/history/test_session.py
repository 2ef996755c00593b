"""What a session is told beside its configuration. Each case has a JVM of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadmanager.errors import Invalid
from loadmanager.history.lake import Lake
from loadmanager.history.session import INCUBATOR, LANGUAGE, Spark, _pass_on, cluster_partitions, session

ASKED = """
from loadmanager.history.session import Spark, session
print(session(Spark(master="local[3]", conf={given})).conf.get("spark.sql.shuffle.partitions"))
"""
MAINTAINED = (
    "from loadmanager_api.cli.main import main; main(['history', 'maintain', '--lake', {root!r}, '-o', 'json'])"
)
NUMBERED = """
from loadmanager.history.session import Spark, session
spark = session(Spark(conf={"spark.executor.extraJavaOptions": "-Dx=y"}))
java = spark.sparkContext._jvm.java
print(java.lang.System.getProperty("user.language"), java.text.NumberFormat.getInstance().format(17))
print(spark.sparkContext._jsc.sc().conf().get("spark.executor.defaultJavaOptions"))
"""
LEFT_RUNNING = """
import threading, time
from loadmanager.history.session import Spark, end_work, session
spark = session(Spark())
def slowly(batches):
    time.sleep(60)
    yield from batches
def count():
    try:
        spark.range(4).mapInArrow(slowly, "id long").count()
    except Exception:
        print("cancelled")
working = threading.Thread(target=count)
working.start()
tracker = spark.sparkContext.statusTracker()
while not any(tracker.getStageInfo(each).numActiveTasks for each in tracker.getActiveStageIds()):
    time.sleep(0.05)
time.sleep(3)  # until the Python workers are at it
end_work(spark)
spark.stop()
working.join()
"""


def test_what_the_jvm_says_is_passed_on_but_for_one_line_also_if_nobody_listens() -> None:
    said = b"first\n" + INCUBATOR + b" jdk.incubator.vector\nsecond\nthird"
    for listens in (True, False):
        (reading, jvm), (ours, to) = os.pipe(), os.pipe()
        if not listens:
            os.close(ours)
        os.write(jvm, said)
        os.close(jvm)
        _pass_on(reading, to)
        if listens:
            assert os.read(ours, 100) == b"first\nsecond\nthird"
            os.close(ours)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_jvm_writes_the_digits_0_to_9_whatever_language_the_machine_has() -> None:
    said = printed(NUMBERED, LANG="ar_EG.UTF-8", JAVA_TOOL_OPTIONS="-Duser.language=ar -Duser.language.format=fa")
    assert said == f"en 17\n{LANGUAGE}\n"


def test_standard_output_has_the_answer_alone(lake: Lake) -> None:
    lake.prepare("audit")  # whose vacuum tells on standard output what it has deleted
    answer = json.loads(printed(MAINTAINED.format(root=lake.root)))
    assert {"table": "audit", "days_joined": 0, "rows_removed": 0} in answer


@pytest.mark.slow
def test_what_still_runs_at_the_end_is_cancelled_and_tells_no_errors() -> None:
    """An adaptive plan may leave stages running that it needs no more; they would lose their workers."""
    run = subprocess.run([sys.executable, "-c", LEFT_RUNNING], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout == "cancelled\n"
    assert "ERROR" not in run.stderr


def test_a_session_of_another_time_zone_is_refused() -> None:
    with pytest.raises(Invalid, match=r"leave out --conf spark.sql.session.timeZone=America/New_York"):
        session(Spark(conf={"spark.sql.session.timeZone": "America/New_York"}))


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


@pytest.mark.parametrize(
    ("conf", "registered", "expected"),
    [
        ({}, 2, 8),
        ({}, 24, 24),
        ({"spark.executor.instances": "4", "spark.executor.cores": "4"}, 2, 16),
        ({"spark.cores.max": "12"}, 2, 12),
        ({"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.maxExecutors": "40"}, 2, 40),
        ({"spark.executor.instances": "500"}, 2, 200),
    ],
)
def test_a_cluster_gets_as_many_partitions_as_it_has_or_promises_cores(
    conf: dict[str, str], registered: int, expected: int
) -> None:
    assert cluster_partitions(conf, registered) == expected
