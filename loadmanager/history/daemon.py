"""The Python process that Spark forks its workers from, with the modules of tasks loaded once.

Spark's own daemon (`pyspark.daemon`) loads nothing, so each worker imports pyarrow and the decoders again, and its
cycle collector walks over all of that. It also finds PySpark in a zip file. Each task invalidates Python's import
caches, and rereading a zip's directory took 0.1 s of each task. Where PySpark is installed as a package too, the zip
files are dropped from the path.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import runpy
import sys
from contextlib import suppress

LOADED = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "loadmanager.history.ingest.tasks",
    "loadmanager.history.audit",
)


def main() -> None:
    """Load what tasks need, and become Spark's daemon."""
    _forget_zips()
    for name in LOADED:
        with suppress(ImportError):  # a task that needs it says so
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


def _forget_zips() -> None:
    before = list(sys.path)
    sys.path[:] = [place for place in before if not place.endswith(".zip")]
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("py4j") is None:
        sys.path[:] = before
        return
    for place in [place for place in sys.path_importer_cache if place.endswith(".zip")]:
        del sys.path_importer_cache[place]


if __name__ == "__main__":
    main()
