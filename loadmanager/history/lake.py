"""The lakehouse: where each table is, how it is read, and the four ways in which it is written.

`Lake(spark, root)`; the root is a path or URI that Spark can write. Tables are Delta, each at its own path below
`root/tables`. `table(name)` is a DataFrame with the schema of `schemas.py`; empty where the table does not exist yet.
`layout.py` makes tables and brings them up to date; `ingest/` writes them.

Each way of writing is one commit, and idempotent:

* `append`: under a writer's name and a number; a number that was committed is skipped;
* `add`: the same for files that are written already; a number that was committed is a Conflict;
* `add_new`: only rows whose key is not there yet (an insert-only merge: nothing is rewritten);
* `replace`: rows that match a condition replace all rows that match it.
"""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from loadmanager.errors import Conflict
from loadmanager.history import delta, layout
from loadmanager.history.columns import check_place
from loadmanager.history.delta import check_format, opened
from loadmanager.history.files import Arrow, Columns, File, Files, arrow_of, check_shared, local_root
from loadmanager.history.schemas import TABLES
from loadmanager.history.session import speak_no_language

if TYPE_CHECKING:
    from deltalake import DeltaTable


class Window(msgspec.Struct, frozen=True):
    """From `begin` to before `end`, UTC; None is open."""

    begin: datetime | None = None
    end: datetime | None = None

    def cut(self, rows: DataFrame, column: str = "at") -> DataFrame:
        """The rows whose `column` lies in the window."""
        if self.begin is not None:
            rows = rows.where(f.col(column) >= f.lit(self.begin))
        if self.end is not None:
            rows = rows.where(f.col(column) < f.lit(self.end))
        return rows


ALWAYS = Window()
_LATEST_COMMITS = 20
_CONCURRENT = re.compile(r"DELTA_CONCURRENT|Concurrent\w{1,40}Exception|Concurrent transaction failed")
_ONE_WRITER: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""By path. On a local file system Delta in the JVM checks that a commit's file is absent, then renames its own to it.
That is safe only among threads of the JVM, and `add` commits outside of it."""
_S3 = ("s3", "s3a", "s3n")
ALONE = "one job at a time may write to a lake on S3, because one job's commits can overwrite another's"
_NOT_THERE = frozenset(
    {"PATH_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE"}
)


class Once(msgspec.Struct, frozen=True):
    """The writer's name and number that make an append happen once. Numbers of a name only grow."""

    writer: str
    number: int

    def options(self) -> dict[str, str]:
        """Delta's write options for it."""
        return {"txnAppId": self.writer, "txnVersion": str(self.number)}


