"""JSON schemas of requests and answers. Pulsar's routes use Pulsar's names (camelCase), our own routes ours.

Shapes only: `presenting.py` fills them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from loadmanager.model.boundaries import MOST_PARTS
from loadmanager_api.http.lookups import MAX_TOPICS
from loadmanager_api.json_types import STRICT, WHOLE, Whole
from loadmanager_api.pulsar_policies import PULSAR_POLICIES
from statechannel.law.bundle import FULL_UPPER

MAX_TOPIC_CHARS = 4_096
MAX_PARTITIONS = 1_024
LONGEST_WAIT_MS = 2**53
"""Longer ones are no numbers of seconds any more; the setting `lookup_timeout_s` is shorter anyway."""


# --- Pulsar's


class BundlesData(BaseModel):
    """The bundles of a namespace. `boundaries` run from 0x00000000 to 0xffffffff, one more than `numBundles`."""

    boundaries: list[str] | None = None
    numBundles: Whole | None = None  # noqa: N815 - Pulsar's name


def _with_policies(schema: dict[str, Any]) -> None:
    schema["properties"].update({name: {} for name in sorted(PULSAR_POLICIES)})
    schema["additionalProperties"] = False


class NewNamespace(BaseModel):
    """The part of Pulsar's Policies that has a meaning here. The rest of them is ignored; any other name is refused."""

    model_config = ConfigDict(json_schema_extra=_with_policies)

    bundles: BundlesData | None = None
    numBundles: Whole | None = None  # noqa: N815 - Pulsar's name

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        """A misspelt name would make a namespace that nobody wanted, and its bundles are cut for good."""
        if isinstance(given, dict):
            names = {str(name) for name in cast("dict[Any, Any]", given)}
            if unknown := sorted(names - cls.model_fields.keys() - PULSAR_POLICIES):
                raise ValueError(f"unknown: {', '.join(unknown)}; write bundles or numBundles")
        return cast("Any", given)


class NamespacePolicies(BaseModel):
    """The answer of `GET /admin/v2/namespaces/{t}/{ns}`."""

    bundles: BundlesData
    replication_clusters: list[str]


class LookupData(BaseModel):
    """Pulsar's lookup answer. `brokerUrl` is the owner's `pulsar` URL, or its `httpUrl` if it has none."""

    brokerUrl: str  # noqa: N815
    httpUrl: str  # noqa: N815
    nativeUrl: str  # noqa: N815
    brokerUrlSsl: str = ""  # noqa: N815


class BrokerInfo(BaseModel):
    """Pulsar's answer for the leader."""

    serviceUrl: str  # noqa: N815
    brokerId: str  # noqa: N815


class TenantInfo(BaseModel):
    """Pulsar's description of a tenant; none of it is stored here."""

    allowedClusters: list[str]  # noqa: N815
    adminRoles: list[str] = []  # noqa: N815


# --- our own


class BundleShown(BaseModel):
    """One bundle as this broker's replica has it. `revision` and `token` are offsets of `partition`.

    The rates, in and out together, are null unless the bundle is among its owner's hottest. `waits` says why no broker
    may get a quarantined bundle that has no owner, and the command that ends it.
    """

    bundle: str
    namespace: str
    range: str
    state: str
    owner: str | None
    incarnation: int | None
    owner_live: bool
    target: str | None
    partition: int
    revision: int
    token: str
    last_action: str
    last_actor: str
    waits: str | None = None
    rate_msg_s: float | None = None
    rate_bytes_s: float | None = None


class BundleDetail(BundleShown):
    """A bundle with its load, as last reported by its owner if the bundle is among the owner's hottest."""

    served_here: bool
    cuts: list[str] = []
    load: dict[str, Any] | None = None


class BundlePage(BaseModel):
    """A page of bundles. `next` is the `cursor` of the next page, null on the last one."""

    bundles: list[BundleShown]
    next: str | None


class BrokerShown(BaseModel):
    """A broker: what it registered, how others see it, and what it holds.

    `registered` is false for a broker that is gone but still holds bundles. `suspected` says why it is thought dead.
    A broker that is `behind` says that it cannot read the log, and gets no bundles. `unfit` says why it gets none but
    for trials: it could not acquire several in a row.
    """

    broker: str
    incarnation: int
    registered: bool
    live: bool
    leader: bool
    draining: bool
    behind: bool
    suspected: str | None
    unfit: str | None
    bundles: int
    admin_url: str = ""
    urls: dict[str, str] = {}
    version: str = ""
    failure_domain: str = ""
    capacity: dict[str, float] = {}
    properties: dict[str, str] = {}
    started_ms: int = 0
    load: dict[str, Any] | None = None


class UsageShown(BaseModel):
    """By broker: its highest usage (1.0: full) in each span of `span_s` seconds, oldest first. `end_ms` ends the last
    span. null where there was no report.
    """

    span_s: int
    end_ms: int
    brokers: dict[str, list[float | None]]


class DrainShown(BaseModel):
    """The progress of a drain. `running` turns false at its deadline even if bundles are left."""

    broker: str
    draining: bool
    running: bool
    total: int
    left: int
    done: bool


class SnapshotShown(BaseModel):
    """A kept snapshot. It covers everything below `next_offset`. `at_ms` is its writer's wall clock."""

    snapshot_id: str
    next_offset: int
    at_ms: int
    bundles: int
    size_bytes: int
    chunks: int


