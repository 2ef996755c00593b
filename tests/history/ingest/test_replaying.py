"""The fold of a batch over the files that its tasks have written."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from loadmanager.diagnostics.topics import CHANNEL_TOPIC
from loadmanager.history.files import File, Files
from loadmanager.history.ingest.tasks import fold_files
from loadmanager.history.verdicts import Known


def written(folder: Path, partition: int) -> list[File]:
    """A file with one record of a partition of the channel."""
    files, at = Files(str(folder)), datetime(2026, 1, 1, tzinfo=UTC)
    values = {
        "topic": CHANNEL_TOPIC,
        "partition": partition,
        "offset": 0,
        "key": None,
        "value": b"?",
        "appended_at": at,
    }
    types = {"partition": pa.int32(), "appended_at": pa.timestamp("us", "UTC")}
    files.add("bronze", {name: pa.array([value], types.get(name)) for name, value in values.items()})
    return files.close()


def test_partitions_between_those_of_a_batch_may_have_no_record(spark, tmp_path):
    bronze = [*written(tmp_path, 0), *written(tmp_path, 2)]
    done = fold_files(spark, str(tmp_path), bronze, Known(), partitions=4, batch=1)
    assert set(done.known.positions) == {0, 2}
