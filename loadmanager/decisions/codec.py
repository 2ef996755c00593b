"""Encodes decision records for the log, with their model and the strategy's memory. Pure.

A record is `DR`, the format's version, a CRC-32, then compressed MessagePack. The frame never changes, so that a
damaged record can be told from a newer one. A record that is too large for a Kafka message omits its model and says so.

A model is columns of bytes, and comes back with the same digest, to the last bit. Bytes of equal significance are put
side by side before compression: neighbours in a column differ only in their last digits, which saves a third of the
space.

A strategy's memory is kept so that a round can be reproduced from its record. Plain values, including NumPy arrays,
come back as they were, except tuples, which become lists. A strategy that wants its own type back makes its memory a
`msgspec.Struct` of its own package.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping
from math import prod
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from loadmanager.decisions.record import NOTHING_KEPT, DecisionRecord, Memory, Outcome, ordinal
from loadmanager.model.cluster import Brokers, Bundles, ClusterModel, Constraints
from loadmanager.strategies.rebalancing.decision import Decision
from statechannel.law.bundle import Bundle
from statechannel.law.record import BrokerId


class BadDecision(Exception):
    """The bytes are not a decision record, or are damaged. Readers skip the record: nothing is decided from it."""


class NewerDecision(BadDecision):
    """An intact record of a newer release."""


Array = NDArray[Any]
_TYPES = {"f8": "<f8", "i8": "<i8", "i2": "<i2", "u4": "<u4", "b1": "|b1"}

NONE: Mapping[str, str] = {}
_FLOATS = ("capacity", "used", "load", "rate_msg_s", "throughput_bytes_s", "moved_s", "report_age_s")
_FLAGS = ("known", "draining", "paused", "in_flight", "changed", "isolated")


def _typed(*names: str) -> dict[str, str]:
    return {name: "f8" if name in _FLOATS else "b1" if name in _FLAGS else "i8" for name in names}


_BROKER_COLUMNS = _typed(
    "capacity", "used", "known", "draining", "paused", "bundles", "max_bundles", "rate_msg_s", "throughput_bytes_s"
)
_BUNDLE_COLUMNS = _typed(
    "namespace", "owner", "load", "rate_msg_s", "throughput_bytes_s", "in_flight", "moved_s", "changed"
)
_CONSTRAINT_COLUMNS = {"kind": "i8", "forbidden": "i2", "fixed": "i2", "rest_s": "f8", "weight": "f8", "group": "i8"}
_OPTIONAL_BROKER_COLUMNS = _typed("report_age_s")
_OPTIONAL_CONSTRAINT_COLUMNS = _typed("presence", "namespace_here", "isolated")


class Column(msgspec.Struct, frozen=True, array_like=True):
    """An array: its type, shape, and shuffled little-endian bytes."""

    type: str
    shape: tuple[int, ...]
    data: bytes


class StoredModel(msgspec.Struct, frozen=True):
    """A model as columns; `at` is the index of each bundle's namespace in `homes`, `lo` and `hi` its range."""

    at_ms: int
    broker_ids: tuple[BrokerId, ...]
    domains: tuple[str, ...]
    versions: tuple[str, ...]
    brokers: Mapping[str, Column]
    homes: tuple[str, ...]
    at: Column
    lo: Column
    hi: Column
    namespaces: tuple[str, ...]
    bundles: Mapping[str, Column]
    left: tuple[tuple[int, tuple[int, ...]], ...]
    rules: tuple[str, ...]
    constraints: Mapping[str, Column]
    groups: tuple[str, ...]
    spread_over_domains: bool


def pack(array: Array, kind: str) -> Column:
    """The column of an array, as one of `f8 i8 i2 u4 b1`. Raises TypeError or OverflowError if it does not fit."""
    chosen = np.ascontiguousarray(array).astype(_TYPES[kind], casting="same_kind", copy=False)
    if not _holds(chosen, array):
        raise OverflowError(f"a value between {array.min()} and {array.max()} does not fit into a column of {kind}")
    octets = np.ascontiguousarray(chosen).reshape(-1).view(np.uint8).reshape(-1, chosen.itemsize)
    return Column(kind, tuple(int(side) for side in chosen.shape), octets.T.tobytes())


