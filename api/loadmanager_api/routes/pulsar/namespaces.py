"""`/admin/v2/namespaces`, as Pulsar answers it, and topics at Pulsar's paths.

Unlike Pulsar's, no broker redirects (307) to the owner: every broker reads and writes the same channel, so the one that
is asked does it. Each call returns when the cluster has done it, not when it was written down.

Topics are those that were created here, and those that the asked broker's service reports as its hottest keys. A topic
is a key; it needs no creation, and its data are the service's. So creating and deleting one only keeps and forgets its
name, and what else Pulsar's tools may want of a topic is 501.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any, Literal, cast

from fastapi import Body, Query
from pydantic import BaseModel, ConfigDict, model_validator
from starlette.exceptions import HTTPException

from loadmanager.broker.node import Incarnation, Node
from loadmanager.cluster.told_topics import TOLD_AT_MOST
from loadmanager.errors import Conflict, Invalid
from loadmanager.model.boundaries import DEFAULT_BUNDLES, MOST_PARTS
from loadmanager_api.openapi import answers
from loadmanager_api.routing import Acting, Author, ControlRouter, TheNode, no_broker, on_http_loop
from loadmanager_api.shapes import WHOLE, RingPosition, Whole
from statechannel.errors import InvalidName
from statechannel.law.bundle import FULL_UPPER, Bundle, Key, even_boundaries
from statechannel.law.table import Namespace

PULSAR_POLICIES = frozenset(
    {
        "allowed_clusters",
        "auth_policies",
        "autoSubscriptionCreationOverride",
        "autoTopicCreationOverride",
        "backlog_quota_map",
        "clusterDispatchRate",
        "clusterThatCanDeleteNamespace",
        "clusterSubscribeRate",
        "compaction_threshold",
        "deduplicationEnabled",
        "deduplicationSnapshotIntervalSeconds",
        "delayed_delivery_policies",
        "deleted",
        "dispatcherPauseOnAckStatePersistentEnabled",
        "encryption_required",
        "entryFilters",
        "inactive_topic_policies",
        "is_allow_auto_update_schema",
        "latency_stats_sample_rate",
        "max_consumers_per_subscription",
        "max_consumers_per_topic",
        "max_producers_per_topic",
        "max_subscriptions_per_topic",
        "max_topics_per_namespace",
        "max_unacked_messages_per_consumer",
        "max_unacked_messages_per_subscription",
        "message_ttl_in_seconds",
        "migrated",
        "offload_deletion_lag_ms",
        "offload_policies",
        "offload_threshold",
        "offload_threshold_in_seconds",
        "persistence",
        "properties",
        "publishMaxMessageRate",
        "replication_clusters",
        "replicatorDispatchRate",
        "resource_group_name",
        "retention_policies",
        "schema_auto_update_compatibility_strategy",
        "schema_compatibility_strategy",
        "schema_validation_enforced",
        "subscriptionDispatchRate",
        "subscription_auth_mode",
        "subscription_expiration_time_minutes",
        "subscription_types_enabled",
        "topicDispatchRate",
    }
)


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
        """A misspelt field would create an unwanted namespace, whose bundles are split permanently."""
        if isinstance(given, dict):
            names = {str(name) for name in cast("dict[Any, Any]", given)}
            if unknown := sorted(names - cls.model_fields.keys() - PULSAR_POLICIES):
                raise ValueError(f"unknown: {', '.join(unknown)}; write bundles or numBundles")
        return cast("Any", given)


class NamespacePolicies(BaseModel):
    """The answer of `GET /admin/v2/namespaces/{t}/{ns}`."""

    bundles: BundlesData
    replication_clusters: list[str]


router = ControlRouter(prefix="/admin/v2", tags=["namespaces"])

Destination = Annotated[str | None, Query(alias="destinationBroker", description="host:port of the new owner")]
Force = Annotated[bool, Query(description="override policies; the record says so")]
_BOUNDARY = re.compile(r"0x[0-9a-fA-F]{8}", re.ASCII)


@router.get("/namespaces/{tenant}")
async def list_namespaces(node: TheNode, tenant: str) -> list[str]:
    """List the names of the tenant's namespaces."""
    return node.channel.table.namespaces(tenant)


