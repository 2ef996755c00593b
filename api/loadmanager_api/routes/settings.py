"""`/v1/config`, `/admin/v2/brokers/configuration` and `/v1/settings`: the settings, and changing those that are live.

A change is the whole cluster's. It is validated together with all others before it is written, and answered once the
asked broker goes by it; the others follow as they read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Query, Response
from msgspec.structs import asdict
from pydantic import BaseModel, Field

from loadmanager.broker.node import Node
from loadmanager.diagnostics.redaction import redact
from loadmanager.documents.fold import Version
from loadmanager.settings import Description, descriptions
from loadmanager.settings.live import LiveSettings
from loadmanager.settings.names import Named, named, names_of
from loadmanager.settings.overlay import ClusterValue
from loadmanager_api.conditions import When
from loadmanager_api.openapi import answers
from loadmanager_api.paging import MOST, Cursor, Limit, Paging, SinceMs
from loadmanager_api.routing import AnyNode, Author, ControlRouter
from loadmanager_api.shapes import WHOLE, Body

Source = Literal["cluster", "start", "default"]


class Setting(BaseModel):
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


class Settings(BaseModel):
    """Settings by name. `revision` is the offset of the cluster's last change that the broker has read, or -1.
    `next` is the `cursor` of the next page, null on the last one.
    """

    revision: int
    settings: list[Setting]
    next: str | None


class NewValue(Body):
    """The value to set. `version`: the one that it replaces, so that no change is lost; without, any version."""

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


def present_settings(node: Node) -> dict[str, Any]:
    """All settings; those that are passed to the clients of Kafka and ZooKeeper may be secret and are hidden.

    So are secrets within addresses and properties, as far as their form and name shows them.
    """
    shown: dict[str, Any] = node.settings.model_dump(mode="json")
    return redact(shown)


def every_setting(node: Node) -> list[Setting]:
    """All settings, without possible secrets."""
    now, start = present_settings(node), _start(node)
    return [_setting(node.live, each, now[each.name], start[each.name]) for each in descriptions().values()]


def one_setting(node: Node, name: str) -> Setting:
    """The setting of this name, ours or Pulsar's. Raises NotFound."""
    setting = named(name).setting
    return _setting(node.live, setting, present_settings(node)[setting.name], _start(node)[setting.name])


def by_all_names(node: Node, *, only_cluster: bool = False) -> dict[str, str]:
    """Values as text by each name that a setting has, in the unit of that name; what may be secret is hidden."""
    now = present_settings(node)
    chosen = [each for each in descriptions().values() if not only_cluster or _source(node.live, each) == "cluster"]
    return {name.called: _text(name, now[name.setting.name]) for each in chosen for name in names_of(each)}


def setting_changes(history: Sequence[Version[ClusterValue]]) -> list[SettingChange]:
    """A setting's history, oldest first, each change with what was before it."""
    before: dict[str, Any] = {}
    shown: list[SettingChange] = []
    for version in history:
        value = None if version.value is None else version.value.value
        more = {"set": version.value is not None, "value": value, "old": before.get(version.name)}
        shown.append(SettingChange.model_validate(asdict(version) | more))
        before[version.name] = value
    return shown


def _start(node: Node) -> dict[str, Any]:
    return redact(node.live.start.model_dump(mode="json"))


def _source(live: LiveSettings, setting: Description) -> Source:
    version = live.version(setting.name)
    if version is not None and version.value is not None and setting.name not in live.ignored:
        return "cluster"
    return "start" if getattr(live.start, setting.name) != setting.default else "default"


def _setting(live: LiveSettings, setting: Description, value: Any, start: Any) -> Setting:
    version = live.version(setting.name)
    written = {} if version is None else asdict(version)
    return Setting.model_validate(
        written
        | asdict(setting)
        | {
            "value": value,
            "source": _source(live, setting),
            "start": start,
            "pulsar": {name.called: name.theirs(value) for name in names_of(setting)[1:]},
            "ignored": live.ignored.get(setting.name),
        }
    )


def _text(name: Named, value: Any) -> str:
    shown = name.theirs(value) if isinstance(value, str | int | float | None) else value
    if isinstance(shown, float) and shown.is_integer():
        shown = int(shown)  # many of Pulsar's are whole numbers, and its tools read them as such
    return shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()


ours = ControlRouter(prefix="/v1/config", tags=["settings"])
pulsars = ControlRouter(prefix="/admin/v2/brokers/configuration", tags=["settings"])

VIA_PULSAR = "through Pulsar's interface"


