"""`/v1/groups`: the consumer groups that brokers coordinate, and `/v1/backlog`: how much any group has before it.
docs/consumer-groups.md and docs/backlog.md say what they are.

The owner of a group's bundle coordinates it and answers; other brokers send there (307). What members ask comes another
way (`loadmanager_api/groups/members.py`). Any broker whose log is on Kafka answers for backlogs, of Kafka's own groups
too. Pages of one list are of one reading, if they are asked for within a second.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import unquote

from fastapi import Path, Query, Request, Response
from fastapi.responses import RedirectResponse
from msgspec.structs import asdict
from pydantic import BaseModel, BeforeValidator, Field

from loadmanager.broker.lookup import Located
from loadmanager.broker.node import Node
from loadmanager.client.redirection import Moved
from loadmanager.consumers.backlog.figures import backlog_of
from loadmanager.consumers.backlog.filtering import LIMITS, Filter
from loadmanager.consumers.backlog.positions import FORMS, Position, Step, resolve
from loadmanager.consumers.backlog.reading import MOST_READS
from loadmanager.consumers.backlog.sampling import Limits
from loadmanager.consumers.coordinator.records import Mode, Partition, Settings, listed
from loadmanager.consumers.coordinator.targets import CONFIG, CONFIG_BYTES, STRATEGIES, check_settings
from loadmanager.errors import Invalid, NotFound, Unavailable
from loadmanager_api.access.sender import proven_name
from loadmanager_api.groups.calling import ask, coordinator_of, the_coordinator_of
from loadmanager_api.groups.members import group_of
from loadmanager_api.http.probes import acting
from loadmanager_api.openapi import answers
from loadmanager_api.paging import MOST, Cursor, Limit, Paging
from loadmanager_api.routing import Acting, ControlRouter, TheNode, on_http_loop
from loadmanager_api.shapes import Body, Shape, Whole
from loadmanager_api.state import kept
from statechannel.law.bundle import Key

if TYPE_CHECKING:
    from loadmanager.consumers.coordinator.service import Coordinator

T = TypeVar("T")

MOST_STEPS = 1_000
LONGEST_RESET_S = 600.0


class GroupListed(BaseModel):
    """A consumer group. `coordinated`: by brokers of this cluster; the others are Kafka's own."""

    group: str
    coordinated: bool


class Group(Shape):
    """A coordinated group. `generation` increases with every change of the assignment. `partitions` have a holder;
    `moving` of them should have another one. `unread` partitions are assigned to no member. `config` is that of the
    strategy CONFIG. `creator` is the principal that created it; empty if that is not known."""

    group: str
    coordinator: str
    strategy: str
    mode: Mode
    generation: int
    members: int
    topics: list[str]
    partitions: int
    moving: int
    unread: int
    creator: str
    config: dict[str, dict[str, list[int]]]


class Member(Shape):
    """A member: what it said of itself, and by topic the partitions that it may read; among them, what it gives up."""

    member: str
    topics: list[str]
    session_timeout_ms: int
    revoke_timeout_ms: int
    capacity: float
    rack: str
    name: str
    client_id: str
    host: str
    partitions: dict[str, list[int]]
    giving_up: dict[str, list[int]]


class GroupChange(Body):
    """What shall be set; what is left out stays."""

    strategy: Annotated[
        str | None, Field(description=f"one of {', '.join(STRATEGIES)}", examples=["STICKY"], max_length=100)
    ] = None
    config: Annotated[
        dict[str, dict[str, list[Whole]]] | None,
        Field(
            description=f"for {CONFIG}: by name of a member and by topic, its partitions; at most {CONFIG_BYTES} bytes",
            examples=[{"reader-0": {"orders": [0, 1]}}],
        ),
    ] = None
    mode: Annotated[
        Mode | None, Field(strict=False, description="who divides the partitions: server, or client for the members")
    ] = None


class RebalanceRequest(Body):
    """How to rebalance a group."""

    by_lag: Annotated[bool, Field(description="weight partitions by their current lag; for WEIGHTED_STICKY")] = False


class Rebalance(Shape):
    """A rebalance. `stickiness` is the share of partitions that stayed, `balance_degree` the standard deviation of
    partitions per member. Pauses are those of partitions that moved, `worst` one with the longest. Null while it goes
    on, and pauses if nothing moved."""

    number: int
    generation: int
    why: str
    at_ms: int
    members: int
    partitions: int
    moved: int
    kept: int
    stickiness: float
    balance_degree: float
    settled_ms: int | None
    pause_max_ms: int | None
    pause_mean_ms: float | None
    worst: Annotated[str | None, BeforeValidator(lambda queue: None if queue is None else f"{queue[0]}-{queue[1]}")]


