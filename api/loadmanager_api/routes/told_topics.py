"""Topics at Pulsar's paths: those that somebody created here, and those that the asked broker's service reports as its
hottest keys.

A topic is a key; it needs no creation, and its data are the service's. So creating and deleting one only keeps and
forgets its name, and what else Pulsar's tools may want of a topic is 501.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

from fastapi import Body, Query
from starlette.exceptions import HTTPException

from loadmanager.broker.incarnation import Incarnation
from loadmanager.broker.node import Node
from loadmanager.cluster.told_topics import TOLD_AT_MOST
from loadmanager_api.json_types import WHOLE
from loadmanager_api.openapi import answers
from loadmanager_api.pulsar_schemas import PartitionedTopic, TopicPositions
from loadmanager_api.routing import Acting, Author, ControlRouter, TheNode
from statechannel.errors import InvalidName
from statechannel.law.bundle import Bundle, Key

router = ControlRouter(prefix="/admin/v2", tags=["topics"])

_NAMESPACE = "/{domain:domain}/{tenant}/{namespace}"
_TOPIC = f"{_NAMESPACE}/{{topic}}"


@router.get(_NAMESPACE, responses=answers(404))
async def list_topics(node: TheNode, acting: Acting, domain: str, tenant: str, namespace: str) -> list[str]:
    """List topics that were created here, each partition by itself, and hottest keys of the asked broker's bundles."""
    name = f"{tenant}/{namespace}"
    acting.operations.namespace(name)
    return sorted(topic for topic in _known(node, acting, name) if topic.startswith(f"{domain}://"))


@router.put(_TOPIC, status_code=204, responses=answers(404, 409, 412))
async def create_topic(
    node: TheNode, acting: Acting, author: Author, domain: str, tenant: str, namespace: str, topic: str
) -> None:
    """Keep the name of a topic. 409 if it is there. The body, Pulsar's properties, is ignored."""
    await node.told_topics.tell(_topic(acting, domain, tenant, namespace, topic), 0, author)


@router.delete(_TOPIC, status_code=204, responses=answers(404, 412))
async def delete_topic(node: TheNode, author: Author, domain: str, tenant: str, namespace: str, topic: str) -> None:
    """Forget the name of a topic, also of one that a deleted namespace left. 404 if it was not created here. Deletes
    no data: these are the service's."""
    await node.told_topics.forget(_key(domain, tenant, namespace, topic), author)


@router.get(f"{_TOPIC}/partitions", responses=answers(404, 412))
async def show_partitions(
    node: TheNode, acting: Acting, domain: str, tenant: str, namespace: str, topic: str
) -> PartitionedTopic:
    """Show with how many partitions a topic was created; 0: it is not partitioned."""
    told = node.told_topics.all().get(_topic(acting, domain, tenant, namespace, topic).full_name)
    return PartitionedTopic(partitions=0 if told is None else told.partitions)


@router.put(f"{_TOPIC}/partitions", status_code=204, responses=answers(404, 409, 412))
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


@router.delete(f"{_TOPIC}/partitions", status_code=204, responses=answers(404, 412))
async def delete_partitioned_topic(
    node: TheNode, author: Author, domain: str, tenant: str, namespace: str, topic: str
) -> None:
    """As the deletion of a topic without partitions."""
    await node.told_topics.forget(_key(domain, tenant, namespace, topic), author)


@router.get("/namespaces/{tenant}/{namespace}/{bundle}/topicHashPositions", responses=answers(404, 412))
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


@router.get(f"{_TOPIC}/{{more:text}}", include_in_schema=False)
async def show_more(domain: str, tenant: str, namespace: str, topic: str, more: str) -> Any:
    """501: what a topic contains is the service's."""
    raise _not_here(topic, more)


@router.post(f"{_TOPIC}/{{more:text}}", include_in_schema=False)
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