@ours.get("")
async def list_settings(
    node: AnyNode,
    paging: Paging,
    prefix: Annotated[
        str | None,
        Query(max_length=1_000, description="only names that begin so: ours or Pulsar's", examples=["balancing_"]),
    ] = None,
    source: Annotated[Source | None, Query(description="only values that come from there")] = None,
    live: Annotated[bool | None, Query(description="only settings that can change while brokers run, or not")] = None,
    limit: Limit = MOST,
    cursor: Cursor = None,
) -> Settings:
    """List the settings by name: the value here, where that comes from, and the allowed values."""
    found = [
        each
        for each in every_setting(node)
        if live in (None, each.live)
        and source in (None, each.source)
        and any(name.startswith(prefix or "") for name in (each.name, *each.pulsar))
    ]
    page = paging.of(found, lambda each: each.name, limit, cursor, r"[a-z]\w*")
    return Settings(revision=node.live.revision, settings=page, next=paging.following)


@ours.get("/{name}", responses=answers(404))
async def show_setting(node: AnyNode, response: Response, name: str) -> Setting:
    """Show one setting, by our name or Pulsar's. Its ETag begins with its version."""
    return _shown(node, response, name)


@ours.put("/{name}", responses=answers(404, 409, 412))
async def set_setting(
    node: AnyNode, response: Response, author: Author, when: When, name: str, wanted: NewValue
) -> Setting:
    """Set a value for the whole cluster. 404: unknown setting. 412: value not allowed, or setting fixed, or not the
    version of `If-Match`. 409: not the given `version`.
    """
    seen = when.seen(wanted.version, node.live.version(named(name).setting.name))
    await when.met(node.live.set(name, wanted.value, seen=seen, author=author, reason=wanted.reason))
    return _shown(node, response, name)


@ours.delete("/{name}", responses=answers(404, 409, 412))
async def unset_setting(
    node: AnyNode,
    response: Response,
    author: Author,
    when: When,
    name: str,
    version: Annotated[int | None, Query(ge=0, description="the version to replace")] = None,
    reason: Annotated[str, Query(max_length=1_000)] = "",
) -> Setting:
    """Remove the cluster's value: each broker has the value that it was started with. 404 if the cluster has none."""
    seen = when.seen(version, node.live.version(named(name).setting.name))
    await when.met(node.live.unset(name, seen=seen, author=author, reason=reason))
    return _shown(node, response, name)


def _shown(node: Node, response: Response, name: str) -> Setting:
    shown = one_setting(node, name)
    response.headers["ETag"] = f'"{shown.version}"'
    return shown


@ours.get("/{name}/history", responses=answers(404))
async def setting_history(
    node: AnyNode,
    paging: Paging,
    name: str,
    since_ms: SinceMs = None,
    limit: Limit = MOST,
    cursor: Cursor = None,
) -> list[SettingChange]:
    """List the changes of a setting: who, from what to what, when and why; oldest first."""
    found = [each for each in setting_changes(node.live.history(name)) if since_ms is None or each.at_ms >= since_ms]
    return paging.of(found, lambda each: f"{each.version:015}", limit, cursor, r"\d{15}")


# --- Pulsar's


@pulsars.get("")
async def list_names() -> list[str]:
    """List the names of settings that can be changed while brokers run: ours and Pulsar's."""
    return sorted(name.called for each in descriptions().values() if each.live for name in names_of(each))


@pulsars.get("/values")
async def show_values(node: AnyNode) -> dict[str, str]:
    """Show the cluster's values as text, under each of their names and in the unit of that name."""
    return by_all_names(node, only_cluster=True)


@pulsars.get("/runtime")
async def show_runtime(node: AnyNode) -> dict[str, str]:
    """Show the values in force at this broker as text, under all names, except those that may be secret."""
    return by_all_names(node)


@pulsars.post("/{name}/{value:path}", response_class=Response, responses=answers(404, 409, 412))
async def update_setting(node: AnyNode, author: Author, when: When, name: str, value: str) -> Response:
    """Set a value, as `PUT /v1/config/{name}` without a version. `If-Match` is that of `/v1/config/{name}`."""
    seen = when.seen(None, node.live.version(named(name).setting.name))
    await when.met(node.live.set(name, value, seen=seen, author=author, reason=VIA_PULSAR))
    return Response()


@pulsars.delete("/{name}", response_class=Response, responses=answers(404, 409, 412))
async def delete_setting(node: AnyNode, author: Author, when: When, name: str) -> Response:
    """Remove the cluster's value, as `DELETE /v1/config/{name}`."""
    seen = when.seen(None, node.live.version(named(name).setting.name))
    await when.met(node.live.unset(name, seen=seen, author=author, reason=VIA_PULSAR))
    return Response()


start = ControlRouter(tags=["this broker"])


@start.get("/v1/settings")
async def show_settings(node: AnyNode) -> dict[str, Any]:
    """Show all settings of this broker, except those that may be secret."""
    return present_settings(node)


router = ControlRouter()
"""Goes before the routes of `/admin/v2/brokers/{cluster}`, which would take these names for a cluster's."""
router.include_router(ours)
router.include_router(pulsars)
router.include_router(start)
