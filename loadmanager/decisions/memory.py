"""Encodes a strategy's memory as bytes, and back, so that a round can be reproduced from its record.

Plain values, including NumPy arrays, come back as they were, except tuples, which become lists. A strategy that wants
its own type back makes its memory a `msgspec.Struct` of its own package.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import numpy as np

from loadmanager.decisions.columns import Column, pack, unpack
from loadmanager.decisions.errors import BadDecision

MEMORY_BYTES = 200_000
_ARRAY = 1
"""The MessagePack extension code of an array."""
_KINDS = {"float64": "f8", "int64": "i8", "int16": "i2", "uint32": "u4", "bool": "b1"}


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """A strategy's memory of its last round, as bytes; `type` is its class, empty for plain values.

    `lost` says why it is missing: then the decision cannot be reproduced from the record.
    """

    data: bytes = b""
    type: str = ""
    lost: str = ""


NOTHING_KEPT = Memory()


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
        raise BadDecision(f"the strategy's memory of that time, a {name[:100]}, is no type of this release")
    return found


def _array(code: int, data: memoryview) -> object:
    if code != _ARRAY:
        raise msgspec.ValidationError(f"an extension {code}")
    return unpack(msgspec.msgpack.decode(bytes(data), type=Column))


def _as_it_is(kind: Any, value: Any) -> Any:
    return value if not isinstance(value, list) else np.array(value)
