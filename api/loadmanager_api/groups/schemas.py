"""JSON schemas of consumer groups and their backlogs. Shapes only: `presenting.py` fills them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from loadmanager.consumers.backlog.positions import FORMS
from loadmanager.consumers.coordinator.records import Mode
from loadmanager.consumers.coordinator.targets import CONFIG, CONFIG_BYTES, STRATEGIES
from loadmanager_api.shapes import Body, Whole

MOST_STEPS = 1_000
LONGEST_RESET_S = 600.0


class GroupListed(BaseModel):
    """A consumer group. `coordinated`: by brokers of this cluster; the others are Kafka's own."""

    group: str
    coordinated: bool


class GroupShown(BaseModel):
    """A coordinated group. `generation` grows with every change of who should read what. Of `partitions`, which have a
    holder, `moving` should have another one; `unread` are those that the strategy gives to nobody. `config` is that of
    the strategy CONFIG."""

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
    config: dict[str, dict[str, list[int]]]


class MemberShown(BaseModel):
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


class RebalanceWish(Body):
    """How a group shall be divided anew."""

    by_lag: Annotated[bool, Field(description="weigh partitions by their present lag; for WEIGHTED_STICKY")] = False


class RebalanceShown(BaseModel):
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
    worst: str | None


class OffsetsWish(Body):
    """Where a group shall go on reading: in one topic, or in all that it reads. `timeout_s`: its members have so long
    to stop reading there."""

    to: Annotated[str, Field(max_length=100, description=FORMS, examples=["earliest", "2030-01-31T12:00:00Z"])]
    topic: Annotated[str | None, Field(max_length=249)] = None
    partitions: Annotated[list[Whole] | None, Field(max_length=100_000)] = None
    timeout_s: Annotated[float, Field(gt=0, le=LONGEST_RESET_S)] = 60.0


class OffsetStepShown(BaseModel):
    """One partition: where the group was (null: it had no offset), and where it goes on (null: it stays as it is,
    since there is no offset to count from)."""

    topic: str
    partition: int
    before: int | None
    after: int | None


class OffsetsShown(BaseModel):
    """How far a group was moved: the records that it skips, and those that it reads again. `partitions` counts those
    that were moved, `left` the others, which have no offset to count from. `steps` are the first 1,000."""

    group: str
    dry_run: bool
    partitions: int
    left: int
    skipped: int
    again: int
    steps: list[OffsetStepShown]


class FigureShown(BaseModel):
    """Records, and the age of the oldest in seconds: null if nobody read it."""

    messages: int
    latency_s: float | None


class FiguresShown(BaseModel):
    """The figures of docs/backlog.md; null for what is not known."""

    lag: FigureShown | None
    in_flight: FigureShown | None
    available: FigureShown | None
    deleted: int
    queues: int
    uncommitted: int
    unknown: int
    undated: int


class ForecastShown(BaseModel):
    """When nothing will wait any more, if both rates stay as they are. Rates are in records a second."""

    outlook: Literal["empty", "drains", "never", "unknown"]
    why: str
    drain_s: float | None
    produced_per_s: float | None
    consumed_per_s: float | None


class BacklogShown(FiguresShown):
    """The backlog of a group in one topic, or in all that it reads. `messages` is the lag as one number, for scalers:
    0 if it is not known."""

    group: str
    at_ms: int
    messages: int
    forecast: ForecastShown


class FilteredBacklogShown(BaseModel):
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


class TopicBacklogShown(FiguresShown):
    """The backlog of a group in one topic."""

    topic: str


class PartitionBacklogShown(FiguresShown):
    """The backlog of a group in one partition, and the offsets that it was computed from."""

    topic: str
    partition: int
    begin: int
    consumer: int | None
    pull: int | None
    end: int | None