class Lake:
    """One lakehouse, in one session. Raises Invalid as `check_place` and `speak_no_language`."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        self.spark = spark
        self.root = check_place(root.rstrip("/"))
        speak_no_language(spark)
        self._checked = False
        self._prepared: set[str] = set()
        self._filled: set[str] = set()
        self._handles: dict[str, DeltaTable] = {}

    def path(self, table: str) -> str:
        """Path of a table. Raises KeyError for an unknown name."""
        if table not in TABLES:
            raise KeyError(table)
        return f"{self.root}/tables/{table}"

    def place(self, table: str) -> Path:
        """The folder of a table, of a lake on this machine's file system."""
        return Path(self.folder, "tables", table)

    @cached_property
    def folder(self) -> str:
        """The absolute path of a lake on this machine's file system; empty for one elsewhere."""
        return check_place(local_root(self.spark, self.root))

    def checkpoint(self, query: str, version: int) -> str:
        """Checkpoint path of a streaming query; each version of the job's plan has its own."""
        return f"{self.root}/checkpoints/{query}/v{version}"

    def exists(self, table: str) -> bool:
        """Whether the table has been made."""
        return (self._opened(table) if self.folder else self._read(table)) is not None

    def table(self, name: str, window: Window = ALWAYS) -> DataFrame:
        """The rows of a table, in a window by `at` (or `minute`), with all columns that this release knows.

        A column that an older release did not write is null. Raises KeyError for an unknown name, Invalid where a newer
        release wrote the lake in another format.
        """
        schema = TABLES[name]
        found = None if self._is_empty(name) else self._read(name)
        if found is None:
            return _no_rows(self.spark, schema)
        rows = _with_columns_of(schema, found)
        time = next((column for column in ("at", "minute", "appended_at") if column in schema.names), None)
        if time is None or window == ALWAYS:
            return rows
        return window.cut(rows, time)

    def arrow(self, table: str) -> Arrow:
        """All rows of a small table, with all columns that this release knows; without Spark on this machine's disk."""
        if not self.folder:
            return self.table(table).toArrow()
        found = self._opened(table)
        there = None if found is None else found.to_pyarrow_table()
        return arrow_of(table, {} if there is None else dict(zip(there.column_names, there.columns, strict=True)))

    def stored(self, table: str) -> StructType:
        """The columns as they are stored; none where the table does not exist yet."""
        found = self._read(table)
        return StructType() if found is None else found.schema

    def prepare(self, table: str) -> None:
        """Make the table if it is missing, and add columns that an older release did not know.

        Every writer calls this first. Raises Invalid for a lake that this release must not write.
        """
        schema, there = TABLES[table], self._columns(table)
        if there is not None:
            layout.widen(self.spark, self.path(table), there, table, schema)
        elif self.folder:
            folders, properties = layout.cut_by(table, schema), layout.properties(table, schema)
            delta.make(self.place(table), layout.columns_of(schema), folders, properties)
        else:
            layout.make(self.spark, self.path(table), table, schema)
        self._prepared.add(table)

    def _columns(self, table: str) -> Mapping[str, str] | None:
        """The columns of a table that is there."""
        if self.folder:
            found = self._opened(table)
            return None if found is None else delta.columns_of(found)
        rows = self._read(table)
        return None if rows is None else layout.columns_of(rows.schema)

    def append(self, table: str, rows: DataFrame, once: Once, note: str = "") -> None:
        """Append `rows`, unless `once.writer` has appended a batch of this number or a higher one to this table.

        Raises Conflict in one of two concurrent appends under one name. `note` is stored with the commit.
        """
        self._writing(table, rows, "append", once.options() | ({"userMetadata": note} if note else {}))

    def add(self, table: str, files: Iterable[File], once: Once) -> None:
        """Append the rows of files that are below the table's path, on a local file system.

        Raises Conflict where `once.writer` has committed this number or a higher one, or commits one meanwhile; Invalid
        for files that are not on this machine's disk.
        """
        if not self._add(table, files, once):
            raise self._conflict(table)

    def put(self, table: str, columns: Columns, once: Once) -> None:
        """Append rows that are here, as Arrow columns, to a lake on a local file system; otherwise as `append`."""
        if table not in self._prepared:
            self.prepare(table)
        files = Files(self.folder)
        files.add(table, columns)
        self._add(table, files.close(), once)

    def _add(self, table: str, files: Iterable[File], once: Once) -> bool:
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        if table not in self._prepared:
            self.prepare(table)
        place, written = self.place(table), tuple(files)
        check_shared(place, written)
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size_bytes, dict(file.folders), now_ms, True, file.stats) for file in written
        ]
        once_only = CommitProperties({"isBlindAppend": True}, app_transactions=[Transaction(once.writer, once.number)])
        if table not in self._handles:
            self._handles[table] = DeltaTable(str(place))
        handle = self._handles[table]
        with self._alone(table), _ONE_WRITER[self.path(table)]:
            handle.update_incremental()
            last = handle.transaction_version(once.writer)
            if last is not None and last >= once.number:
                return False
            handle.create_write_transaction(
                actions, "append", handle.schema(), handle.metadata().partition_columns, commit_properties=once_only
            )
            # Hadoop's checksum of the file that a checkpoint by Spark left, and one by delta-rs has overwritten.
            Path(place, delta.LOG, "._last_checkpoint.crc").unlink(missing_ok=True)
        return True

    def noted(self, table: str, note: str) -> int | None:
        """The version of the commit with this note, if it is one of the latest of a table."""
        history = self.spark.sql(f"DESCRIBE HISTORY {layout.delta(self.path(table))} LIMIT {_LATEST_COMMITS}")
        found = history.where(f.col("userMetadata") == note).select("version").first()
        return None if found is None else int(found["version"])

    @property
    def keeps_writers_apart(self) -> bool:
        """Whether a commit of one process cannot overwrite another's of the same number.

        On S3 Delta's own log store sees to that within one process only. A log store of your own that is configured is
        trusted.
        """
        scheme = self.root.partition("://")[0]
        store = self.spark.conf.get(f"spark.delta.logStore.{scheme}.impl", "") if scheme in _S3 else "?"
        return bool(store) and not str(store).endswith("S3SingleDriverLogStore")

    def add_new(self, table: str, rows: DataFrame, key: Iterable[str]) -> None:
        """Append those of `rows` whose `key` (columns, not null) is not in the table yet."""
        columns = list(key)
        there = self.table(table).select(*columns)
        self._writing(table, rows.join(there, columns, "left_anti"), "append", {})

    def replace(self, table: str, rows: DataFrame, where: str) -> None:
        """Replace all rows that match the condition by `rows`, which must match it too."""
        self._writing(table, rows, "overwrite", {"replaceWhere": where})

    def remove(self, table: str, where: str) -> None:
        """Delete the rows that match a condition. Raises Conflict where another job rewrites their files."""
        if self.exists(table):
            with self._alone(table):
                self.spark.sql(f"DELETE FROM {layout.delta(self.path(table))} WHERE {where}")

    def _writing(self, table: str, rows: DataFrame, mode: str, options: dict[str, str]) -> None:
        if table not in self._prepared:
            self.prepare(table)
        rows = rows.select(*(name for name in TABLES[table].names if name in rows.columns))
        with self._alone(table), _ONE_WRITER[self.path(table)]:
            rows.write.format("delta").mode(mode).options(**options).save(self.path(table))

    @contextmanager
    def _alone(self, table: str) -> Generator[None]:
        try:
            yield
        except Exception as error:
            if _CONCURRENT.search(str(error)):
                raise self._conflict(table) from error
            raise

    def _conflict(self, table: str) -> Conflict:
        return Conflict(f"another job writes table {table} of {self.root}: stop one of the two")

    def _opened(self, table: str) -> DeltaTable | None:
        """A table on this machine's disk. Raises as `opened`."""
        return opened(self.place(table))

    def _is_empty(self, table: str) -> bool:
        """Whether a table on this machine's disk is known to have no rows: Spark need not be asked."""
        if not self.folder or table in self._filled:
            return False
        found = self._opened(table)
        if found is None or not found.file_uris():
            return True
        self._filled.add(table)
        return False

    def _read(self, table: str) -> DataFrame | None:
        path = self.path(table)
        try:
            found = self.spark.read.format("delta").load(path)
            _ = found.schema  # Spark Connect checks nothing before this
        except AnalysisException as error:
            if error.getCondition() in _NOT_THERE:
                return None
            raise
        if not self._checked:
            if self.folder:
                opened(self.place(table))
            else:
                check_format(path, layout.stored_properties(self.spark, path))
            self._checked = True
        return found


def _no_rows(spark: SparkSession, schema: StructType) -> DataFrame:
    """Rows that Spark knows to be none, so that most questions about them need no job."""
    none = (f.lit(None).cast(field.dataType).alias(field.name) for field in schema.fields)
    return spark.range(0).where(f.lit(False)).select(*none)


def _with_columns_of(schema: StructType, rows: DataFrame) -> DataFrame:
    return rows.select(
        *(
            f.col(field.name) if field.name in rows.columns else f.lit(None).cast(field.dataType).alias(field.name)
            for field in schema.fields
        )
    )


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