def _holds(chosen: Array, array: Array) -> bool:
    """Whether a column has every value of the array, to the last bit."""
    if chosen.dtype == array.dtype or not array.size:
        return True
    if chosen.dtype.kind in "iu":
        most = np.iinfo(chosen.dtype)
        return most.min <= int(array.min()) and int(array.max()) <= most.max
    if array.dtype.kind in "iu":  # a float holds every integer up to this, and casts of larger ones back may wrap
        return int(array.min()) >= -(2**53) and int(array.max()) <= 2**53
    return np.array_equal(chosen.astype(array.dtype), array, equal_nan=True)


def unpack(column: Column) -> Array:
    """The inverse of `pack`. Raises BadDecision for an invalid column."""
    if column.type not in _TYPES:
        raise BadDecision(f"a column of the type {column.type[:10]!r}: the record is damaged, or of a newer release")
    kind = np.dtype(_TYPES[column.type])
    if any(side < 0 for side in column.shape) or prod(column.shape) * kind.itemsize != len(column.data):
        raise BadDecision(f"a column of {len(column.data)} bytes cannot have the shape {column.shape}")
    octets = np.frombuffer(column.data, np.uint8).reshape(kind.itemsize, -1)
    return np.ascontiguousarray(octets.T).reshape(-1).view(kind).reshape(column.shape)


def stored(model: ClusterModel) -> StoredModel:
    """The model as stored in a record."""
    brokers, bundles, constraints = model.brokers, model.bundles, model.constraints
    places: dict[str, int] = {}
    at = [places.setdefault(bundle.namespace, len(places)) for bundle in bundles.ids]
    return StoredModel(
        at_ms=model.at_ms,
        broker_ids=brokers.ids,
        domains=brokers.domains,
        versions=brokers.versions,
        brokers=_packed(brokers, _BROKER_COLUMNS, _OPTIONAL_BROKER_COLUMNS),
        homes=tuple(places),
        at=pack(np.array(at, np.uint32), "u4"),
        lo=pack(np.array([bundle.lo for bundle in bundles.ids], np.uint32), "u4"),
        hi=pack(np.array([bundle.hi for bundle in bundles.ids], np.uint32), "u4"),
        namespaces=bundles.namespaces,
        bundles=_packed(bundles, _BUNDLE_COLUMNS),
        left=tuple(sorted((row, tuple(brokers)) for row, brokers in bundles.left.items())),
        rules=constraints.rules,
        constraints=_packed(constraints, _CONSTRAINT_COLUMNS, _OPTIONAL_CONSTRAINT_COLUMNS),
        groups=constraints.groups,
        spread_over_domains=constraints.spread_over_domains,
    )


def restored(kept: StoredModel) -> ClusterModel:
    """The inverse of `stored`. Raises BadDecision if the parts do not fit together."""
    count, rows = len(kept.broker_ids), len(kept.at.shape) == 1 and kept.at.shape[0]
    brokers = _unpacked(kept.brokers, _BROKER_COLUMNS, _OPTIONAL_BROKER_COLUMNS)
    bundles = _unpacked(kept.bundles, _BUNDLE_COLUMNS)
    constraints = _unpacked(kept.constraints, _CONSTRAINT_COLUMNS, _OPTIONAL_CONSTRAINT_COLUMNS)
    apart = ("forbidden", "presence", "namespace_here")
    per_bundle = [*bundles.values(), *(column for name, column in constraints.items() if name not in apart)]
    if any(len(column) != count for column in brokers.values()) or any(len(column) != rows for column in per_bundle):
        raise BadDecision("the columns of its model are not equally long")
    return ClusterModel(
        Brokers(ids=kept.broker_ids, domains=kept.domains, versions=kept.versions, **brokers),
        Bundles(ids=_ids(kept), namespaces=kept.namespaces, left=dict(kept.left), **bundles),
        Constraints(rules=kept.rules, groups=kept.groups, spread_over_domains=kept.spread_over_domains, **constraints),
        kept.at_ms,
    )


