"""Turns a broker's settings into what is shown. Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from loadmanager.broker.node import Node
from loadmanager.diagnostics.doctor.hiding import hide
from loadmanager.settings import Description, descriptions
from loadmanager.settings.documents.model import Version
from loadmanager.settings.dynamic.live import LiveSettings
from loadmanager.settings.dynamic.model import ClusterValue
from loadmanager.settings.dynamic.naming import Named, named, names_of
from loadmanager_api.presenting import settings_shown
from loadmanager_api.schemas_settings import SettingChange, SettingShown, Source


def every_setting(node: Node) -> list[SettingShown]:
    """All settings, without possible secrets."""
    now, start = settings_shown(node), _start(node)
    return [_shown(node.live, each, now[each.name], start[each.name]) for each in descriptions().values()]


def one_setting(node: Node, name: str) -> SettingShown:
    """The setting of this name, ours or Pulsar's. Raises NotFound."""
    setting = named(name).setting
    return _shown(node.live, setting, settings_shown(node)[setting.name], _start(node)[setting.name])


def by_all_names(node: Node, *, only_cluster: bool = False) -> dict[str, str]:
    """Values as text by each name that a setting has, in the unit of that name; what may be secret is hidden."""
    now = settings_shown(node)
    chosen = [each for each in descriptions().values() if not only_cluster or _source(node.live, each) == "cluster"]
    return {name.called: _text(name, now[name.setting.name]) for each in chosen for name in names_of(each)}


def changes_shown(history: Sequence[Version[ClusterValue]]) -> list[SettingChange]:
    """A setting's history, oldest first, each change with what was before it."""
    before: dict[str, Any] = {}
    shown: list[SettingChange] = []
    for version in history:
        value = None if version.value is None else version.value.value
        shown.append(
            SettingChange(
                name=version.name,
                version=version.version,
                set=version.value is not None,
                value=value,
                old=before.get(version.name),
                author=version.author,
                at_ms=version.at_ms,
                reason=version.reason,
                offset=version.offset,
            )
        )
        before[version.name] = value
    return shown


def _start(node: Node) -> dict[str, Any]:
    return hide(node.live.start.model_dump(mode="json"))


def _source(live: LiveSettings, setting: Description) -> Source:
    version = live.version(setting.name)
    if version is not None and version.value is not None and setting.name not in live.ignored:
        return "cluster"
    return "start" if getattr(live.start, setting.name) != setting.default else "default"


def _shown(live: LiveSettings, setting: Description, value: Any, start: Any) -> SettingShown:
    version = live.version(setting.name)
    shown = SettingShown(
        name=setting.name,
        value=value,
        source=_source(live, setting),
        start=start,
        default=setting.default,
        type=setting.type,
        unit=setting.unit,
        bounds=list(setting.bounds),
        live=setting.live,
        pulsar={name.called: name.theirs(value) for name in names_of(setting)[1:]},
        meaning=setting.meaning,
        why=setting.why,
        ignored=live.ignored.get(setting.name),
    )
    if version is None:
        return shown
    fields = {"version": version.version, "author": version.author, "at_ms": version.at_ms, "reason": version.reason}
    return shown.model_copy(update=fields)


def _text(name: Named, value: Any) -> str:
    shown = name.theirs(value) if isinstance(value, str | int | float | None) else value
    if isinstance(shown, float) and shown.is_integer():
        shown = int(shown)  # many of Pulsar's are whole numbers, and its tools read them as such
    return shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()
