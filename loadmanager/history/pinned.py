"""A lake as a job reads it: every table as of one version, whatever others write meanwhile. For reading only."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from pyspark.sql import DataFrame

from loadmanager.history import layout
from loadmanager.history.lake import Lake


class Pinned(Lake):
    """Reads a table as of the version that it had when this first looked at it; one that was not there stays away."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake.spark, lake.root)
        self._versions: dict[str, int | None] = {}
        self._turn = threading.Lock()

    def versions(self, tables: Iterable[str] | None = None) -> dict[str, int]:
        """As of which version each of these tables is read, of those that are there: time travel goes back to it.

        Without `tables` of all that were read so far.
        """
        found = {table: self._version(table) for table in (sorted(self._versions) if tables is None else tables)}
        return {table: version for table, version in found.items() if version is not None}

    def _version(self, table: str) -> int | None:
        with self._turn:  # analyses ask in threads
            if table not in self._versions:
                self._versions[table] = None if super()._read(table) is None else self._newest(table)
            return self._versions[table]

    def _newest(self, table: str) -> int:
        history = self.spark.sql(f"DESCRIBE HISTORY {layout.delta(self.path(table))} LIMIT 1")
        return int(history.select("version").collect()[0]["version"])

    def _read(self, table: str) -> DataFrame | None:
        version = self._version(table)
        if version is None:
            return None
        return self.spark.read.format("delta").option("versionAsOf", version).load(self.path(table))


def pinned(lake: Lake) -> Pinned:
    """The lake, pinned from now on; one that is already goes on as it is."""
    return lake if isinstance(lake, Pinned) else Pinned(lake)
