"""`/v1/groups`: the consumer groups that brokers coordinate; docs/consumer-groups.md says what they are.

The owner of a group's bundle coordinates it and answers; other brokers send there (307). What members ask comes another
way (`loadmanager_api/groups/members.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import unquote

from fastapi import Path, Query, Request, Response
from fastapi.responses import RedirectResponse

from loadmanager.broker.lookup import Located
from loadmanager.broker.node import Node
from loadmanager.client.redirection import Moved
from loadmanager.consumers.backlog.positions import Position, Step, resolve
from loadmanager.consumers.coordinator.records import Partition, Settings
from loadmanager.consumers.coordinator.targets import CONFIG, check_settings
from loadmanager.errors import Invalid, NotFound, Unavailable
from loadmanager_api.groups.calling import ask, coordinator_of, the_coordinator_of
from loadmanager_api.groups.members import group_of
from loadmanager_api.groups.presenting import group_shown, kafka_name, members_shown, offsets_shown, rebalance_shown
from loadmanager_api.groups.schemas import (
    GroupChange,
    GroupListed,
    GroupShown,
    MemberShown,
    OffsetsShown,
    OffsetsWish,
    RebalanceShown,
    RebalanceWish,
)
from loadmanager_api.http.probes import acting
from loadmanager_api.openapi import answers
from loadmanager_api.paging import MOST, Cursor, Limit, Paging
from loadmanager_api.routing import Acting, ControlRouter, TheNode, on_http_loop
from loadmanager_api.state import kept
from statechannel.law.bundle import Key

if TYPE_CHECKING:
    from loadmanager.consumers.coordinator.service import Coordinator

router = ControlRouter(prefix="/v1/groups", tags=["consumer groups"])
T = TypeVar("T")

GROUP = "/{tenant}/{namespace}/{consumer_group}"
Name = Annotated[str, Path(description="the last part of the group's name", examples=["billing"])]
DryRun = Annotated[bool, Query(description="change nothing; say what would be done")]


@router.get("", responses=answers(412))
@on_http_loop
async def list_groups(
    request: Request,
    node: TheNode,
    paging: Paging,
    coordinated: Annotated[bool | None, Query(description="only groups that brokers coordinate, or do not")] = None,
    limit: Limit = MOST,
    cursor: Cursor = None,
) -> list[GroupListed]:
    """List the consumer groups of the log's Kafka by name: those that brokers coordinate, and Kafka's own."""
    coordinator = coordinator_of(node)
    ours = set[str]() if coordinator is None else await ask(coordinator, _names)
    others = set[str]() if coordinated else set(await kept(request).backlogs.groups()) - ours
    names = others if coordinated is False else ours | others
    page = paging.of(names, str, limit, cursor, r"(?s).+")
    return [GroupListed(group=name, coordinated=name in ours) for name in page]


@router.get(GROUP, response_model=GroupShown, responses=answers(307, 404, 412))
@on_http_loop
async def show_group(
    request: Request, node: TheNode, tenant: str, namespace: str, consumer_group: Name
) -> GroupShown | Response:
    """Show a group: its strategy, and how many members and partitions it has."""
    key = _key(tenant, namespace, consumer_group)
    found = await _seen(request, key, lambda coordinator: coordinator.describe(key.full_name))
    return found if isinstance(found, Response) else group_shown(found, node.settings.advertised)


@router.get(f"{GROUP}/members", response_model=list[MemberShown], responses=answers(307, 404, 412))
@on_http_loop
async def list_members(
    request: Request,
    node: TheNode,
    paging: Paging,
    tenant: str,
    namespace: str,
    consumer_group: Name,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> list[MemberShown] | Response:
    """List the members of a group, each with the partitions that it may read."""
    key = _key(tenant, namespace, consumer_group)
    found = await _seen(request, key, lambda coordinator: coordinator.describe(key.full_name))
    if isinstance(found, Response):
        return found
    return members_shown(found, paging.of(found.members, str, limit, cursor, r"(?s).+"))


@router.get(f"{GROUP}/rebalances", response_model=list[RebalanceShown], responses=answers(307, 404, 412))
@on_http_loop
async def list_rebalances(
    request: Request,
    node: TheNode,
    paging: Paging,
    tenant: str,
    namespace: str,
    consumer_group: Name,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> list[RebalanceShown] | Response:
    """List the last rebalances of a group, newest first: what moved, and what it cost."""
    key = _key(tenant, namespace, consumer_group)
    found = await _seen(request, key, lambda coordinator: coordinator.rebalances(key.full_name))
    if isinstance(found, Response):
        return found
    page = paging.of(found, lambda each: f"{10**15 - each.number:016}", limit, cursor, r"\d{16}")
    return [rebalance_shown(each) for each in page]


@router.patch(GROUP, status_code=204, response_model=None, responses=answers(307, 404, 412))
async def configure_group(
    request: Request,
    node: TheNode,
    incarnation: Acting,
    tenant: str,
    namespace: str,
    consumer_group: Name,
    wanted: GroupChange,
) -> Response | None:
    """Set the strategy of a group, its configuration, or who divides its partitions. A change divides them anew."""
    key = _key(tenant, namespace, consumer_group)
    if wanted.strategy is None and wanted.mode is None and wanted.config is None:
        raise Invalid("say what to set: strategy, config, mode, or several of them")
    config = {name: {topic: tuple(its) for topic, its in each.items()} for name, each in (wanted.config or {}).items()}

    async def configure(coordinator: Coordinator) -> None:
        try:
            present = (await coordinator.describe(key.full_name)).settings
        except NotFound:
            present = Settings()  # it may be set before the first member comes
        strategy = wanted.strategy or present.strategy
        kept = present.config if wanted.config is None and strategy == CONFIG else config
        settings = Settings(wanted.mode or present.mode, strategy, kept)
        check_settings(settings)  # before the first member comes, a group that is refused is not created
        await coordinator.configure(key.full_name, settings)

    return await _changed(request, node, key, configure)


@router.delete(GROUP, status_code=204, response_model=None, responses=answers(307, 404, 409, 412))
async def delete_group(
    request: Request,
    node: TheNode,
    incarnation: Acting,
    tenant: str,
    namespace: str,
    consumer_group: Name,
) -> Response | None:
    """Forget a group without members, with its settings. Kafka deletes its offsets when they expire."""
    key = _key(tenant, namespace, consumer_group)
    return await _changed(request, node, key, lambda coordinator: coordinator.delete(key.full_name))


@router.post(f"{GROUP}/rebalance", status_code=204, response_model=None, responses=answers(307, 404, 412))
async def rebalance_group(
    request: Request,
    node: TheNode,
    incarnation: Acting,
    tenant: str,
    namespace: str,
    consumer_group: Name,
    wanted: RebalanceWish,
) -> Response | None:
    """Ask the group's strategy anew. With `by_lag` partitions weigh what waits in them."""
    key = _key(tenant, namespace, consumer_group)

    async def rebalance(coordinator: Coordinator) -> None:
        weights = (await coordinator.lag.read(key.full_name)).lags if wanted.by_lag else None
        await coordinator.rebalance(key.full_name, weights)

    return await _changed(request, node, key, rebalance)


