"""Reads a lake with DuckDB: no JVM, no Spark. It writes nothing to the lake.

delta-rs (`deltalake`) says which files a table has, and DuckDB reads them. A table of `columns.py` has all columns of
this release, as in `Lake.table`. It is empty where the lake does not have it yet, and a column that an older release
did not write is null. The views of `views/` are there too.

DuckDB takes each folder `name=value` of a path for a column, and a path with `*`, `?` or `[` for a pattern. So it
reaches tables by links in the scratch folder, and sees of a lake's path only what is below a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from urllib.parse import unquote

import duckdb
from deltalake import DeltaTable

from loadmanager.errors import Invalid, NotFound
from loadmanager.history.columns import TABLES, check_place
from loadmanager.history.delta import opened, reading
from loadmanager.history.views import VIEWS

Connection = duckdb.DuckDBPyConnection
_NAMES = {
    "string": "VARCHAR",
    "binary": "BLOB",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "double": "DOUBLE",
    "date": "DATE",
    "boolean": "BOOLEAN",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "array<string>": "VARCHAR[]",
    "array<bigint>": "BIGINT[]",
    "map<string,double>": "MAP(VARCHAR, DOUBLE)",
}
"""DuckDB's names of the types."""
_SPARKS = {
    "unix_micros(moment)": "epoch_us(moment)",
    "array_join(list, separator)": "array_to_string(list, separator)",
    "percentile(figures, part)": "quantile_cont(figures, part)",
    "timestamp_seconds(seconds)": "to_timestamp(seconds)",
    "timestamp_micros(us)": "make_timestamptz(CAST(us AS BIGINT))",
    "date_from_unix_date(days)": "DATE '1970-01-01' + CAST(days AS INTEGER)",
    "explode(list)": "unnest(list)",
    "sequence(first, last, step)": "generate_series(CAST(first AS BIGINT), CAST(last AS BIGINT), CAST(step AS BIGINT))",
}
"""Functions of Spark that the texts use, and what DuckDB calls them."""
_HARMLESS = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of Delta that change nothing for a reader of data files."""
_VERSION = "version "
_WORD = re.compile(r"\w+")
_MEANS_MORE = frozenset("=*?[\\")
"""What DuckDB does not take literally in a path."""


def connected(root: Path, scratch: Path, question: str) -> Connection:
    """A connection that can read the tables and views which the question names, and no other files; close it.

    DuckDB keeps what does not fit into memory in `scratch`, and links to the tables. SQL can change no
    setting. It must be kept from writing to the lake's own files: see `asks_only`. Raises NotFound where there is no
    lake, Invalid for one that this release cannot read, and for a scratch folder that DuckDB would not take literally.
    """
    named = {word.lower() for word in _WORD.findall(question)}
    views = [name for name in VIEWS if name in named]
    named.update(word for name in views for word in _WORD.findall(VIEWS[name].sql))
    db = duckdb.connect()
    try:
        db.execute("SET temp_directory = ?", [str(scratch)])
        _make_tables(db, root, scratch, [name for name in TABLES if name in named])
        for name in views:
            db.execute(f"CREATE TEMP VIEW {name} AS {VIEWS[name].sql}")
        db.execute(f"SET allowed_directories = [{_quoted(str((root / 'tables').resolve()))}]")
        for setting in ("python_enable_replacements", "enable_external_access"):
            db.execute(f"SET {setting} = false")
        db.execute("SET lock_configuration = true")
    except BaseException:
        db.close()
        raise
    return db


def asks_only(question: str) -> bool:
    """Whether it is one statement that selects. Raises duckdb.ParserException."""
    return [each.type for each in duckdb.extract_statements(question)] == [duckdb.StatementType.SELECT]


def export(root: Path, file: Path) -> None:
    """Write the rows of all views into a DuckDB file, as tables with comments, for programs that read such files.

    Times are of UTC, without a zone: such programs show them as they are. The file is replaced when the new one is
    complete; who has the old one open goes on reading it. Raises as `connected`.
    """
    new = file.with_name(file.name + ".new")
    new.unlink(missing_ok=True)
    try:
        with TemporaryDirectory(prefix="loadmanager-export-") as scratch, duckdb.connect(str(new)) as db:
            _make_tables(db, root, Path(scratch), TABLES)
            for view in VIEWS.values():
                kinds = db.execute(f"DESCRIBE {view.sql}").fetchall()
                columns = ", ".join(_without_zone(name, kind) for name, kind, *_ in kinds)
                db.execute(f"CREATE TABLE {view.name} AS SELECT {columns} FROM ({view.sql})")
                db.execute(f"COMMENT ON TABLE {view.name} IS {_quoted(view.title)}")
                for name, meaning in view.columns.items():
                    db.execute(f'COMMENT ON COLUMN {view.name}."{name}" IS {_quoted(meaning)}')
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def speak_spark(db: Connection) -> None:
    """Give a connection UTC, and what the texts of `texts.py` use."""
    db.execute("SET TimeZone = 'UTC'")
    for name, meaning in _SPARKS.items():
        db.execute(f"CREATE TEMP MACRO {name} AS {meaning}")


def _without_zone(name: str, kind: str) -> str:
    return f'"{name}" AT TIME ZONE \'UTC\' AS "{name}"' if kind == _NAMES["timestamp"] else f'"{name}"'


def _make_tables(db: Connection, root: Path, scratch: Path, tables: Iterable[str]) -> None:
    check_place(str(root.absolute()))
    if not (root / "tables").is_dir():
        raise NotFound(f"there is no lake at {root}")
    if found := _MEANS_MORE.intersection(str(scratch.absolute())):
        raise Invalid(f"DuckDB cannot use {scratch}, because of {min(found)!r}: set TMPDIR to another folder")
    scratch.mkdir(parents=True, exist_ok=True)
    links = Path(mkdtemp(prefix="tables-", dir=scratch.absolute()))
    speak_spark(db)
    for table in tables:
        (source, version), there = _source(root / "tables" / table, links / table), dict[str, str]()
        if source:
            there = {name: kind for name, kind, *_ in db.execute(f"DESCRIBE {source}").fetchall()}
        columns = ", ".join(_column(name, _NAMES[kind], there.get(name)) for name, kind in TABLES[table].items())
        db.execute(f"CREATE TEMP VIEW {table} AS SELECT {columns} {source or 'WHERE false'}")
        if version is not None:
            db.execute(f"COMMENT ON VIEW {table} IS '{_VERSION}{version}'")


def versions(db: Connection) -> dict[str, int]:
    """The version of each table that a connection reads, whatever is written meanwhile; without missing tables."""
    asked = "SELECT view_name, comment FROM duckdb_views() WHERE temporary AND starts_with(comment, ?)"
    return {name: int(said.removeprefix(_VERSION)) for name, said in db.execute(asked, [_VERSION]).fetchall()}


def _column(name: str, kind: str, stored: str | None) -> str:
    if stored == kind:
        return f'"{name}"'
    value = "NULL" if stored is None else f'"{name}"'
    return f'CAST({value} AS {kind}) AS "{name}"'


def _source(path: Path, link: Path) -> tuple[str, int | None]:
    """The FROM clause for the files of the table's newest version, and its number; empty where there is none."""
    found = opened(path)
    if found is None:
        return "", None
    with reading(path):
        told, files = found.metadata(), found.file_uris()
    _check_features(found, told.configuration, path.name)
    folders = ", ".join(f"'{name}': {_NAMES[TABLES[path.name][name]]}" for name in told.partition_columns)
    hive = f", hive_partitioning = true, hive_types = {{{folders}}}" if folders else ", hive_partitioning = false"
    place = found.table_uri.removeprefix("file://")
    link.symlink_to(path.absolute())
    listed = ", ".join(_quoted(f"{link}/{unquote(file.removeprefix(place))}") for file in files)
    source = f"FROM read_parquet([{listed}], union_by_name = true{hive})" if files else ""
    return source, found.version()


def _check_features(found: DeltaTable, settings: Mapping[str, str | None], table: str) -> None:
    features = set(found.protocol().reader_features or ()) - _HARMLESS
    if found.protocol().min_reader_version == 2 and settings.get("delta.columnMapping.mode", "none") != "none":
        features.add("columnMapping")
    if features:
        raise Invalid(
            f"table {table} uses features of Delta that this reader lacks ({', '.join(sorted(features))}): query it "
            "with Spark, or rewrite it without them (ALTER TABLE … DROP FEATURE …)"
        )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