class OffsetsRequest(Body):
    """Where a group continues to read, in one topic or in all that it reads. `timeout_s`: time limit for its members
    to stop reading there."""

    to: Annotated[str, Field(max_length=100, description=FORMS, examples=["earliest", "2030-01-31T12:00:00Z"])]
    topic: Annotated[str | None, Field(max_length=249)] = None
    partitions: Annotated[list[Whole] | None, Field(max_length=100_000)] = None
    timeout_s: Annotated[float, Field(gt=0, le=LONGEST_RESET_S)] = 60.0


class OffsetStep(Shape):
    """One partition: the offset before (null: the group had none), and the new one (null: it stays without an offset,
    as there is none to count from)."""

    topic: str
    partition: int
    before: int | None
    after: int | None


class Offsets(Shape):
    """How far a group was moved: the records that it skips, and those that it reads again. `partitions` counts those
    that were moved, `left` the others, which have no offset to count from. `steps` are the first 1,000."""

    group: str
    dry_run: bool
    partitions: int
    left: int
    skipped: int
    again: int
    steps: list[OffsetStep]


router = ControlRouter(prefix="/v1/groups", tags=["consumer groups"])

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

    async def named(coordinator: Coordinator) -> set[str]:
        return {kafka_name(name) for name in coordinator.groups()}

    coordinator = coordinator_of(node)
    ours = set[str]() if coordinator is None else await ask(coordinator, named)
    others = set[str]() if coordinated else set(await kept(request).backlogs.groups()) - ours
    names = others if coordinated is False else ours | others
    page = paging.of(names, str, limit, cursor, r"(?s).+")
    return [GroupListed(group=name, coordinated=name in ours) for name in page]


@router.get(GROUP, response_model=Group, responses=answers(307, 404, 412))
@on_http_loop
async def show_group(
    request: Request, node: TheNode, tenant: str, namespace: str, consumer_group: Name
) -> Group | Response:
    """Show a group: its strategy, and how many members and partitions it has."""
    key = _key(tenant, namespace, consumer_group)
    found = await _seen(request, key, lambda coordinator: coordinator.describe(key.full_name))
    if isinstance(found, Response):
        return found
    return Group.model_validate(
        asdict(found)
        | asdict(found.settings)
        | {
            "group": kafka_name(found.name),
            "coordinator": node.settings.advertised,
            "members": len(found.members),
            "topics": sorted({topic for each in found.members.values() for topic in each.topics}),
            "partitions": len(found.holders),
            "moving": len(found.targets),
        }
    )


@router.get(f"{GROUP}/members", response_model=list[Member], responses=answers(307, 404, 412))
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
) -> list[Member] | Response:
    """List the members of a group, each with the partitions that it may read."""
    key = _key(tenant, namespace, consumer_group)
    found = await _seen(request, key, lambda coordinator: coordinator.describe(key.full_name))
    if isinstance(found, Response):
        return found
    names = paging.of(found.members, str, limit, cursor, r"(?s).+")
    held: dict[str, list[Partition]] = {name: [] for name in names}
    given_up: dict[str, list[Partition]] = {name: [] for name in names}
    for partition, holder in found.holders.items():
        if holder in held:
            held[holder].append(partition)
            if partition in found.targets:
                given_up[holder].append(partition)
    return [
        Member.model_validate(
            asdict(found.members[name])
            | {"member": name, "partitions": listed(held[name]), "giving_up": listed(given_up[name])}
        )
        for name in names
    ]


@router.get(f"{GROUP}/rebalances", response_model=list[Rebalance], responses=answers(307, 404, 412))
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
) -> list[Rebalance] | Response:
    """List the last rebalances of a group, newest first: what moved, and what it cost."""
    key = _key(tenant, namespace, consumer_group)
    found = await _seen(request, key, lambda coordinator: coordinator.rebalances(key.full_name))
    if isinstance(found, Response):
        return found
    page = paging.of(found, lambda each: f"{10**15 - each.number:016}", limit, cursor, r"\d{16}")
    return [
        Rebalance.model_validate(asdict(each) | {"stickiness": each.kept / each.partitions if each.partitions else 1.0})
        for each in page
    ]


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
    """Set the strategy of a group, its configuration, or who assigns its partitions. A change reassigns them."""
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
        await coordinator.configure(key.full_name, settings, proven_name(request.scope))

    return await _changed(request, node, key, configure)


