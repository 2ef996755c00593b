"""What people see of a running job: lines where nobody looks on, and Spark's tasks where somebody does."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.sql import SparkSession

from loadmanager.history.progress import Counts, following, steps, waiting

NO_SPARK = cast("SparkSession", None)


def test_without_a_terminal_each_step_is_a_line_when_it_is_done(capsys: pytest.CaptureFixture[str]):
    with steps(NO_SPARK, 2) as progress:
        progress.begin("imbalance")
        assert capsys.readouterr().err == ""
        progress.begin("gaps")
        assert capsys.readouterr().err.startswith("[1/2] imbalance, ")
    told = capsys.readouterr()
    assert told.err.startswith("[2/2] gaps, ")
    assert told.out == ""


def test_a_job_that_failed_is_not_called_done(capsys: pytest.CaptureFixture[str]):
    def failing() -> None:
        with steps(NO_SPARK, 1) as progress:
            progress.begin("imbalance")
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert capsys.readouterr().err == ""


def test_what_a_job_waits_for_is_a_line_when_it_is_done(capsys: pytest.CaptureFixture[str]):
    with waiting("starting Spark"):
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "starting Spark, 0.0 s\n"
    with pytest.raises(KeyError), waiting("starting Spark"):
        raise KeyError
    assert capsys.readouterr().err == ""


def test_tasks_are_counted_while_a_job_runs(spark: SparkSession):
    seen: list[Counts] = []
    with following(spark, seen.append):
        while not seen:
            spark.range(0, 3_000_000, 1, 6).selectExpr("sum(length(sha(cast(id as string))))").collect()
    assert all(0 <= done <= total for done, total in seen)