def _packed(source: object, columns: Mapping[str, str], optional: Mapping[str, str] = NONE) -> dict[str, Column]:
    there = {name: kind for name, kind in optional.items() if getattr(source, name) is not None}
    return {name: pack(getattr(source, name), kind) for name, kind in {**columns, **there}.items()}


def _unpacked(
    columns: Mapping[str, Column], wanted: Mapping[str, str], optional: Mapping[str, str] = NONE
) -> dict[str, Any]:
    wanted = {**wanted, **{name: kind for name, kind in optional.items() if name in columns}}
    missing = [name for name, kind in wanted.items() if name not in columns or columns[name].type != kind]
    if missing or any(not columns[name].shape for name in wanted):
        raise BadDecision(f"its model lacks {', '.join(missing) or 'rows'}")
    return {name: unpack(columns[name]) for name in wanted}


def _ids(kept: StoredModel) -> list[Bundle]:
    at, lo, hi = unpack(kept.at).tolist(), unpack(kept.lo).tolist(), unpack(kept.hi).tolist()
    if not len(at) == len(lo) == len(hi) or (at and max(at) >= len(kept.homes)):
        raise BadDecision("the names of its bundles do not fit together")
    return [Bundle(kept.homes[home], low, high) for home, low, high in zip(at, lo, hi, strict=True)]


MEMORY_BYTES = 200_000
_ARRAY = 1
"""The MessagePack extension code of an array."""
_KINDS = {"float64": "f8", "int64": "i8", "int16": "i2", "uint32": "u4", "bool": "b1"}


def plain(value: Any) -> Any:
    """Encode values that MessagePack lacks: NumPy's, and sets. Raises NotImplementedError for anything else."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.name in _KINDS:
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(pack(value, _KINDS[value.dtype.name])))
    if isinstance(value, frozenset | set):
        return sorted(value)  # pyright: ignore[reportUnknownVariableType]
    raise NotImplementedError(f"a {type(value).__name__}")


def kept_memory(memory: object) -> Memory:
    """The memory for a record. Never fails: `lost` says what cannot be kept."""
    if memory is None:
        return NOTHING_KEPT
    kind = type(memory)
    try:
        data = msgspec.msgpack.encode(memory, enc_hook=plain)
    except (TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        return Memory(lost=f"the strategy's memory, a {kind.__name__}, has parts that cannot be kept: {error}")
    if len(data) > MEMORY_BYTES:
        return Memory(lost=f"the strategy's memory has {len(data)} bytes, of which at most {MEMORY_BYTES} are kept")
    own = issubclass(kind, msgspec.Struct)
    return Memory(data, f"{kind.__module__}:{kind.__qualname__}" if own else "")


def given_memory(memory: Memory, strategy: object) -> object:
    """The memory that the strategy was given. Raises BadDecision, with the reason, if it is lost.

    A type is looked up only in the strategy's own package: a record must not make us load anything else.
    """
    if memory.lost:
        raise BadDecision(memory.lost)
    if not memory.data:
        return None
    kind = _type_of(memory.type, type(strategy).__module__) if memory.type else Any
    try:
        return msgspec.msgpack.decode(memory.data, type=kind, ext_hook=_array, dec_hook=_as_it_is)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadDecision(f"the strategy's memory of that time cannot be read by this release: {error}") from None


def _type_of(name: str, home: str) -> Any:
    module, _, qualified = name.partition(":")
    package = home.partition(".")[0]
    found: Any = sys.modules.get(module) if module.partition(".")[0] == package else None
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, msgspec.Struct)):
        raise BadDecision(f"the strategy's memory of that time, a {name[:100]}, has a type unknown to this release")
    return found


def _array(code: int, data: memoryview) -> object:
    if code != _ARRAY:
        raise msgspec.ValidationError(f"an extension {code}")
    return unpack(msgspec.msgpack.decode(bytes(data), type=Column))


def _as_it_is(kind: Any, value: Any) -> Any:
    return value if not isinstance(value, list) else np.array(value)


VERSION = 1
LARGEST_BYTES = 900_000
"""A Kafka message has at most 1 MB by default."""

PACKED_OUT_BYTES = 256 << 20
"""No record of ours unpacks to more than this."""

_MAGIC = b"DR"
_HEAD_BYTES = 7
_LEVEL = 6


class Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of version 1."""

    id: str
    at_ms: int
    leader: BrokerId
    strategy: str
    settings: dict[str, Any]
    decision: Decision
    policies_revision: int = -1
    model: StoredModel | None = None
    digest: str = ""
    without_model: str = ""
    memory: Memory = Memory()
    outcomes: tuple[Outcome, ...] = ()