@router.put(f"{GROUP}/offsets", response_model=OffsetsShown, responses=answers(307, 404, 409, 412))
async def reset_offsets(
    request: Request,
    node: TheNode,
    incarnation: Acting,
    tenant: str,
    namespace: str,
    consumer_group: Name,
    wanted: OffsetsWish,
    dry_run: DryRun = False,
) -> OffsetsShown | Response:
    """Let a group go on reading elsewhere, while it runs: its members stop reading there, the offsets are stored, and
    the same members go on. Members that read nothing there notice nothing. A number of records forward or back leaves
    partitions alone in which the group has no offset; 412 if it has none at all.

    503 if a member did not stop within `timeout_s`: nothing was changed then.
    """
    key, position = _key(tenant, namespace, consumer_group), Position.parse(wanted.to)
    found = await _changed(request, node, key, partial(_reset, key=key, position=position, wanted=wanted, dry=dry_run))
    return found if isinstance(found, Response) else offsets_shown(kafka_name(key.full_name), found, dry_run=dry_run)


async def _reset(
    coordinator: Coordinator, *, key: Key, position: Position, wanted: OffsetsWish, dry: bool
) -> dict[Partition, Step]:
    offsets = coordinator.offsets
    committed, _ = await offsets.committed(kafka_name(key.full_name)) or ({}, {})
    queues = await _queues(coordinator, key, wanted, committed)
    steps = await resolve(position, offsets, queues, committed)
    if not dry:
        after = {partition: step.after for partition, step in steps.items() if step.after is not None}
        await coordinator.reset(key.full_name, after, wanted.timeout_s)
    return steps


