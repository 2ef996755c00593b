"""The metadata of a setting: whether it can change while brokers run, the reason of its default, its names in Pulsar.

`fixed` and `live` make fields. A fixed setting belongs to one broker and is given when it starts. A live one holds for
the whole cluster once it is set there (`loadmanager.settings.live`); until then each broker has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import annotated_types
import msgspec
from pydantic import Field
from pydantic.fields import FieldInfo

PULSAR = "Pulsar's default"
_LIVE, _WHY, _PULSAR, _WORDS = "x-live", "x-why", "x-pulsar", "x-words"

_UNITS = (
    ("_bytes_s", "bytes/s"),
    ("_msg_s", "messages/s"),
    ("_bytes", "bytes"),
    ("_percent", "%"),
    ("_s", "s"),
)


class Description(msgspec.Struct, frozen=True):
    """One setting, for people.

    `pulsar`: Pulsar's names for it, with the factor that converts their unit to ours. `words`: Pulsar's names of its
    values, if they differ. `bounds` are words as `> 0`, `<= 1`.
    """

    name: str
    meaning: str
    why: str
    default: Any
    type: str
    unit: str
    bounds: tuple[str, ...]
    live: bool
    pulsar: Mapping[str, float]
    words: Mapping[str, str]


def fixed(default: Any, meaning: str, why: str = "", *, pulsar: str | Mapping[str, float] = "", **bounds: Any) -> Any:
    """A setting that changes only with a restart."""
    return _field(default, meaning, why, pulsar, {}, bounds, live=False)


def live(
    default: Any,
    meaning: str,
    why: str = "",
    *,
    pulsar: str | Mapping[str, float] = "",
    words: Mapping[str, str] | None = None,
    **bounds: Any,
) -> Any:
    """A setting that can be changed while brokers run."""
    return _field(default, meaning, why, pulsar, words or {}, bounds, live=True)


def _field(
    default: Any,
    meaning: str,
    why: str,
    pulsar: str | Mapping[str, float],
    words: Mapping[str, str],
    bounds: Mapping[str, Any],
    *,
    live: bool,
) -> Any:
    names = ({pulsar: 1.0} if pulsar else {}) if isinstance(pulsar, str) else dict(pulsar)
    extra: dict[str, Any] = {_LIVE: live, _WHY: why, _PULSAR: names, _WORDS: dict(words)}
    made = {"default_factory": default} if isinstance(default, type) else {"default": default}
    return Field(**made, **bounds, description=meaning, json_schema_extra=extra)


def unit_of(name: str) -> str:
    """The unit that the end of a setting's name tells; empty if it tells none."""
    return next((unit for ending, unit in _UNITS if name.endswith(ending)), "")


def described(name: str, field: FieldInfo) -> Description:
    """The description of a field that `fixed` or `live` made."""
    extra = cast("dict[str, Any]", field.json_schema_extra)
    return Description(
        name=name,
        meaning=field.description or "",
        why=extra[_WHY],
        default=field.get_default(call_default_factory=True),
        type=_type_of(field),
        unit=unit_of(name),
        bounds=tuple(_bounds(field)),
        live=extra[_LIVE],
        pulsar=extra[_PULSAR],
        words=extra[_WORDS],
    )


def _type_of(field: FieldInfo) -> str:
    annotation = field.annotation
    if isinstance(annotation, type):
        return {bool: "yes or no", int: "whole number", float: "number", str: "text"}.get(annotation, "names")
    text = str(annotation).replace("typing.", "")
    if "Mapping" in text:
        return "names with values"
    kinds = [("Literal", "word"), ("int", "whole number"), ("float", "number"), ("str", "text"), ("None", "nothing")]
    return " or ".join(word for kind, word in kinds if kind in text)


def _bounds(field: FieldInfo) -> list[str]:
    found: list[str] = []
    for each in field.metadata:
        match each:
            case annotated_types.Ge(ge=edge):
                found.append(f">= {edge:,}")
            case annotated_types.Gt(gt=edge):
                found.append(f"> {edge:,}")
            case annotated_types.Le(le=edge):
                found.append(f"<= {edge:,}")
            case annotated_types.Lt(lt=edge):
                found.append(f"< {edge:,}")
            case _:
                pass
    return found