@router.delete(GROUP, status_code=204, response_model=None, responses=answers(307, 404, 409, 412))
async def delete_group(
    request: Request,
    node: TheNode,
    incarnation: Acting,
    tenant: str,
    namespace: str,
    consumer_group: Name,
    offsets: Annotated[bool, Query(description="delete its committed offsets in Kafka too")] = False,
) -> Response | None:
    """Forget a group without members, with its settings. Kafka deletes its offsets when they expire; with `offsets`
    they are deleted now."""
    key = _key(tenant, namespace, consumer_group)
    return await _changed(request, node, key, lambda coordinator: coordinator.delete(key.full_name, offsets=offsets))


@router.post(f"{GROUP}/rebalance", status_code=204, response_model=None, responses=answers(307, 404, 412))
async def rebalance_group(
    request: Request,
    node: TheNode,
    incarnation: Acting,
    tenant: str,
    namespace: str,
    consumer_group: Name,
    wanted: RebalanceRequest,
) -> Response | None:
    """Run the group's strategy again. With `by_lag`, partitions are weighted by their lag."""
    key = _key(tenant, namespace, consumer_group)

    async def rebalance(coordinator: Coordinator) -> None:
        weights = (await coordinator.lag.read(key.full_name)).lags if wanted.by_lag else None
        await coordinator.rebalance(key.full_name, weights)

    return await _changed(request, node, key, rebalance)


@router.put(f"{GROUP}/offsets", response_model=Offsets, responses=answers(307, 404, 409, 412))
async def reset_offsets(
    request: Request,
    node: TheNode,
    incarnation: Acting,
    tenant: str,
    namespace: str,
    consumer_group: Name,
    wanted: OffsetsRequest,
    dry_run: DryRun = False,
) -> Offsets | Response:
    """Move a running group to other offsets: its members stop reading there, the offsets are stored, and the same
    members continue. Members that read nothing there are not affected. A number of records forward or back skips
    partitions in which the group has no offset; 412 if it has none at all.

    503 if a member did not stop within `timeout_s`: nothing was changed then.
    """
    key, position = _key(tenant, namespace, consumer_group), Position.parse(wanted.to)
    group = kafka_name(key.full_name)

    async def reset(coordinator: Coordinator) -> dict[Partition, Step]:
        offsets = coordinator.offsets
        committed, _ = await offsets.committed(group) or ({}, {})
        queues = await _queues(coordinator, key, wanted, committed)
        steps = await resolve(position, offsets, queues, committed)
        if not dry_run:
            after = {partition: step.after for partition, step in steps.items() if step.after is not None}
            await coordinator.reset(key.full_name, after, wanted.timeout_s)
        return steps

    steps = await _changed(request, node, key, reset)
    if isinstance(steps, Response):
        return steps
    there = [each for each in steps.values() if each.after is not None]
    moved = [each.after - each.before for each in there if each.after is not None and each.before is not None]
    first = sorted(steps.items(), key=lambda item: item[0])[:MOST_STEPS]
    return Offsets(
        group=group,
        dry_run=dry_run,
        partitions=len(there),
        left=len(steps) - len(there),
        skipped=sum(by for by in moved if by > 0),
        again=-sum(by for by in moved if by < 0),
        steps=[
            OffsetStep(topic=topic, partition=number, before=step.before, after=step.after)
            for (topic, number), step in first
        ],
    )


