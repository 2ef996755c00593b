"""A strategy's memory as bytes, and back, so that a round can be decided again from its record.

Plain values, NumPy arrays among them, are read back as they were, but for tuples, which come as lists. A strategy that
wants its own type back makes its memory a `msgspec.Struct` of its own package.
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
"""The code of an array among the values of MessagePack."""
_KINDS = {"float64": "f8", "int64": "i8", "int16": "i2", "uint32": "u4", "bool": "b1"}


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the strategy had kept from its last round, as bytes; `type` is the class that they make, empty for plain
    values. `lost` says why it is not here: then the decision cannot be made again from the record."""

    data: bytes = b""
    type: str = ""
    lost: str = ""


NOTHING_KEPT = Memory()


def plain(value: Any) -> Any:
    """What MessagePack has no word for: NumPy's values. Raises NotImplementedError for anything else."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.name in _KINDS:
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(pack(value, _KINDS[value.dtype.name])))
    if isinstance(value, frozenset | set):
        return sorted(value)  # pyright: ignore[reportUnknownVariableType]
    raise NotImplementedError(f"a {type(value).__name__}")


def kept_memory(memory: object) -> Memory:
    """For a record. Never fails: what cannot be kept is said."""
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
    """What the strategy was given. Raises BadDecision where it cannot be had any more, with the reason.

    A type is looked up in the strategy's own package only: a record must not make us load anything else.
    """
    if memory.lost:
        raise BadDecision(memory.lost)
    if not memory.data:
        return None
    kind = _type_of(memory.type, type(strategy).__module__) if memory.type else Any
    try:
        return msgspec.msgpack.decode(memory.data, type=kind, ext_hook=_array, dec_hook=_as_it_is)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadDecision(f"the strategy's memory of then cannot be read by this release: {error}") from None


def _type_of(name: str, home: str) -> Any:
    module, _, qualified = name.partition(":")
    package = home.partition(".")[0]
    found: Any = sys.modules.get(module) if module.partition(".")[0] == package else None
    for part in qualified.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, msgspec.Struct)):
        raise BadDecision(f"the strategy's memory of then, a {name[:100]}, is no type of this release")
    return found


def _array(code: int, data: memoryview) -> object:
    if code != _ARRAY:
        raise msgspec.ValidationError(f"an extension {code}")
    return unpack(msgspec.msgpack.decode(bytes(data), type=Column))


def _as_it_is(kind: Any, value: Any) -> Any:
    return value if not isinstance(value, list) else np.array(value)
