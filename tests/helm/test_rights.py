"""A real Kafka that gives a user the rights of the KafkaUser and no others: what brokers do there works.

As Strimzi's operator does it, each right of the object is one rule of Kafka's own authorizer.
"""

# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from loadmanager.consumers.coordinator.store import GroupStore
from loadmanager.diagnostics.topics import topics_of
from loadmanager.settings import Settings
from stack.kafka_security import PROTOCOLS, SASL
from stack.servers import HOST, KafkaServer
from statechannel.adapters.kafka.audit import audit_kafka
from statechannel.adapters.kafka.group_commits import GroupCommits
from statechannel.adapters.kafka.groups import KafkaGroups
from statechannel.adapters.kafka.log import KafkaLog
from statechannel.audit import Severity
from statechannel.errors import LogError
from statechannel.ports import Payload
from tests.helm.rendering import of_example, of_kind

pytestmark = [
    pytest.mark.release, pytest.mark.go, pytest.mark.kafka, pytest.mark.timeout(1_200), pytest.mark.xdist_group("helm"),
]  # fmt: skip

WAIT_S = 60
USERS = ("all", "some", "none")
"""Of releases whose brokers coordinate all groups, those named `billing*`, and none."""
VALUES = {
    "all": ("--set=host=loadmanager.consumer.hosting:make_host",),
    "some": ("--set=strimzi.groups={billing*},strimzi.groupTopics={orders}",),
    "none": (),
}
TYPES = {"topic": "TOPIC", "group": "GROUP", "transactionalId": "TRANSACTIONAL_ID", "cluster": "BROKER"}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Generator[KafkaServer]:
    """With the rights of each of the three, and the topic `orders`."""
    users = {user: "secret" for user in ("root", *USERS)}  # noqa: C420 - names are any text
    server = KafkaServer(tmp_path_factory.mktemp("kafka"), users=users, powerless=set(USERS))
    server.start()
    admin = AdminClient(connection(server, "root"))
    rules = [rule for user in USERS for rule in rules_of(user)]
    for each in (*admin.create_acls(rules).values(), *admin.create_topics([NewTopic("orders", 2)]).values()):
        each.result(WAIT_S)
    producer = Producer(connection(server, "root"))
    for number in range(10):
        producer.produce("orders", str(number), partition=number % 2)
    assert producer.flush(WAIT_S) == 0
    yield server
    server.kill()


def rules_of(user: str) -> list[AclBinding]:
    """What Strimzi's operator would make of the user's object."""
    given = of_kind(of_example("strimzi", *VALUES[user]), "KafkaUser")["spec"]["authorization"]["acls"]
    return [
        AclBinding(
            ResourceType[TYPES[str(each["resource"]["type"])]],
            each["resource"].get("name", "kafka-cluster"),
            ResourcePatternType["PREFIXED" if each["resource"].get("patternType") == "prefix" else "LITERAL"],
            f"User:{user}",
            "*",
            AclOperation[re.sub("(?<=[a-z])(?=[A-Z])", "_", str(operation)).upper()],
            AclPermissionType.ALLOW,
        )
        for each in given
        for operation in each["operations"]
    ]


def login(user: str) -> dict[str, str]:
    return {
        "security.protocol": PROTOCOLS[SASL],
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": "secret",
    }


def address(server: KafkaServer) -> str:
    return f"{HOST}:{server.listener_port(SASL)}"


def connection(server: KafkaServer, user: str) -> dict[str, Any]:
    return {"bootstrap.servers": address(server), **login(user)}


async def test_brokers_open_write_and_trim_all_their_topics(kafka: KafkaServer):
    specs = topics_of(Settings(partitions=2))
    log = KafkaLog(address(kafka), topic_prefix="shop.", development=True, client_settings=login("none"))
    await log.start(WAIT_S)
    try:
        for spec in specs:
            await log.open_topic(spec)
            await log.append(spec.name, 0, [Payload(b"a" if spec.compacted else None, b"b")])
        writer = await log.exclusive("writer")
        await writer.commit("bundle-state", 0, [Payload(None, b"c")])
        await log.trim("bundle-state", 0, 1)
        assert (await log.begins("bundle-state"))[0] == 1
    finally:
        await log.close()
    findings = await audit_kafka(
        address(kafka), specs, topic_prefix="shop.", development=True, client_settings=login("none")
    )
    assert not [each for each in findings if each.severity is Severity.ERROR or "may not" in each.found]


@pytest.mark.parametrize("user", ["all", "some"])
async def test_brokers_act_for_the_groups_that_they_coordinate(kafka: KafkaServer, user: str):
    log = KafkaLog(address(kafka), topic_prefix=f"shop.{user}.", development=True, client_settings=login(user))
    await log.start(WAIT_S)
    await GroupStore(log).start()
    await log.close()
    group = f"billing-{user}"
    commits, groups = GroupCommits(address(kafka), login(user)), KafkaGroups(address(kafka), login(user))
    await commits.commit(group, {("orders", 0): 3, ("orders", 1): 1}, {})
    assert await commits.committed(group, [("orders", 0), ("orders", 1)]) == {
        ("orders", 0): (3, None),
        ("orders", 1): (1, None),
    }
    assert await commits.retention_s()
    assert await groups.queues(["orders"]) == {"orders": 2}
    assert await groups.ends({"orders": [0, 1]}) == {"orders": {0: 5, 1: 5}}
    assert (await groups.stored_ms([("orders", 0, 3)]))["orders", 0]
    found = await groups.committed(group)
    assert found is not None
    assert found[0] == {"orders": {0: 3, 1: 1}}
    assert await groups.since({"orders": [0]}, 0) == {"orders": {0: 0}}
    assert group in await groups.groups()


@pytest.mark.parametrize(("user", "group"), [("some", "other"), ("none", "billing-1")])
async def test_brokers_act_for_no_other_groups(kafka: KafkaServer, user: str, group: str):
    with pytest.raises(LogError, match="Allow this user Read on the group"):
        await GroupCommits(address(kafka), login(user)).commit(group, {("orders", 0): 3}, {})
