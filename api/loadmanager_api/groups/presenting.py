"""Fills the schemas of consumer groups. Pure; runs on any loop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, cast

from loadmanager.consumers.backlog.figures import Backlog, Figure, backlog_of
from loadmanager.consumers.backlog.positions import Step
from loadmanager.consumers.backlog.sums import GroupBacklog
from loadmanager.consumers.coordinator.records import Description, Partition, Rebalance, listed
from loadmanager_api.groups.backlogs import Read
from loadmanager_api.groups.schemas import (
    MOST_STEPS,
    BacklogShown,
    FigureShown,
    ForecastShown,
    GroupShown,
    MemberShown,
    OffsetsShown,
    OffsetStepShown,
    PartitionBacklogShown,
    RebalanceShown,
    TopicBacklogShown,
)


def kafka_name(group: str) -> str:
    """The `group.id` of a coordinated group: its key without the domain."""
    return group.partition("://")[2]


def group_shown(found: Description, coordinator: str) -> GroupShown:
    """The group, with counts alone."""
    return GroupShown(
        group=kafka_name(found.name),
        coordinator=coordinator,
        strategy=found.settings.strategy,
        mode=found.settings.mode,
        generation=found.generation,
        members=len(found.members),
        topics=sorted({topic for each in found.members.values() for topic in each.topics}),
        partitions=len(found.holders),
        moving=len(found.targets),
        unread=found.unread,
        config={
            name: {topic: list(numbers) for topic, numbers in topics.items()}
            for name, topics in found.settings.config.items()
        },
    )


def members_shown(found: Description, names: Collection[str]) -> list[MemberShown]:
    """These members, in this order."""
    held: dict[str, list[Partition]] = {name: [] for name in names}
    given_up: dict[str, list[Partition]] = {name: [] for name in names}
    for partition, holder in found.holders.items():
        if holder in held:
            held[holder].append(partition)
            if partition in found.targets:
                given_up[holder].append(partition)
    return [
        MemberShown(
            member=name,
            topics=sorted(found.members[name].topics),
            session_timeout_ms=found.members[name].session_timeout_ms,
            revoke_timeout_ms=found.members[name].revoke_timeout_ms,
            capacity=found.members[name].capacity,
            rack=found.members[name].rack,
            name=found.members[name].name,
            client_id=found.members[name].client_id,
            host=found.members[name].host,
            partitions=_lists(held[name]),
            giving_up=_lists(given_up[name]),
        )
        for name in names
    ]


def rebalance_shown(each: Rebalance) -> RebalanceShown:
    """One rebalance."""
    return RebalanceShown(
        number=each.number,
        generation=each.generation,
        why=each.why,
        at_ms=each.at_ms,
        members=each.members,
        partitions=each.partitions,
        moved=each.moved,
        kept=each.kept,
        stickiness=each.kept / each.partitions if each.partitions else 1.0,
        balance_degree=each.balance_degree,
        settled_ms=each.settled_ms,
        pause_max_ms=each.pause_max_ms,
        pause_mean_ms=each.pause_mean_ms,
        worst=None if each.worst is None else f"{each.worst[0]}-{each.worst[1]}",
    )


def offsets_shown(group: str, steps: Mapping[Partition, Step], *, dry_run: bool) -> OffsetsShown:
    """What a reset does, or would do."""
    there = [each for each in steps.values() if each.after is not None]
    moved = [each.after - each.before for each in there if each.after is not None and each.before is not None]
    return OffsetsShown(
        group=group,
        dry_run=dry_run,
        partitions=len(there),
        left=len(steps) - len(there),
        skipped=sum(by for by in moved if by > 0),
        again=-sum(by for by in moved if by < 0),
        steps=[
            OffsetStepShown(topic=topic, partition=number, before=step.before, after=step.after)
            for (topic, number), step in sorted(steps.items(), key=lambda item: item[0])[:MOST_STEPS]
        ],
    )


def backlog_shown(read: Read, group: str) -> BacklogShown:
    """The sum over the group."""
    backlog, forecast = read.backlog.sum(read.at_ms), read.forecast
    return BacklogShown(
        **_figures(backlog),
        group=group,
        at_ms=read.at_ms,
        messages=backlog.lag.messages if backlog.lag else 0,
        forecast=ForecastShown(
            outlook=cast("Any", forecast.outlook.name.lower()),
            why=forecast.why,
            drain_s=forecast.drain_s,
            produced_per_s=forecast.produced_per_s,
            consumed_per_s=forecast.consumed_per_s,
        ),
    )


def topics_shown(backlog: GroupBacklog, at_ms: int, topics: Iterable[str]) -> list[TopicBacklogShown]:
    """The sums over these topics."""
    return [TopicBacklogShown(**_figures(backlog.of_topic(topic, at_ms)), topic=topic) for topic in topics]


def partitions_shown(backlog: GroupBacklog, at_ms: int, wanted: Iterable[Partition]) -> list[PartitionBacklogShown]:
    """These partitions, which the backlog has."""
    known = {topic: dict(backlog.offsets_of(topic)) for topic in {topic for topic, _ in wanted}}
    return [
        PartitionBacklogShown(
            **_figures(backlog_of(offsets, at_ms)),
            topic=topic,
            partition=number,
            begin=offsets.begin,
            consumer=offsets.consumer,
            pull=offsets.pull,
            end=offsets.end,
        )
        for topic, number in wanted
        for offsets in (known[topic][number],)
    ]


def _figures(backlog: Backlog) -> dict[str, Any]:
    return {
        "lag": _figure(backlog.lag),
        "in_flight": _figure(backlog.in_flight),
        "available": _figure(backlog.available),
        "deleted": backlog.deleted,
        "queues": backlog.queues,
        "uncommitted": backlog.uncommitted,
        "unknown": backlog.unknown,
        "undated": backlog.undated,
    }


def _figure(figure: Figure | None) -> FigureShown | None:
    return None if figure is None else FigureShown(messages=figure.messages, latency_s=figure.latency_s)


def _lists(partitions: Collection[Partition]) -> dict[str, list[int]]:
    return {topic: list(numbers) for topic, numbers in listed(partitions).items()}