_encoder = msgspec.msgpack.Encoder(enc_hook=plain)
_decoder = msgspec.msgpack.Decoder(Stored)


def encode(record: DecisionRecord, largest_bytes: int = LARGEST_BYTES) -> bytes:
    """The bytes, at most `largest_bytes`; if necessary without the model, then the memory, then the moves' reasons.

    Raises ValueError if even that is too large.
    """
    changed: dict[str, Any] = {
        "settings": dict(record.settings),
        "decision": msgspec.structs.replace(record.decision, memory=None),
        "model": None if record.model is None else stored(record.model),
    }
    kept = Stored(**{**msgspec.structs.asdict(record), **changed})
    framed = _frame(kept)
    for shorter in (_without_model, _without_memory, _without_words):
        if len(framed) <= largest_bytes:
            return framed
        kept = shorter(kept, len(framed))
        framed = _frame(kept)
    if len(framed) > largest_bytes:
        raise ValueError(f"decision {record.id} has {len(framed)} bytes even without its model: decide fewer moves")
    return framed


def decode(data: bytes | None) -> DecisionRecord:
    """The record in these bytes, with the recorded digest of its model. Raises BadDecision, NewerDecision."""
    kept = _read(data)
    try:
        ordinal(kept.id)
    except ValueError as error:
        raise BadDecision(str(error)) from None
    fields: dict[str, Any] = msgspec.structs.asdict(kept)
    fields["model"] = None if kept.model is None else restored(kept.model)
    return DecisionRecord(**fields)


def _frame(kept: Stored) -> bytes:
    body = zlib.compress(_encoder.encode(kept), _LEVEL)
    head = _MAGIC + bytes((VERSION,))
    return head + zlib.crc32(body, zlib.crc32(head)).to_bytes(4, "big") + body


def _without_model(kept: Stored, size_bytes: int) -> Stored:
    if kept.model is None:
        return kept
    rows = f"{len(kept.model.broker_ids)} brokers and {kept.model.at.shape[0]} bundles"
    why = f"the model of {rows} made a record of {size_bytes} bytes: it was left out"
    return msgspec.structs.replace(kept, model=None, without_model=why)


def _without_memory(kept: Stored, size_bytes: int) -> Stored:
    lost = Memory(lost=f"the record had {size_bytes} bytes: the strategy's memory was left out")
    return msgspec.structs.replace(kept, memory=lost)


def _without_words(kept: Stored, size_bytes: int) -> Stored:
    moves = tuple(msgspec.structs.replace(move, reason="") for move in kept.decision.moves)
    return msgspec.structs.replace(kept, decision=msgspec.structs.replace(kept.decision, moves=moves))


def _read(data: bytes | None) -> Stored:
    if data is None or len(data) < _HEAD_BYTES or data[:2] != _MAGIC:
        raise BadDecision("it is not a decision record")
    version, seal, body = data[2], data[3:_HEAD_BYTES], data[_HEAD_BYTES:]
    if zlib.crc32(body, zlib.crc32(data[:3])).to_bytes(4, "big") != seal:
        raise BadDecision("the checksum of the decision record does not match: it is damaged")
    if version == 0:
        raise BadDecision("there is no format 0 of decision records")
    if version > VERSION:
        raise NewerDecision(
            f"a decision record of format {version}; this release reads up to {VERSION}: ask a newer broker"
        )
    try:
        return _decoder.decode(_inflated(body))
    except (msgspec.MsgspecError, zlib.error, UnicodeDecodeError, RecursionError) as error:
        raise BadDecision(f"the body of the decision record cannot be read: {error}") from None


def _inflated(body: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    found = unpacking.decompress(body, PACKED_OUT_BYTES)
    if not unpacking.eof or unpacking.unused_data:
        raise BadDecision("the body of the decision record does not end where it should")
    return found
