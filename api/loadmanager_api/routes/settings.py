"""`/v1/config` and `/admin/v2/brokers/configuration`: the settings, and changing those that are live.

A change is the whole cluster's. It is validated together with all others before it is written, and answered once the
asked broker goes by it; the others follow as they read it.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from loadmanager.broker.node import Node
from loadmanager.settings import descriptions
from loadmanager.settings.dynamic.naming import named, names_of
from loadmanager_api.conditions import When
from loadmanager_api.openapi import answers
from loadmanager_api.paging import MOST, Cursor, Limit, Paging, SinceMs
from loadmanager_api.presenting_settings import by_all_names, changes_shown, every_setting, one_setting
from loadmanager_api.routing import AnyNode, Author, ControlRouter
from loadmanager_api.schemas_settings import NewValue, SettingChange, SettingShown, SettingsShown, Source

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
) -> SettingsShown:
    """List the settings by name: the value here, where that comes from, and the allowed values."""
    found = [
        each
        for each in every_setting(node)
        if live in (None, each.live)
        and source in (None, each.source)
        and any(name.startswith(prefix or "") for name in (each.name, *each.pulsar))
    ]
    page = paging.of(found, lambda each: each.name, limit, cursor, r"[a-z]\w*")
    return SettingsShown(revision=node.live.revision, settings=page, next=paging.following)


@ours.get("/{name}", responses=answers(404))
async def show_setting(node: AnyNode, response: Response, name: str) -> SettingShown:
    """Show one setting, by our name or Pulsar's. Its ETag begins with its version."""
    return _shown(node, response, name)


@ours.put("/{name}", responses=answers(404, 409, 412))
async def set_setting(
    node: AnyNode, response: Response, author: Author, when: When, name: str, wanted: NewValue
) -> SettingShown:
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
) -> SettingShown:
    """Remove the cluster's value: each broker has the value that it was started with. 404 if the cluster has none."""
    seen = when.seen(version, node.live.version(named(name).setting.name))
    await when.met(node.live.unset(name, seen=seen, author=author, reason=reason))
    return _shown(node, response, name)


def _shown(node: Node, response: Response, name: str) -> SettingShown:
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
    found = [each for each in changes_shown(node.live.history(name)) if since_ms is None or each.at_ms >= since_ms]
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


router = ControlRouter()
"""Goes before the routes of `/admin/v2/brokers/{cluster}`, which would take these names for a cluster's."""
router.include_router(ours)
router.include_router(pulsars)
