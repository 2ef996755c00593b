"""The settings in force: the cluster's over those that a broker was started with. Pure.

A value may not fit a broker of another release, with other start settings, or without the package of a strategy. Then
it is ignored with its reason; the rest holds. Later changes are ignored before earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec
from pydantic import ValidationError

from loadmanager.documents.fold import Version
from loadmanager.settings import Settings, descriptions
from loadmanager.settings.choices import AUTOMATIC, BALANCING_NAMES, PLACEMENT_NAMES
from loadmanager.settings.removed import why_removed

Scalar = bool | int | float | str | None


class ClusterValue(msgspec.Struct, frozen=True):
    """The value of the document with the setting's name, in our unit.

    None is a value (no limit); deleting the document returns to each broker's own setting.
    """

    value: Scalar


class Overlay(msgspec.Struct, frozen=True):
    """The settings in force, the applied values of the cluster, and the ignored ones with the reason."""

    settings: Settings
    applied: Mapping[str, Scalar]
    ignored: Mapping[str, str]


def overlaid(start: Settings, values: Mapping[str, Scalar]) -> Overlay:
    """`start` with the cluster's values over it, in their order. Never raises."""
    if not values:
        return Overlay(start, {}, {})
    known = {name: value for name, value in values.items() if _obstacle(name) is None}
    ignored = {name: obstacle for name in values if (obstacle := _obstacle(name)) is not None}
    try:
        return Overlay(combined(start, known), known, ignored)
    except ValueError:
        pass  # at least one value does not fit: find it below
    return _one_by_one(start, known, ignored)


def _one_by_one(start: Settings, values: Mapping[str, Scalar], ignored: Mapping[str, str]) -> Overlay:
    """Apply the values that fit, repeatedly, as a value may need one that was changed later."""
    settings, applied = start, dict[str, Scalar]()
    refused: dict[str, str] = {}
    left: Sequence[str] = list(values)
    while left:
        refused = {}
        for name in left:
            try:
                settings = combined(start, {**applied, name: values[name]})
            except ValueError as error:
                refused[name] = str(error)
            else:
                applied[name] = values[name]
        if len(refused) == len(left):
            break
        left = list(refused)
    return Overlay(settings, applied, {**ignored, **refused})


def values_after(history: Iterable[Version[ClusterValue]], offset: int | None = None) -> Mapping[str, Scalar]:
    """The cluster's values after an offset (None: at the end of this history), in the order of the changes."""
    values: dict[str, Scalar] = {}
    for version in history:
        if offset is not None and version.offset > offset:
            break
        values.pop(version.name, None)
        if version.value is not None:
            values[version.name] = version.value.value
    return values


def combined(start: Settings, values: Mapping[str, Scalar]) -> Settings:
    """`start` with these values. Raises ValueError, in words, if one is out of bounds or they conflict."""
    for name, value in values.items():
        if isinstance(value, bool) and "yes or no" not in descriptions()[name].type:
            raise ValueError(f"{name} takes a {descriptions()[name].type}, not {str(value).lower()}")
    wanted: dict[str, Any] = {**dict(start), **values}
    try:
        settings = type(start)(**wanted)
    except ValidationError as error:
        raise ValueError("; ".join(_line(cast("dict[str, Any]", each)) for each in error.errors())) from None
    _check_names(values)
    return settings


def _obstacle(name: str) -> str | None:
    setting = descriptions().get(name)
    if setting is None:
        return why_removed(name) or "this release has no such setting"
    return None if setting.live else "this release can change it at a restart only"


def _line(error: dict[str, Any]) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    name = ".".join(str(part) for part in error["loc"][:1])
    return f"{name}={error['input']}: {message[:1].lower()}{message[1:]}" if name else message


def _check_names(values: Mapping[str, Scalar]) -> None:
    known: Mapping[str, Callable[[], Sequence[str]]] = {
        "balancing_strategy": BALANCING_NAMES.all,
        "placement": PLACEMENT_NAMES.all,
        "split_algorithm": lambda: AUTOMATIC,
    }
    for name in values.keys() & known.keys():
        if values[name] not in (names := known[name]()):
            raise ValueError(f"{name}={values[name]} is not installed here; set it to one of: {', '.join(names)}")
