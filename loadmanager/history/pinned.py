"""A read-only lake that shows every table as of one version, whatever others write meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame

from loadmanager.history import layout
from loadmanager.history.lake import Lake

if TYPE_CHECKING:
    from deltalake import DeltaTable


class Pinned(Lake):
    """Reads a table as of the version at its first access; a table that was missing then stays missing."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake.spark, lake.root)
        self._versions: dict[str, int | None] = {}
        self._turn = threading.Lock()

    def versions(self, tables: Iterable[str] | None = None) -> dict[str, int]:
        """The version as of which each of these tables is read, for time travel; tables that do not exist are left out.

        Without `tables`, those that were read so far.
        """
        found = {table: self._version(table) for table in (sorted(self._versions) if tables is None else tables)}
        return {table: version for table, version in found.items() if version is not None}

    def _version(self, table: str) -> int | None:
        with self._turn:  # analyses ask in threads
            if table not in self._versions:
                self._versions[table] = self._newest(table)
            return self._versions[table]

    def _newest(self, table: str) -> int | None:
        if self.folder:
            here = super()._opened(table)
            return None if here is None else here.version()
        if super()._read(table) is None:
            return None
        history = self.spark.sql(f"DESCRIBE HISTORY {layout.delta(self.path(table))} LIMIT 1")
        return int(history.select("version").collect()[0]["version"])

    def _opened(self, table: str) -> DeltaTable | None:
        version = self._version(table)
        found = None if version is None else super()._opened(table)
        if found is not None and version is not None:
            found.load_as_version(version)
        return found

    def _read(self, table: str) -> DataFrame | None:
        version = self._version(table)
        if version is None:
            return None
        return self.spark.read.format("delta").option("versionAsOf", version).load(self.path(table))


def pinned(lake: Lake) -> Pinned:
    """The lake, pinned from now on; one that is pinned already is returned as it is."""
    return lake if isinstance(lake, Pinned) else Pinned(lake)
