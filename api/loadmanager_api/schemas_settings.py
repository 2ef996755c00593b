"""Settings as JSON: what they are, what they were, and how to change one. Only shapes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from loadmanager_api.json_types import STRICT, WHOLE

Source = Literal["cluster", "start", "default"]


class SettingShown(BaseModel):
    """One setting. `value` holds at the asked broker; `source` says who set it; `start` is the value it was started
    with.

    A change names the `version` that it replaces (0: the cluster never had its own value); `author`, `at_ms` and
    `reason` are those of that version. `pulsar` is the same value under Pulsar's names, in its units. `ignored` says
    why the cluster's value does not hold at the asked broker.
    """

    name: str
    value: Any
    source: Source
    start: Any
    default: Any
    type: str
    unit: str
    bounds: list[str]
    live: bool
    pulsar: dict[str, Any]
    meaning: str
    why: str
    version: int = 0
    author: str | None = None
    at_ms: int | None = None
    reason: str | None = None
    ignored: str | None = None


class SettingsShown(BaseModel):
    """Settings by name. `revision` is the offset of the cluster's last change that the broker has read, or -1.
    `next` is the `cursor` of the next page, null on the last one.
    """

    revision: int
    settings: list[SettingShown]
    next: str | None


class NewValue(BaseModel):
    """The value to set. `version`: the one that it replaces, so that no change is lost; without, any version."""

    model_config = STRICT

    value: bool | int | float | str | None = Field(description="in the unit of the name that was used; null: no limit")
    version: Annotated[int, Field(strict=True, ge=0), WHOLE] | None = None
    reason: Annotated[str, Field(max_length=1_000)] = ""


class SettingChange(BaseModel):
    """One change in the history. If `set` is false, the cluster's value was removed, and `value` is null."""

    name: str
    version: int
    set: bool
    value: Any
    old: Any
    author: str
    at_ms: int
    reason: str
    offset: int
