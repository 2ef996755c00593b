"""The rows of each silver table from decoded records, as Arrow columns: what `decoding` says as DataFrames.

For tasks that write the tables themselves. Columns are without `day`, which follows from the others.
"""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false
# (pyarrow ships no types)
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loadmanager.history.decoding.records import FORMATS
from loadmanager.history.schemas import RAW

Columns = dict[str, Any]
_ORIGIN = ("partition", "offset", "appended_at")


def tables(decoded: pa.RecordBatch) -> Iterator[tuple[str, Columns]]:
    """Each table's rows, from a batch of `records.DECODED` with records of one topic."""
    column = FORMATS[decoded["topic"][0].as_py()].column
    bad = decoded["kind"].is_valid()
    if pc.any(bad).as_py():
        refused = decoded.filter(bad)
        yield "quarantine", {name: refused[name] for name in (*RAW.names, "kind", "reason")}
        decoded = decoded.filter(pc.invert(bad))
    if column == "broker_load":
        whole = _flat(decoded, column)
        whole["broker"] = pc.coalesce(whole["broker"], decoded["key"].cast(pa.string()))  # of a deletion
        yield "broker_load", whole
        return
    there = decoded.filter(decoded[column].is_valid())
    yield from _MADE.get(column, _alone)(column, _flat(there, column))


def _alone(table: str, whole: Columns) -> Iterator[tuple[str, Columns]]:
    yield table, whole


def _of_bundles(_: str, whole: Columns) -> Iterator[tuple[str, Columns]]:
    bundles, total = whole.pop("bundles"), whole.pop("total")
    yield "bundle_total", whole | _fields(total)
    one = _each(bundles, {name: whole[name] for name in (*_ORIGIN, "broker", "incarnation", "at")})
    yield "bundle_load", one | _fields(one.pop("load"))


def _of_decisions(table: str, whole: Columns) -> Iterator[tuple[str, Columns]]:
    made = whole.pop("made")
    yield table, whole
    yield "move", _each(made, {name: whole[name] for name in (*_ORIGIN, "at")} | {"decision": whole["id"]})


_MADE: Mapping[str, Callable[[str, Columns], Iterator[tuple[str, Columns]]]] = {
    "top_bundles": _of_bundles,
    "decision": _of_decisions,
}


def _flat(decoded: pa.RecordBatch, column: str) -> Columns:
    """Position, and the fields of a column."""
    return {name: decoded[name] for name in _ORIGIN} | _fields(decoded[column])


def _fields(struct: Any) -> Columns:
    return dict(zip(struct.type.names, struct.flatten(), strict=True))


def _each(lists: Any, whose: Columns) -> Columns:
    """One row for each entry of the lists, beside columns of its record."""
    parents = pc.list_parent_indices(lists)
    return {name: values.take(parents) for name, values in whose.items()} | _fields(lists.flatten())