async def _queues(
    coordinator: Coordinator, key: Key, wanted: OffsetsRequest, committed: Any
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


def kafka_name(group: str) -> str:
    """The `group.id` of a coordinated group: its key without the domain."""
    return group.partition("://")[2]


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


class Figure(Shape):
    """Records, and the age of the oldest in seconds, null if it was not read."""

    messages: int
    latency_s: float | None


class BacklogFigures(Shape):
    """The figures of docs/backlog.md; null for what is not known."""

    lag: Figure | None
    in_flight: Figure | None
    available: Figure | None
    deleted: int
    queues: int
    uncommitted: int
    unknown: int
    undated: int


class Forecast(Shape):
    """When nothing will wait any more, if both rates stay as they are. Rates are in records a second."""

    outlook: Annotated[Literal["empty", "drains", "never", "unknown"], BeforeValidator(lambda each: each.name.lower())]
    why: str
    drain_s: float | None
    produced_per_s: float | None
    consumed_per_s: float | None


class Backlog(BacklogFigures):
    """The backlog of a group in one topic, or in all that it reads. `messages` is the lag as one number, for scalers:
    0 if it is not known."""

    group: str
    at_ms: int
    messages: int
    forecast: Forecast


class FilteredBacklog(Shape):
    """How many records of a group's lag in a topic pass a filter: with 95 % confidence `low` to `high`, or exactly if
    all were looked at. `matched` of the `scanned` records passed."""

    group: str
    topic: str
    messages: int
    low: int
    high: int
    exact: bool
    scanned: int
    matched: int


class TopicBacklog(BacklogFigures):
    """The backlog of a group in one topic."""

    topic: str


class PartitionBacklog(BacklogFigures):
    """The backlog of a group in one partition, and the offsets that it was computed from."""

    topic: str
    partition: int
    begin: int
    consumer: int | None
    pull: int | None
    end: int | None


backlog_router = ControlRouter(prefix="/v1/backlog", tags=["consumer groups"])

GroupName = Annotated[str, Query(min_length=1, max_length=1_000, description="`group.id`", examples=["t/n/billing"])]
Topic = Annotated[str | None, Query(max_length=249, description="only this topic; by default all that it reads")]
Ages = Annotated[
    int, Query(ge=0, le=MOST_READS, description="number of partitions whose ages are read, those with the largest lags")
]


@backlog_router.get("", responses=answers(404, 412))
@on_http_loop
async def show_backlog(
    request: Request, node: TheNode, group: GroupName, topic: Topic = None, ages: Ages = 0
) -> Backlog:
    """Show the backlog of a group, and when it will be gone. Scalers read `messages`.

    The forecast needs two readings: it counts from the first request of the last five minutes on.
    """
    read = await kept(request).backlogs.read(group, topic, ages)
    found = read.backlog.sum(read.at_ms)
    messages = found.lag.messages if found.lag else 0
    more = {"group": group, "at_ms": read.at_ms, "messages": messages, "forecast": read.forecast}
    return Backlog.model_validate(asdict(found) | more)


@backlog_router.get("/topics", responses=answers(404, 412))
@on_http_loop
async def list_topic_backlogs(
    request: Request,
    node: TheNode,
    paging: Paging,
    group: GroupName,
    topic: Topic = None,
    ages: Ages = 0,
    limit: Limit = MOST,
    cursor: Cursor = None,
) -> list[TopicBacklog]:
    """List the backlog of a group by topic."""
    read = await kept(request).backlogs.read(group, topic, ages)
    return [
        TopicBacklog.model_validate(asdict(read.backlog.of_topic(each, read.at_ms)) | {"topic": each})
        for each in paging.of(read.backlog.topics, str, limit, cursor, r"(?s).+")
    ]


@backlog_router.get("/partitions", responses=answers(404, 412))
@on_http_loop
async def list_partition_backlogs(
    request: Request,
    node: TheNode,
    paging: Paging,
    group: GroupName,
    topic: Topic = None,
    ages: Ages = 0,
    limit: Limit = MOST,
    cursor: Cursor = None,
) -> list[PartitionBacklog]:
    """List the backlog of a group by partition, in the order of topics and numbers."""
    read = await kept(request).backlogs.read(group, topic, ages)
    every = [(name, number) for name in read.backlog.topics for number, _ in read.backlog.offsets_of(name)]
    page = paging.of(every, lambda each: f"{each[0]} {each[1]:07}", limit, cursor, r"[^ ]+ \d{7}")
    known = {name: dict(read.backlog.offsets_of(name)) for name in {name for name, _ in page}}
    return [
        PartitionBacklog.model_validate(
            asdict(backlog_of(offsets, read.at_ms)) | asdict(offsets) | {"topic": name, "partition": number}
        )
        for name, number in page
        for offsets in (known[name][number],)
    ]


@backlog_router.get("/filtered", responses=answers(404, 412))
@on_http_loop
async def estimate_filtered_backlog(
    request: Request,
    node: TheNode,
    group: GroupName,
    topic: Annotated[str, Query(max_length=249, description="the topic")],
    key: Annotated[str | None, Query(max_length=1_000, description="records with this key")] = None,
    header: Annotated[str | None, Query(max_length=1_000, description="records with this header, NAME=VALUE")] = None,
    contains: Annotated[str | None, Query(max_length=1_000, description="records with this text in the value")] = None,
    scanned: Annotated[int, Query(ge=1, le=LIMITS.scanned, description="most records to look at")] = LIMITS.scanned,
) -> FilteredBacklog:
    """Estimate how much of a group's backlog in a topic its consumers' filter lets through, from a sample of it.

    503 while this broker looks at the records of another backlog.
    """
    which = Filter.parse(key, header, contains)
    found = await kept(request).backlogs.filtered(group, topic, which, Limits(scanned, LIMITS.matched))
    more = {"group": group, "topic": topic}
    return FilteredBacklog.model_validate(asdict(found.sample) | asdict(found) | more)
