"""How bodies are read: as JSON Schema says, so that `/openapi.json` is true.

A number with a fraction of zero is an integer there. `true` is not a number, 0 is not `false`, and text is neither.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from statechannel.law.bundle import FULL_UPPER


class Body(BaseModel):
    """The body of a request to a route of ours: no other fields, and no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _whole(given: Any) -> Any:
    return int(given) if isinstance(given, float) and given.is_integer() else given


WHOLE = BeforeValidator(_whole)
"""Goes behind the bounds of an integer, which must be strict: `Annotated[int, Field(strict=True, ge=0), WHOLE]`."""

Whole = Annotated[int, Field(strict=True), WHOLE]


def _ring_position(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    if _POSITION.fullmatch(given) is None:
        raise ValueError(f"{given[:40]!r} is not a position; write an integer, or eight hexadecimal digits: 0x20000000")
    return int(given, 16)


_POSITION = re.compile(r"0x[0-9a-fA-F]{8}", re.ASCII)


RingPosition = Annotated[int, Field(strict=True, ge=0, le=FULL_UPPER), WHOLE, BeforeValidator(_ring_position)]
"""A place on the ring: a number, as Pulsar has it, or `0x40000000`."""


class Shape(BaseModel):
    """A shape that is read from a value of the domain, whose fields have the same names: `model_validate(value)`.

    Give its fields no defaults: one would be shown, silently, for a field that the value does not have.
    """

    model_config = ConfigDict(from_attributes=True)


InWords = Annotated[str, BeforeValidator(str)]
"""What the value says as text: a bundle, a broker."""


def _name(broker: Any) -> Any:
    return getattr(broker, "name", broker)


BrokerName = Annotated[str, BeforeValidator(_name)]
"""The name of a broker's incarnation."""

Builtins = Annotated[dict[str, Any], BeforeValidator(msgspec.to_builtins)]
"""The fields of a value whose shape depends on its kind."""