async def _queues(
    coordinator: Coordinator, key: Key, wanted: OffsetsWish, committed: Any
) -> dict[str, range | list[int]]:
    """What is to be reset. Raises NotFound, Invalid."""
    if wanted.topic is None and wanted.partitions is not None:
        raise Invalid("partitions are of one topic: name it")
    topics = {wanted.topic} if wanted.topic is not None else {*committed, *await _subscribed(coordinator, key)}
    sizes = await coordinator.offsets.queues(topics)
    if missing := sorted(topics - sizes.keys()) if wanted.topic is not None else ():
        raise NotFound(f"there is no topic {missing[0]!r}: check the name, and that this user may describe it")
    if not sizes:
        raise NotFound(f"{kafka_name(key.full_name)} reads no topic and has no offsets: name a topic")
    if wanted.partitions is None:
        return {topic: range(size) for topic, size in sizes.items()}
    ((topic, size),) = sizes.items()
    if not wanted.partitions or not set(wanted.partitions) <= set(range(size)):
        raise Invalid(f"{topic} has the partitions 0 to {size - 1}: name one or more of them, or none for all")
    return {topic: sorted(set(wanted.partitions))}


async def _subscribed(coordinator: Coordinator, key: Key) -> set[str]:
    try:
        members = (await coordinator.describe(key.full_name)).members
    except NotFound:
        return set()
    return {topic for each in members.values() for topic in each.topics}


async def _names(coordinator: Coordinator) -> set[str]:
    return {kafka_name(name) for name in coordinator.groups()}


def _key(tenant: str, namespace: str, consumer_group: str) -> Key:
    return group_of(tenant, namespace, unquote(consumer_group))


Work = Callable[["Coordinator"], Coroutine[Any, Any, T]]


async def _seen(request: Request, key: Key, work: Work[T]) -> T | Response:
    """What the coordinator says, or a redirect to it. Belongs to the endpoints' loop."""
    these = kept(request)
    node, timeout_s = these.node, these.node.settings.lookup_timeout_s
    lookup = acting(node).lookup
    located = await these.handover.ask(partial(lookup.locate, key, timeout_s), light=True)
    return await _answered(request, node, located, work)


async def _changed(request: Request, node: Node, key: Key, work: Work[T]) -> T | Response:
    """As `_seen`. Belongs to the control loop, which waits for nothing meanwhile."""
    located = await node.current.lookup.locate(key, node.settings.lookup_timeout_s)
    return await _answered(request, node, located, work)


async def _answered(request: Request, node: Node, located: Located, work: Work[T]) -> T | Response:
    owner = located.owner.name
    if owner != node.settings.advertised:
        url = located.peer.registration.admin_url if located.peer else ""
        if not url:
            raise Unavailable(f"{owner} coordinates this group and has no admin URL now; try again")
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{url}{request.scope['raw_path'].decode()}{query}", 307)
    try:
        return await ask(the_coordinator_of(node), work)
    except Moved as moved:
        raise Unavailable(f"the group moves to {moved.broker} at this moment: try again", 0.1) from None
