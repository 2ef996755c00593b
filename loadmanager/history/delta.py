"""Opens and makes tables of a lake on this machine's disk with delta-rs: in milliseconds, and without Spark."""

from __future__ import annotations

import errno
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from loadmanager.errors import Invalid
from loadmanager.history.columns import FORMAT, FORMAT_PROPERTY, Columns

LOG = "_delta_log"
"""The folder that makes a folder a table."""

_NAMES = {"int": "integer", "bigint": "long"}
"""Delta's names of types, where they are not SQL's."""


def opened(path: Path) -> DeltaTable | None:
    """The newest version of a table; None where there is none.

    Raises Invalid for a damaged table, and as `check_format`.
    """
    with reading(path):
        found = DeltaTable(str(path)) if DeltaTable.is_deltatable(str(path)) else None
        properties = {} if found is None else found.metadata().configuration
    check_format(str(path), properties)
    return found


def make(path: Path, columns: Columns, folders: Sequence[str], properties: Mapping[str, str]) -> None:
    """Make a missing table, cut by these columns; one that another job makes at this moment is left as it is."""
    fields = [{"name": n, "type": _type(kind), "nullable": True, "metadata": {}} for n, kind in columns.items()]
    schema = Schema.from_json(msgspec.json.encode({"type": "struct", "fields": fields}).decode())
    path.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".new-", dir=path.parent) as new:
        # made beside it: of two jobs that make it in its place one would add a second version
        DeltaTable.create(
            new, schema, partition_by=list(folders), configuration=properties, raise_if_key_not_exists=False
        )
        try:
            Path(new, LOG).rename(path / LOG)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def columns_of(table: DeltaTable) -> Columns:
    """The columns that a table has, as `columns.py` writes them."""
    return {field["name"]: _sql(field["type"]) for field in msgspec.json.decode(table.schema().to_json())["fields"]}


def _type(sql: str) -> Any:
    kind, _, of = sql.removesuffix(">").partition("<")
    if kind == "array":
        return {"type": kind, "elementType": _type(of), "containsNull": True}
    if kind == "map":
        key, value = of.split(",")
        return {"type": kind, "keyType": _type(key), "valueType": _type(value), "valueContainsNull": True}
    return _NAMES.get(sql, sql)


def _sql(kind: Any) -> str:
    match kind:
        case {"type": "array", "elementType": of}:
            return f"array<{_sql(of)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map<{_sql(key)},{_sql(value)}>"
        case {"type": of}:
            return str(of)
        case _:
            return next((sql for sql, name in _NAMES.items() if name == kind), kind)


@contextmanager
def reading(path: Path) -> Generator[None]:
    """Raises Invalid in place of the errors that delta-rs has with a damaged table."""
    try:
        yield
    except DeltaError as error:
        why = str(error).splitlines()[0]  # a trace of Rust's stack follows
        raise Invalid(
            f"table {path.name} cannot be read: {why}; restore {path} from a copy, or ingest into another lake"
        ) from error


def check_format(path: str, properties: Mapping[str, str | None]) -> None:
    """Raises Invalid where a newer release wrote the lake in a way that this one cannot read."""
    written = int(properties.get(FORMAT_PROPERTY) or FORMAT)
    if written > FORMAT:
        raise Invalid(
            f"{path} is of a lake of format {written}, and this release reads up to {FORMAT}: "
            "upgrade this program, or point it at another lake"
        )