@router.get("/namespaces/{tenant}/{namespace}", responses=answers(404))
@on_http_loop
async def show_namespace(node: TheNode, acting: Acting, tenant: str, namespace: str) -> NamespacePolicies:
    """Show the part of Pulsar's policies that exists here."""
    known = acting.operations.namespace(f"{tenant}/{namespace}")
    return NamespacePolicies(bundles=_bundles(known), replication_clusters=[node.settings.cluster])


@router.put("/namespaces/{tenant}/{namespace}", status_code=204, responses=answers(409, 412))
async def create_namespace(
    node: TheNode, acting: Acting, author: Author, tenant: str, namespace: str, wanted: NewNamespace | None = None
) -> None:
    """Create a namespace with these boundaries, with so many even bundles, or with four. 409 if
    it exists.
    """
    boundaries = _boundaries(wanted or NewNamespace(), DEFAULT_BUNDLES)
    name = f"{tenant}/{namespace}"
    left = node.told_topics.versions(name)  # by a deletion that did not end
    await acting.operations.create_namespace(name, boundaries)
    await node.told_topics.forget_all(left, author)


@router.delete("/namespaces/{tenant}/{namespace}", status_code=204, responses=answers(404, 409))
async def delete_namespace(node: TheNode, acting: Acting, author: Author, tenant: str, namespace: str) -> None:
    """Unload all bundles of the namespace, then delete it, and forget the topics that were created in it."""
    name = f"{tenant}/{namespace}"
    await acting.operations.delete_namespace(name)
    await node.told_topics.forget_all(node.told_topics.versions(name), author)


@router.get("/namespaces/{tenant}/{namespace}/bundles", responses=answers(404))
@on_http_loop
async def show_bundles(acting: Acting, tenant: str, namespace: str) -> BundlesData:
    """Show the boundaries of its bundles. `/v1/bundles` has their states and owners."""
    return _bundles(acting.operations.namespace(f"{tenant}/{namespace}"))


@router.put("/namespaces/{tenant}/{namespace}/unload", status_code=204, responses=answers(404, 409, 412))
async def unload_namespace(acting: Acting, tenant: str, namespace: str, destination: Destination = None) -> None:
    """Unload all its bundles; lookups assign them again."""
    if destination:
        raise Invalid("destinationBroker is for one bundle: name it, /{bundle}/unload?destinationBroker=…")
    await acting.operations.unload_namespace(f"{tenant}/{namespace}")


@router.put("/namespaces/{tenant}/{namespace}/{bundle}/unload", status_code=204, responses=answers(404, 409, 412))
async def unload_bundle(
    node: TheNode,
    acting: Acting,
    tenant: str,
    namespace: str,
    bundle: str,
    author: Author,
    destination: Destination = None,
    force: Force = False,
) -> None:
    """Transfer the bundle to `destinationBroker`, also if it has no owner; without one, unload it from its owner.

    Answers when the bundle has arrived.

    409 if the destination owns it already, is not registered, is draining or does not answer, or if a policy forbids
    the transfer (the answer names the rule; `force` overrides it). 404 if there is no such bundle.
    """
    await _move(node, acting, Bundle.of(f"{tenant}/{namespace}", bundle), destination, author, force=force)


@router.put("/namespaces/{tenant}/{namespace}/{bundle}/split", status_code=204, responses=answers(404, 409, 412))
async def split_bundle(
    acting: Acting,
    tenant: str,
    namespace: str,
    bundle: str,
    unload: bool = False,
    algorithm: Annotated[str | None, Query(alias="splitAlgorithmName")] = None,
    positions: Annotated[list[RingPosition] | None, Body(max_length=MOST_PARTS)] = None,
) -> None:
    """Split the bundle in two, or at the positions in the body. With `unload`, unload the parts afterwards.

    A range can also be LARGEST (most keys) or HOT (most load), among the bundles whose load is known here; 409 if there
    is none. `/v1/bundles/…/split` splits into more parts and answers them. 409 if the bundle has no owner or is on its
    way.
    """
    whole = await acting.splitting.named(f"{tenant}/{namespace}", bundle)
    await acting.operations.split(whole, positions=positions or None, algorithm=algorithm, unload=unload)


@router.api_route(
    "/namespaces/{tenant}/{namespace}/{matter:matter}",
    methods=["GET", "POST", "PUT", "DELETE"],
    include_in_schema=False,
)
async def not_kept(tenant: str, namespace: str, matter: str) -> None:
    """501: what else Pulsar keeps for a namespace is about messages, which are the service's."""
    raise HTTPException(
        501,
        f"{matter} of namespace {tenant}/{namespace}: a load manager knows where topics are served, and keeps no rules "
        "for their messages. Ask the service at the address that GET /lookup/v2/topic/… answers; rules for places are "
        "at /v1/policies/namespace, and roles at /v1/policies/access",
    )


