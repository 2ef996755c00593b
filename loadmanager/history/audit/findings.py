"""The rows in which an audit reports violations and summaries."""

from __future__ import annotations

from pyspark.sql.types import DataType, IntegerType, LongType, MapType, StringType, StructField, StructType

from loadmanager.history.folding.lists import lists_of


def _columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


_TEXT, _INT, _LONG = StringType(), IntegerType(), LongType()

VIOLATION = _columns(partition=_INT, offset=_LONG, id=_TEXT, invariant=_TEXT, detail=_TEXT, record=_TEXT)
"""One violation. `record` is the record in words, `offset` and `id` are its own. For a snapshot `offset` is its
`next_offset`, and `record` is null."""

ACCEPTED = _columns(partition=_INT, offset=_LONG, id=_TEXT, what=_TEXT)
"""What an accepted record changed (a bundle, or a namespace that was made): serves to find copies of the record."""

COUNTS = ("records", "accepted", "refused", "corrupt", "newer", "unjudged", "compared")
COUNTED = _columns(
    partition=_INT,
    segment=_INT,
    begin=_LONG,
    next_offset=_LONG,
    **dict.fromkeys(COUNTS, _LONG),
    refusals=MapType(_TEXT, _LONG),
    digest=_TEXT,
)
"""What a segment held.

`next_offset` is one past its last entry. `compared` counts the claims that it was compared with. `unjudged` counts the
records before the first known state, or after a record of a newer format.
"""

SUMMARY = _columns(
    partition=_INT,
    segments=_LONG,
    begin=_LONG,
    next_offset=_LONG,
    **dict.fromkeys(COUNTS, _LONG),
    refusals=MapType(_TEXT, _LONG),
    violations=_LONG,
    digest=_TEXT,
)
"""The same per partition; `digest` is that of `statechannel`, at its end."""

KINDS = {"violation": VIOLATION, "accepted": ACCEPTED, "counted": COUNTED}
LISTS = lists_of(KINDS)