class PartitionShown(BaseModel):
    """One partition of the channel, applied up to below `next_offset`. Equal offsets have equal `digest`s on all
    replicas.

    The asked broker may serve for `proof_left_s` without another proof; null: it never had one. The log holds offsets
    from `begin` to below `end`. `owner` writes the snapshots, listed newest first, and trims. A
    value that the log did not answer is null.
    """

    partition: int
    next_offset: int
    epoch: int
    leader: str | None
    digest: str | None = None
    begin: int | None = None
    end: int | None = None
    lag: int | None = None
    owner: str | None = None
    snapshots: list[SnapshotShown] | None = None
    since_snapshot: int | None = None
    proof_left_s: float | None = None


class SkippedShown(BaseModel):
    """An entry of the log that is not a record of ours."""

    partition: int
    offset: int
    detail: str


class AgreementShown(BaseModel):
    """What all brokers of a log agree on: the coordination root by its identity, and the values of proofs."""

    root: str
    proof_validity_s: float
    clock_drift: float
    margin_s: float
    partitions: int


class ChannelShown(BaseModel):
    """The state of this broker's replica of the channel."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    cluster: str
    identity: str | None
    generation: int | None
    broker: str
    leader: str | None
    connection: str
    safe_mode: str | None
    write_version: int
    publishes_in_flight: int
    accepted: int
    append_failures: int
    refused: dict[str, int]
    skipped: int
    skipped_entries: list[SkippedShown]
    bundles: dict[str, int]
    namespaces: int
    last_error: str
    stopped_by: str | None
    reloads: int = 0
    readers: list[str] = []
    log_problem: str | None = None
    agreement: AgreementShown | None = None
    """Partition 0's word, which the others repeat; null in a log that has none yet."""
    agreement_following: AgreementShown | None = None
    """What is about to replace it, in the first partition that says so: until then nobody gets a proof there."""
    partitions: list[PartitionShown]


class ReaderPositions(BaseModel):
    """Where a reader wants to continue, for each partition; null stands for the log's begin."""

    positions: (
        Annotated[list[Annotated[int, Field(strict=True, ge=0), WHOLE]], Field(max_length=MAX_PARTITIONS)] | None
    ) = None


class ReaderShown(BaseModel):
    """A registered reader of the channel's log: nothing from its positions on is trimmed until `until_ms`."""

    name: str
    positions: list[int]
    registered_ms: int
    until_ms: int


class Readers(BaseModel):
    """Registered readers by name. `next` is the `cursor` of the next page, null on the last one."""

    readers: list[ReaderShown]
    next: str | None


class LateVerdict(BaseModel):
    """The verdict on a record whose publisher no longer waited."""

    record_id: str
    verdict: str
    detail: str


class LookupRequest(BaseModel):
    """Topics, as `tenant/ns/name` or with their domain. `timeout_ms` limits the wait for bundles on their way."""

    topics: Annotated[
        list[Annotated[str, StringConstraints(max_length=MAX_TOPIC_CHARS)]],
        Field(min_length=1, max_length=MAX_TOPICS),
    ]
    timeout_ms: Annotated[int, Field(strict=True, ge=0, le=LONGEST_WAIT_MS), WHOLE] | None = None


class LocatedShown(BaseModel):
    """Where a topic is served, or `error`, a problem that says why this is not known."""

    topic: str
    bundle: str | None = None
    broker: str | None = None
    incarnation: int | None = None
    admin_url: str | None = None
    urls: dict[str, str] | None = None
    token: str | None = None
    error: dict[str, Any] | None = None


class LookupAnswers(BaseModel):
    """One answer for each topic, in the order of the request."""

    answers: list[LocatedShown]


class NoteShown(BaseModel):
    """An event at this broker that is of interest to people."""

    at_ms: int
    text: str


class Notes(BaseModel):
    """Notes of a broker, newest first. `next` is the `cursor` of the next page, null on the last one."""

    notes: list[NoteShown]
    next: str | None


def _ring_position(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    if _POSITION.fullmatch(given) is None:
        raise ValueError(f"{given[:40]!r} is no position; write an integer, or eight hexadecimal digits: 0x20000000")
    return int(given, 16)


_POSITION = re.compile(r"0x[0-9a-fA-F]{8}", re.ASCII)
RingPosition = Annotated[int, Field(strict=True, ge=0, le=FULL_UPPER), WHOLE, BeforeValidator(_ring_position)]
"""A place on the ring: a number, as Pulsar has it, or `0x40000000`."""


class SplitWanted(BaseModel):
    """How to split: into how many `parts` (default 2), or at which `positions`. `unload`: unload the children from
    their owner.
    """

    model_config = STRICT

    parts: Whole | None = None
    positions: Annotated[list[RingPosition], Field(max_length=MOST_PARTS)] | None = None
    algorithm: str | None = None
    unload: bool = False


class Children(BaseModel):
    """The bundles that a split made, lowest range first."""

    children: list[str]


class MergeWanted(BaseModel):
    """Neighbours of one owner to merge, by their full names, in any order."""

    model_config = STRICT

    bundles: Annotated[list[str], Field(min_length=2, max_length=MOST_PARTS)]


class Merged(BaseModel):
    """The bundle that a merge made."""

    bundle: str
