"""Parquet files of the tables, written by Python below a lake's path, and what a commit has to say of them.

For lakes on a local file system: a table's rows then need not go through Spark. A file counts when `Lake.add` has
committed it. Until then no reader sees it, and `maintain` deletes it later if it stays uncommitted.
"""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# (pyarrow ships no types)
from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.utils import is_remote

from loadmanager.errors import Invalid
from loadmanager.history import layout
from loadmanager.history.schemas import TABLES
from loadmanager.history.utc import DAY_US

ROWS_A_GROUP, BYTES_A_GROUP = 100_000, 64 << 20
"""So many rows, or so many bytes of them, are kept until they become a row group of the file."""

Arrow = Any
"""A `pyarrow.Table`: pyarrow says nothing about its types."""
Columns = Mapping[str, Any]
"""Arrow arrays of one length, by name."""


class File(msgspec.Struct, frozen=True):
    """A file, by its path below the table's. `folders` are the values of the columns that the table is cut by.

    `stats` is Delta's JSON: number of rows, and least and greatest values of the columns that are searched.
    """

    table: str
    path: str
    size_bytes: int
    folders: dict[str, str]
    stats: str


def check_shared(place: Path, files: Iterable[File]) -> None:
    """Raises Invalid where a task has written one of these files, below `place`, to a disk that this machine lacks."""
    for file in files:
        path = place / file.path
        try:
            there = path.stat().st_size == file.size_bytes
        except OSError:
            there = False
        if not there:
            raise Invalid(
                f"an executor wrote {path} to a disk of its own, not to this machine's. On a cluster the lake is a "
                "folder that all machines share, under the same path, or in an object store"
            )


def extent(file: File, column: str) -> tuple[int, int]:
    """The least and the greatest number in a searched column."""
    stats = msgspec.json.decode(file.stats)
    return stats["minValues"][column], stats["maxValues"][column]


class Files:
    """The files of a task, one for each table and folder; `add` rows, then `close` once."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._open: dict[tuple[str, tuple[str, ...]], _Writer] = {}

    def add(self, table: str, columns: Columns) -> None:
        """Rows of a table without its `day`; of bronze all of one topic. A column that is not given is null."""
        columns = dict(columns)
        folders = [name for name in layout.cut_by(table, TABLES[table]) if name != "day"]
        values = tuple(columns.pop(name)[0].as_py() for name in folders)
        rows = _fitting(_schema(table), columns)
        if rows.num_rows == 0:
            return
        if "day" not in TABLES[table].names:
            self._writer(table, values).add(rows)
            return
        for day, part in _by_day(rows):
            self._writer(table, (*values, day)).add(part)

    def close(self) -> list[File]:
        """Complete all files."""
        return [writer.close() for writer in self._open.values()]

    def _writer(self, table: str, values: tuple[str, ...]) -> _Writer:
        key = (table, values)
        if key not in self._open:
            folders = dict(zip(layout.cut_by(table, TABLES[table]), values, strict=True))
            self._open[key] = _Writer(self._root, table, folders)
        return self._open[key]


class _Writer:
    def __init__(self, root: str, table: str, folders: dict[str, str]) -> None:
        self._table, self._folders = table, folders
        names = [f"{name}={value}" for name, value in folders.items()]
        self._path = "/".join([*names, f"part-{uuid.uuid4()}.snappy.parquet"])
        self._place = f"{root}/tables/{table}/{self._path}"
        os.makedirs(os.path.dirname(self._place), exist_ok=True)
        self._searched = searched(table)
        self._known: list[Any] = []
        self._file = pq.ParquetWriter(
            self._place, _schema(table), compression="snappy", write_statistics=list(self._searched),
            store_schema=False, metadata_collector=self._known,
        )  # fmt: skip
        self._rows: list[Any] = []
        self._count = self._size_bytes = 0

    def add(self, rows: Any) -> None:
        self._rows.append(rows)
        self._count += rows.num_rows
        self._size_bytes += rows.nbytes
        if self._count >= ROWS_A_GROUP or self._size_bytes >= BYTES_A_GROUP:
            self._flush()

    def close(self) -> File:
        self._flush()
        self._file.close()
        stats = stats_of(self._known[0], self._searched)
        return File(self._table, self._path, os.path.getsize(self._place), self._folders, stats)

    def _flush(self) -> None:
        if self._count:
            self._file.write_table(pa.concat_tables(self._rows), self._count)
            self._rows, self._count, self._size_bytes = [], 0, 0


def stats_of(metadata: Any, searched: tuple[str, ...]) -> str:
    """Delta's statistics of a file. Times are in whole milliseconds there, so the bounds go outward."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls = dict.fromkeys(searched, 0)
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            name = column.path_in_schema
            if name not in searched or (found := column.statistics) is None:
                continue
            nulls[name] += found.null_count
            if found.has_min_max:
                low[name] = min(found.min_raw, low.get(name, found.min_raw))
                high[name] = max(found.max_raw, high.get(name, found.max_raw))
    for name in low:
        if name in _TIMES:
            low[name], high[name] = _time(low[name] // 1_000), _time(-(-high[name] // 1_000))
        elif isinstance(low[name], bytes):
            low[name], high[name] = low[name].decode(), high[name].decode()
    said = {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    return msgspec.json.encode(said).decode()


_TIMES = ("appended_at", "at", "minute")


def _time(ms: int) -> str:
    return f"{np.datetime64(ms, 'ms')}Z"


@cache
def searched(table: str) -> tuple[str, ...]:
    """The columns that a table's statistics are of."""
    return tuple(layout.properties(table, TABLES[table])["delta.dataSkippingStatsColumns"].split(","))


@cache
def _schema(table: str) -> Any:
    whole, cut = to_arrow_schema(TABLES[table]), layout.cut_by(table, TABLES[table])
    return pa.schema([field for field in whole if field.name not in cut])


def arrow_of(table: str, columns: Columns) -> Arrow:
    """Rows of a table with all its columns; those that are not given are null."""
    return _fitting(to_arrow_schema(TABLES[table]), columns)


def _fitting(schema: Any, columns: Columns) -> Any:
    """The columns in the schema's order and types. A time keeps its moment, whatever zone Spark gave it."""
    rows = len(next(iter(columns.values()), ()))
    arrays = [columns[f.name].cast(f.type) if f.name in columns else pa.nulls(rows, f.type) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _by_day(rows: Any) -> Iterator[tuple[str, Any]]:
    """Nearly always all are of one day."""
    times = [rows[name] for name in ("at", "appended_at") if name in rows.schema.names]
    us = pc.coalesce(*(time.cast(pa.int64()) for time in times)).to_numpy(zero_copy_only=False)
    days = us // DAY_US
    each = np.unique(days).tolist()
    for number in each:
        yield str(np.datetime64(number, "D")), rows if len(each) == 1 else rows.filter(pa.array(days == number))


def local_root(spark: SparkSession, root: str) -> str:
    """The absolute path of a lake on this machine's file system; empty for any other, and with Spark Connect."""
    if is_remote():
        return ""
    context: Any = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(root)  # noqa: SLF001 - no other way
    system = path.getFileSystem(context._jsc.hadoopConfiguration())  # noqa: SLF001
    found = path.makeQualified(system.getUri(), system.getWorkingDirectory()).toUri()
    return str(found.getPath()) if found.getScheme() == "file" else ""