@router.put("/{domain}/{tenant}/{namespace}/{topic:text}/unload", status_code=204, responses=answers(404, 409, 412))
async def unload_topic(
    node: TheNode,
    acting: Acting,
    domain: Literal["persistent", "non-persistent"],
    tenant: str,
    namespace: str,
    topic: str,
    author: Author,
    destination: Destination = None,
    force: Force = False,
) -> None:
    """Transfer the topic's whole bundle to another broker (PIP-192's `topics unload --dest`)."""
    entry = acting.operations.bundle_of(Key.parse(f"{domain}://{tenant}/{namespace}/{topic}"))
    await _move(node, acting, entry.bundle, destination, author, force=force)


async def _move(
    node: Node, acting: Incarnation, bundle: Bundle, destination: str | None, author: str, *, force: bool
) -> None:
    if destination:
        acting.operations.bundle(bundle)
        if destination not in node.membership.peers:  # 409 as in Pulsar: 404 would say that the bundle is missing
            raise Conflict(no_broker(node, destination))
        await acting.operations.transfer(bundle, destination, author=author, force=force)
    else:
        await acting.operations.unload(bundle)


def _bundles(known: Namespace) -> BundlesData:
    edges = [*known.lower_bounds, FULL_UPPER]
    return BundlesData(boundaries=[f"0x{edge:08x}" for edge in edges], numBundles=len(known.lower_bounds))


def _boundaries(wanted: NewNamespace, default_bundles: int) -> tuple[int, ...]:
    data = wanted.bundles or BundlesData(numBundles=wanted.numBundles)
    if not data.boundaries:
        return even_boundaries(default_bundles if data.numBundles is None else data.numBundles)
    if data.numBundles is not None and data.numBundles != len(data.boundaries) - 1:
        raise Invalid(
            f"{len(data.boundaries)} boundaries make {len(data.boundaries) - 1} bundles, not {data.numBundles}"
        )
    return tuple(_position(boundary) for boundary in data.boundaries)


def _position(text: str) -> int:
    if _BOUNDARY.fullmatch(text) is None:
        raise Invalid(f"{text!r} is not a boundary; write 0x40000000")
    return int(text, 16)


class PartitionedTopic(BaseModel):
    """Pulsar's PartitionedTopicMetadata."""

    partitions: int
    deleted: bool = False


class TopicPositions(BaseModel):
    """Pulsar's TopicHashPositions: the position of each topic on the ring."""

    namespace: str
    bundle: str
    topicHashPositions: dict[str, int]  # noqa: N815


topics_router = ControlRouter(prefix="/admin/v2", tags=["topics"])

_NAMESPACE = "/{domain:domain}/{tenant}/{namespace}"
_TOPIC = f"{_NAMESPACE}/{{topic}}"


@topics_router.get(_NAMESPACE, responses=answers(404))
async def list_topics(node: TheNode, acting: Acting, domain: str, tenant: str, namespace: str) -> list[str]:
    """List topics that were created here, each partition by itself, and hottest keys of the asked broker's bundles."""
    name = f"{tenant}/{namespace}"
    acting.operations.namespace(name)
    return sorted(topic for topic in _known(node, acting, name) if topic.startswith(f"{domain}://"))


@topics_router.put(_TOPIC, status_code=204, responses=answers(404, 409, 412))
async def create_topic(
    node: TheNode, acting: Acting, author: Author, domain: str, tenant: str, namespace: str, topic: str
) -> None:
    """Keep the name of a topic, at most 10,000 of a namespace; a topic needs no creation. 409 if it is there.

    The body, Pulsar's properties, is ignored.
    """
    await node.told_topics.tell(_topic(acting, domain, tenant, namespace, topic), 0, author)


@topics_router.delete(_TOPIC, status_code=204, responses=answers(404, 412))
async def delete_topic(node: TheNode, author: Author, domain: str, tenant: str, namespace: str, topic: str) -> None:
    """Forget the name of a topic, also of one that a deleted namespace left. 404 if it was not created here. Deletes
    no data: these are the service's."""
    await node.told_topics.forget(_key(domain, tenant, namespace, topic), author)


