"""`/v1/backlog`: how much a consumer group has before it, of Kafka's own groups too. docs/backlog.md says what that is.

Any broker whose log is on Kafka answers. Pages of one list are of one reading, if they are asked for within a second.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from loadmanager.consumers.backlog.filtering import LIMITS, Filter
from loadmanager.consumers.backlog.reading import MOST_READS
from loadmanager.consumers.backlog.sampling import Limits
from loadmanager_api.groups.presenting import backlog_shown, partitions_shown, topics_shown
from loadmanager_api.groups.schemas import BacklogShown, FilteredBacklogShown, PartitionBacklogShown, TopicBacklogShown
from loadmanager_api.openapi import answers
from loadmanager_api.paging import MOST, Cursor, Limit, Paging
from loadmanager_api.routing import ControlRouter, TheNode, on_http_loop
from loadmanager_api.state import kept

router = ControlRouter(prefix="/v1/backlog", tags=["consumer groups"])

GroupName = Annotated[str, Query(min_length=1, max_length=1_000, description="`group.id`", examples=["t/n/billing"])]
Topic = Annotated[str | None, Query(max_length=249, description="only this topic; by default all that it reads")]
Ages = Annotated[
    int, Query(ge=0, le=MOST_READS, description="read the ages of so many partitions, those with the largest lags")
]


@router.get("", responses=answers(404, 412))
@on_http_loop
async def show_backlog(
    request: Request, node: TheNode, group: GroupName, topic: Topic = None, ages: Ages = 0
) -> BacklogShown:
    """Show the backlog of a group, and when it will be gone. Scalers read `messages`.

    The forecast needs two readings: it counts from the first request of the last five minutes on.
    """
    return backlog_shown(await kept(request).backlogs.read(group, topic, ages), group)


@router.get("/topics", responses=answers(404, 412))
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
) -> list[TopicBacklogShown]:
    """List the backlog of a group by topic."""
    read = await kept(request).backlogs.read(group, topic, ages)
    topics = paging.of(read.backlog.topics, str, limit, cursor, r"(?s).+")
    return topics_shown(read.backlog, read.at_ms, topics)


@router.get("/partitions", responses=answers(404, 412))
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
) -> list[PartitionBacklogShown]:
    """List the backlog of a group by partition, in the order of topics and numbers."""
    read = await kept(request).backlogs.read(group, topic, ages)
    every = [(name, number) for name in read.backlog.topics for number, _ in read.backlog.offsets_of(name)]
    page = paging.of(every, _place, limit, cursor, r"[^ ]+ \d{7}")
    return partitions_shown(read.backlog, read.at_ms, page)


@router.get("/filtered", responses=answers(404, 412))
@on_http_loop
async def estimate_filtered_backlog(
    request: Request,
    node: TheNode,
    group: GroupName,
    topic: Annotated[str, Query(max_length=249, description="the topic")],
    key: Annotated[str | None, Query(max_length=1_000, description="records with this key")] = None,
    header: Annotated[str | None, Query(max_length=1_000, description="records with this header, NAME=VALUE")] = None,
    contains: Annotated[str | None, Query(max_length=1_000, description="records with this text in the value")] = None,
    scanned: Annotated[int, Query(ge=1, le=LIMITS.scanned, description="look at so many records")] = LIMITS.scanned,
) -> FilteredBacklogShown:
    """Estimate how much of a group's backlog in a topic its consumers' filter lets through, from a sample of it.

    503 while this broker looks at the records of another backlog.
    """
    which = Filter.parse(key, header, contains)
    found = await kept(request).backlogs.filtered(group, topic, which, Limits(scanned, LIMITS.matched))
    return FilteredBacklogShown(
        group=group, topic=topic, messages=found.messages, low=found.low, high=found.high, exact=found.exact,
        scanned=found.sample.scanned, matched=found.sample.matched,
    )  # fmt: skip


def _place(partition: tuple[str, int]) -> str:
    """In this order; names of topics have no blanks."""
    return f"{partition[0]} {partition[1]:07}"