@topics_router.get(f"{_TOPIC}/partitions", responses=answers(404, 412))
async def show_partitions(
    node: TheNode, acting: Acting, domain: str, tenant: str, namespace: str, topic: str
) -> PartitionedTopic:
    """Show with how many partitions a topic was created; 0: it is not partitioned."""
    told = node.told_topics.all().get(_topic(acting, domain, tenant, namespace, topic).full_name)
    return PartitionedTopic(partitions=0 if told is None else told.partitions)


@topics_router.put(f"{_TOPIC}/partitions", status_code=204, responses=answers(404, 409, 412))
async def create_partitioned_topic(
    node: TheNode,
    acting: Acting,
    author: Author,
    domain: str,
    tenant: str,
    namespace: str,
    topic: str,
    partitions: Annotated[int, Body(strict=True, ge=1, le=TOLD_AT_MOST), WHOLE],
) -> None:
    """Keep the name of a topic with so many partitions. 409 if it is there."""
    await node.told_topics.tell(_topic(acting, domain, tenant, namespace, topic), partitions, author)


@topics_router.delete(f"{_TOPIC}/partitions", status_code=204, responses=answers(404, 412))
async def delete_partitioned_topic(
    node: TheNode, author: Author, domain: str, tenant: str, namespace: str, topic: str
) -> None:
    """As the deletion of a topic without partitions."""
    await node.told_topics.forget(_key(domain, tenant, namespace, topic), author)


@topics_router.get("/namespaces/{tenant}/{namespace}/{bundle}/topicHashPositions", responses=answers(404, 412))
async def topic_positions(
    node: TheNode,
    acting: Acting,
    tenant: str,
    namespace: str,
    bundle: str,
    topics: Annotated[list[str] | None, Query(max_length=1_000, description="only these; by default all known")] = None,
) -> TopicPositions:
    """Show the positions of topics of a bundle on the ring, to split it there."""
    entry = acting.operations.bundle(Bundle.of(f"{tenant}/{namespace}", bundle))
    wanted = [Key.parse(name) for name in (topics or _known(node, acting, entry.bundle.namespace))]
    found = {key.full_name: key.position for key in wanted if key.namespace == entry.bundle.namespace}
    inside = {name: position for name, position in sorted(found.items()) if position in entry.bundle}
    return TopicPositions(namespace=f"{tenant}/{namespace}", bundle=bundle, topicHashPositions=inside)


@topics_router.get(f"{_TOPIC}/{{more:text}}", include_in_schema=False)
async def show_more(domain: str, tenant: str, namespace: str, topic: str, more: str) -> Any:
    """501: what a topic contains is the service's."""
    raise _not_here(topic, more)


@topics_router.post(f"{_TOPIC}/{{more:text}}", include_in_schema=False)
async def do_more(domain: str, tenant: str, namespace: str, topic: str, more: str) -> Any:
    """501: what becomes of a topic's contents is up to the service."""
    raise _not_here(topic, more)


def _not_here(topic: str, more: str) -> HTTPException:
    return HTTPException(
        501,
        f"{more} of topic {topic}: a load manager knows where a topic is served, not what is in it. Ask the service at "
        "the address that GET /lookup/v2/topic/… answers",
    )


def _topic(acting: Incarnation, domain: str, tenant: str, namespace: str, topic: str) -> Key:
    acting.operations.namespace(f"{tenant}/{namespace}")
    return _key(domain, tenant, namespace, topic)


def _key(domain: str, tenant: str, namespace: str, topic: str) -> Key:
    return Key.parse(f"{domain}://{tenant}/{namespace}/{topic}")


def _known(node: Node, acting: Incarnation, namespace: str) -> set[str]:
    """Full names in a namespace: created topics (partition by partition), and hottest keys of this broker's bundles."""
    return {*_told(node, namespace), *_hottest(acting, namespace)}


def _told(node: Node, namespace: str) -> Iterator[str]:
    for name, told in node.told_topics.of(namespace).items():
        if told.partitions:
            yield from (f"{name}-partition-{number}" for number in range(told.partitions))
        else:
            yield name


def _hottest(acting: Incarnation, namespace: str) -> Iterator[str]:
    for bundle, load in acting.load.loads.items():
        if bundle.namespace == namespace:
            for name, _ in load.hottest_keys:
                with suppress(InvalidName):  # services write what they like
                    yield Key.parse(name).full_name
